"""Weights that are numbers: what the stages ask for before they make anything of a model, and keep when they store it.

Other weights leave behind what was found for the old ones, which is warned of.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

import torch

from hydractl import progress
from hydractl.checkpoint import Checkpoint, TensorSpec
from hydractl.errors import CheckFailed, CheckpointError
from hydractl.families.open_model import OpenModel
from hydractl.manifest.terms import Temperature
from hydractl.messages import counted, quoted


def check_finite(tensors: Mapping[str, torch.Tensor], *, where: str, dtype: str | None = None) -> None:
    """Refuse weights that are not numbers: whatever is made of them answers with none.

    Args:
        tensors: By name.
        where: What the message calls the model.
        dtype: What `--dtype` made of them: it may be too small for one.

    Raises:
        CheckpointError: Naming the first tensor.
    """
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not (finite := _finite(tensor)).all():
            count = finite.numel() - int(finite.sum())
            raise CheckpointError(
                f"{where}: tensor `{name}` holds {counted(count, 'number')} of {finite.numel()} that "
                f"{'is' if count == 1 else 'are'} not finite",
                hint=NOT_FINITE if dtype else "the training may have diverged; use an earlier checkpoint",
            )


def _finite(tensor: torch.Tensor) -> torch.Tensor:
    """Return which numbers are finite; older releases of torch cannot tell of 8 bits."""
    return (tensor.half() if tensor.element_size() == 1 else tensor).isfinite()


def check_weights(opened: OpenModel, names: Iterable[str] | None = None) -> None:
    """Refuse a model's weights that are not numbers; memory holds one tensor at a time.

    Args:
        opened: The model.
        names: The tensors to check, all by default.

    Raises:
        CheckpointError: Naming the first tensor.
    """
    stored = opened.checkpoint
    for name in stored.specs if names is None else names:
        if stored.specs[name].is_floating:
            check_finite({name: stored.tensor(name)}, where=opened.reference)


def as_stored(name: str, tensor: torch.Tensor, spec: TensorSpec, *, hint: str) -> torch.Tensor:
    """Return a tensor in the dtype of `spec`, its shape as it is.

    Args:
        name: What the message calls it.
        tensor: In any dtype.
        spec: What is stored.
        hint: What to type if that dtype is too small.

    Raises:
        CheckFailed: If a finite number would become an infinite one.
    """
    converted = tensor.to(spec.torch_dtype)
    if converted.dtype != tensor.dtype and not _finite(converted).all():
        count = int((_finite(tensor) & ~_finite(converted)).sum())
        if count:
            raise CheckFailed(
                f"tensor `{name}` is not finite as {spec.dtype}: {counted(count, 'number')} of {converted.numel()} "
                f"{'is' if count == 1 else 'are'} too large; nothing was written",
                hint=hint,
            )
    return converted


def stored_tensors(
    checkpoint: Checkpoint, state: Mapping[str, torch.Tensor], *, trained: Container[str], hint: str
) -> dict[str, torch.Tensor]:
    """Return a trained model's tensors in the dtypes that its checkpoint stores.

    Args:
        checkpoint: Of the model as training began.
        state: The model's tensors by the library's names.
        trained: Names of those that trained.
        hint: What to type if training went wrong.

    Raises:
        CheckFailed: If a weight does not fit its dtype, or a trained one is not finite.
    """
    tensors = {}
    for name, spec in checkpoint.specs.items():
        tensors[name] = as_stored(name, state[name].detach(), spec, hint=hint)
        if name in trained and not _finite(tensors[name]).all():
            raise CheckFailed(f"tensor `{name}` is not finite after training; nothing was written", hint=hint)
    return tensors


def warn_temperature(opened: OpenModel) -> None:
    """Say what is left behind with the weights that it was found for: a temperature, and what `warn_refusing` says."""
    warn_refusing([opened])
    if opened.header.scale != Temperature():
        progress.warn(
            f"{opened.reference}: its temperature {opened.header.scale} is not kept, "
            "because the weights have changed"
        )


def warn_refusing(models: Iterable[OpenModel]) -> None:
    """Say that thresholds, prediction sets or OOD scores of features are left behind with the weights that they were found for."""
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
"""Hint for outputs that are not finite."""
