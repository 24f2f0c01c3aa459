"""Batches of model inputs: images decoded by threads or worker processes, and texts sorted by length."""

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

from hydractl.data.datasets import Dataset, ImageSet, ItemPreprocess, TextSet, of_kind
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
from hydractl.data.worker_pool import cores, shared_memory_error
from hydractl.errors import DataError, UnreadableError, UsageError
from hydractl.manifest.header import Tokenization
from hydractl.messages import counted
from hydractl.model_inputs import Inputs

Transform: TypeAlias = "Callable[[Image.Image], Tensor] | PerItem"
CACHE_BYTES = 512 * 2**20
"""Maximum size of image inputs that are kept in memory between passes: about 890 images of 224 x 224 pixels.
Chosen by hand; doubling it doubles this memory and avoids repeated decoding of larger data."""
SORTED_BATCHES = 16
"""Number of batches of texts that are sorted by length together, to reduce padding. Chosen by hand; doubling
it saves a little more padding, but results appear later in `predict`."""
_PREFETCHED_BATCHES = 2
"""Number of batches that are decoded in advance. Chosen by hand; doubling it doubles the memory of decoded
batches."""
_PART = 16
"""Maximum number of items that a thread or process reads per task. Chosen by hand; doubling it halves the
number of tasks, but distributes large batches less evenly."""


T_co = TypeVar("T_co", covariant=True)


class Batch(NamedTuple, Generic[T_co]):
    """Some items of a data set.

    Attributes:
        inputs: Images of shape (B, C, H, W), float32, or inputs of a text model by name, each of shape (B,
            T), int64.
        indices: Shape (B,), int64, positions in the data set.
        bad: Reasons why images are unreadable, by position, if the data set is lenient. Their inputs are
            black images.
    """

    inputs: T_co
    indices: Tensor
    bad: Mapping[int, str] = MappingProxyType({})


class BatchShare(NamedTuple):
    """Batches of one of several processes: batch numbers `rank`, `rank + of`, `rank + 2 * of`, ...

    Attributes:
        rank: Number of this process.
        of: Number of processes.
        as_given: Whether texts keep their order, with more padding. False sorts texts by length.
        ahead: Whether to decode images in advance. False decodes a batch only when it is requested, for a
            model that computes on all cores: decoding threads would delay the model.
        among: Number of consecutive batches whose texts are sorted together. None sorts all texts.
    """

    rank: int = 0
    of: int = 1
    as_given: bool = False
    ahead: bool = True
    among: int | None = None

    def positions(self, count: int, batch_size: int) -> list[int]:
        """Return the positions of this process's items in the order of the batches.

        Args:
            count: Number of items of all processes.
            batch_size: Number of items per batch.
        """
        starts = range(self.rank * batch_size, count, self.of * batch_size)
        return [i for start in starts for i in range(start, min(start + batch_size, count))]


ALL_BATCHES = BatchShare()


