"""Training's inputs from a stream: rows are shuffled among some that are held, read again each epoch.

Axes: N rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from PIL import Image
from typing_extensions import override

from hydractl.data.datasets import ImageSet, ImageStore, Items, Text, TextSet
from hydractl.data.encode import Reading, check_augment, of_kind
from hydractl.data.preprocess import sample_seed
from hydractl.data.sources.stream import Shuffled
from hydractl.data.tokenize import tokenize
from hydractl.manifest.header import Tokenization
from hydractl.model_inputs import Inputs
from hydractl.training.feeding.sources import ImageSource, InputSource, Planned, TextSource

AHEAD = 4
"""Number of batches whose rows are read together, so that images are decoded while a batch is in use."""


def buffer_order(count: int, buffer: int, *, seed: int, epoch: int) -> torch.Tensor:
    """Return a permutation (N,) of 0..N-1, int64, that a stream can be read in while `buffer` rows are held.

    As `datasets.IterableDataset.shuffle` and webdataset have it: the first rows fill the buffer; then one of it is drawn, and the
    stream's next row takes its place; what is left at the end comes in a drawn order. So row i comes no earlier than at place
    i - buffer + 1. It hangs on nothing but these four.
    """
    generator = np.random.default_rng(sample_seed(seed, epoch, buffer))
    buffered = np.arange(min(count, buffer))
    order = np.empty(count, np.int64)
    for place, slot in enumerate(generator.integers(len(buffered), size=count - len(buffered))):
        order[place] = buffered[slot]
        buffered[slot] = place + len(buffered)
    order[count - len(buffered) :] = generator.permutation(buffered)
    return torch.from_numpy(order)


@dataclass(frozen=True, slots=True, eq=False)
class Window(ImageStore):
    """The images of a stream that are held, by their rows."""

    stores_by_row: dict[int, ImageStore]

    @override
    def image(self, index: int) -> Image.Image:
        return self.stores_by_row[index].image(index)

    @override
    def only(self, places: Sequence[int]) -> ImageStore:
        return Window({place: self.stores_by_row[place] for place in places})

    @override
    def item_digest(self, index: int) -> bytes:
        return self.stores_by_row[index].item_digest(index)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSource(InputSource):
    """Rows of a stream, of which those are held that are still to come; each pass reads it from the first on.

    Attributes:
        rows: The stream.
        how: How the model reads.
        augment: Names from `hydractl.data.preprocess.AUGMENTATIONS`, for images.
        seed: Of the augmentation.
    """

    rows: Shuffled
    how: Reading
    augment: tuple[str, ...]
    seed: int

    @classmethod
    def open(cls, rows: Shuffled, how: Reading, *, augment: tuple[str, ...], seed: int) -> StreamSource:
        """Check what can be checked beforehand.

        Raises:
            UsageError: If an augmentation is unknown, given twice, or not for such items.
        """
        check_augment(how, augment)
        return cls(rows=rows, how=how, augment=augment, seed=seed)

    @override
    def steps(self, plan: Sequence[Planned], *, epoch: int) -> Iterator[list[Inputs]]:
        row_mask = torch.zeros(len(self.rows), dtype=torch.bool)
        for step in plan:
            row_mask[self._read(step)] = True
        coming, buffered = self._coming(row_mask), dict[int, Items]()
        for begin in range(0, len(plan), AHEAD):
            next_steps = plan[begin : begin + AHEAD]
            rows_needed: list[int] = torch.cat([self._read(step) for step in next_steps]).unique().tolist()
            missing = {*rows_needed} - buffered.keys()
            while missing:
                index, row = next(coming)
                buffered[index] = row
                missing.discard(index)
            chosen = {index: buffered.pop(index) for index in rows_needed}
            yield from self._inputs_of_steps(chosen, next_steps, epoch)

    @override
    def reseeded(self, seed: int) -> StreamSource:
        return replace(self, seed=seed)

    def _read(self, step: Planned) -> torch.Tensor:
        """Return the rows that a step needs here: of texts all of its batch, since the longest says how long all are."""
        return step.batch if isinstance(self.how, Tokenization) else torch.cat(step.pieces)

    def _coming(self, row_mask: torch.Tensor) -> Iterator[tuple[int, Items]]:
        """Yield the rows that are wanted, one by one, in the order of the stream."""
        for first, items in self.rows.parts():
            for at in row_mask[first : first + len(items)].nonzero().flatten().tolist():
                yield (
                    first + at,
                    replace(items.sent([at]), crew=items.crew)
                    if isinstance(items, ImageSet)
                    else items.subset([at]),
                )

    def _inputs_of_steps(
        self, rows: dict[int, Items], steps: Sequence[Planned], epoch: int
    ) -> Iterator[list[Inputs]]:
        if isinstance(self.how, Tokenization):
            numbers = torch.tensor([*rows])
            texts: tuple[Text, ...] = tuple(of_kind(row, TextSet).texts[0] for row in rows.values())
            source = TextSource(tokens=tokenize(texts, self.how, where=self.rows.name))
            renumbered = [
                Planned(
                    torch.searchsorted(numbers, step.batch),
                    tuple(torch.searchsorted(numbers, piece) for piece in step.pieces),
                )
                for step in steps
            ]
            yield from source.steps(renumbered, epoch=epoch)
            return
        images = {number: of_kind(row, ImageSet) for number, row in rows.items()}
        first = next(iter(images.values()))
        dataset = replace(
            first,
            store=Window({number: row.store for number, row in images.items()}),
            places=range(len(self.rows)),
        )
        image_source = ImageSource(
            dataset=dataset, preprocessing=self.how, augment=self.augment, seed=self.seed, cached_inputs=None
        )
        yield from image_source.steps(steps, epoch=epoch)
