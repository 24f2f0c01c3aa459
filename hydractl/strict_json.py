"""Reading of JSON with limits and precise errors, and the two output formats.

At most `MAX_BYTES` are read, because a checkpoint given by mistake would fill the memory. At most
`MAX_VALUES` values are accepted, because a parsed value takes fifty times its bytes or more. The depth is
limited to `DEEPEST` for recursive functions. Text is UTF-8 without a byte order mark. The length of integers
is limited by Python's parser. `NaN` and `Infinity` are accepted, because libraries write both into
configurations; the schemas of hydractl's documents reject both.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

from hydractl.errors import CheckpointError, ManifestError
from hydractl.messages import did_you_mean_path

MAX_BYTES = 100_000_000
"""Maximum size of a JSON text. Chosen by hand; twice the limit doubles the memory of reading a wrong file."""
MAX_VALUES = 4_000_000
"""Maximum number of brackets and commas in a JSON text, an upper bound of its values. Chosen by hand; twice
the limit doubles the memory of the parsed values."""
DEEPEST = 200
"""Maximum depth of nested JSON. Chosen by hand, far below Python's recursion limit of 1000; twice the limit
doubles the depth of recursive functions."""
STDIN = Path("-")
HALF = re.compile(r"\\u[dD][89a-fA-F]")
"""Escape sequences of surrogates, alone or in pairs."""
NOT_UTF8 = re.compile("[\udc80-\udcff]")
"""Characters with which Python represents non-UTF-8 bytes of a file name."""


class NotJSONError(ValueError):
    """A text other than JSON. The message has the problem and, if known, the position.

    Attributes:
        words: The problem, without the position.
        line: Line, from 1; 0 if unknown.
        column: Column, from 1; 0 if unknown.
    """

    def __init__(self, words: str, line: int = 0, column: int = 0) -> None:
        super().__init__(f"{words} at line {line} column {column}" if line else words)
        self.words = words
        self.line = line
        self.column = column


def parse(text: str | bytes, *, keys_once: bool = False) -> Any:  # noqa: ANN401 - JSON may be anything
    """Parse a JSON text.

    Args:
        text: A string, or UTF-8 bytes.
        keys_once: Whether to reject duplicate keys in an object. Otherwise the last value counts, like in
            libraries.

    Raises:
        NotJSONError: If the text is not JSON or exceeds a limit.
    """
    hook = _without_duplicates if keys_once else None
    try:
        text = text if isinstance(text, str) else text.decode()
        if sum(map(text.count, "[{,")) > MAX_VALUES:  # Characters inside strings are counted too.
            raise NotJSONError(f"has more than {MAX_VALUES} values")
        parsed = _shallow(json.loads(text, object_pairs_hook=hook))
        if HALF.search(text):
            json.dumps(parsed, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise NotJSONError("an unpaired surrogate, which is not a character") from error
    except json.JSONDecodeError as error:
        raise NotJSONError(_words(error), error.lineno, error.colno) from error
    except RecursionError as error:
        raise NotJSONError(_TOO_DEEP) from error
    except ValueError as error:  # Bad UTF-8 and integers with too many digits raise a ValueError.
        raise NotJSONError(str(error)) from error
    return parsed


_TOO_DEEP = f"is nested more than {DEEPEST} levels deep"


def _shallow(value: object) -> object:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(DEEPEST):
        inner = [node.values() if isinstance(node, dict) else node for node in level]
        level = [item for items in inner for item in items if isinstance(item, dict | list)]
        if not level:
            return value
    raise ValueError(_TOO_DEEP)


def plain(value: Mapping[str, object]) -> dict[str, Any]:
    """Return a copy with JSON types only: sorted keys, and lists instead of tuples."""
    return cast("dict[str, Any]", parse(json.dumps(dict(value), sort_keys=True, ensure_ascii=False)))


def compact(value: object, *, sort_keys: bool = False) -> str:
    r"""Return JSON on one line, without spaces. Non-UTF-8 bytes of a file name are written as `\xff`."""
    return _utf8(json.dumps(value, sort_keys=sort_keys, ensure_ascii=False, separators=(",", ":")))


def canonical(value: object) -> str:
    """Return JSON in the format of documents: sorted keys, two spaces, final newline.

    See `compact` for non-UTF-8 bytes.
    """
    return _utf8(json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)) + "\n"


def _utf8(text: str) -> str:
    return NOT_UTF8.sub(lambda match: f"\\\\x{ord(match[0]) - 0xDC00:02x}", text)


@contextlib.contextmanager
def open_binary(path: Path) -> Iterator[BinaryIO]:
    """Open a file or a FIFO for reading. `-` is standard input.

    Raises:
        OSError: If the file cannot be read, or standard input was closed before the program started.
    """
    if path != STDIN:
        with path.open("rb") as file:
            yield file
    elif sys.stdin is None:
        raise OSError(errno.EBADF, "standard input is closed")
    else:
        yield sys.stdin.buffer


def read_exactly(file: BinaryIO, size: int) -> bytes:
    """Return the next `size` bytes, or fewer at the end of the file.

    A pipe may return any smaller piece per read.
    """
    buffer = bytearray()
    while len(buffer) < size and (piece := file.read(size - len(buffer))):
        buffer += piece
    return bytes(buffer)


def read_limited(file: BinaryIO) -> bytes:
    """Return the rest of a file.

    Raises:
        NotJSONError: If the rest has more than `MAX_BYTES` bytes.
        UnicodeDecodeError: If the rest has more bytes and is not UTF-8 text.
    """
    content = read_exactly(file, MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        codecs.getincrementaldecoder("utf-8")().decode(content)
        raise NotJSONError(f"has more than {MAX_BYTES} bytes")
    return content


def read_text(path: Path) -> str:
    """Read the text of a document. `-` is standard input.

    Raises:
        ManifestError: If the file cannot be read, is too long or is not UTF-8.
    """
    hint = "this argument takes a JSON file; a checkpoint is not one"
    try:
        return _read(path).decode()
    except FileNotFoundError as error:
        raise ManifestError(f"{path}: no such file", hint=did_you_mean_path(str(path))) from error
    except UnicodeDecodeError as error:
        raise ManifestError(f"{path}: is not UTF-8 text", hint=hint) from error
    except NotJSONError as error:
        raise ManifestError(f"{path}: {error}", hint=hint) from error
    except OSError as error:
        raise ManifestError(f"{path}: cannot be read: {error.strerror}") from error


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object from a model's folder, for example `config.json`.

    Raises:
        CheckpointError: If the file cannot be read or is not a JSON object.
    """
    try:
        value = parse(_read(path))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: is not a JSON object")
    return value


def _read(path: Path) -> bytes:
    with open_binary(path) as file:
        return read_limited(file)


def _without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    by_key = dict(pairs)
    if len(by_key) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"key `{next(n for n in names if names.count(n) > 1)}` appears twice")
    return by_key


def _words(error: json.JSONDecodeError) -> str:
    """Return the problem of a text.

    Python's own message is misleading for a superfluous comma, the most frequent mistake.
    """
    before, after = error.doc[: error.pos].rstrip(), error.doc[error.pos :].lstrip()
    # Python 3.13 reports the position of the comma, earlier releases the position after it.
    if after.startswith(","):
        before, after = f"{before},", after[1:].lstrip()
    if before.endswith(",") and after[:1] in {"}", "]"}:
        return f"there is a comma before the closing `{after[0]}`"
    if before.endswith(",") and _is_json(before[:-1]):
        return "there is a comma after the end"
    return error.msg


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
