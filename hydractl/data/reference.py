"""What a DATA argument says: `SOURCE[::key=value,...]`, parsed and checked without reading anything.

The last `::` ends the source; a source that holds `::` is written with one at its end. Functions at the end of the module
compare and number class names, and parse `::map=OLD:NEW,...`. Importing this module does not load torch.
"""

from __future__ import annotations

import os
import re
import shlex
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from hydractl.data.presets import OPENOOD, PREFIX, find
from hydractl.errors import DataError, UsageError
from hydractl.messages import did_you_mean, did_you_mean_path, quoted
from hydractl.output.publish import STDOUT, is_stream

LEAST = 2
"""Maximum number of classes."""
MAP = "map"
POSITION, NUMBER, ALPHABET = "position", "number", "alphabet"
ORDERS = (POSITION, NUMBER, ALPHABET)
"""Values of `classes-by=`."""
TWO_ORDERS = (
    f"classes are sorted by number, not alphabetically as in torchvision: `::classes-by={ALPHABET}` "
    f"sorts alphabetically, `::classes-by={NUMBER}` confirms this order"
)
"""Message if numbers within names determine the order of classes."""

_PLACEHOLDER = re.compile(r"(?:label_|unnamed class )?([0-9]{1,18})(?:\.0+)?", re.IGNORECASE)
_COUNTED = re.compile(r"(.*?)([0-9]{1,18})", re.DOTALL)
_PLAIN = r'[^",:=][^,:]*'
_QUOTED = r'"(?:[^"]|"")+"'
_PAIR = re.compile(rf"({_QUOTED}|{_PLAIN}):({_QUOTED}|{_PLAIN})(?:,|$)")
_NEEDS_NO_QUOTES = re.compile(r'[^",:=]+')

COLUMN_SUFFIXES = (".conll", ".bio", ".iob", ".iob2")
"""Files with a word a line and its label behind it, as of the CoNLL tasks."""
FILE_SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".parquet", *COLUMN_SUFFIXES)
LIST_SUFFIX = ".txt"
SHARD_SUFFIX = ".tar"
IMAGE_SUFFIXES = (
    ".png", ".apng", ".jpg", ".jpeg", ".jpe", ".jfif", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm", ".gif", ".avif", ".avifs",
)  # fmt: skip
"""Usual suffixes of the formats in `decoding.FORMATS`. Folders also hold images under other names."""
MAX_ITEM = 1 << 28
"""Maximum size of one decoded item in bytes, unless `max-item=` says otherwise."""
HUB_PREFIX = "hf:"
MOST_TEXTS = 2
REMOVED_KEYS = ("streaming", "buffer")
"""Keys of earlier releases, which read data sets of unknown length."""
SOURCES_HINT = (
    "DATA is `digits`, `shapes`, `photos`, `noise`, `reviews`, `intents`, `manual`, `letters`, a folder with one sub-folder a class, "
    "a .jsonl, .json, .csv, .tsv, .parquet or .conll file, a .txt list of images, .tar shards, `hf:org/name`, or `preset:NAME` of `hydractl data list`"
)

_DATA_SUFFIXES = (*FILE_SUFFIXES, LIST_SUFFIX, SHARD_SUFFIX)
_COMPRESSED = {b"\x1f\x8b": "gunzip", b"BZh": "bunzip2", b"\xfd7zXZ": "unxz", b"\x28\xb5\x2f\xfd": "unzstd"}
"""Commands that decompress, by the first bytes of a file."""
_HUB = re.compile(r"hf:(?P<repo>[A-Za-z0-9._-]+/[A-Za-z0-9._-]+)(?:@(?P<revision>[^@\s]+))?")
_NATURAL = re.compile(r"[0-9]{1,18}")
_PART = re.compile(r"([0-9]{1,5})/([0-9]{1,5})")


class SourceKind(Enum):
    """Where the items come from; the value is how messages call it."""

    DIGITS = "`digits`"
    SHAPES = "`shapes`"
    PHOTOS = "`photos`"
    NOISE = "`noise`"
    REVIEWS = "`reviews`"
    INTENTS = "`intents`"
    MANUAL = "`manual`"
    LETTERS = "`letters`"
    FOLDER = "a folder"
    FILE = "a file"
    HUB = "a Hub data set"