def batches(
    dataset: ImageSet, transform: Transform, *, batch_size: int, indices: Sequence[int] | Tensor | None = None
) -> Iterator[Batch[Tensor]]:
    """Yield the images in the order of `indices`. The last batch may be smaller.

    Threads, or the worker processes of the data set, decode and transform images in advance. The result does
    not depend on their number.

    Args:
        dataset: The images.
        transform: Result of `eval_transform`, or of `train_transform(...).at(seed=..., epoch=...)`.
        batch_size: At least 1.
        indices: Positions in the data set, in any order, with or without repetitions. None for all positions
            in order.

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
    """Return batches for repeated passes.

    Inputs are kept in memory if they fit, otherwise decoded in each pass.

    Args:
        dataset: The images.
        transform: Deterministic transform.
        batch_size: At least 1.
        indices: See `batches`.
        limit_bytes: Maximum size of the inputs in memory. 0 always decodes.
        ahead: See `BatchShare`.

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
    """Return a random permutation of 0..count-1, int64, determined by (count, seed, epoch)."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(sample_seed(seed, epoch)))


@dataclass(frozen=True, slots=True)
class _Batches:
    """Batches that are decoded in each pass."""

    dataset: ImageSet
    transform: Transform
    batch_size: int
    order: Sequence[int]
    ahead: bool = True

    def __iter__(self) -> Iterator[Batch[Tensor]]:
        crew = self.dataset.workers
        workers = crew.workers if crew else cores()
        size = min(_PART, max(1, self.batch_size // (2 * workers)))
        cut = (part for batch in _cut(self.order, self.batch_size) for part in _cut(batch, size))
        batch = -(-self.batch_size // size)
        window = max(_PREFETCHED_BATCHES * batch, 2 * workers) if self.ahead else max(batch, workers)
        transform, finish = _split_transform(self.transform) if crew else (self.transform, None)
        parts = _parts(self.dataset, transform, cut, window, ahead=self.ahead)
        for chosen in _cut(self.order, self.batch_size):
            batch_parts = list(islice(parts, -(-len(chosen) // size)))
            yield Batch(
                inputs=_join_parts([inputs for inputs, _ in batch_parts], len(chosen), finish),
                indices=torch.tensor(chosen),
                bad={index: why for _, bad in batch_parts for index, why in bad.items()},
            )


def checked_order(count: int, batch_size: int, indices: Sequence[int] | Tensor | None) -> Sequence[int]:
    """Return the positions in `indices`, or all of 0..count-1 if `indices` is None.

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
"""Inputs (P, C, H, W) of some items, and the reasons why images are unreadable, by position in the data
set."""


def _read(
    dataset: ImageSet,
    transform: Transform,
    indices: Sequence[int],
    numbers: Sequence[int],
    *,
    stack: Callable[[list[Tensor]], Tensor] = torch.stack,
) -> DecodedPart:
    """Decode and transform the images at `indices`.

    Args:
        dataset: The images.
        transform: The transform.
        indices: Positions in `dataset`.
        numbers: Positions in the whole data set, for random transforms and error messages.
        stack: Function that joins the inputs.

    Raises:
        UnreadableError: If an image is missing, corrupt or refused by the transform, and the set is not
            lenient.
    """
    inputs, bad = list[Tensor](), dict[int, str]()
    if dataset.fast and isinstance(transform, EvalTransform):
        transform = replace(transform, steps=transform.quick)
    least = transform.least if dataset.fast and isinstance(transform, EvalTransform | PerItem) else None
    for index, number in zip(indices, numbers, strict=True):
        place = ""
        try:
            image = dataset.image(index, least=least)
            place = f"{dataset.name}: {dataset.key(index)}: "
            inputs.append(_transformed(transform, image, number))
        except DataError as error:
            if not dataset.lenient:
                raise UnreadableError(f"{place}{error.message}", hint=error.hint) from error
            bad[number] = error.message
            inputs.append(_transformed(transform, Image.new("L", (8, 8)), number))
    return stack(inputs), bad


def _transformed(transform: Transform, image: Image.Image, number: int) -> Tensor:
    return transform(image, number) if isinstance(transform, PerItem) else transform(image)


def _read_in_worker(transform: bytes, images: ImageSet, numbers: Sequence[int]) -> DecodedPart:
    """Run `_read` in a worker process with one thread per process, because there is a process for each core."""
    torch.set_num_threads(1)
    return _read(images, _unpickled(transform), range(len(images)), numbers, stack=_stack_shared)


def _stack_shared(inputs: list[Tensor]) -> Tensor:
    """Stack tensors in shared memory, like torch's own loader, to avoid a copy between processes.

    Raises:
        InputError: If no shared memory is available.
    """
    first = inputs[0]
    try:
        # `_new_shared` has no public equivalent
        storage = torch.UntypedStorage._new_shared(first.nbytes * len(inputs))
    except RuntimeError as error:
        raise shared_memory_error(error) from error
    stacked = torch.empty(0, dtype=first.dtype).set_(storage, 0, (len(inputs), *first.shape))  # type: ignore[call-overload]
    return torch.stack(inputs, out=stacked)


