"""Changes of files by type: JSON values, checkpoint headers and tensors, binary formats, and plain bytes.

A change is data, stored in a line of JSON in the corpus. Earlier findings are repeated in every run.
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from support.torture import binaries
from support.torture.binaries import CHUNKS, COLUMNS, PICKLED, RECORDS
from support.torture.points import CANARY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from random import Random

DEEP = 100_000
"""Nesting depth of hostile JSON. Chosen by hand, far above Python's recursion limit of 1000; doubling only
enlarges the files."""


class Text(str):
    """JSON text that is inserted without changes."""

    __slots__ = ()


HOSTILE: dict[str, Any] = {
    "null": None, "true": True, "zero": 0, "minus": -1, "two": 2, "many": 10**12, "huge": Text("9" * 5000), "half": 0.5,
    "large": 1e308, "nan": math.nan, "infinite": math.inf, "empty": "", "word": "x", "long": "x" * 100_000,
    "control": "\x1b[31m\x00\r\n", "surrogate": Text('"\\ud800"'), "braces": "{i}%s{}", "traversal": "../../../etc/passwd",
    "canary": CANARY, "device": "/dev/zero", "url": "https://evil.invalid/x", "hub": "hf-hub:org/evil", "id": "org/evil",
    "code": "__import__('os').system('touch owned')", "list": [], "object": {}, "nested": [[[]]],
    "numbers": list(range(1000)), "deep": Text("[" * DEEP + "]" * DEEP), "unclosed": Text('{"a":' * DEEP), "bare": Text("nothing"),
}  # fmt: skip
DO = ("set", "set", "set", "delete", "rename", "twice", "graft", "again", "add")
BYTES = ("cut", "flip", "insert", "remove", "empty", "append", "double", "mark", "zero")
DTYPES = ("F32", "F16", "BF16", "F64", "I64", "I32", "U8", "BOOL", "F8_E4M3", "X9")
TENSORS = ("dtype", "reshape", "flat", "rename", "drop", "more", "nan", "infinite", "scalar", "none")
KINDS = {"st": ("meta", "meta", "meta", "header", "tensor", "bytes"), "json": ("json", "json", "json", "bytes"),
         "lines": ("line", "line", "bytes"), "zip": ("zip", "records", "archived", "archived", "bytes"), "text": ("cell", "bytes"),
         "pickle": ("pickle", "pickle", "bytes"), "bytes": ("bytes",), "image": ("head", "bytes"), "png": ("chunks", "head", "bytes"),
         "table": ("columns", "columns", "tail", "bytes")}  # fmt: skip
FORMS = {".st": "st", ".safetensors": "st", ".json": "json", ".jsonl": "lines", ".journal": "lines", ".pth": "zip", ".ckpt": "zip",
         ".bin": "zip", ".csv": "text", ".txt": "text", ".parquet": "table", ".png": "png", "old.pth": "pickle"}  # fmt: skip
FORMS |= dict.fromkeys((".jpg", ".bmp", ".gif", ".webp", ".tif", ".ppm"), "image")
BINARY = {"archived": PICKLED, "pickle": PICKLED, "records": RECORDS, "chunks": CHUNKS}


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change of a file.

    Attributes:
        file: Name of the file.
        kind: Kind of change, a key of `CHANGE`.
        do: Operation of this kind.
        where: Place of the change, as a share of all places.
        what: Name of a hostile value or dtype, or a second place as a share.
    """

    file: str
    kind: str
    do: str
    where: float = 0.0
    what: str | float = 0.0

    def data(self) -> dict[str, str | float]:
        """Return the change as JSON values."""
        return asdict(self)

    def of(self, data: bytes) -> bytes:
        """Return the changed bytes of a file."""
        return CHANGE[self.kind](self, data)