BUILT_IN_IMAGES = (SourceKind.DIGITS, SourceKind.SHAPES, SourceKind.PHOTOS, SourceKind.NOISE)
BUILT_IN_TEXTS = (SourceKind.REVIEWS, SourceKind.INTENTS, SourceKind.MANUAL, SourceKind.LETTERS)
BUILT_IN = tuple(kind.value.strip("`") for kind in (*BUILT_IN_IMAGES, *BUILT_IN_TEXTS))
"""Names of the built-in sources."""
COLUMNS = frozenset({"image", "label", "text", "label-separator"})
"""Keys that control the reading of columns."""
_SELECTION = frozenset({"classes", "classes-by", "limit", "part", MAP})
OF_IMAGES = frozenset({"decode", "exif"})
"""Keys that control the decoding of images."""
_LIMITS = frozenset({"max-item"})
KEYS: Mapping[SourceKind, frozenset[str]] = MappingProxyType(
    {
        SourceKind.DIGITS: _SELECTION | {"split"},
        SourceKind.SHAPES: _SELECTION | {"split", "domain"},
        SourceKind.PHOTOS: frozenset({"limit", "size"}),
        SourceKind.NOISE: frozenset({"limit", "size", "seed"}),
        SourceKind.REVIEWS: _SELECTION | {"split", "domain"},
        SourceKind.INTENTS: _SELECTION | {"split", "domain"},
        SourceKind.MANUAL: frozenset({"limit"}),
        SourceKind.LETTERS: frozenset({"limit", "seed"}),
        SourceKind.FOLDER: _SELECTION | COLUMNS | OF_IMAGES | _LIMITS | {"split"},
        SourceKind.FILE: _SELECTION | COLUMNS | OF_IMAGES | _LIMITS | {"root"},
        SourceKind.HUB: _SELECTION | COLUMNS | OF_IMAGES | _LIMITS | {"split", "config"},
    }
)
ONLY = MappingProxyType({"decode": "fast", "exif": "ignore"})
"""Keys with only one valid value."""
LABELLED_BUILT_IN = tuple(name for name in BUILT_IN if "classes" in KEYS[SourceKind(f"`{name}`")])
"""Built-in sources with labels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRef:
    """A parsed DATA argument.

    Attributes:
        source: A built-in source's name, a path, or `hf:org/name[@revision]`.
        split: A part of the source: `train`, `val`, `test`, or a name that the source knows.
        config: Which configuration of a Hub data set.
        classes: Class names, numbers or inclusive ranges of numbers (`0-6`) to keep.
        classes_by: Take the classes in order for the model's, whatever their names: by `position`, as the data count them;
            by `number`, the last one in each name; or by the `alphabet`, as torchvision's ImageFolder does.
        map: Old and new names of classes; `classes` chooses by the old ones.
        limit: At most so many items, spread evenly over what is left.
        part: `K/N`, the K-th of N parts of about the same size. The digest of a sample selects its part.
        image: Column with the images.
        label: Column with the labels.
        text: Column with the texts, or `FIRST+SECOND` where an item is a pair of them.
        label_separator: Separator of labels in one cell, `comma`, `space` or `tab` for these; `none` reads each cell as one name.
        root: Where the images of a table lie, if not from its folder on.
        seed: What `noise` and `letters` are drawn from.
        size: Side of `photos` and `noise`, in pixels.
        domain: What `reviews` are of; `known` or `novel` ones of `shapes`; which foreign `intents`.
        decode: `fast` lets JPEG files be decoded at a half, a quarter or an eighth of their size where that is still twice
            what they are resized to: nearly the same pixels.
        exif: `ignore` leaves images as they are stored, which else are turned as their EXIF orientation says.
        max_item: Maximum size of one decoded item in bytes; `MAX_ITEM` by default.

    Raises:
        UsageError: If the source is malformed, or a key does not apply to it or has a malformed value.
    """

    source: str
    split: str | None = None
    config: str | None = None
    classes: tuple[str, ...] | None = None
    classes_by: str | None = None
    map: tuple[tuple[str, str], ...] | None = None
    part: str | None = None
    limit: int | None = None
    image: str | None = None
    label: str | None = None
    text: str | None = None
    label_separator: str | None = None
    root: str | None = None
    seed: int | None = None
    size: int | None = None
    domain: str | None = None
    decode: str | None = None
    exif: str | None = None
    max_item: int | None = None

    def __post_init__(self) -> None:
        if not self.source:
            raise UsageError("the data reference has no source", hint=SOURCES_HINT)
        if self.source.startswith(HUB_PREFIX) and not _HUB.fullmatch(self.source):
            raise UsageError(
                f"`{self.source}`: expected `hf:org/name` or `hf:org/name@revision`",
                hint="for example `hf:ylecun/mnist`",
            )
        allowed = KEYS[self.kind]
        for key, value in self._options().items():
            if key not in allowed:
                raise UsageError(
                    f"`{self.source}` does not take the key `{key}`; {self.kind.value} takes "
                    f"{', '.join(sorted(allowed))}"
                )
            _check_value(key, value)
        if len(self.text_columns) > MOST_TEXTS or not all(self.text_columns):
            raise UsageError(
                f"`text={self.text}`: expected one or two columns",
                hint="write `text=COLUMN`, or `text=FIRST+SECOND` for pairs",
            )

        for key, only in ONLY.items():
            if getattr(self, key) not in {None, only}:
                raise UsageError(f"`{key}={getattr(self, key)}`: must be `{only}`", hint="or leave it out")
        if self.classes_by not in {None, *ORDERS}:
            raise UsageError(f"`classes-by={self.classes_by}`: must be one of {quoted(ORDERS)}")

    @property
    def reads_classes(self) -> bool:
        """Whether it chooses, renames or orders classes."""
        return not (self.classes is None and self.classes_by is None and self.map is None)

    @property
    def part_of(self) -> tuple[int, int] | None:
        """K and N of `part`."""
        return None if self.part is None else _part(self.part)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the reference of a single data set.

        Raises:
            UsageError: If `text` does not follow the grammar, or names several data sets; the message says where.
        """
        named_refs = cls.parse_all(text)
        if len(named_refs) > 1:
            example = re.sub("/[^:]*", f"/{named_refs[0][0]}", text, count=1)
            raise UsageError(
                f"`{text}`: stands for {len(named_refs)} data sets, but only one is expected",
                hint=f"give one of {', '.join(f'`{name}`' for name, _ in named_refs)}: `{example}`",
            )
        return named_refs[0][1]

    @classmethod
    def parse_all(cls, text: str) -> tuple[tuple[str | None, Self], ...]:
        """Parse a reference: a single data set without a name (None), or the named data sets of a preset.

        Raises:
            UsageError: If `text` does not follow the grammar; the message says where.
        """
        source, options = _parts(text)
        if source.startswith(PREFIX):
            return tuple(
                (name, cls._of(place, place_options)) for name, place, place_options in find(source, options)
            )
        return ((None, cls._of(source, options)),)

    @classmethod
    def _of(cls, source: str, options: Mapping[str, str]) -> Self:
        return cls(source=source, **{_field(key): _value(key, text) for key, text in options.items()})

    def __str__(self) -> str:
        options = self._options()
        if self.classes is not None:
            options["classes"] = "+".join(self.classes)
        if self.map is not None:
            options[MAP] = write_pairs(self.map)
        tail = ",".join(f"{key}={options[key]}" for key in sorted(options))
        return f"{self.source}::{tail}" if tail or "::" in self.source else self.source

    @property
    def name(self) -> str:
        """The reference with no more of a path than its last part: reports travel."""
        if self.kind not in {SourceKind.FOLDER, SourceKind.FILE}:
            return str(self)
        return Path(self.source).resolve().name + str(replace(self, root=None)).removeprefix(self.source)

    @property
    def kind(self) -> SourceKind:
        """Where the items come from, told by the form of the source alone."""
        if self.source in BUILT_IN:
            return SourceKind(f"`{self.source}`")
        if self.source.startswith(HUB_PREFIX):
            return SourceKind.HUB
        return SourceKind.FILE if self.source.lower().endswith(_DATA_SUFFIXES) else SourceKind.FOLDER

    def check_there(self) -> None:
        """Check that a local path exists and is no stream. The files of a pattern of shards are checked when they are opened.

        Raises:
            DataError: If the path does not exist, or is standard input, a FIFO or a device.
        """
        if self.kind not in {SourceKind.FOLDER, SourceKind.FILE}:
            return
        check_seekable(Path(self.source))
        if Path(self.source).exists() or self.source.lower().endswith(SHARD_SUFFIX):
            return
        file_kind = "file" if self.kind is SourceKind.FILE else "folder or file"
        near = did_you_mean(self.source, BUILT_IN) or did_you_mean_path(self.source)
        raise DataError(f"{self.source}: no such {file_kind}", hint=near or SOURCES_HINT)

    @property
    def text_columns(self) -> tuple[str, ...]:
        """The columns that `text` names: none, one or two."""
        return () if self.text is None else tuple(self.text.split("+"))

    @property
    def repo_id(self) -> str:
        """The Hub data set's `org/name`; empty for other sources."""
        match = _HUB.fullmatch(self.source)
        return match["repo"] if match else ""

    @property
    def revision(self) -> str | None:
        """The Hub data set's branch, tag or commit, if one is named."""
        match = _HUB.fullmatch(self.source)
        return match["revision"] if match else None

    def _options(self) -> dict[str, object]:
        return {key: value for key in OPTION_KEYS if (value := getattr(self, _field(key))) is not None}


