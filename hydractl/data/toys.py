"""Built-in data without downloads: digits and photographs of scikit-learn, noise, and texts."""

from __future__ import annotations

import hashlib
import json
import lzma
import random
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from hydractl.data.datasets import ImageSet, ImageStore, TextSet
from hydractl.data.decoding import decode
from hydractl.data.reference import DataRef
from hydractl.errors import DataError, UsageError
from hydractl.messages import did_you_mean

DEFAULT_SIZE = 8
"""Default side of `photos` and `noise` in pixels, equal to the side of `digits`."""
DEFAULT_LIMIT = 400
"""Default number of `photos` and `noise` images. Chosen by hand, close to the 364 test images of `digits`;
doubling it doubles the OOD data."""
SPLITS = ("train", "val", "test")
DIGIT_NAMES = tuple("0123456789")
PHOTOS = ("china.jpg", "flower.jpg")


def open_digits(ref: DataRef) -> ImageSet:
    """Return scikit-learn's 1,797 digits, 8 x 8 pixels, mode `L`, or a split.

    Raises:
        DataError: If the split is not one of train, val and test.
    """
    pixels, labels = _digits()
    if ref.split not in {None, *SPLITS}:
        raise DataError(
            f"`digits` has no split `{ref.split}`", hint=f"choose one of {', '.join(SPLITS)}, or none for all"
        )
    chosen = stratified_split(labels)[SPLITS.index(ref.split)] if ref.split else range(len(labels))
    return ImageSet(
        store=ImageStore(source=pixels.__getitem__, table=""),
        places=chosen,
        name="digits",
        class_names=DIGIT_NAMES,
        labels=tuple(labels[index] for index in chosen),
    )


