"""Shards: tar files of images or texts with their labels, in the layout of webdataset.

Members whose names are equal up to the first dot form a sample: `0001.jpg`, `0001.cls`, `0001.json`. Samples
are in the order of the shards and of their members. Memory holds labels, texts and the positions of images,
but no images.
"""

from __future__ import annotations

import re
import tarfile
from array import array
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from typing_extensions import override

from hydractl import progress
from hydractl.data.decoding import FileSpan, is_image
from hydractl.data.reference import IMAGE_SUFFIXES, SHARD_SUFFIX, SOURCES_HINT, DataRef, check_seekable
from hydractl.data.sources.folder import is_hidden
from hydractl.data.sources.tables import DataTable, Read
from hydractl.errors import DataError, UsageError, reason_of
from hydractl.messages import did_you_mean_path, quoted
from hydractl.strict_json import NotJSONError, parse

IMAGE, TEXT, LABEL = "image", "text", "label"
FILES = {".txt": TEXT, ".cls": LABEL, ".json": None} | dict.fromkeys(IMAGE_SUFFIXES, IMAGE)
"""Column of a member, by the suffix from the first dot of its name. A `.json` file has one column per key."""
LARGEST = 1 << 24
"""Maximum size of a label or text, in bytes. Chosen by hand; doubling it doubles the memory that one member
can allocate."""
MOST_SHARDS = 1 << 16
"""Maximum number of shards in a pattern. Chosen by hand; doubling it doubles the memory and time that a
pattern like `{0..999999}` can cost."""
NAMES = "a sample needs `NAME.jpg` and `NAME.cls` or `NAME.json`"
_BRACES = re.compile(r"\{(?:([0-9]+)\.\.([0-9]+)|([^{}]*,[^{}]*))\}")


class _Member(NamedTuple):
    """Member of a shard.

    Attributes:
        path: Full name.
        name: Folder and the part of the name before the first dot.
        suffix: Part of the name from the first dot, in lower case. Empty for links.
        span: Bytes of the member in the shard.
        is_image: Whether a member with an unknown suffix has the content of an image.
    """

    path: str
    name: str
    suffix: str
    span: FileSpan
    is_image: bool


class ShardTable(DataTable):
    """Table of the samples of shards. Columns from `.json` files are left out if any sample lacks them."""

    def __init__(self, paths: Sequence[Path], *, place: str, name: str) -> None:
        """Read all names, labels and texts. A warning lists members without an image, text or label.

        Raises:
            DataError: If a shard is missing or damaged, a sample lacks a file that others have, or a label
                cannot be read.
        """
        self._skipped: list[str] = []
        self._paths = paths
        self._places = array("q")
        self._cells: dict[str, list[object]] = {}
        self._count = 0
        for number, path in enumerate(paths):
            for _, members in groupby(_members(path), key=lambda member: member.name):
                self._add(number, list(members))
        if self._skipped:
            progress.warn(
                f"{place}: skipped members without an image, text or label ({len(self._skipped)}): {quoted(self._skipped)}"
            )
        super().__init__([*([IMAGE] if self._places else []), *self._cells], place=place, name=name)

    def _add(self, shard: int, members: Sequence[_Member]) -> None:
        """Add a sample from its members. Members of unknown types are recorded as skipped.

        Raises:
            DataError: If only this sample has, or lacks, an image, text or label.
        """
        place = f"{self._paths[shard]}: `{members[0].name}`"
        has_image = any(FILES.get(member.suffix) == IMAGE for member in members)
        columns = [IMAGE if m.is_image and not has_image else FILES.get(m.suffix) for m in members]
        fields = _sample(members, columns, place=place)
        self._skipped += [
            f"{self._paths[shard].name}/{member.path}"
            for member, column in zip(members, columns, strict=True)
            if not fields or (column is None and member.suffix not in FILES)
        ]
        if not fields:
            return
        span = fields.pop(IMAGE, None)
        if isinstance(span, FileSpan):
            self._places.extend((shard, span.offset, span.size))
        self._count += 1
        if self._count == 1:
            self._cells = {column: [] for column in fields}
        if len(self._places) not in {0, 3 * self._count}:
            raise DataError(f"{place} has {'an' if span else 'no'} image, unlike earlier samples")
        for column in [c for c in self._cells if c not in fields]:
            if column in FILES.values():
                raise DataError(f"{place} has no `{column}`, but others have one", hint=NAMES)
            del self._cells[column]
        for column, cells in self._cells.items():
            cells.append(fields[column])

    @override
    def __len__(self) -> int:
        return self._count

    @override
    def cells(self, column: str, *, most: int | None = None) -> Sequence[object]:
        return self._cells[column][:most]

    @override
    def images(self, column: str) -> Read:
        if column != IMAGE:
            raise DataError(f"{self.place(column)}: has no images", hint="leave out `image=`")

        def read(index: int) -> FileSpan:
            shard, offset, size = self._places[3 * index : 3 * index + 3]
            return FileSpan(self._paths[shard], offset, size)

        return read


