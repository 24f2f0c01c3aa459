"""Batches of a model's inputs: images decoded by threads or worker processes, and texts sorted by length."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from types import MappingProxyType
from typing import Generic, NamedTuple, TypeAlias, TypeVar, cast

import torch
from PIL import Image
from torch import Tensor

from hydractl.data.datasets import Dataset, ImageSet, Reading, TextSet, of_kind
from hydractl.data.preprocess import (
    EvalTransform,
    Normalised,
    PerItem,
    TrainTransform,
    eval_transform,
    pixels,
    sample_seed,
    train_transform,
)
from hydractl.data.tokenize import Tokens, require_tokenizer
from hydractl.data.words import tokens_of
from hydractl.data.worker_pool import cores, unshared
from hydractl.errors import DataError, UnreadableError, UsageError
from hydractl.manifest.header import Tokenization
from hydractl.messages import counted
from hydractl.model_inputs import Inputs

Transform: TypeAlias = "Callable[[Image.Image], Tensor] | PerItem"
CACHE_BYTES = 512 * 2**20
BATCHES = 16
"""Number of batches of texts that are sorted by length together, so that batches need less padding."""
_AHEAD = 2
"""Number of batches that are decoded while one is in use."""
_PART = 16
"""Maximum number of items that a thread or process reads at a time."""


T_co = TypeVar("T_co", covariant=True)


class Batch(NamedTuple, Generic[T_co]):
    """Some items of a data set.

    Attributes:
        inputs: Images (B, C, H, W), float32, or what a text model takes by name, each (B, T), int64.
        indices: Shape (B,), int64, positions in the data set.
        bad: Of a lenient set, why images cannot be read, by their positions; their inputs are black.
    """

    inputs: T_co
    indices: Tensor
    bad: Mapping[int, str] = MappingProxyType({})


class BatchShare(NamedTuple):
    """Which batches are dealt to one of several processes: numbers `rank`, `which + of`, `which + 2 of`, ...

    With `as_given` texts stay in the order that they are given in, too, though more is padded then; else they are sorted by length,
    among all or among so many batches that follow each other. Without `ahead` images are decoded when their batch is asked for, and
    none while it is in use: where the model computes on all cores, each would have it wait for one of them.
    """

    rank: int = 0
    of: int = 1
    as_given: bool = False
    ahead: bool = True
    among: int | None = None

    def positions(self, count: int, batch_size: int) -> list[int]:
        """Return where the items of one's own batches stand among `count` that lie in the order of the batches."""
        starts = range(self.rank * batch_size, count, self.of * batch_size)
        return [i for start in starts for i in range(start, min(start + batch_size, count))]


EVERY_BATCH = BatchShare()


def batches(
    dataset: ImageSet, transform: Transform, *, batch_size: int, indices: Sequence[int] | Tensor | None = None
) -> Iterator[Batch[Tensor]]:
    """Yield the items in the order of `indices`, the last batch as small as need be.

    Images are decoded and transformed by threads that run ahead, or by the set's crew: the same, whoever does it.

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
    transform: Transform,
    *,
    batch_size: int,
    indices: Sequence[int] | Tensor | None = None,
    limit_bytes: int = CACHE_BYTES,
    ahead: bool = True,
) -> Iterable[Batch[Tensor]]:
    """Return batches that can be gone over again and again: held in memory if they fit, else decoded anew.

    Args:
        dataset: Where the images come from.
        transform: Must give the same tensor for the same image each time.
        batch_size: At least 1.
        indices: As for `batches`.
        limit_bytes: How much memory the inputs may take; 0 decodes anew without a look.
        ahead: As in `BatchShare`.

    Raises:
        DataError: If an image is missing or corrupt.
        ValueError: If `batch_size` or an index is out of range.
    """
    order = checked_order(len(dataset), batch_size, indices)
    if not order:
        return ()
    lazy_batches = _Batches(dataset, transform, batch_size, order, ahead)
    if limit_bytes and _read(dataset, transform, order[:1], order[:1])[0].nbytes * len(order) <= limit_bytes:
        return tuple(lazy_batches)
    return lazy_batches


def epoch_order(count: int, *, seed: int, epoch: int) -> Tensor:
    """Return a permutation of 0..count-1, int64, that depends on (count, seed, epoch) alone."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(sample_seed(seed, epoch)))