def check_seekable(path: Path) -> None:
    """Check that data can be read by position.

    Raises:
        DataError: If the path is standard input, a FIFO, a device or a compressed file.
    """
    suffix = next((s for s in reversed(path.suffixes) if s.lower() in _DATA_SUFFIXES), None)
    if is_stream(path):
        file = f"data{suffix or FILE_SUFFIXES[0]}"
        unnamed = path == STDOUT or path.is_relative_to("/dev")
        command = "COMMAND" if unnamed else f"cat {shlex.quote(str(path))}"
        raise DataError(
            f"{path}: is a stream, but data are read several times and by position",
            hint=f"write it to a file first: `{command} > {file}`, then give `{file}`",
        )
    begin = b""
    with (
        suppress(OSError),
        path.open("rb") as opened,
    ):  # later readers explain folders and missing permissions
        begin = opened.read(max(map(len, _COMPRESSED)))
    for mark, command in _COMPRESSED.items():
        if begin.startswith(mark):
            file = f"data{suffix or SHARD_SUFFIX}"
            raise DataError(
                f"{path}: is compressed, but data are read by position",
                hint=f"decompress it: `{command} < {shlex.quote(str(path))} > {file}`, then give `{file}`",
            )


OPTION_KEYS = tuple(field.name.replace("_", "-") for field in fields(DataRef) if field.name != "source")