def open_shards(ref: DataRef) -> ShardTable:
    """Return the samples of the shards in a folder or of a pattern like `train-{000..012}.tar`.

    Shards in a folder are sorted by name. A warning lists other entries of the folder.

    Raises:
        DataError: If a shard is missing; see also `ShardTable`.
        UsageError: If the pattern is malformed.
    """
    paths = shards_in(ref) or list(map(Path, expanded(ref.source)))
    for path in paths:
        check_seekable(path)
        if not path.is_file():
            raise DataError(f"{path}: no such file", hint=did_you_mean_path(str(path)) or SOURCES_HINT)
    if others := sorted(
        entry.name
        for entry in {*Path(ref.source, ref.split or "").glob("*")}.difference(paths)
        if not is_hidden(entry.name)
    ):
        progress.warn(f"{ref.source}: skipped entries beside the shards ({len(others)}): {quoted(others)}")
    return ShardTable(paths, place=ref.source, name=Path(ref.source).resolve().name)


def shards_in(ref: DataRef) -> list[Path]:
    """Return the shards in a folder, sorted by name. Empty if there are no shards."""
    paths = Path(ref.source, ref.split or "").glob(f"*{SHARD_SUFFIX}")
    return sorted(path for path in paths if path.is_file() and not path.name.startswith("."))


def expanded(pattern: str) -> list[str]:
    """Expand the braces of a pattern like a shell: `{000..012}`, `{a,b}`.

    Raises:
        UsageError: If the pattern has more than `MOST_SHARDS` names, or a decreasing range.
    """
    braces = _BRACES.search(pattern)
    if braces is None:
        return [pattern]
    first, last, listed = braces.groups()
    words = listed.split(",") if listed else []
    if first is not None:
        low, high = int(first), int(last)
        if not low <= high < low + MOST_SHARDS:
            raise UsageError(
                f"`{pattern}`: `{braces[0]}` must be an increasing range of at most {MOST_SHARDS} shards"
            )
        words = [f"{number:0{len(first)}d}" for number in range(low, high + 1)]
    names = [
        name
        for word in words
        for name in expanded(pattern[: braces.start()] + word + pattern[braces.end() :])
    ]
    if len(names) > MOST_SHARDS:
        raise UsageError(f"`{pattern}`: stands for more than {MOST_SHARDS} shards")
    return names


def _members(path: Path) -> Iterator[_Member]:
    """Yield the members of a shard, except folders and hidden files.

    Raises:
        DataError: If the shard is not a complete tar file.
    """
    try:
        tar: Any
        shard_bytes = path.stat().st_size
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                _check_member(member, path, shard_bytes)
                folder, _, base = member.name.rpartition("/")
                name, dot, suffix = base.partition(".")
                suffix = f"{dot}{suffix}".lower() if member.isfile() else ""
                if not (member.isdir() or any(is_hidden(p) for p in member.name.split("/") if p.strip("."))):
                    yield _Member(
                        member.name,
                        f"{folder}/{name}",
                        suffix,
                        FileSpan(path, member.offset_data, member.size),
                        member.isfile() and suffix not in FILES and is_image(tar.extractfile(member)),
                    )
                # `tarfile` keeps every member it has read: remove them, to keep memory small
                tar.members.clear()
            _check_end(tar, path)
    # MemoryError and OverflowError: `tarfile` allocates the sizes that damaged headers declare
    except (tarfile.TarError, OSError, EOFError, ValueError, OverflowError, MemoryError) as error:
        raise DataError(
            f"{path}: cannot be read as a tar file: {reason_of(error)}", hint="download or write it again"
        ) from error


