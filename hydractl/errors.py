"""The exception tree. Each class is a kind a caller can act on, and owns an exit code.

HydraError               1
├─ UsageError            2
├─ InputError            3
│  ├─ ManifestError      a JSON file of ours
│  ├─ CheckpointError    a safetensors file
│  ├─ UnsupportedModelError
│  ├─ DataError          below it UnreadableError, an image
│  └─ OutputError        a place that cannot be written
├─ HubError              4
├─ CheckFailed           5
├─ OutputExists          6
└─ Interrupted         130

A `HydraError` says what is wrong and where; `hint` says what to type next. Programming mistakes stay
`ValueError` or `TypeError` and keep their traceback. Under `--json` an error is a document: `to_dict`, whose `kind` is one of `KINDS`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import ClassVar

EDITED = "the file may have been edited"
"""Hint for a file with content that no command writes."""
VALUE, MESSAGE, HINT = 200, 480, 480
"""Maximum lengths of a value, a message and a hint in characters; a bad value in a file may be a megabyte long."""


def shortened(text: str, letters: int) -> str:
    """Return a text of at most `letters` letters, without its middle where it is longer: a path's end says most."""
    if len(text) <= letters:
        return text
    head = (letters - 1) // 3
    return f"{text[:head]}…{text[len(text) - (letters - 1 - head) :]}"


BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0")
"""Characters without width that Python calls printable."""


def is_safe(letter: str) -> bool:
    """Return whether a character shows as itself and changes nothing around it.

    Control characters, bidirectional and zero-width marks, separators of lines, odd blanks, undecodable bytes and unassigned
    characters do not. Everything that shows a text asks here: terminal, card, Markdown, HTML and pictures.
    """
    return letter.isprintable() and letter not in BLANK


def harmless(text: str, *, escape: Callable[[str], str] | None = None) -> str:
    """Return a text with unsafe characters escaped; line breaks stay.

    Args:
        text: The text.
        escape: How one character is escaped; as in Python's own literals by default.
    """
    return "\n".join(
        line
        if line.isprintable() and BLANK.isdisjoint(line)
        else "".join(letter if is_safe(letter) else (escape or _in_python)(letter) for letter in line)
        for line in text.split("\n")
    )


def _in_python(letter: str) -> str:
    return letter.encode("unicode_escape", "surrogatepass").decode()


def harmless_line(text: str) -> str:
    """Return a text with unsafe characters and line breaks escaped: a name, or a cell of a table."""
    return harmless(text).replace("\n", "\\n")


def in_one_line(text: str) -> str:
    """Return a message without line breaks and what steers a terminal, its values and itself not too long to read."""
    line = re.sub(r"\s*\n\s*", " ", shortened(text.strip(), 10 * MESSAGE))
    values = re.sub(r"`[^`]*`|\S+", lambda match: shortened(match[0], VALUE), harmless(line))
    return shortened(values, MESSAGE)


def reason_of(error: BaseException) -> str:
    """Return the first line of what a library's error says, or its type's name where it says nothing."""
    if isinstance(error, KeyError) and error.args:
        return f"there is no {error}"  # which is the key alone
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


class HydraError(Exception):
    """The root of every error that hydractl raises on purpose; its message is one line."""

    kind: ClassVar[str] = "bug"
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        self.message = in_one_line(message)
        self.hint = hint and shortened(harmless_line(hint), HINT)
        super().__init__(self.message)

    def to_dict(self) -> dict[str, str | int | None]:
        """Return the error as the command line prints it under `--json`."""
        return {
            "kind": self.kind,
            "message": self.message,
            "hint": self.hint,
            "exit_code": self.exit_code,
        }


class UsageError(HydraError):
    """Options that contradict each other or that do not fit the input."""

    kind = "usage"
    exit_code = 2


class InputError(HydraError):
    """An input that cannot be used."""

    kind = "input"
    exit_code = 3


class ManifestError(InputError):
    """A scores, head-mask or report file that is not what it should be."""

    kind = "manifest"


class CheckpointError(InputError):
    """A safetensors file that is malformed or does not hold the model it names."""

    kind = "checkpoint"


class UnsupportedModelError(InputError):
    """An architecture that head surgery does not cover; the message has the reason."""

    kind = "unsupported_model"


class DataError(InputError):
    """A data set that is missing, empty, corrupt or does not fit the model."""

    kind = "data"


class UnreadableError(DataError):
    """An image of a set cannot be read; the message names it."""


class OutputError(InputError):
    """A place that cannot be written: missing folder, no permission, full disk."""

    kind = "output"


class HubError(HydraError):
    """The network or the Hub failed, or is switched off."""

    kind = "hub"
    exit_code = 4


class CheckFailed(HydraError):  # noqa: N818 - reads as what happened
    """A check did not hold: `--verify`, `eval --fail-if`; or training diverged."""

    kind = "check_failed"
    exit_code = 5


class OutputExists(HydraError):  # noqa: N818 - as above
    """The output is already there, or is one of the inputs."""

    kind = "output_exists"
    exit_code = 6


class Interrupted(HydraError):  # noqa: N818 - as above
    """This process ends because another one of the same run did; without a message where that one has said why."""

    kind = "interrupted"
    exit_code = 130


_TREE: tuple[type[HydraError], ...] = (
    HydraError,
    *HydraError.__subclasses__(),
    *InputError.__subclasses__(),
)
KINDS = {error.kind: error.exit_code for error in _TREE}
"""Error kinds and their exit codes. A class of another module has the kind of its parent."""
