"""Checks for NaN and infinite weights, and warnings about settings invalidated by new weights."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

import torch

from hydractl import progress
from hydractl.checkpoint import Checkpoint, TensorSpec
from hydractl.errors import CheckFailed, CheckpointError
from hydractl.families.open_model import OpenModel
from hydractl.manifest.terms import Temperature
from hydractl.messages import counted, quoted


def check_finite(tensors: Mapping[str, torch.Tensor], *, place: str, dtype: str | None = None) -> None:
    """Raise if a floating-point weight is NaN or infinite, because all outputs would be NaN.

    Args:
        tensors: Tensors by name.
        place: Name of the model, for messages.
        dtype: Value of `--dtype` if the weights were cast, else None. Selects the hint: the range of the
            dtype may be too small.

    Raises:
        CheckpointError: With the name of the first NaN or infinite tensor.
    """
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and (count := count_not_finite(tensor)):
            raise CheckpointError(
                f"{place}: tensor `{name}` holds {counted(count, 'number')} of {tensor.numel()} that "
                f"{'is' if count == 1 else 'are'} not finite",
                hint=NOT_FINITE if dtype else "the training may have diverged; use an earlier checkpoint",
            )


def count_not_finite(tensor: torch.Tensor) -> int:
    """Return how many numbers of a floating-point tensor are NaN or infinite.

    `aminmax` returns NaN if a number is NaN. The function reads each number once and writes nothing. Only a
    tensor with NaN or infinity takes `isfinite`, which takes ten times as long for bf16.
    """
    # torch lacks `aminmax` for 8 bits, and older releases lack `isfinite`.
    wide = tensor.half() if tensor.element_size() == 1 else tensor
    if not tensor.numel() or torch.stack(wide.aminmax()).isfinite().all():
        return 0
    return tensor.numel() - int(wide.isfinite().sum())


def check_finite_weights(model_file: OpenModel, names: Iterable[str] | None = None) -> None:
    """Raise if a stored weight of a model is NaN or infinite. Loads tensors singly.

    Args:
        model_file: The model.
        names: Names of the tensors to check; None for all.

    Raises:
        CheckpointError: With the name of the first NaN or infinite tensor.
    """
    stored = model_file.checkpoint
    for name in stored.specs if names is None else names:
        if stored.specs[name].is_floating:
            check_finite({name: stored.tensor(name)}, place=model_file.reference)


def as_stored(name: str, tensor: torch.Tensor, spec: TensorSpec, *, hint: str) -> torch.Tensor:
    """Return a tensor in the dtype of `spec`; the shape is not changed.

    Args:
        name: Name of the tensor, for messages.
        tensor: The tensor, in any dtype.
        spec: Stored dtype and shape.
        hint: Hint for the user if the dtype is too small.

    Raises:
        CheckFailed: If the conversion turns a finite number into infinity.
    """
    converted = tensor.to(spec.torch_dtype)
    if converted.dtype != tensor.dtype and (count := count_not_finite(converted) - count_not_finite(tensor)):
        raise CheckFailed(
            f"tensor `{name}` is not finite as {spec.dtype}: {counted(count, 'number')} of {converted.numel()} "
            f"{'is' if count == 1 else 'are'} too large; nothing was written",
            hint=hint,
        )
    return converted


def stored_tensors(
    checkpoint: Checkpoint, state: Mapping[str, torch.Tensor], *, trained: Container[str], hint: str
) -> dict[str, torch.Tensor]:
    """Return the tensors of a trained model in the dtypes of the checkpoint.

    Args:
        checkpoint: Checkpoint of the model before training.
        state: Tensors of the model, by the library's names.
        trained: Names of the trained tensors.
        hint: Hint for the user if training diverged.

    Raises:
        CheckFailed: If a weight overflows in the stored dtype, or a trained weight is NaN or infinite.
    """
    tensors = {}
    for name, spec in checkpoint.specs.items():
        tensors[name] = as_stored(name, state[name].detach(), spec, hint=hint)
        if name in trained and count_not_finite(tensors[name]):
            raise CheckFailed(f"tensor `{name}` is not finite after training; nothing was written", hint=hint)
    return tensors


def warn_temperature(model_file: OpenModel) -> None:
    """Warn that new weights drop the temperature, and the settings of `warn_refusing`."""
    warn_refusing([model_file])
    if model_file.header.scale != Temperature():
        progress.warn(
            f"{model_file.reference}: its temperature {model_file.header.scale} is not kept, "
            "because the weights have changed"
        )


def warn_refusing(models: Iterable[OpenModel]) -> None:
    """Warn that new weights drop thresholds, prediction sets and OOD scores fitted for the old weights."""
    every = list(models)
    bounded = dict.fromkeys(
        m.reference for m in every if m.header.threshold and m.header.threshold.below is not None
    )
    sets = dict.fromkeys(m.reference for m in every if m.header.prediction_sets)
    fitted = {m.reference: m.header.fitted.scores for m in every if m.header.fitted is not None}
    scores = ", ".join(dict.fromkeys(name for names in fitted.values() for name in names))
    for named, singular, plural in (
        ([*bounded], "its threshold is", "their thresholds are"),
        ([*sets], "its prediction sets are", "their prediction sets are"),
        ([*fitted], f"its OOD scores ({scores}) are", f"their OOD scores ({scores}) are"),
    ):
        if named:
            models_text, subject = (
                (named[0], singular) if len(named) == 1 else (quoted(named, most=3), plural)
            )
            progress.warn(f"{models_text}: {subject} not kept, because the weights have changed")


NOT_FINITE = "use `--dtype fp32`; if that does not help, the weights are damaged"
"""Hint for outputs that are NaN or infinite."""
