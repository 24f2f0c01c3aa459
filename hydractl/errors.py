"""The exception tree. Each class is a kind a caller can act on, and owns an exit code.

HydraError               1
├─ UsageError            2
├─ InputError            3
│  ├─ ManifestError      a JSON file of ours
│  ├─ CheckpointError    a safetensors file
│  ├─ UnsupportedModelError
│  ├─ DataError
│  └─ OutputError        a place that cannot be written
├─ HubError              4
├─ CheckFailed           5
├─ OutputExists          6
└─ Interrupted         130

A `HydraError` says what is wrong and where; `hint` says what to type next. Programming mistakes stay
`ValueError` or `TypeError` and keep their traceback.
"""

from __future__ import annotations

from typing import ClassVar


class HydraError(Exception):
    """The root of every error that hydractl raises on purpose."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(HydraError):
    """Options that contradict each other or that do not fit the input."""

    exit_code = 2


class InputError(HydraError):
    """An input that cannot be used."""

    exit_code = 3


class ManifestError(InputError):
    """A scores, head-mask or report file that is not what it should be."""


class CheckpointError(InputError):
    """A safetensors file that is malformed or does not hold the model it names."""


class UnsupportedModelError(InputError):
    """An architecture that head surgery does not cover; the message has the reason."""


class DataError(InputError):
    """A data set that is missing, empty, corrupt or does not fit the model."""


class OutputError(InputError):
    """A place that cannot be written: missing folder, no permission, full disk."""


class HubError(HydraError):
    """The network or the Hub failed, or is switched off."""

    exit_code = 4


class CheckFailed(HydraError):  # noqa: N818 - reads as what happened
    """A check did not hold: `--verify`, `eval --fail-if`; or training diverged."""

    exit_code = 5


class OutputExists(HydraError):  # noqa: N818 - as above
    """The output is already there, or is one of the inputs."""

    exit_code = 6


class Interrupted(HydraError):  # noqa: N818 - as above
    """This process ends because another one of the same run did; without a message where that one has said why."""

    exit_code = 130
