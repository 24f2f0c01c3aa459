"""A model together with how it reads data in this run, and what it reads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hydractl.data.inputs import check_reads, limited
from hydractl.families.inputs import inputs_like
from hydractl.families.opening import OpenModel, open_model
from hydractl.scoring.job import Samples

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import torch

    from hydractl.data.batches import Batch
    from hydractl.families.inputs import Inputs


def open_reader(
    reference: str,
    *,
    arch: str | None = None,
    seed: int = 0,
    max_length: int | None = None,
    reads: bool = True,
) -> OpenModel:
    """Open a model whose header says what it reads in this run: texts of `max_length` tokens at most.

    Args:
        reference: See `hydractl.source`.
        arch: Architecture of a bare file.
        seed: Of random weights.
        max_length: No more than the model's own; None for that.
        reads: Whether it will be shown any data.

    Raises:
        CheckpointError: If it is missing or malformed, or reads texts and has no tokenizer.
        UsageError: If there are no texts to cut, or the model reads fewer tokens.
    """
    opened = open_model(reference, arch=arch, seed=seed)
    if reads:
        check_reads(opened.header.preprocess, model=reference)
    how = limited(opened.header.preprocess, max_length, model=reference)
    return replace(opened, header=opened.header.model_copy(update={"preprocess": how}))


@dataclass(frozen=True, slots=True)
class Again:
    """Batches for a method, made anew on each pass from cached ones."""

    cached: Iterable[Batch[Inputs]]
    labels: torch.Tensor | None
    like: torch.Tensor

    def __iter__(self) -> Iterator[Samples]:
        for batch in self.cached:
            labels = None if self.labels is None else self.labels[batch.indices].to(self.like.device)
            yield Samples(inputs_like(batch.inputs, self.like), labels)
