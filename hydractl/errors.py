"""Exceptions. Each class has an exit code, and callers can handle each separately.

    HydraError               1
    ├─ UsageError            2
    ├─ InputError            3
    │  ├─ ManifestError      a JSON file of hydractl
    │  ├─ CheckpointError    a safetensors file
    │  ├─ UnsupportedModelError
    │  ├─ DataError          with the subclass UnreadableError, an image
    │  └─ OutputError        a path that cannot be written
    ├─ HubError              4
    ├─ CheckFailed           5
    ├─ OutputExists          6
    └─ Interrupted         130

The message of a `HydraError` names the problem and the place; `hint` is advice for the next command.
Programming mistakes stay `ValueError` or `TypeError` with a traceback. With `--json`, the command line prints
the dictionary of `to_dict`, with a `kind` in `KINDS`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import ClassVar

EDITED = "the file may have been edited"
"""Hint for a file with content that no command writes."""
VALUE, MESSAGE, HINT = 200, 480, 480
"""Maximum lengths of a value, a message and a hint, in characters. A bad value in a file may have a megabyte.
Chosen by hand; 480 characters are six lines of a terminal, and twice the limit doubles them."""


def shortened(text: str, letters: int) -> str:
    """Return a text of at most `letters` characters.

    A longer text loses its middle, because the end of a path is specific.
    """
    if len(text) <= letters:
        return text
    head = (letters - 1) // 3
    return f"{text[:head]}…{text[len(text) - (letters - 1 - head) :]}"


BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0")
"""Characters without width that Python considers printable."""


def is_safe(letter: str) -> bool:
    """Return whether a character is displayed unchanged and does not affect neighbouring characters.

    False for control characters, bidirectional and zero-width marks, line separators, unusual spaces,
    undecodable bytes and unassigned characters. Terminal, card, Markdown, HTML and figures use this function.
    """
    return letter.isprintable() and letter not in BLANK


def escape_unsafe(text: str, *, escape: Callable[[str], str] | None = None) -> str:
    """Return a text with unsafe characters escaped. Line breaks are kept.

    Args:
        text: The text.
        escape: Escapes one character; by default like Python literals.
    """
    return "\n".join(
        line
        if line.isprintable() and BLANK.isdisjoint(line)
        else "".join(letter if is_safe(letter) else (escape or _in_python)(letter) for letter in line)
        for line in text.split("\n")
    )


def _in_python(letter: str) -> str:
    return letter.encode("unicode_escape", "surrogatepass").decode()


def escape_line(text: str) -> str:
    """Return a text with unsafe characters and line breaks escaped, for a name or a table cell."""
    return escape_unsafe(text).replace("\n", "\\n")


def in_one_line(text: str) -> str:
    """Return a message on one line, without control characters, and shortened to `MESSAGE` characters.

    Values in backticks and words are shortened to `VALUE` characters.
    """
    line = re.sub(r"\s*\n\s*", " ", shortened(text.strip(), 10 * MESSAGE))
    values = re.sub(r"`[^`]*`|\S+", lambda match: shortened(match[0], VALUE), escape_unsafe(line))
    return shortened(values, MESSAGE)


def reason_of(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its class if the message is empty."""
    if isinstance(error, KeyError) and error.args:
        return f"there is no {error}"  # The message of a KeyError is only the key.
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


class HydraError(Exception):
    """Base class of all errors raised on purpose. The message is a single line."""

    kind: ClassVar[str] = "bug"
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        self.message = in_one_line(message)
        self.hint = hint and shortened(escape_line(hint), HINT)
        super().__init__(self.message)

    def to_dict(self) -> dict[str, str | int | None]:
        """Return the error in the form of `--json`."""
        return {
            "kind": self.kind,
            "message": self.message,
            "hint": self.hint,
            "exit_code": self.exit_code,
        }


class UsageError(HydraError):
    """Options that contradict each other or do not fit the input."""

    kind = "usage"
    exit_code = 2


class InputError(HydraError):
    """An unusable input."""

    kind = "input"
    exit_code = 3


class ManifestError(InputError):
    """A scores, head-mask or report file that is malformed or of another kind."""

    kind = "manifest"


class CheckpointError(InputError):
    """A safetensors file that is malformed or does not contain the expected model."""

    kind = "checkpoint"


class UnsupportedModelError(InputError):
    """An architecture without support for pruning. The message has the reason."""

    kind = "unsupported_model"


class DataError(InputError):
    """A data set that is missing, empty, corrupt or does not fit the model."""

    kind = "data"


class UnreadableError(DataError):
    """An unreadable image. The message names the image."""


class OutputError(InputError):
    """An unwritable path: missing folder, no permission, full disk."""

    kind = "output"


class HubError(HydraError):
    """A failure of the network or the Hub, or offline mode."""

    kind = "hub"
    exit_code = 4


class CheckFailed(HydraError):  # noqa: N818 - names the event
    """A failed check (`--verify`, `eval --fail-if`), or diverged training."""

    kind = "check_failed"
    exit_code = 5


class OutputExists(HydraError):  # noqa: N818 - as above
    """An output that already exists, or is also an input."""

    kind = "output_exists"
    exit_code = 6


class Interrupted(HydraError):  # noqa: N818 - as above
    """The end of this process because another process of the same run has ended.

    The message is empty if the other process has printed the reason.
    """

    kind = "interrupted"
    exit_code = 130


_TREE: tuple[type[HydraError], ...] = (
    HydraError,
    *HydraError.__subclasses__(),
    *InputError.__subclasses__(),
)
KINDS = {error.kind: error.exit_code for error in _TREE}
"""Error kinds and their exit codes. A class of another module has the kind of its parent."""
