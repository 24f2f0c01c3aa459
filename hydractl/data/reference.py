"""DATA arguments, `SOURCE[::key=value,...]`: parsed and checked without reading any data.

The last `::` ends the source. If the source itself contains `::`, write another `::` at its end. Functions at
the end of the module compare and number class names, and parse `::map=OLD:NEW,...`. Importing this module
does not load torch.
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

MIN_CLASSES = 2
"""Minimum number of classes."""
MAP = "map"
POSITION, NUMBER, ALPHABET = "position", "number", "alphabet"
ORDERS = (POSITION, NUMBER, ALPHABET)
"""Values of `classes-by=`."""
TWO_ORDERS = (
    f"classes are sorted by number, not alphabetically as in torchvision: `::classes-by={ALPHABET}` "
    f"sorts alphabetically, `::classes-by={NUMBER}` confirms this order"
)
"""Warning for class names whose order by number differs from their alphabetical order."""

_PLACEHOLDER = re.compile(r"(?:label_|unnamed class )?([0-9]{1,18})(?:\.0+)?", re.IGNORECASE)
_COUNTED = re.compile(r"(.*?)([0-9]{1,18})", re.DOTALL)
_PLAIN = r'[^",:=][^,:]*'
_QUOTED = r'"(?:[^"]|"")+"'
_PAIR = re.compile(rf"({_QUOTED}|{_PLAIN}):({_QUOTED}|{_PLAIN})(?:,|$)")
_NEEDS_NO_QUOTES = re.compile(r'[^",:=]+')

COLUMN_SUFFIXES = (".conll", ".bio", ".iob", ".iob2")
"""Suffixes of files with one word per line and its label in the last column, as in the CoNLL shared tasks."""
FILE_SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".parquet", *COLUMN_SUFFIXES)
LIST_SUFFIX = ".txt"
SHARD_SUFFIX = ".tar"
IMAGE_SUFFIXES = (
    ".png", ".apng", ".jpg", ".jpeg", ".jpe", ".jfif", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm", ".gif", ".avif", ".avifs",
)  # fmt: skip
"""Usual suffixes of the formats in `decoding.FORMATS`. Images in folders may have other suffixes."""
MAX_ITEM = 1 << 28
"""Maximum size of one decoded item in bytes, unless `max-item=` is given. Chosen by hand: an RGB image of
this size has 89 million pixels, the limit at which Pillow warns. Each thread or process may decode one such
item at a time. Doubling it doubles the memory that one small malicious file can allocate."""
HUB_PREFIX = "hf:"
MOST_TEXTS = 2
REMOVED_KEYS = ("streaming", "buffer")
"""Keys of earlier releases, which read data sets of unknown length."""
SOURCES_HINT = (
    "DATA is `digits`, `photos`, `noise`, `intents`, `manual`, `letters`, a folder with one sub-folder a class, "
    "a .jsonl, .json, .csv, .tsv, .parquet or .conll file, a .txt list of images, .tar shards, `hf:org/name`, or `preset:NAME` of `hydractl data list`"
)

_DATA_SUFFIXES = (*FILE_SUFFIXES, LIST_SUFFIX, SHARD_SUFFIX)
_COMPRESSED = {b"\x1f\x8b": "gunzip", b"BZh": "bunzip2", b"\xfd7zXZ": "unxz", b"\x28\xb5\x2f\xfd": "unzstd"}
"""Programs that decompress, by the first bytes of a file."""
_HUB = re.compile(r"hf:(?P<repo>[A-Za-z0-9._-]+/[A-Za-z0-9._-]+)(?:@(?P<revision>[^@\s]+))?")
_NATURAL = re.compile(r"[0-9]{1,18}")
_PART = re.compile(r"([0-9]{1,5})/([0-9]{1,5})")


class SourceKind(Enum):
    """Type of source of a data set. The value is its name in messages."""

    DIGITS = "`digits`"
    PHOTOS = "`photos`"
    NOISE = "`noise`"
    INTENTS = "`intents`"
    MANUAL = "`manual`"
    LETTERS = "`letters`"
    FOLDER = "a folder"
    FILE = "a file"
    HUB = "a Hub data set"


BUILT_IN_IMAGES = (SourceKind.DIGITS, SourceKind.PHOTOS, SourceKind.NOISE)
BUILT_IN_TEXTS = (SourceKind.INTENTS, SourceKind.MANUAL, SourceKind.LETTERS)
BUILT_IN = tuple(kind.value.strip("`") for kind in (*BUILT_IN_IMAGES, *BUILT_IN_TEXTS))
"""Names of the built-in sources."""
COLUMNS = frozenset({"image", "label", "text", "label-separator"})
"""Keys that select or parse columns of a table."""
_SELECTION = frozenset({"classes", "classes-by", "limit", "part", MAP})
OF_IMAGES = frozenset({"decode", "exif"})
"""Keys that control the decoding of images."""
_LIMITS = frozenset({"max-item"})
KEYS: Mapping[SourceKind, frozenset[str]] = MappingProxyType(
    {
        SourceKind.DIGITS: _SELECTION | {"split"},
        SourceKind.PHOTOS: frozenset({"limit", "size"}),
        SourceKind.NOISE: frozenset({"limit", "size", "seed"}),
        SourceKind.INTENTS: _SELECTION | {"split", "domain"},
        SourceKind.MANUAL: frozenset({"limit"}),
        SourceKind.LETTERS: frozenset({"limit", "seed"}),
        SourceKind.FOLDER: _SELECTION | COLUMNS | OF_IMAGES | _LIMITS | {"split"},
        SourceKind.FILE: _SELECTION | COLUMNS | OF_IMAGES | _LIMITS | {"root"},
        SourceKind.HUB: _SELECTION | COLUMNS | OF_IMAGES | _LIMITS | {"split", "config"},
    }
)
SINGLE_VALUES = MappingProxyType({"decode": "fast", "exif": "ignore"})
"""Keys with only one valid value."""
LABELLED_BUILT_IN = tuple(name for name in BUILT_IN if "classes" in KEYS[SourceKind(f"`{name}`")])
"""Built-in sources with labels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRef:
    """Parsed DATA argument.

    Attributes:
        source: Name of a built-in source, a path, or `hf:org/name[@revision]`.
        split: Part of the source: `train`, `val`, `test`, or another split name.
        config: Configuration of a Hub data set.
        classes: Class names, numbers or inclusive ranges of numbers (`0-6`) to keep.
        classes_by: Match the classes to the model's by order, ignoring their names: by `position` in the
            data, by the last `number` in each name, or by the `alphabet` (like torchvision's ImageFolder).
        map: Old and new names of classes. `classes` selects by the old names.
        limit: Maximum number of items, spread evenly over the selected items.
        part: `K/N`, the K-th of N parts of about equal size. The digest of a sample selects its part.
        image: Column with the images.
        label: Column with the labels.
        text: Column with the texts, or `FIRST+SECOND` for pairs of texts.
        label_separator: Separator of the labels in one cell. `comma`, `space` and `tab` name these
            characters. `none` disables splitting.
        root: Folder of the image paths in a table. None for the folder of the table.
        seed: Seed of `noise` and `letters`.
        size: Side of `photos` and `noise`, in pixels.
        domain: OOD domain of `intents`.
        decode: `fast` decodes JPEG files at 1/2, 1/4 or 1/8 of their size if this is still at least twice the
            size after resizing. Pixels differ slightly.
        exif: `ignore` does not rotate images by their EXIF orientation.
        max_item: Maximum size of one decoded item in bytes. None means `MAX_ITEM`.

    Raises:
        UsageError: If the source is malformed, or a key is not valid for the source or has a malformed value.
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

        for key, only in SINGLE_VALUES.items():
            if getattr(self, key) not in {None, only}:
                raise UsageError(f"`{key}={getattr(self, key)}`: must be `{only}`", hint="or leave it out")
        if self.classes_by not in {None, *ORDERS}:
            raise UsageError(f"`classes-by={self.classes_by}`: must be one of {quoted(ORDERS)}")

    @property
    def reads_classes(self) -> bool:
        """Whether the reference selects, renames or orders classes."""
        return not (self.classes is None and self.classes_by is None and self.map is None)

    @property
    def part_numbers(self) -> tuple[int, int] | None:
        """K and N of `part`. None without `part`."""
        return None if self.part is None else _part(self.part)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the reference of a single data set.

        Raises:
            UsageError: If `text` is malformed, or names several data sets.
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
        """Parse a reference to one data set, or to the OOD sets of a preset.

        Returns:
            Pairs of a name and a reference. The name is None except for presets.

        Raises:
            UsageError: If `text` is malformed.
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
        """The reference for reports, without local folders: only the last part of a path is kept."""
        if self.kind not in {SourceKind.FOLDER, SourceKind.FILE}:
            return str(self)
        return Path(self.source).resolve().name + str(replace(self, root=None)).removeprefix(self.source)

    @property
    def kind(self) -> SourceKind:
        """Type of the source, from its text alone: no file is accessed."""
        if self.source in BUILT_IN:
            return SourceKind(f"`{self.source}`")
        if self.source.startswith(HUB_PREFIX):
            return SourceKind.HUB
        return SourceKind.FILE if self.source.lower().endswith(_DATA_SUFFIXES) else SourceKind.FOLDER

    def check_there(self) -> None:
        """Check that a local path exists, and can be read by position.

        Files of a shard pattern are checked later, by `open_shards`.

        Raises:
            DataError: If the path does not exist, or is standard input, a FIFO, a device or a compressed
                file.
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
        """Columns named by `text`: zero, one or two."""
        return () if self.text is None else tuple(self.text.split("+"))

    @property
    def repo_id(self) -> str:
        """`org/name` of a Hub data set. Empty for other sources."""
        match = _HUB.fullmatch(self.source)
        return match["repo"] if match else ""

    @property
    def revision(self) -> str | None:
        """Branch, tag or commit of a Hub data set. None if the reference names no revision."""
        match = _HUB.fullmatch(self.source)
        return match["revision"] if match else None

    def _options(self) -> dict[str, object]:
        return {key: value for key in OPTION_KEYS if (value := getattr(self, _field(key))) is not None}


def check_seekable(path: Path) -> None:
    """Check that a file can be read by position.

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
        path.open("rb") as model_file,
    ):  # later readers explain folders and missing permissions
        begin = model_file.read(max(map(len, _COMPRESSED)))
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
    """Return the source and the options of a reference. The options are empty without `::`.

    Raises:
        UsageError: If the text is malformed, or a key is unknown, removed or repeated.
    """
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
    """Return a class name in Unicode normal form NFC without surrounding white space, for exact comparison."""
    return unicodedata.normalize("NFC", name.strip())