def _check_end(tar: Any, path: Path) -> None:  # noqa: ANN401 - a `tarfile.TarFile`, which keeps its position untyped
    """Check that a shard ends with zeros. `tarfile` also stops, without an error, at a damaged header.

    Raises:
        DataError: If the shard is truncated or damaged, or has further members after its end.
    """
    with path.open("rb") as file:
        file.seek(tar.offset)
        blocks = iter(partial(file.read, 1 << 20), b"")
        end = next(blocks, b"")
        if len(end) < tarfile.BLOCKSIZE or any(end[: tarfile.BLOCKSIZE]):
            raise DataError(
                f"{path}: is {'damaged at' if any(end) else 'truncated after'} byte {tar.offset}",
                hint="download or write it again",
            )
        if any(end) or any(map(any, blocks)):
            raise DataError(
                f"{path}: has data after the end of its members at byte {tar.offset}",
                hint="join tar files with `tar --concatenate --file=FIRST.tar SECOND.tar`, or give a folder of them",
            )


def _check_member(member: tarfile.TarInfo, path: Path, shard_bytes: int) -> None:
    """Check that the bytes of a member are contiguous and within the shard of `shard_bytes` bytes.

    Raises:
        DataError: If the member is sparse, or larger than the shard.
    """
    place = f"{path}: `{member.name}`"
    if member.issparse():
        raise DataError(
            f"{place} is stored as a sparse file", hint="write the shard without `--sparse` of tar"
        )
    if not 0 <= member.size <= shard_bytes - member.offset_data:
        raise DataError(
            f"{place} has {member.size} bytes in its header, but the shard has only {shard_bytes}",
            hint="download it again",
        )


def _sample(members: Sequence[_Member], columns: Sequence[str | None], *, place: str) -> dict[str, object]:
    """Return the cells of a sample by column.

    A cell is the content of a file, the span of the image, or a value from the `.json` file.

    Raises:
        DataError: If two files belong to one column.
    """
    cells: dict[str, object] = {}
    for member, column in zip(members, columns, strict=True):
        if column in cells:
            raise DataError(f"{place} has two files for `{column}`", hint=NAMES)
        if column is not None:
            cells[column] = member.span if column == IMAGE else _text(member, column)
    for member in members:
        if member.suffix == ".json":
            cells = {**_fields(member), **cells}
    return cells


def _read(member: _Member) -> bytes:
    if member.span.size > LARGEST:
        raise DataError(f"{member.span}: `{member.name}{member.suffix}` is larger than {LARGEST} bytes")
    return member.span.read()


def _text(member: _Member, column: str) -> object:
    """Return the content of a text or label file. Labels in digits become integers."""
    try:
        text = _read(member).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{member.span.path}: `{member.name}{member.suffix}` is not UTF-8 text") from error
    if column == TEXT:
        return text
    text = text.strip()
    return int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else text


def _fields(member: _Member) -> dict[str, object]:
    place = f"{member.span.path}: `{member.name}{member.suffix}`"
    try:
        fields = parse(_read(member).decode("utf-8-sig"))
    except (NotJSONError, UnicodeDecodeError) as error:
        raise DataError(f"{place} is not JSON") from error
    if not isinstance(fields, dict):
        raise DataError(f"{place} is not a JSON object")
    return {
        str(key): value
        for key, value in fields.items()
        if key != IMAGE and isinstance(value, str | int | float)
    }
