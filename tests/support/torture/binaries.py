"""Changes of binary files: pickle operations, archive records, PNG chunks, and Parquet columns."""

from __future__ import annotations

import io
import pickletools
import struct
import warnings
import zipfile
import zlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PICKLED = ("drop", "again", "swap", "number", "text", "call", "other", "stop")
RECORDS = ("rename", "drop", "again", "deflate", "more", "empty")
CHUNKS = ("size", "drop", "again", "swap", "length", "name", "more", "profile")
COLUMNS = ("cell", "drop", "rename", "retype", "none", "many", "list", "nulls")
NUMBERS = (
    b"J\xff\xff\xff\xff",
    b"J\xff\xff\xff\x7f",
    b"\x8a\x09" + b"\xff" * 8 + b"\x00",
    b"G\x7f\xf0" + bytes(6),
    b"K\x00",
    b"N",
)
TEXTS = (
    b"X\x00\x00\x00\x00",
    b"X\xff\xff\xff\x7fx",
    b"X\x0d\x00\x00\x00../../../evil",
    b"X\x02\x00\x00\x00\xff\xfe",
    b"N",
    b"]",
)
CALLS = (
    b"cos\nsystem\n(X\x0b\x00\x00\x00touch ownedtR0", b"cbuiltins\nbytearray\n(\x8a\x05\x00\xe8\x76\x48\x17tR0",
    b"ctorch._utils\n_rebuild_tensor_v2\n(NJ\x00\x00\x00\x00(J\xff\xff\xff\x7ftNNNtR0", b"cbuiltins\neval\n(X\x01\x00\x00\x001tR0",
    b"ctorch.hub\nload\n(X\x05\x00\x00\x00a/b:ctR0", b"ccollections\nOrderedDict\n)R(K\x01K\x02u0",
)  # fmt: skip
SIZES = (0, 1, 8, 5000, 13_000, 60_000, 2**31 - 1, 2**32 - 1)


def _operations(data: bytes) -> Iterator[tuple[int, int, str]]:
    """Yield begin, end and name of each operation in the pickles at the start of a file."""
    file = io.BytesIO(data)
    for _ in range(5):
        try:
            found = [(place, op.name) for op, _, place in pickletools.genops(file)]
        except Exception:  # noqa: BLE001 - data after the last pickle end the loop
            return
        ends = [*(place for place, _ in found[1:]), file.tell()]
        yield from ((begin or 0, end or 0, name) for (begin, name), end in zip(found, ends, strict=True))


def pickled(data: bytes, do: str, where: float, what: float) -> bytes:
    """Change an operation of a pickle, or insert a call."""
    found = list(_operations(data))
    wanted = {"number": ("INT", "LONG"), "text": ("UNICODE", "STRING"), "call": ()}.get(do, ())
    some = [one for one in found if any(word in one[2] for word in wanted)] or found
    begin, end, _ = some[int(where * len(some))]
    own = data[begin:end]
    after = next((e for b, e, _ in found if b == end), end)
    instead = {
        "drop": b"", "again": own * 2, "swap": data[end:after] + own, "number": _one(NUMBERS, what), "text": _one(TEXTS, what),
        "call": _one(CALLS, what) + own, "other": bytes([int(what * 256)]) + own[1:], "stop": b".",
    }  # fmt: skip
    return data[:begin] + instead[do] + data[after if do == "swap" else end :]


def _one(values: tuple[Any, ...], what: float) -> Any:
    return values[int(what * len(values))]


def archived(data: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """Apply a change to the pickle of an archive."""
    found = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(found, "w") as new:
        for name in old.namelist():
            held = old.read(name)
            new.writestr(name, change(held) if name.endswith("data.pkl") else held)
    return found.getvalue()


def records(data: bytes, do: str, where: float, what: float) -> bytes:
    """Change the records of an archive, but not their content."""
    found = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(data)) as old,
        zipfile.ZipFile(found, "w") as new,
        warnings.catch_warnings(action="ignore"),  # Duplicate names in the archive cause warnings.
    ):
        names = old.namelist()
        chosen = names[int(where * len(names))]
        for name in names:
            if name != chosen or do in {"again", "more"}:
                new.writestr(name, old.read(name))
            if name == chosen and do != "drop":
                other = _one(
                    ("../../x", "archive/data/99", " ", "/etc/x", f"{name}\x00x", name.upper()), what
                )
                held = b"" if do == "empty" else b"\0" * 50_000_000 if do == "deflate" else old.read(name)
                preprocess = zipfile.ZIP_DEFLATED if do == "deflate" else zipfile.ZIP_STORED
                new.writestr(other if do in {"rename", "more"} else name, held, preprocess)
    return found.getvalue()


def chunks(data: bytes, do: str, where: float, what: float) -> bytes:
    """Change the chunks of a PNG and keep their checksums valid."""
    found, at = [], 8
    while at + 12 <= len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        found.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + length]))
        at += 12 + length
    place = int(where * len(found))
    name, held = found[place]
    if do == "size":
        sides = _one(SIZES, where), _one(SIZES, what)
        found[0] = (found[0][0], struct.pack(">II", *sides) + found[0][1][8:])
    elif do in {"drop", "again"}:
        found[place : place + 1] = [] if do == "drop" else [(name, held)] * 2
    elif do == "swap":
        found[place], found[place - 1] = found[place - 1], found[place]
    elif do == "name":
        found[place] = (_one((b"IDAT", b"IEND", b"tRNS", b"PLTE", b"acTL", b"\0\0\0\0"), what), held)
    elif do in {"more", "profile"}:
        kind = b"zTXt" if do == "more" else b"iCCP"
        found.insert(1, (kind, b"x\0\0" + zlib.compress(bytes(20_000_000))))
    begun = data[:8]
    for number, (name, held) in enumerate(found):
        length = len(held) if do != "length" or number != place else int(what * 2**32)
        begun += struct.pack(">I", length) + name + held + struct.pack(">I", zlib.crc32(name + held))
    return begun


def columns(data: bytes, do: str, where: float, value: Any) -> bytes:
    """Change a cell, a column, or the number of rows of a Parquet table."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    value = {"x": None} if value == {} else value  # An empty struct is not a valid column type.
    table = pq.read_table(io.BytesIO(data))
    place = int(where * table.num_columns)
    name, rows = table.column_names[place], table.num_rows
    column = table.column(place)
    if do == "drop":
        table = table.remove_column(place)
    elif do == "rename":
        table = table.rename_columns([str(value)[:1000] if n == name else n for n in table.column_names])
    elif do in {"none", "many"}:
        table = table.slice(0, 0) if do == "none" else pa.concat_tables([table] * 200)
    else:
        cells: list[Any] = column.to_pylist()
        if do == "cell":
            # A column has a single type, so cells of other types become null.
            chosen = int(where * 7919) % rows
            cells = [
                value if i == chosen else cell if isinstance(cell, type(value)) else None
                for i, cell in enumerate(cells)
            ]
        elif do == "retype":
            cells = [value] * rows
        elif do == "list":
            cells = [[cell] for cell in cells]
        elif do == "nulls":
            cells = [None] * rows
        table = table.set_column(place, name, pa.array(cells))
    found = io.BytesIO()
    pq.write_table(table, found)
    return found.getvalue()