def drawn(file: str, draw: Random) -> Change:
    """Draw a random change for a file."""
    name = file.rpartition("/")[2]
    kind = draw.choice(KINDS[FORMS.get(name, FORMS.get(name[name.rindex(".") :], "bytes"))])
    where = int(draw.random() * 10_000) / 10_000
    hostile, share = draw.choice(list(HOSTILE)), int(draw.random() * 10_000) / 10_000
    do, what = "set", hostile if kind in {"cell", "columns"} else share
    if kind in {"meta", "header", "json", "line"}:
        do = draw.choice(DO)
        what = hostile if do in {"set", "add"} else share
    elif kind == "tensor":
        do = draw.choice(TENSORS)
        what = draw.choice(DTYPES) if do == "dtype" else 0.0
    elif kind != "cell":
        do = draw.choice({"columns": COLUMNS, **BINARY}.get(kind, BYTES))
    return Change(file=file, kind=kind, do=do, where=where, what=what)


def dumps(value: Any) -> str:
    """Return JSON text. `Text` is inserted unchanged, and `Pairs` may have duplicate keys."""
    if isinstance(value, Text):
        return str(value)
    if isinstance(value, dict | Pairs):
        pairs = value if isinstance(value, Pairs) else value.items()
        return "{" + ",".join(f"{json.dumps(key)}:{dumps(x)}" for key, x in pairs) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(dumps, value)) + "]"
    return json.dumps(value)


class Pairs(list[tuple[str, Any]]):
    """A JSON object with possibly duplicate keys."""


def _places(value: Any, parent: Any = None, key: Any = None) -> Iterator[tuple[Any, Any]]:
    """Yield (container, key) of all nested values. Of lists, only the first three and the last item are used."""
    if parent is not None:
        yield parent, key
    if isinstance(value, dict):
        for name, held in value.items():
            yield from _places(held, value, name)
    elif isinstance(value, list):
        for i in range(len(value)):
            if i < 3 or i == len(value) - 1:
                yield from _places(value[i], value, i)


def _json(change: Change, text: str) -> str:
    """Change a value of a JSON text."""
    top = {"": json.loads(text)}
    places = list(_places(top[""], top, ""))
    parent, key = places[int(change.where * len(places))]
    value = parent[key]
    other = places[int(change.what * len(places))] if isinstance(change.what, float) else None
    if change.do == "set":
        parent[key] = HOSTILE[str(change.what)]
    elif change.do == "graft" and other:
        parent[key] = Text(dumps(other[0][other[1]]))
    elif change.do == "delete" and parent is not top:
        del parent[key]
    elif change.do == "add":
        held = value if isinstance(value, dict | list) else parent
        held.append(HOSTILE[str(change.what)]) if isinstance(held, list) else held.update(
            wings=HOSTILE[str(change.what)]
        )
    elif change.do == "again" and isinstance(value, list):
        parent[key] = value * 2
    elif isinstance(parent, dict) and parent is not top:
        named = f"{key}x" if change.do == "rename" else key
        pairs = Pairs(parent.items())
        pairs.insert(0, (named, value))
        whole = Text(dumps(Pairs(pair for pair in pairs if change.do != "rename" or pair[0] != key)))
        _replace(top, parent, whole)
    return dumps(top[""])


def _replace(top: dict[str, Any], old: Any, new: Any) -> None:
    for parent, key in list(_places(top[""], top, "")):
        if parent[key] is old:
            parent[key] = new
            return


