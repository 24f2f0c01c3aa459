"""The text of a file: UTF-8, or what its byte order mark says."""

from __future__ import annotations

import codecs
import shlex
from pathlib import Path

from hydractl.data.decoding import read_bytes
from hydractl.errors import DataError

_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # begins with the mark of UTF-16
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def read_text(path: Path) -> str:
    """Return the text of a file, without its byte order mark.

    Raises:
        DataError: If it cannot be read, or is no text of that encoding; the message says in which line.
    """
    data = read_bytes(path)
    encoding = next((name for mark, name in _MARKS if data.startswith(mark)), "utf-8")
    hint = None
    if encoding == "utf-8":
        nul = data.find(b"\0")
        probable = "WINDOWS-1252" if nul < 0 else "UTF-16LE" if nul % 2 else "UTF-16BE"
        hint = f"convert it: `iconv -f {probable} -t UTF-8 {shlex.quote(str(path))}`, or save it as UTF-8"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        line = 1 + data.count(b"\n", 0, error.start)
        name = encoding.removesuffix("-sig").upper()
        raise DataError(
            f"{path}: line {line} is not {name} text: {error.reason} at byte {error.start}", hint=hint
        ) from error
    if "\0" in text:
        line = 1 + text.count("\n", 0, text.index("\0"))
        if 4 * text.count("\0") < len(text):
            hint = None  # UTF-16 that can be read as UTF-8 is half of NUL bytes
        raise DataError(f"{path}: line {line} contains a NUL character", hint=hint)
    return text
