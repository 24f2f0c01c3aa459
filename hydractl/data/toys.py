"""Built-in data without downloads: digits and photographs of scikit-learn, noise, drawn shapes, and texts."""

from __future__ import annotations

import hashlib
import json
import lzma
import math
import random
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from types import MappingProxyType
from typing import TypeAlias, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from hydractl.data.datasets import ImageSet, ImageStore, TextSet
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
    from sklearn.datasets import load_digits  # noqa: PLC0415 - two seconds that other data need not pay

    try:
        raw = load_digits()
    except OSError as error:
        raise DataError(
            "the installed scikit-learn lacks the digits data set", hint="reinstall scikit-learn"
        ) from error
    return np.rint(raw.images * 255 / 16).astype(np.uint8), tuple(int(label) for label in raw.target)


@lru_cache(maxsize=1)
def _photos() -> tuple[NDArray[np.uint8], ...]:
    from sklearn.datasets import load_sample_image  # noqa: PLC0415 - as above

    try:
        return tuple(np.asarray(load_sample_image(name), dtype=np.uint8) for name in PHOTOS)
    except OSError as error:
        raise DataError(
            "the installed scikit-learn lacks its sample photographs", hint="reinstall scikit-learn"
        ) from error


def _grid(photo: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Cut an (H, W, 3) photograph into (N, size, size, 3) patches, row by row."""
    rows, columns = photo.shape[0] // size, photo.shape[1] // size
    cut = photo[: rows * size, : columns * size].reshape(rows, size, columns, size, 3)
    return cut.swapaxes(1, 2).reshape(-1, size, size, 3)


Point = tuple[float, float]
Colour = tuple[int, int, int]

SIZE = 24
SHAPE_COUNTS: Mapping[str, int] = MappingProxyType(dict(zip(SPLITS, (9600, 720, 960), strict=True)))
"""Number of images of known shapes per split."""
NOVEL_COUNT = 720
COLOURS: Mapping[str, Colour] = MappingProxyType(
    {
        "red": (205, 45, 50), "orange": (225, 130, 40), "yellow": (215, 200, 60), "green": (60, 160, 70),
        "blue": (55, 90, 200), "purple": (145, 65, 170),
    }
)  # fmt: skip
GROUND = (110, 110, 110)
SHAPES = ("circle", "square", "triangle", "star", "cross", "ring")
TILT = math.pi / 9
"""Maximum rotation of a shape, in radians."""
KNOWN_DOMAIN, NOVEL_DOMAIN = "known", "novel"


def _pairs(*, novel: bool) -> tuple[str, ...]:
    """Return the known or novel class names. Each colour and each shape has two novel partners."""
    steps = range(2) if novel else range(2, len(SHAPES))
    return tuple(
        f"{colour} {SHAPES[(place + step) % len(SHAPES)]}"
        for step in steps
        for place, colour in enumerate(COLOURS)
    )


SHAPE_DOMAINS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {KNOWN_DOMAIN: _pairs(novel=False), NOVEL_DOMAIN: _pairs(novel=True)}
)


def open_shapes(ref: DataRef) -> ImageSet:
    """Return small noisy images of coloured shapes, sorted by class.

    Position and class determine an image.

    A class is a colour and a shape, `red circle`. Twelve of the 36 pairs are novel and never occur in
    training (`domain=novel`). Each image shows the shape of its class, one or two marks in random colours,
    sometimes a bar over a part of the shape, and noise. Therefore no model answers all images correctly.

    Raises:
        DataError: If the domain or split does not exist.
    """
    domain = ref.domain or KNOWN_DOMAIN
    if domain not in SHAPE_DOMAINS:
        raise DataError(f"`shapes` has no domain `{domain}`; it has {', '.join(SHAPE_DOMAINS)}")
    if ref.split is not None and (domain != KNOWN_DOMAIN or ref.split not in SHAPE_COUNTS):
        raise DataError(
            f"`shapes` of the domain {domain} has no split `{ref.split}`",
            hint=f"the known ones have {', '.join(SHAPE_COUNTS)}; the novel ones have none",
        )
    names = SHAPE_DOMAINS[domain]
    counts = SHAPE_COUNTS if domain == KNOWN_DOMAIN else {"": NOVEL_COUNT}
    chosen = [ref.split] if ref.split else list(counts)
    class_and_seed = [
        (label, f"{split}-{place}")
        for label in names
        for split in chosen
        for place in range(counts[split] // len(names))
    ]
    return ImageSet(
        store=ImageStore(
            source=lambda index: draw(class_and_seed[index][0], seed=class_and_seed[index][1]), table=""
        ),
        places=range(len(class_and_seed)),
        name="shapes",
        class_names=names,
        labels=tuple(names.index(label) for label, _ in class_and_seed),
    )


@lru_cache(maxsize=8192)
def draw(label: str, *, seed: str) -> Image.Image:
    """Return an RGB image, 24 x 24, of `COLOUR SHAPE`, determined by the arguments."""
    colour, _, shape = label.partition(" ")
    chance = random.Random(f"shape-{label}-{seed}")  # noqa: S311 - reproducible, not secret
    image = Image.new("RGB", (SIZE, SIZE), _tinted(chance, GROUND, 45))
    brush = ImageDraw.Draw(image)
    for _ in range(1 + int(2 * chance.random())):
        _mark(chance, brush)
    radius = _between(chance, 6.0, 10.5)
    centre = (_between(chance, radius, SIZE - radius), _between(chance, radius, SIZE - radius))
    _shape(
        brush,
        shape,
        centre,
        radius,
        angle=_between(chance, -TILT, TILT),
        fill=_tinted(chance, COLOURS[colour], 35),
    )
    if chance.random() < 0.25:
        x, y = centre
        _bar(chance, brush, (x + _between(chance, -radius, radius), y + _between(chance, -radius, radius)))
    return _noisy(image, seed=f"{label}-{seed}", spread=_between(chance, 4, 20))


def _shape(
    brush: ImageDraw.ImageDraw, shape: str, centre: Point, radius: float, *, angle: float, fill: Colour
) -> None:
    x, y = centre
    box = (x - radius, y - radius, x + radius, y + radius)
    match shape:
        case "circle":
            brush.ellipse(box, fill=fill)
        case "ring":
            brush.ellipse(box, outline=fill, width=max(2, round(radius / 3)))
        case "square":
            brush.polygon(_corners(centre, [radius] * 4, angle + math.pi / 4), fill=fill)
        case "triangle":
            brush.polygon(_corners(centre, [radius] * 3, angle - math.pi / 2), fill=fill)
        case "star":
            brush.polygon(_corners(centre, [radius, radius * 0.42] * 5, angle - math.pi / 2), fill=fill)
        case "cross":
            for turn in (0, math.pi / 2):
                dx, dy = radius * math.cos(angle + turn), radius * math.sin(angle + turn)
                brush.line((x - dx, y - dy, x + dx, y + dy), fill=fill, width=max(2, round(radius / 2)))
        case _:
            raise ValueError(shape)


def _corners(centre: Point, radii: Sequence[float], angle: float) -> list[Point]:
    turn = math.tau / len(radii)
    return [
        (centre[0] + r * math.cos(angle + i * turn), centre[1] + r * math.sin(angle + i * turn))
        for i, r in enumerate(radii)
    ]


def _mark(chance: random.Random, brush: ImageDraw.ImageDraw) -> None:
    """Draw a small dot or line in a random colour."""
    names = tuple(COLOURS)
    fill = _tinted(chance, COLOURS[names[int(len(names) * chance.random())]], 40)
    x, y = _between(chance, 0, SIZE), _between(chance, 0, SIZE)
    if chance.random() < 0.5:
        r = _between(chance, 1, 2.2)
        brush.ellipse((x - r, y - r, x + r, y + r), fill=fill)
    else:
        brush.line((x, y, _between(chance, 0, SIZE), _between(chance, 0, SIZE)), fill=fill, width=1)


def _bar(chance: random.Random, brush: ImageDraw.ImageDraw, centre: Point) -> None:
    """Draw a bar in the colour of the background over a part of the shape."""
    (x, y), angle = centre, _between(chance, 0, math.pi)
    dx, dy = SIZE * math.cos(angle), SIZE * math.sin(angle)
    width = 2 + int(2 * chance.random())
    brush.line((x - dx, y - dy, x + dx, y + dy), fill=_tinted(chance, GROUND, 45), width=width)


def _noisy(image: Image.Image, *, seed: str, spread: float) -> Image.Image:
    """Return an RGB image with uniform noise in [-spread, spread] added to each value in 0..255.

    Values are rounded and clipped. The noise depends only on `seed`. The image has `SIZE` x `SIZE` pixels.
    """
    words = np.random.PCG64([*seed.encode()]).random_raw(SIZE * SIZE * 3 // 8)
    noise = np.asarray(words, dtype="<u8").view(np.uint8).reshape(SIZE, SIZE, 3) / 127.5 - 1
    values = np.asarray(image, dtype=np.float64) + noise * spread
    return Image.fromarray(np.rint(values.clip(0, 255)).astype(np.uint8))


def _tinted(chance: random.Random, colour: Colour, by: float) -> Colour:
    """Return a colour with each component changed by at most `by`."""
    red, green, blue = (round(min(255, max(0, part + _between(chance, -by, by)))) for part in colour)
    return red, green, blue


def _between(chance: random.Random, low: float, high: float) -> float:
    """Return a uniform number in low..high. `Random.uniform` may change between versions of Python."""
    return low + (high - low) * chance.random()


REVIEW_COUNTS: Mapping[str, int] = MappingProxyType(dict(zip(SPLITS, (8000, 600, 1000), strict=True)))
"""Number of film reviews per split."""
OPINIONS = ("negative", "positive")
OF_A_DOMAIN = 600
"""Number of reviews of each domain without splits. Chosen by hand, equal to the validation split of films;
doubling it doubles the OOD data."""
LETTERS = 600
"""Default number of texts of `letters`. Chosen by hand, equal to a domain of `reviews`; doubling it doubles
the OOD data."""
NOISE = 1 / 30
"""Share of reviews with the wrong label. Chosen by hand; doubling it lowers the best possible accuracy from
97 to 93 %."""

GOOD = {
    1.0: ("decent", "pleasant", "solid", "fine", "likeable", "fair", "neat", "enjoyable", "charming", "clever"),
    2.0: ("superb", "brilliant", "excellent", "wonderful", "outstanding", "perfect", "stunning", "flawless"),
}  # fmt: skip
BAD = {
    1.0: ("dull", "weak", "flat", "bland", "clumsy", "tired", "uneven", "slow", "thin", "shallow"),
    2.0: ("awful", "terrible", "dreadful", "horrible", "unbearable", "atrocious", "miserable", "disastrous"),
}
NEGATIONS = ("not", "hardly", "never", "anything but", "far from")
DEGREES = ("", "", "", "rather", "truly", "quite")
LINKS = {"and": 1.0, "but": 2.0, "while": 1.0, "although": 0.5}
VERBS = ("was", "is", "seemed", "felt", "turned out", "remained")
OPENINGS = (
    "", "", "", "overall", "in the end", "to be honest", "for me", "all things considered", "this time",
)  # fmt: skip
SUBJECTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "films": ("plot", "acting", "script", "ending", "camera work", "music", "cast", "dialogue", "pace", "hero",
                  "villain", "opening scene", "humour", "story", "director", "costumes"),
        "gadgets": ("battery", "screen", "keyboard", "charger", "software", "speaker", "case", "price", "update", "cable"),
        "restaurants": ("soup", "waiter", "dessert", "wine list", "table", "bread", "kitchen", "menu", "bill", "sauce"),
        "hotels": ("room", "bed", "breakfast", "pool", "lobby", "view", "shower", "staff", "lift", "towels"),
    }
)  # fmt: skip
FILMS = "films"
"""Domain with splits. Each other domain is a single set."""


def open_reviews(ref: DataRef) -> TextSet:
    """Return the reviews of a domain. Films have splits.

    Raises:
        DataError: If the domain or split does not exist.
    """
    domain = ref.domain or FILMS
    if domain not in SUBJECTS:
        raise DataError(
            f"`reviews` has no domain `{domain}`; it has {', '.join(SUBJECTS)}",
            hint=did_you_mean(domain, SUBJECTS),
        )
    if ref.split is not None and (domain != FILMS or ref.split not in REVIEW_COUNTS):
        raise DataError(
            f"`reviews` of {domain} has no split `{ref.split}`",
            hint=f"films have {', '.join(REVIEW_COUNTS)}; other domains have none",
        )
    splits = ([ref.split] if ref.split else list(REVIEW_COUNTS)) if domain == FILMS else [None]
    labelled_texts = [
        review(domain, split, index)
        for split in splits
        for index in range(REVIEW_COUNTS[split] if split else OF_A_DOMAIN)
    ]
    return TextSet(
        texts=tuple(text for text, _ in labelled_texts),
        name="reviews",
        class_names=OPINIONS,
        labels=tuple(label for _, label in labelled_texts),
    )


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


def review(domain: str, split: str | None, index: int) -> tuple[str, int]:
    """Return a review and the class of its opinion, determined by the arguments.

    A review has two or three clauses. A clause contains a positive or negative, weak or strong opinion about
    a subject, sometimes reversed by a negation. A clause after `but` counts double, a clause after `although`
    half. The class is the sign of the sum, or of the last clause if the sum is 0. One label in thirty is
    flipped, so no model answers all reviews correctly.

    Args:
        domain: Key of `SUBJECTS`.
        split: Split of films. None for other domains.
        index: Number of the review.

    Returns:
        The text, and 0 for negative or 1 for positive.
    """
    draw = random.Random(f"review-{domain}-{split}-{index}")  # noqa: S311 - as above
    opening = _pick(draw, OPENINGS)
    subjects = list(SUBJECTS[domain])
    total, last, text = 0.0, 0.0, f"{opening} , " if opening else ""
    for clause in range(2 + (draw.random() < 0.2)):
        link = "" if clause == 0 else _pick(draw, tuple(LINKS))
        subject = subjects.pop(int(draw.random() * len(subjects)))
        words, value = _judgement(draw)
        total, last = total + value * LINKS.get(link, 1.0), value
        text += f"{link} the {subject} {words} " if link else f"the {subject} {words} "
    label = int((total or last) > 0)
    if draw.random() < NOISE:
        label = 1 - label
    return f"{text}.".replace(" ,", ",").replace(" .", "."), label


def vocabulary() -> tuple[str, ...]:
    """Return the sorted words of film reviews, the vocabulary of a tokenizer for reviews."""
    phrases = (*GOOD.values(), *BAD.values(), NEGATIONS, DEGREES, LINKS, VERBS, OPENINGS, SUBJECTS[FILMS])
    words = {word for options in phrases for option in options for word in option.split()}
    return tuple(sorted(words | {"the", ",", "."}))


def _judgement(draw: random.Random) -> tuple[str, float]:
    """Return a random opinion and its value: positive for good, larger for stronger opinions."""
    sign = 1.0 if draw.random() < 0.5 else -1.0
    strength = 1.0 if draw.random() < 0.5 else 2.0
    adjective = _pick(draw, (GOOD if sign > 0 else BAD)[strength])
    value = sign * strength
    words = f"{_pick(draw, DEGREES)} {adjective}".strip()
    if draw.random() < 0.2:
        words, value = f"{_pick(draw, NEGATIONS)} {words}", -value
    return f"{_pick(draw, VERBS)} {words}", value


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