@dataclass(frozen=True, slots=True)
class _Batches:
    """Batches that are decoded anew on each pass."""

    dataset: ImageSet
    transform: Transform
    batch_size: int
    order: Sequence[int]
    ahead: bool = True

    def __iter__(self) -> Iterator[Batch[Tensor]]:
        crew = self.dataset.crew
        workers = crew.workers if crew else cores()
        size = min(_PART, max(1, self.batch_size // (2 * workers)))
        cut = (part for batch in _cut(self.order, self.batch_size) for part in _cut(batch, size))
        batch = -(-self.batch_size // size)
        window = max(_AHEAD * batch, 2 * workers) if self.ahead else max(batch, workers)
        transform, finish = _parted(self.transform) if crew else (self.transform, None)
        parts = _parts(self.dataset, transform, cut, window, ahead=self.ahead)
        for chosen in _cut(self.order, self.batch_size):
            batch_parts = list(islice(parts, -(-len(chosen) // size)))
            yield Batch(
                inputs=_joined([inputs for inputs, _ in batch_parts], len(chosen), finish),
                indices=torch.tensor(chosen),
                bad={index: why for _, bad in batch_parts for index, why in bad.items()},
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


DecodedPart: TypeAlias = tuple[Tensor, dict[int, str]]
"""Inputs (P, C, H, W) of some items, and the reasons why images cannot be read, by their positions in the data set."""


def _read(
    dataset: ImageSet,
    transform: Transform,
    indices: Sequence[int],
    numbers: Sequence[int],
    *,
    stack: Callable[[list[Tensor]], Tensor] = torch.stack,
) -> DecodedPart:
    """Return the images at `indices`, transformed as those with such `numbers` are.

    Raises:
        UnreadableError: If one is missing or corrupt, or the transform refuses it, and the set is not lenient; the message names
            it.
    """
    inputs, bad = list[Tensor](), dict[int, str]()
    if dataset.fast and isinstance(transform, EvalTransform):
        transform = replace(transform, steps=transform.quick)
    least = transform.least if dataset.fast and isinstance(transform, EvalTransform | PerItem) else None
    for index, number in zip(indices, numbers, strict=True):
        where = ""
        try:
            image = dataset.image(index, least=least)
            where = f"{dataset.name}: {dataset.key(index)}: "
            inputs.append(_transformed(transform, image, number))
        except DataError as error:
            if not dataset.lenient:
                raise UnreadableError(f"{where}{error.message}", hint=error.hint) from error
            bad[number] = error.message
            inputs.append(_transformed(transform, Image.new("L", (8, 8)), number))
    return stack(inputs), bad


def _transformed(transform: Transform, image: Image.Image, number: int) -> Tensor:
    return transform(image, number) if isinstance(transform, PerItem) else transform(image)


def _read_apart(transform: bytes, images: ImageSet, numbers: Sequence[int]) -> DecodedPart:
    """Do so in a worker process, of which all cores have one."""
    torch.set_num_threads(1)
    return _read(images, _unpickled(transform), range(len(images)), numbers, stack=_shared)


def _shared(inputs: list[Tensor]) -> Tensor:
    """Stack tensors in memory that is shared, as torch's own loader does: else all would be copied once more on the way.

    Raises:
        InputError: If there is no such memory.
    """
    first = inputs[0]
    try:
        storage = torch.UntypedStorage._new_shared(first.nbytes * len(inputs))  # it has no public name
    except RuntimeError as error:
        raise unshared(error) from error
    stacked = torch.empty(0, dtype=first.dtype).set_(storage, 0, (len(inputs), *first.shape))  # type: ignore[call-overload]
    return torch.stack(inputs, out=stacked)


@lru_cache(maxsize=8)
def _unpickled(transform: bytes) -> Transform:
    return cast("Transform", pickle.loads(transform))  # noqa: S301 - this program has pickled the transform itself


def _parts(
    dataset: ImageSet, transform: Transform, cut: Iterator[Sequence[int]], window: int, *, ahead: bool
) -> Iterator[DecodedPart]:
    """Yield one part of the items after the other while up to `window` more are under way: `ahead`, or all begun together."""
    with _reading(dataset, transform) as begin:
        running = deque(map(begin, islice(cut, window)))
        try:
            while running:
                part = running.popleft()
                if ahead:
                    running.extend(map(begin, islice(cut, 1)))
                yield part.result() if dataset.crew is None else dataset.crew.result(part)
                if not running:
                    running.extend(map(begin, islice(cut, window)))
        finally:
            for part in running:  # of a consumer that stops early nobody will see them
                part.cancel()


@contextmanager
def _reading(
    dataset: ImageSet, transform: Transform
) -> Iterator[Callable[[Sequence[int]], Future[DecodedPart]]]:
    """Give what begins to read some items, by their places: in threads, or with a crew in its processes."""
    crew = dataset.crew
    if crew is not None:
        sent = pickle.dumps(transform)
        yield lambda positions: crew.submit(_read_apart, sent, dataset.sent(positions), positions)
        return
    pool = ThreadPoolExecutor(cores(), thread_name_prefix="decode")
    try:
        yield lambda positions: pool.submit(_read, dataset, transform, positions, positions)
    finally:
        # nor may Ctrl-C come while one waits here, where an exception cannot leave what the garbage collector closes
        pool.shutdown(wait=False, cancel_futures=True)


def _cut(order: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    return (order[start : start + size] for start in range(0, len(order), size))


def _parted(transform: Transform) -> tuple[Transform, Normalised | None]:
    """Return a transform to whole numbers, of which a quarter of the bytes is handed over, and what makes inputs of them."""
    if isinstance(transform, EvalTransform | TrainTransform) and isinstance(transform.finish, Normalised):
        return replace(transform, finish=pixels), transform.finish
    return transform, None


def _joined(parts: Sequence[Tensor], count: int, finish: Normalised | None) -> Tensor:
    """Return the inputs of parts as one tensor, in pinned memory if a GPU is in use."""
    joined = torch.empty(
        (count, *parts[0].shape[1:]),
        dtype=parts[0].dtype if finish is None else torch.float32,
        pin_memory=torch.cuda.is_initialized(),
    )
    if finish is None:
        return torch.cat([*parts], out=joined)
    for part, out in zip(parts, joined.split([*map(len, parts)]), strict=True):
        finish.into(part, out)
    return joined


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenBatches:
    """Batches of texts that can be gone over again and again, by default of about one length each, the longest first.

    Attributes:
        tokens: The whole data set's.
        order: Positions in the order of the batches.
        batch_size: At least 1.
    """

    tokens: Tokens
    order: Tensor
    batch_size: int

    @classmethod
    def of(
        cls,
        tokens: Tokens,
        *,
        indices: Sequence[int],
        batch_size: int,
        among: int | None = None,
    ) -> TokenBatches:
        """Sort positions by length, among all or among so many that follow each other.

        Of equal lengths the order given stays, so the batches hang on nothing else.
        """
        order = torch.tensor(indices, dtype=torch.int64)
        parts = order.split(max(1, len(order) if among is None else among))
        order = torch.cat(
            [part[tokens.lengths[part].argsort(descending=True, stable=True)] for part in parts]
        )
        return cls(tokens=tokens, order=order, batch_size=batch_size)

    def __iter__(self) -> Iterator[Batch[Mapping[str, Tensor]]]:
        for chosen in self.order.split(self.batch_size) if len(self.order) else ():
            yield Batch(inputs=self.tokens.batch(chosen), indices=chosen)


def check_reads(how: Reading, *, model: str) -> None:
    """Refuse a model that can read no data, before any are opened.

    Args:
        how: Of the model.
        model: What messages call it.

    Raises:
        CheckpointError: If it reads texts and has no tokenizer.
    """
    if isinstance(how, Tokenization):
        require_tokenizer(how, model=model)


def limited(how: Reading, max_length: int | None, *, model: str) -> Reading:
    """Return how a model reads texts of `max_length` tokens at most; None leaves it as it is.

    Raises:
        UsageError: If the model reads images, or not so many tokens.
    """
    if max_length is None:
        return how
    if not isinstance(how, Tokenization):
        raise UsageError(f"`--max-length` is for texts, but {model} reads images", hint="leave it out")
    if how.padding == "max_length" and max_length != how.max_length:
        raise UsageError(
            f"`--max-length {max_length}`: {model} reads only texts of {counted(how.max_length, 'token')}"
        )
    if not 1 <= max_length <= how.max_length:
        raise UsageError(
            f"`--max-length {max_length}`: {model} reads at least 1 and at most {counted(how.max_length, 'token')}",
            hint=f"add `--max-length {how.max_length}`, or leave it out",
        )
    return how.model_copy(update={"max_length": max_length})


def shortened(how: Reading, max_length: int | None) -> Reading:
    """Return how a model reads, texts of no more than `max_length` tokens; one that reads fewer or all alike stays as it is."""
    if max_length is None or not isinstance(how, Tokenization) or how.padding == "max_length":
        return how
    return how.model_copy(update={"max_length": min(how.max_length, max_length)})


def encoded(
    dataset: Dataset,
    how: Reading,
    *,
    batch_size: int,
    indices: Sequence[int] | Tensor | None = None,
    limit_bytes: int = CACHE_BYTES,
    deal: BatchShare = EVERY_BATCH,
) -> Iterable[Batch[Inputs]]:
    """Return evaluation batches that can be gone over again and again, in an order that is the same each time.

    Images come in the order of `indices`, held in memory if they fit. Texts are held as tokens, and come sorted by length so
    that little is padded, unless `deal` says otherwise: `Batch.indices` says which items a batch holds.

    Args:
        dataset: The data.
        how: Of the model.
        batch_size: At least 1.
        indices: Positions in the data, any order, repeats allowed; None for all of them once.
        limit_bytes: How much memory decoded images may take.
        deal: Which of the batches; no other images are decoded, and what a batch holds hangs not on it.

    Raises:
        DataError: If an item cannot be read.
        CheckpointError: If the model's tokenizer is missing or unfit.
        ValueError: If `batch_size` or an index is out of range.
    """
    if isinstance(how, Tokenization):
        texts = of_kind(dataset, TextSet)
        order = checked_order(len(texts), batch_size, indices)
        among = None if deal.among is None else deal.among * batch_size
        token_batches = TokenBatches.of(
            tokens_of(texts, how),
            indices=order,
            batch_size=batch_size,
            among=1 if deal.as_given else among,
        )
        return replace(token_batches, order=token_batches.order[deal.positions(len(order), batch_size)])
    images = of_kind(dataset, ImageSet)
    order = checked_order(len(images), batch_size, indices)
    return tensor_cache(
        images,
        eval_transform(how) if images.changed is None else images.changed(eval_transform(how)),
        batch_size=batch_size,
        indices=[order[i] for i in deal.positions(len(order), batch_size)],
        limit_bytes=limit_bytes,
        ahead=deal.ahead,
    )


def check_augment(how: Reading, augment: tuple[str, ...]) -> None:
    """Refuse augmentations that are not known, or not for what the model reads.

    Raises:
        UsageError: If there is one.
    """
    if not isinstance(how, Tokenization):
        train_transform(how, augment)
    elif augment:
        raise UsageError(
            f"`--augment {','.join(augment)}` is for images, but the model reads texts",
            hint="leave it out, or add `--augment none`",
        )