# every task carries the pickled transform, and each worker process unpickles it once
@lru_cache(maxsize=8)
def _unpickled(transform: bytes) -> Transform:
    return cast("Transform", pickle.loads(transform))  # noqa: S301 - this program has pickled the transform itself


def _parts(
    dataset: ImageSet, transform: Transform, cut: Iterator[Sequence[int]], window: int, *, ahead: bool
) -> Iterator[DecodedPart]:
    """Yield the decoded parts in order.

    Args:
        dataset: The images.
        transform: The transform.
        cut: Positions of each part.
        window: Maximum number of parts in progress.
        ahead: Whether to start a new part for each part that is yielded. False starts `window` parts at once,
            and the next ones when all of them are yielded.
    """
    with _reading(dataset, transform) as begin:
        running = deque(map(begin, islice(cut, window)))
        try:
            while running:
                part = running.popleft()
                if ahead:
                    running.extend(map(begin, islice(cut, 1)))
                yield part.result() if dataset.workers is None else dataset.workers.result(part)
                if not running:
                    running.extend(map(begin, islice(cut, window)))
        finally:
            for part in running:  # if the consumer stops early, nobody reads the remaining parts
                part.cancel()


@contextmanager
def _reading(
    dataset: ImageSet, transform: Transform
) -> Iterator[Callable[[Sequence[int]], Future[DecodedPart]]]:
    """Yield a function that starts to read some items, in threads or in the worker processes of the data set."""
    crew = dataset.workers
    if crew is not None:
        sent = pickle.dumps(transform)
        yield lambda positions: crew.submit(_read_in_worker, sent, dataset.sent(positions), positions)
        return
    pool = ThreadPoolExecutor(cores(), thread_name_prefix="decode")
    try:
        yield lambda positions: pool.submit(_read, dataset, transform, positions, positions)
    finally:
        # Do not wait for the threads: Ctrl-C during a wait in the garbage collector could not raise an
        # exception.
        pool.shutdown(wait=False, cancel_futures=True)