def _field(key: str) -> str:
    return key.replace("-", "_")


def _parts(text: str) -> tuple[str, dict[str, str]]:
    """Return the source and what stands after the last `::`, which may be nothing."""
    source, separator, options_text = split_source(text)
    known_keys = (*OPTION_KEYS, OPENOOD) if source.startswith(PREFIX) else OPTION_KEYS
    options: dict[str, str] = {}
    _, twice, before = source.rpartition("::")
    if twice and "=" in before and before.partition("=")[0] in known_keys:
        raise UsageError(f"`{text}`: `::` appears twice", hint="for example `digits::split=test,classes=0-6`")
    ends_name = not options_text and ("::" in source or source.endswith(":"))
    for part in (
        split_keys(options_text.replace("separator=,", "separator=comma"))
        if separator and not ends_name
        else ()
    ):
        key, equals, value = part.partition("=")
        if not equals:
            example = "digits::split=test,classes=0-6"
            if [*options][-1:] == ["classes"]:
                example = f"classes={options['classes']}+{part}"
            raise UsageError(
                f"`{text}`: expected key=value after `::`, found `{part}`",
                hint=f"for example `{example}`; if the name contains `::`, end it with `::`: `{text}::`",
            )
        if key in REMOVED_KEYS:
            others = [p for p in split_keys(options_text) if p.partition("=")[0] not in REMOVED_KEYS]
            raise UsageError(
                f"`{text}`: the key `{key}` was removed, because data sets have an index and a known length",
                hint=f"type {shlex.quote('::'.join(filter(None, (source, ','.join(others)))))}",
            )
        if key not in known_keys:
            raise UsageError(
                f"`{text}`: unknown key `{key}`; known keys are {', '.join(sorted(known_keys))}",
                hint=did_you_mean(key, known_keys),
            )
        if key in options:
            raise UsageError(f"`{text}`: the key `{key}` appears twice")
        options[key] = value
    return source, options