def stratified_split(labels: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Split items 60/20/20 within every class.

    Hashes of positions determine the order within a class, independent of any library's random generator.

    Returns:
        Positions for train, val and test, each increasing. Each position occurs once.
    """
    parts: tuple[list[int], list[int], list[int]] = ([], [], [])
    for label in sorted(set(labels)):
        members = [index for index, item_label in enumerate(labels) if item_label == label]
        members.sort(key=lambda index: hashlib.sha256(str(index).encode()).digest())
        first, second = len(members) * 3 // 5, len(members) * 4 // 5
        for part, chunk in zip(
            parts, (members[:first], members[first:second], members[second:]), strict=True
        ):
            part.extend(chunk)
    train, val, test = (tuple(sorted(part)) for part in parts)
    return train, val, test


def open_photos(ref: DataRef) -> ImageSet:
    """Return square patches of scikit-learn's two photographs in turn, mode `RGB`.

    Patches are cells of a regular grid of `size` pixels, selected evenly over the grid.

    Raises:
        UsageError: If the photographs are smaller than a patch.
    """
    size = ref.size or DEFAULT_SIZE
    grids = [_grid(photo, size) for photo in _photos()]
    if any(len(grid) == 0 for grid in grids):
        height, width = _photos()[0].shape[:2]
        raise UsageError(f"`photos` are {width} x {height} pixels, too small for patches of size={size}")
    count = min(ref.limit or DEFAULT_LIMIT, 2 * min(len(grid) for grid in grids))
    patches = np.empty((count, size, size, 3), dtype=np.uint8)
    for turn, grid in enumerate(grids):
        patches[turn::2] = grid[spread(len(grid), len(range(turn, count, 2)))]
    return ImageSet(
        store=ImageStore(source=patches.__getitem__, table=""), places=range(count), name="photos"
    )


def open_noise(ref: DataRef) -> ImageSet:
    """Return grey images of independent uniform pixels, mode `L`, `size` pixels per side.

    The seed, the side and the index determine an image.
    """
    size = ref.size or DEFAULT_SIZE

    def noise(index: int) -> np.ndarray:
        # numpy keeps raw words stable over its versions, but not the results of `Generator`
        words = np.random.PCG64([ref.seed or 0, index]).random_raw(-(-(size**2) // 8))
        grey = np.asarray(words, dtype="<u8").view(np.uint8)[: size**2]
        return grey.reshape(size, size)

    return ImageSet(
        store=ImageStore(source=noise, table=""), places=range(ref.limit or DEFAULT_LIMIT), name="noise"
    )


def spread(total: int, count: int) -> list[int]:
    """Return `count` increasing positions spread evenly over 0..total-1.

    All positions if `count` is larger.
    """
    count = min(count, total)
    return [(2 * place + 1) * total // (2 * count) for place in range(count)]


@lru_cache(maxsize=1)
def _digits() -> tuple[NDArray[np.uint8], tuple[int, ...]]:
    table = _read_sample("data/digits.csv.gz", lambda path: np.loadtxt(path, delimiter=","))
    images = np.rint(table[:, :-1].reshape(-1, 8, 8) * 255 / 16).astype(np.uint8)
    return images, tuple(int(label) for label in table[:, -1])


@lru_cache(maxsize=1)
def _photos() -> tuple[NDArray[np.uint8], ...]:
    return tuple(
        _read_sample(f"images/{name}", lambda path: np.asarray(decode(path.read_bytes(), place=str(path))))
        for name in PHOTOS
    )


def _read_sample(name: str, read: Callable[[Path], NDArray[Any]]) -> NDArray[Any]:
    """Read a file that scikit-learn installs. The import of scikit-learn takes two seconds."""
    try:
        return read(Path(str(vars(find_spec("sklearn"))["origin"])).parent / "datasets" / name)
    except OSError as error:
        raise DataError(
            f"the installed scikit-learn lacks `{name}`", hint="reinstall scikit-learn"
        ) from error


def _grid(photo: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Cut an (H, W, 3) photograph into (N, size, size, 3) patches, row by row."""
    rows, columns = photo.shape[0] // size, photo.shape[1] // size
    cut = photo[: rows * size, : columns * size].reshape(rows, size, columns, size, 3)
    return cut.swapaxes(1, 2).reshape(-1, size, size, 3)


LETTERS = 600
"""Default number of texts of `letters`. Chosen by hand; doubling it doubles the OOD data."""


def open_manual(_ref: DataRef) -> TextSet:
    """Return sentences of the language reference in Python's standard library, without labels.

    Sentences differ between versions of Python.

    Raises:
        DataError: If this Python has no language reference.
    """
    return TextSet(texts=_manual(), name="manual")


def open_letters(ref: DataRef) -> TextSet:
    """Return `limit` sentences of random letters (by default `LETTERS`), without labels.

    `seed` determines the sentences. Another `limit` only cuts or extends the list.
    """
    draw = random.Random(f"letters-{ref.seed or 0}")  # noqa: S311 - reproducible, not secret
    alphabet = "abcdefghijklmnopqrstuvwxyz"

    def word() -> str:
        return "".join(_pick(draw, alphabet) for _ in range(2 + int(draw.random() * 8)))

    texts = (
        " ".join(word() for _ in range(5 + int(draw.random() * 12))) for _ in range(ref.limit or LETTERS)
    )
    return TextSet(texts=tuple(texts), name="letters")


def _pick(draw: random.Random, options: Sequence[str]) -> str:
    """Return a random option. `Random.choice` may change between versions of Python."""
    return options[int(draw.random() * len(options))]


@lru_cache(maxsize=1)
def _manual() -> tuple[str, ...]:
    try:
        from pydoc_data.topics import topics  # noqa: PLC0415 - half a megabyte that few need
    except ImportError as error:
        raise DataError(
            "`manual`: this Python has no language reference (`pydoc_data.topics`)",
            hint="use `letters`, or your own texts",
        ) from error
    sentences: list[str] = []
    for name in sorted(topics):
        prose = re.sub(r"\s+", " ", re.sub(r"[*\"`]", "", topics[name]))
        sentences += [s.strip() for s in re.split(r"(?<=[a-z]\.) ", prose)]
    selected = (s for s in sentences if 30 <= len(s) <= 200 and re.fullmatch(r"[A-Z][A-Za-z ,;'()-]*\.", s))
    return tuple(dict.fromkeys(selected))  # topics overlap, so duplicates are removed


FILE = "intents.json.xz"
INTENT_DOMAINS = ("near-val", "near", "far-val", "far")
OUT_OF_SCOPE = "oos"
Texts: TypeAlias = Mapping[str, Sequence[str]]


def open_intents(ref: DataRef) -> TextSet:
    """Return texts of CLINC150, questions to a voice assistant by intent (Larson et al. 2019, CC BY 3.0).

    Twenty intents are known and have splits. Other domains are OOD: other intents of the known domains
    (`near-val`, `near`), intents of other domains (`far-val`, `far`), and questions without an intent
    (`oos`), which have no labels. `benchmarks/clinc150.py` generates the file.

    Raises:
        DataError: If the domain or split does not exist.
    """
    if ref.domain is not None and ref.domain not in (domains := (*INTENT_DOMAINS, OUT_OF_SCOPE)):
        raise DataError(
            f"`intents` has no domain `{ref.domain}`; it has {', '.join(domains)}, and known intents without one",
            hint=did_you_mean(ref.domain, domains),
        )
    if ref.split is not None and (ref.domain is not None or ref.split not in SPLITS):
        raise DataError(
            f"`intents`{f' of {ref.domain}' if ref.domain else ''} has no split `{ref.split}`",
            hint=f"known intents have {', '.join(SPLITS)}; domains have none",
        )
    names = [ref.domain] if ref.domain else [ref.split] if ref.split else SPLITS
    labelled_texts = [
        (text, intent) for name in names for intent, texts in _parts()[str(name)].items() for text in texts
    ]
    texts = tuple(text for text, _ in labelled_texts)
    if ref.domain == OUT_OF_SCOPE:
        return TextSet(texts=texts, name="intents")
    classes = tuple(sorted({intent for _, intent in labelled_texts}))
    return TextSet(
        texts=texts,
        name="intents",
        class_names=classes,
        labels=tuple(classes.index(intent) for _, intent in labelled_texts),
    )


@lru_cache(maxsize=1)
def _parts() -> Mapping[str, Texts]:
    """Return the texts of each part by intent."""
    packed = files("hydractl.data").joinpath(FILE).read_bytes()
    return cast("Mapping[str, Texts]", json.loads(lzma.decompress(packed))["parts"])