def folded(name: str) -> str:
    """Return a class name for comparison that ignores upper and lower case."""
    return normal(normal(name).casefold())


def placeholders(names: Sequence[str]) -> tuple[int, ...] | None:
    """Return the numbers of names that are only numbers: `7`, `7.0` or `LABEL_7`.

    Returns:
        One number per name. None if any name is not a number, or if two numbers are equal.
    """
    return _distinct([int(match[1]) for match in map(_PLACEHOLDER.fullmatch, names) if match], names)


def counters(names: Sequence[str]) -> tuple[int, ...] | None:
    """Return the numbers of names that differ only in their last number, like `class0` and `class10`.

    Returns:
        One number per name. None if names differ otherwise, two numbers are equal, or there is a single name.
    """
    matches = [*filter(None, map(_COUNTED.fullmatch, names))]
    one_stem = len({match[1] for match in matches}) == 1 and len(names) > 1
    return _distinct([int(match[2]) for match in matches], names) if one_stem else None


def _distinct(numbers: Sequence[int], names: Sequence[str]) -> tuple[int, ...] | None:
    return tuple(numbers) if len({*numbers}) == len(names) else None


def by_number(names: Sequence[str]) -> list[int] | None:
    """Return the positions of names, ordered by their numbers. None if names are not numbered."""
    numbers = placeholders(names) or counters(names)
    return None if numbers is None else sorted(range(len(names)), key=numbers.__getitem__)


