"""From a data set to batches: decoded in threads, in a fixed order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor

from hydractl.data.preprocess import TrainTransform, sample_seed
from hydractl.errors import DataError

if TYPE_CHECKING:
    from PIL import Image

    from hydractl.data.items import ImageSet

Transform: TypeAlias = "Callable[[Image.Image], Tensor] | TrainTransform"
CACHE_BYTES = 512 * 2**20
_AHEAD = 2
"""How many batches are decoded while one is in use."""


T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Batch(NamedTuple, Generic[T_co]):
    """Some items of a data set.

    Attributes:
        inputs: Images (B, C, H, W), float32, or what a text model takes by name, each (B, T), int64.
        labels: Shape (B,), int64, in the data set's own classes; None if it has no labels.
        indices: Shape (B,), int64, positions in the data set.
    """

    inputs: T_co
    labels: Tensor | None
    indices: Tensor


class Deal(NamedTuple):
    """Which batches are dealt to one of several processes: numbers `which`, `which + of`, `which + 2 of`, ...

    With `as_given` texts stay in the order that they are given in, too, though more is padded then.
    """

    which: int = 0
    of: int = 1
    as_given: bool = False

    def positions(self, count: int, batch_size: int) -> list[int]:
        """Return where the items of one's own batches stand among `count` that lie in the order of the batches."""
        starts = range(self.which * batch_size, count, self.of * batch_size)
        return [i for start in starts for i in range(start, min(start + batch_size, count))]


EVERY_BATCH = Deal()


def batches(
    dataset: ImageSet, transform: Transform, *, batch_size: int, indices: Sequence[int] | Tensor | None = None
) -> Iterator[Batch[Tensor]]:
    """Yield the items in the order of `indices`, the last batch as small as need be.

    Images are decoded and transformed by threads that run ahead; the random steps of an `TrainTransform`
    run on the caller's thread, because they borrow torch's global generator.

    Args:
        dataset: Where the images come from.
        transform: From `eval_transform`, or `train_transform(...).at(seed=..., epoch=...)`.
        batch_size: At least 1.
        indices: Positions in the data set, any order, repeats allowed; None for all of them once.

    Raises:
        DataError: If an image is missing or corrupt.
        ValueError: If `batch_size` or an index is out of range.
    """
    return iter(_Batches(dataset, transform, batch_size, checked_order(len(dataset), batch_size, indices)))


def tensor_cache(
    dataset: ImageSet,
    transform: Callable[[Image.Image], Tensor],
    *,
    batch_size: int,
    indices: Sequence[int] | Tensor | None = None,
    limit_bytes: int = CACHE_BYTES,
) -> Iterable[Batch[Tensor]]:
    """Return batches that can be gone over again and again: held in memory if they fit, else decoded anew.

    Args:
        dataset: Where the images come from.
        transform: Must give the same tensor for the same image each time.
        batch_size: At least 1.
        indices: As for `batches`.
        limit_bytes: How much memory the inputs may take; 0 decodes anew without a look.

    Raises:
        DataError: If an image is missing or corrupt.
        ValueError: If `batch_size` or an index is out of range.
    """
    order = checked_order(len(dataset), batch_size, indices)
    if not order:
        return ()
    again = _Batches(dataset, transform, batch_size, order)
    if limit_bytes and _read(dataset, transform, order[0]).nbytes * len(order) <= limit_bytes:
        return tuple(again)
    return again


def epoch_order(count: int, *, seed: int, epoch: int) -> Tensor:
    """Return a permutation of 0..count-1, int64, that depends on (count, seed, epoch) alone."""
    generator = torch.Generator().manual_seed(sample_seed(seed, epoch))
    return torch.randperm(count, generator=generator)


@dataclass(frozen=True, slots=True)
class _Batches:
    """Batches that are decoded anew on each pass."""

    dataset: ImageSet
    transform: Transform
    batch_size: int
    order: Sequence[int]

    def __iter__(self) -> Iterator[Batch[Tensor]]:
        labels = self.dataset.labels
        inputs = _inputs(self.dataset, self.transform, self.order, _AHEAD * self.batch_size)
        for start in range(0, len(self.order), self.batch_size):
            chosen = self.order[start : start + self.batch_size]
            yield Batch(
                inputs=torch.stack(list(islice(inputs, len(chosen)))),
                labels=None if labels is None else torch.tensor([labels[i] for i in chosen]),
                indices=torch.tensor(chosen),
            )


def checked_order(count: int, batch_size: int, indices: Sequence[int] | Tensor | None) -> Sequence[int]:
    """Return the positions that `indices` names out of 0..count-1, all of them if it is None.

    Raises:
        ValueError: If `batch_size` or an index is out of range.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}, must be at least 1")
    if indices is None:
        return range(count)
    order: list[int] = indices.tolist() if isinstance(indices, Tensor) else list(indices)
    if order and not 0 <= min(order) <= max(order) < count:
        raise ValueError(f"an index is outside 0..{count - 1}")
    return order


def _read(dataset: ImageSet, transform: Callable[[Image.Image], T], index: int) -> T:
    """Return an image, transformed.

    Raises:
        DataError: If it is missing or corrupt, or the transform refuses it; the message names it.
    """
    image = dataset.image(index)
    try:
        return transform(image)
    except DataError as error:
        where = f"{dataset.name}: {dataset.key(index)}"
        raise DataError(f"{where}: {error.message}", hint=error.hint) from error


def _inputs(dataset: ImageSet, transform: Transform, order: Sequence[int], ahead: int) -> Iterator[Tensor]:
    """Yield one input after the other while `ahead` more are under way."""
    threaded: Callable[[Any], Any] = transform.prepare if isinstance(transform, TrainTransform) else transform
    read = partial(_read, dataset, threaded)
    pool = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="decode")
    try:
        waiting = iter(order)
        running = deque((index, pool.submit(read, index)) for index in islice(waiting, ahead))
        while running:
            index, future = running.popleft()
            running.extend((later, pool.submit(read, later)) for later in islice(waiting, 1))
            ready = future.result()
            yield transform.draw(ready, index) if isinstance(transform, TrainTransform) else ready
    finally:
        # a consumer that stops early must not wait for images that nobody will see; nor may Ctrl-C come while one waits here,
        # where an exception cannot leave what the garbage collector closes
        pool.shutdown(wait=False, cancel_futures=True)