def _part(text: str) -> tuple[int, int]:
    match = _PART.fullmatch(text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise UsageError(
            f"`part={text}`: expected `K/N` for part K of N", hint="for example `val/::part=1/2`"
        )
    return int(match[1]), int(match[2])


def _value(key: str, text: str) -> Any:  # noqa: ANN401 - of the field's type
    if key == "classes":
        return tuple(text.split("+"))
    if key == MAP:
        return read_pairs(text)
    if key not in {"limit", "seed", "size", "max-item"}:
        return text
    if not _NATURAL.fullmatch(text):
        raise UsageError(f"`{key}={text}`: expected a non-negative integer")
    return int(text)


def _check_value(key: str, value: Any) -> None:  # noqa: ANN401 - of a program, which may hand over anything
    if isinstance(value, int):
        least = 0 if key == "seed" else 1
        if value < least:
            raise UsageError(f"`{key}={value}`: must be at least {least}")
        return
    if key == MAP:
        _check_pairs(value)
        return
    if key == "part":
        _part(value)
    items = value if isinstance(value, tuple) else (value,)
    if not items or not all(items):
        raise UsageError(f"the key `{key}` has an empty value", hint=f"write `{key}=VALUE`, or leave it out")
    for item in items:
        if "," in item or (key == "classes" and "+" in item):
            raise UsageError(f"`{key}={item}`: a value must not contain a comma, and a class name no `+`")
    if len(set(items)) != len(items):
        raise UsageError(f"`{key}={'+'.join(items)}` repeats a class")


def normal(name: str) -> str:
    """Return a class name as names are compared: in Unicode's form NFC, without blanks around it."""
    return unicodedata.normalize("NFC", name.strip())


def folded(name: str) -> str:
    """Return a class name as names are compared where capitals do not count."""
    return normal(normal(name).casefold())


def placeholders(names: Sequence[str]) -> tuple[int, ...] | None:
    """Return the numbers of names that are no more than numbers, as `7`, `7.0` and `LABEL_7`; None if a name is more."""
    return _distinct([int(match[1]) for match in map(_PLACEHOLDER.fullmatch, names) if match], names)


def counters(names: Sequence[str]) -> tuple[int, ...] | None:
    """Return the numbers of names that differ in their last number alone, as `class0` and `class10`; else None."""
    matches = [*filter(None, map(_COUNTED.fullmatch, names))]
    one_stem = len({match[1] for match in matches}) == 1 and len(names) > 1
    return _distinct([int(match[2]) for match in matches], names) if one_stem else None


def _distinct(numbers: Sequence[int], names: Sequence[str]) -> tuple[int, ...] | None:
    return tuple(numbers) if len({*numbers}) == len(names) else None


def by_number(names: Sequence[str]) -> list[int] | None:
    """Return the positions of names in the order of their numbers; None where they are not numbered alike."""
    numbers = placeholders(names) or counters(names)
    return None if numbers is None else sorted(range(len(names)), key=numbers.__getitem__)


def has_two_orders(names: Sequence[str]) -> bool:
    """Return whether names stand in the order of the alphabet, and that of their numbers is another."""
    order = by_number(names)
    return order is not None and list(names) == sorted(names) and order != sorted(order)


def continues(option: str, part: str) -> bool:
    """Return whether what follows a comma belongs to the option before it, which is then a list of renamed classes."""
    if not option.startswith(f"{MAP}="):
        return False
    old, colon, _ = part.partition(":")
    return option.count('"') % 2 == 1 or part.startswith('"') or (bool(colon) and "=" not in old)


def split_source(text: str) -> tuple[str, str, str]:
    """Split a data reference at the last `::` that is not within a quoted name, as `str.partition` does."""
    places = [at for at in range(len(text)) if text.startswith("::", at)]
    for at in reversed(places):
        options = [split_keys(text[before + 2 : at])[-1] for before in places if before < at]
        if not any(last.startswith(f"{MAP}=") and last.count('"') % 2 for last in options):
            return text[:at], "::", text[at + 2 :]
    return text, "", ""


def split_keys(text: str) -> list[str]:
    """Split `key=value,...` at commas, except those between and within renamed classes."""
    options: list[str] = []
    for part in text.split(","):
        if options and continues(options[-1], part):
            options[-1] += f",{part}"
        else:
            options.append(part)
    return options


def read_pairs(text: str) -> tuple[tuple[str, str], ...]:
    """Return the old and new names of `OLD:NEW,...`.

    A name with one of `" , : =` in it stands in double quotes, and a quote in it twice.

    Raises:
        UsageError: If it is malformed.
    """
    pairs: list[tuple[str, str]] = []
    at = 0
    while at < len(text) or not pairs:
        match = _PAIR.match(text, at)
        if match is None:
            raise UsageError(
                f"`{MAP}={text}`: expected OLD:NEW,...",
                hint='put names that contain one of `" , : =` in double quotes, and double each quote '
                "in them: `'data::map=\"a:b, c\":d'`",
            )
        pairs.append((_read(match[1]), _read(match[2])))
        at = match.end()
    return tuple(pairs)


def write_pairs(pairs: Sequence[tuple[str, str]]) -> str:
    """Return pairs as `read_pairs` reads them."""
    return ",".join(f"{write_name(old)}:{write_name(new)}" for old, new in pairs)


def write_name(name: str) -> str:
    """Return a name in quotes where `read_pairs` asks for them."""
    return name if _NEEDS_NO_QUOTES.fullmatch(name) else '"{}"'.format(name.replace('"', '""'))


def _check_pairs(pairs: Sequence[tuple[str, str]]) -> None:
    """Refuse pairs with an empty name, and pairs that rename a class twice."""
    if not pairs or not all(map(all, pairs)):
        raise UsageError(f"the key `{MAP}` has an empty name", hint=f"write `{MAP}=OLD:NEW`, or leave it out")
    if (twice := first_twice(old for old, _ in pairs)) is not None:
        raise UsageError(f"`{MAP}={write_pairs(pairs)}`: renames the class `{twice}` twice")


def first_twice(names: Iterable[str]) -> str | None:
    """Return the first name that stands twice, or None."""
    return next((name for name, times in Counter(names).items() if times > 1), None)


def _read(text: str) -> str:
    return normal(text[1:-1].replace('""', '"') if text.startswith('"') else text)


LINES = "-"
"""DATA on standard input, one item per line."""


def image_path(reference: str) -> Path | None:
    """Return the path if DATA names an image file, else None; a name with `::` ends with one, or no `=` follows.

    Image files have a suffix of images, or they exist and have no suffix of data files.
    """
    name = reference.removesuffix("::")
    _, separator, options = name.rpartition("::")
    if separator and name == reference and "=" in options:
        return None
    suffixed = name.lower().endswith
    is_data = suffixed((*FILE_SUFFIXES, LIST_SUFFIX, SHARD_SUFFIX)) or name in BUILT_IN
    may_be_image = not is_data and os.path.isfile(name)  # noqa: PTH113 - `Path.is_file` raises where a path is too long
    return Path(name) if suffixed(IMAGE_SUFFIXES) or may_be_image else None


def is_file(reference: str) -> bool:
    """Return whether DATA is one image file, though none may be there."""
    path = image_path(reference)
    return path is not None and not os.path.isdir(path)  # noqa: PTH112 - `Path.is_dir` raises where a path is too long