def has_two_orders(names: Sequence[str]) -> bool:
    """Return whether names are sorted alphabetically and their order by number differs."""
    order = by_number(names)
    return order is not None and list(names) == sorted(names) and order != sorted(order)


def continues_map(option: str, part: str) -> bool:
    """Return whether the text after a comma continues the option before the comma: only lists of `map=` do."""
    if not option.startswith(f"{MAP}="):
        return False
    old, colon, _ = part.partition(":")
    return option.count('"') % 2 == 1 or part.startswith('"') or (bool(colon) and "=" not in old)


def split_source(text: str) -> tuple[str, str, str]:
    """Split a data reference at the last `::` outside of quoted names.

    Returns:
        Source, `::` and options; or `text` and two empty strings if there is no separator. Like
        `str.partition`.
    """
    places = [at for at in range(len(text)) if text.startswith("::", at)]
    for at in reversed(places):
        options = [split_keys(text[before + 2 : at])[-1] for before in places if before < at]
        if not any(last.startswith(f"{MAP}=") and last.count('"') % 2 for last in options):
            return text[:at], "::", text[at + 2 :]
    return text, "", ""


def split_keys(text: str) -> list[str]:
    """Split `key=value,...` at commas, except for commas in the list of `map=`."""
    options: list[str] = []
    for part in text.split(","):
        if options and continues_map(options[-1], part):
            options[-1] += f",{part}"
        else:
            options.append(part)
    return options