def _cut(order: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    return (order[start : start + size] for start in range(0, len(order), size))


def _split_transform(transform: Transform) -> tuple[Transform, Normalised | None]:
    """Split a transform into one that returns uint8 pixels, and the normalization of these pixels.

    Worker processes send pixels, because normalized inputs have four times as many bytes. The normalization
    is None if the transform cannot be split.
    """
    if isinstance(transform, EvalTransform | TrainTransform) and isinstance(transform.finish, Normalised):
        return replace(transform, finish=pixels), transform.finish
    return transform, None


def _join_parts(parts: Sequence[Tensor], count: int, finish: Normalised | None) -> Tensor:
    """Concatenate the parts of a batch, and normalize them if `finish` is given.

    Args:
        parts: Inputs of consecutive items, (b, C, H, W) each.
        count: B, the number of items of all parts.
        finish: Normalization of uint8 pixels, or None for inputs that need no normalization.

    Returns:
        Shape (B, C, H, W), float32 or the dtype of the parts without `finish`; in pinned memory if CUDA is in
        use.
    """
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
    """Batches of texts for repeated passes.

    By default, longer texts come first and a batch has texts of similar length.

    Attributes:
        tokens: Tokens of the whole data set.
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
        """Sort positions by length. Equal lengths keep their order, so batches are deterministic.

        Args:
            tokens: Tokens of the whole data set.
            indices: Positions of the texts.
            batch_size: At least 1.
            among: Number of consecutive texts that are sorted together. None sorts all texts.
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


def check_readable_by(preprocess: ItemPreprocess, *, model: str) -> None:
    """Check that a model can read data, before data are opened.

    Args:
        preprocess: Preprocessing or tokenization of the model.
        model: Name of the model in messages.

    Raises:
        CheckpointError: If a text model has no tokenizer.
        UnsupportedModelError: If a package for the tokenizer is not installed.
    """
    if isinstance(preprocess, Tokenization):
        require_tokenizer(preprocess, model=model)


def with_max_length(preprocess: ItemPreprocess, max_length: int | None, *, model: str) -> ItemPreprocess:
    """Return a tokenization with `max_length` reduced to a user's value. None changes nothing.

    Args:
        preprocess: Preprocessing or tokenization of the model.
        max_length: Value of `--max-length`.
        model: Name of the model in messages.

    Raises:
        UsageError: If the model reads images, or cannot read texts of this length.
    """
    if max_length is None:
        return preprocess
    if not isinstance(preprocess, Tokenization):
        raise UsageError(f"`--max-length` is for texts, but {model} reads images", hint="leave it out")
    if preprocess.padding == "max_length" and max_length != preprocess.max_length:
        raise UsageError(
            f"`--max-length {max_length}`: {model} reads only texts of {counted(preprocess.max_length, 'token')}"
        )
    if not 1 <= max_length <= preprocess.max_length:
        raise UsageError(
            f"`--max-length {max_length}`: {model} reads at least 1 and at most {counted(preprocess.max_length, 'token')}",
            hint=f"add `--max-length {preprocess.max_length}`, or leave it out",
        )
    return preprocess.model_copy(update={"max_length": max_length})


def with_shorter_texts(preprocess: ItemPreprocess, max_length: int | None) -> ItemPreprocess:
    """Return a tokenization of at most `max_length` tokens, if the model accepts shorter texts.

    Images, and models with padding to a fixed length, are returned unchanged.
    """
    if max_length is None or not isinstance(preprocess, Tokenization) or preprocess.padding == "max_length":
        return preprocess
    return preprocess.model_copy(update={"max_length": min(preprocess.max_length, max_length)})


def eval_batches(
    dataset: Dataset,
    preprocess: ItemPreprocess,
    *,
    batch_size: int,
    indices: Sequence[int] | Tensor | None = None,
    limit_bytes: int = CACHE_BYTES,
    batch_share: BatchShare = ALL_BATCHES,
) -> Iterable[Batch[Inputs]]:
    """Return evaluation batches for repeated passes, in the same order each time.

    Images are in the order of `indices`, and kept in memory if they fit. Texts are kept as tokens and sorted
    by length, unless `batch_share` keeps their order. `Batch.indices` contains the positions.

    Args:
        dataset: The data.
        preprocess: Preprocessing or tokenization of the model.
        batch_size: At least 1.
        indices: Positions in the data, in any order, with or without repetitions. None for all positions.
        limit_bytes: Maximum size of decoded images in memory.
        batch_share: Batches of this process. Only their images are decoded. The content of a batch does not
            depend on the number of processes.

    Raises:
        DataError: If the items have the other type, or an item cannot be read.
        CheckpointError: If the model's tokenizer is missing or does not match the model.
        UsageError: If `max_length` of the model allows only special tokens.
        ValueError: If `batch_size` or an index is out of range.
    """
    if isinstance(preprocess, Tokenization):
        texts = of_kind(dataset, TextSet)
        order = checked_order(len(texts), batch_size, indices)
        among = None if batch_share.among is None else batch_share.among * batch_size
        token_batches = TokenBatches.of(
            tokens_of(texts, preprocess),
            indices=order,
            batch_size=batch_size,
            among=1 if batch_share.as_given else among,
        )
        return replace(
            token_batches, order=token_batches.order[batch_share.positions(len(order), batch_size)]
        )
    images = of_kind(dataset, ImageSet)
    order = checked_order(len(images), batch_size, indices)
    return tensor_cache(
        images,
        eval_transform(preprocess) if images.changed is None else images.changed(eval_transform(preprocess)),
        batch_size=batch_size,
        indices=[order[i] for i in batch_share.positions(len(order), batch_size)],
        limit_bytes=limit_bytes,
        ahead=batch_share.ahead,
    )


def check_augment(preprocess: ItemPreprocess, augment: tuple[str, ...]) -> None:
    """Check the augmentations for the inputs of a model.

    Raises:
        UsageError: If an augmentation is unknown or repeated, or the model reads texts.
    """
    if not isinstance(preprocess, Tokenization):
        train_transform(preprocess, augment)
    elif augment:
        raise UsageError(
            f"`--augment {','.join(augment)}` is for images, but the model reads texts",
            hint="leave it out, or add `--augment none`",
        )
