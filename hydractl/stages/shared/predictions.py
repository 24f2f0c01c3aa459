"""What models say about data, and how it is scaled.

Axes: M members, B batch, N samples, C classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from hydractl.data.batches import CACHE_BYTES, Batch
from hydractl.data.inputs import Reading, encoded
from hydractl.data.items import Items
from hydractl.errors import InputError
from hydractl.families.tower import Model
from hydractl.fusion.hydra import Hydra
from hydractl.inputs import Inputs, batch_of, inputs_like
from hydractl.manifest.report import Value
from hydractl.metrics.samples import Predictions
from hydractl.metrics.table import TEMPERATURE
from hydractl.metrics.temperature import HIGHEST, LOWEST, fit_temperature, scale
from hydractl.progress import SILENT, Progress, counted

Predictor = Model | Hydra


class PreparedData:
    """A data set as model inputs, made once for models that read alike if they fit into memory."""

    def __init__(
        self, dataset: Items, *, batch_size: int, limit_bytes: int = CACHE_BYTES, name: str | None = None
    ) -> None:
        """Remember what to decode; nothing is read yet.

        Args:
            dataset: The images or texts.
            batch_size: At least 1.
            limit_bytes: How much memory decoded images may take; 0 decodes anew for each model.
            name: What messages call the set; default: its own name.
        """
        self.dataset = dataset
        self.batch_size = batch_size
        self.limit_bytes = limit_bytes
        self.name = name or dataset.name
        self._held: tuple[Reading, Iterable[Batch[Inputs]]] | None = None

    def __len__(self) -> int:
        return len(self.dataset)

    def batches(self, preprocess: Reading) -> Iterable[Batch[Inputs]]:
        """Return the batches that a model with this preprocessing takes, in any order; raises as `encoded` does."""
        if self._held is None or self._held[0] != preprocess:
            self._held = None  # two sets of inputs never lie in memory together
            found = encoded(
                self.dataset, preprocess, batch_size=self.batch_size, limit_bytes=self.limit_bytes
            )
            self._held = (preprocess, found)
        return self._held[1]


def predict(
    model: Predictor, inputs: PreparedData, preprocess: Reading, *, name: str, progress: Progress = SILENT
) -> Predictions:
    """Return what each of a model's members says of a whole data set.

    Memory holds one batch beside the result (and what `inputs` holds).

    Args:
        model: In evaluation mode, on the device and in the dtype that it shall run in.
        inputs: The data.
        preprocess: From the model's header.
        name: What errors call the model.
        progress: Sees the batches pass.

    Returns:
        In float32, on the CPU: log-softmax of the logits (M, N, C) and their logsumexp (M, N), taken in float32.

    Raises:
        InputError: If a logit is not finite, or the device's memory does not suffice.
        DataError: If an item cannot be read.
        CheckpointError: If the model's tokenizer is missing or unfit.
    """
    result: tuple[Tensor, Tensor] | None = None
    done = 0
    total = -(-len(inputs) // inputs.batch_size)
    for batch in progress.track(inputs.batches(preprocess), label=f"{name} on {inputs.name}", total=total):
        found = _forward(model, batch.inputs, name=name, data=inputs.name)
        members, count, classes = found[0].shape
        if result is None:
            result = torch.empty(members, len(inputs), classes), torch.empty(members, len(inputs))
        for whole, part in zip(result, found, strict=True):
            whole[:, batch.indices] = part
        done += count
    if result is None or done != len(inputs):
        raise ValueError(f"{inputs.name}: {done} of {len(inputs)} items came")
    return Predictions(*result)


def _forward(model: Predictor, inputs: Inputs, *, name: str, data: str) -> tuple[Tensor, Tensor]:
    try:
        with torch.inference_mode():
            like = torch.empty(0, device=model.device, dtype=model.dtype)
            logits = model.member_logits(inputs_like(inputs, like))
            finite = bool(logits.isfinite().all())
            found = logits.float().log_softmax(-1).cpu(), logits.float().logsumexp(-1).cpu()
    except torch.OutOfMemoryError as error:
        raise InputError(
            f"{name}: the device has not enough memory for {batch_of(inputs)} samples at once",
            hint="choose a smaller `--batch-size`",
        ) from error
    if not finite:
        raise InputError(
            f"{name}: gives logits that are not finite on `{data}`",
            hint="try `--dtype fp32`; if that does not help, the weights are broken",
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """Which temperature a row has: what all its logits are divided by, on top of what its checkpoints store.

    Attributes:
        temperature: None leaves the predictions as they are.
        fitted_on: How many samples; None if it was given.
    """

    temperature: float | None = None
    fitted_on: int | None = None

    @classmethod
    def fit(cls, log_probs: Tensor, labels: Tensor, *, row: str, progress: Progress) -> Self:
        """Return the scaling with the lowest NLL on a held-out split, and warn if a bound of the search is it.

        Args:
            log_probs: Of every member, (M, N, C).
            labels: Shape (N,), in 0..C-1.
            row: What messages call the model.
            progress: Hears the result.
        """
        found, at_bound = fit_temperature(log_probs, labels)
        count = len(labels)
        progress.step(f"{row}: temperature {found:.4f}, fitted on {counted(count, 'sample')}")
        if at_bound:
            progress.warn(
                f"{row}: the temperature ended at {found:g}, a bound of the search ({LOWEST:g} to {HIGHEST:g}): "
                f"{counted(count, 'held-out sample')} cannot tell it, or the model is not fit for the labels"
            )
        return cls(temperature=found, fitted_on=count)

    def __call__(self, found: Predictions) -> Predictions:
        """Return what every member says once its logits are scaled, float32."""
        return found if self.temperature is None else scale(found, self.temperature)

    def values(self, stored: Sequence[float]) -> dict[str, Value]:
        """Return what a report says of it.

        Args:
            stored: The temperatures of the row's checkpoints; where they differ, only what they share is said.
        """
        own = stored[0] if len({*stored}) == 1 else 1.0
        if self.temperature is None and own == 1:
            return {}
        return {TEMPERATURE: Value(value=own * (self.temperature or 1.0), count=self.fitted_on)}