def read_pairs(text: str) -> tuple[tuple[str, str], ...]:
    """Parse `OLD:NEW,...` into pairs of old and new names.

    A name with a quote, comma, colon or `=` must be in double quotes, and quotes in the name must be doubled.

    Raises:
        UsageError: If the text is malformed.
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
    """Format pairs of names for `read_pairs`."""
    return ",".join(f"{write_name(old)}:{write_name(new)}" for old, new in pairs)


def write_name(name: str) -> str:
    """Return a class name, in quotes if `read_pairs` requires quotes."""
    return name if _NEEDS_NO_QUOTES.fullmatch(name) else '"{}"'.format(name.replace('"', '""'))


def _check_pairs(pairs: Sequence[tuple[str, str]]) -> None:
    """Raise UsageError if a name is empty or a class is renamed twice."""
    if not pairs or not all(map(all, pairs)):
        raise UsageError(f"the key `{MAP}` has an empty name", hint=f"write `{MAP}=OLD:NEW`, or leave it out")
    if (twice := first_twice(old for old, _ in pairs)) is not None:
        raise UsageError(f"`{MAP}={write_pairs(pairs)}`: renames the class `{twice}` twice")


def first_twice(names: Iterable[str]) -> str | None:
    """Return the first name that occurs more than once. None if all names differ."""
    return next((name for name, times in Counter(names).items() if times > 1), None)


def _read(text: str) -> str:
    return normal(text[1:-1].replace('""', '"') if text.startswith('"') else text)


LINES = "-"
"""DATA argument for standard input, with one item per line."""


def image_path(reference: str) -> Path | None:
    """Return the path of DATA if DATA names an image file, else None.

    An image file has a usual suffix of images, or it exists and has no suffix of tables, lists or shards.
    References with options (`::key=value`) are no image files. A trailing `::` is removed.
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
    """Return whether DATA names one image file. The file may be missing."""
    path = image_path(reference)
    return path is not None and not os.path.isdir(path)  # noqa: PTH112 - `Path.is_dir` raises where a path is too long