def _opened(data: bytes) -> tuple[dict[str, Any], bytes]:
    (size,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def _closed(header: str, body: bytes) -> bytes:
    raw = header.encode(errors="surrogatepass")
    raw += b" " * (-len(raw) % 8)
    return struct.pack("<Q", len(raw)) + raw + body


def _meta(change: Change, data: bytes) -> bytes:
    """Change the JSON document in a checkpoint's metadata."""
    header, body = _opened(data)
    told = header.get("__metadata__") or {}
    name = next((name for name, text in told.items() if text.startswith("{")), None)
    if name is None:
        return _header(change, data)
    told[name] = _json(change, told[name])
    return _closed(json.dumps(header, ensure_ascii=False), body)


def _header(change: Change, data: bytes) -> bytes:
    header, body = _opened(data)
    return _closed(_json(change, json.dumps(header)), body)


def _tensor(change: Change, data: bytes) -> bytes:
    """Change one tensor. The file stays well-formed."""
    header, body = _opened(data)
    told = header.pop("__metadata__", None)
    tensors = {n: (x["dtype"], x["shape"], body[slice(*x["data_offsets"])]) for n, x in header.items()}
    name = list(tensors)[int(change.where * len(tensors))]
    dtype, shape, held = tensors.pop(name)
    instead: dict[str, tuple[str, list[int], bytes]] = {
        "dtype": (str(change.what), shape, held),
        "reshape": (dtype, shape[::-1], held),
        "flat": (dtype, [math.prod(shape)], held),
        "nan": (dtype, shape, struct.pack("<f", math.nan) * (len(held) // 4)),
        "infinite": (dtype, shape, struct.pack("<f", math.inf) * (len(held) // 4)),
        "scalar": (dtype, [], held[:4]),
        "none": (dtype, [0, *shape[1:]], b""),
    }
    if change.do in {"rename", "more"}:
        tensors[f"{name}x" if change.do == "rename" else "blocks.9.wings"] = (dtype, shape, held)
    if change.do not in {"rename", "drop"}:
        tensors[name] = instead.get(change.do, (dtype, shape, held))
    made: dict[str, Any] = {} if told is None else {"__metadata__": told}
    rest = b""
    for key, (kind, size, held) in tensors.items():
        made[key] = {"dtype": kind, "shape": size, "data_offsets": [len(rest), len(rest) + len(held)]}
        rest += held
    return _closed(json.dumps(made, ensure_ascii=False), rest)


def _bytes(change: Change, data: bytes) -> bytes:
    at, much = int(change.where * len(data)), 1 + int(float(change.what) * 40)
    match change.do:
        case "cut":
            return data[:at]
        case "flip":
            return data[:at] + bytes([data[at] ^ (1 << much % 8)]) + data[at + 1 :] if data else b"?"
        case "insert":
            return data[:at] + b"\xff\x00" * much + data[at:]
        case "remove":
            return data[:at] + data[at + much :]
        case "empty":
            return b""
        case "append":
            return data + b"\x00" * much
        case "double":
            return data + data
        case "mark":
            return b"\xef\xbb\xbf" + data
    return data[:at] + b"\x00" * much + data[at + much :]


def _line(change: Change, data: bytes) -> bytes:
    lines = data.decode().splitlines()
    at = int(change.where * len(lines))
    within = Change(
        file=change.file, kind="json", do=change.do, where=change.where * len(lines) % 1, what=change.what
    )
    lines[at] = _json(within, lines[at])
    return "".join(f"{line}\n" for line in lines).encode(errors="surrogatepass")


def _cell(change: Change, data: bytes) -> bytes:
    cells = data.decode().split(",") if b"," in data else data.decode().split("\n")
    value = HOSTILE[str(change.what)]
    cells[int(change.where * len(cells))] = value if isinstance(value, str) else dumps(value)
    return (b"," if b"," in data else b"\n").join(cell.encode(errors="surrogatepass") for cell in cells)


def _zip(change: Change, data: bytes) -> bytes:
    """Change the bytes of an archive's pickle."""
    return binaries.archived(data, lambda held: _bytes(change, held))


def _columns(change: Change, data: bytes) -> bytes:
    value = HOSTILE[str(change.what)]
    return binaries.columns(data, change.do, change.where, str(value) if isinstance(value, Text) else value)


def _within(begin: float, end: float) -> Callable[[Change, bytes], bytes]:
    """Return a change of bytes within a part of the file, given as shares of its length."""

    def within(change: Change, data: bytes) -> bytes:
        where = begin + change.where * (end - begin)
        return _bytes(replace(change, where=where), data)

    return within


def _of_binary(call: Callable[[bytes, str, float, float], bytes]) -> Callable[[Change, bytes], bytes]:
    return lambda change, data: call(data, change.do, change.where, float(change.what))


CHANGE: dict[str, Callable[[Change, bytes], bytes]] = {
    "json": lambda change, data: _json(change, data.decode()).encode(errors="surrogatepass"),
    "meta": _meta, "header": _header, "tensor": _tensor, "bytes": _bytes, "line": _line, "cell": _cell, "zip": _zip,
    "archived": lambda change, data: binaries.archived(data, lambda held: _of_binary(binaries.pickled)(change, held)), "pickle": _of_binary(binaries.pickled),
    "records": _of_binary(binaries.records), "chunks": _of_binary(binaries.chunks), "columns": _columns, "head": _within(0, 0.3),
    "tail": _within(0.8, 1),
}  # fmt: skip
