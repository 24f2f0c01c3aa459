"""What a user may set of each scoring method, with its defaults. Importing it loads no torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING

from hydractl.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hydractl.manifest import Option


class Amount(StrEnum):
    """What a budget means to a method."""

    NOTHING = "nothing"
    """Every head is scored whatever the budget."""
    KEEP = "keep"
    """The heads that a layer keeps."""
    REMOVALS = "removals"
    """The heads that go in all, one by one."""
    KEPT = "kept"
    """The heads that stay in all."""
    CHOICE = "choice"
    """The heads that stay in all; without a budget the method finds their number itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A method without any; others add theirs as fields, each the name of an option on the command line."""

    @property
    def amount(self) -> Amount:
        """What a budget means to the method so set."""
        return Amount.NOTHING

    @property
    def needs_ood(self) -> bool:
        """Whether out-of-distribution data is read."""
        return False

    @property
    def seeded(self) -> bool:
        """Whether the seed shapes the scores."""
        return False

    @property
    def default_limit(self) -> int | None:
        """How many in-distribution samples are used where the user gives no limit; None for all."""
        return None

    @property
    def bounded(self) -> bool:
        """Whether the memory that is computed with can be bounded."""
        return False

    @property
    def trains(self) -> bool:
        """Whether scores are learned, in shuffled epochs over the data."""
        return False

    @property
    def trains_weights(self) -> bool:
        """Whether the model's weights change with them."""
        return False

    def options(self) -> dict[str, Option]:
        """Return what a scores file records of them."""
        return {k: v for k, v in asdict(self).items() if k != "objective" and v is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomSettings(Settings):
    """Of `random`."""

    @property
    def seeded(self) -> bool:
        """Yes."""
        return True


def spelled(setting: str) -> str:
    """Return a setting's option as it is typed."""
    return f"--{setting.replace('_', '-')}"


def one_of(option: str, value: str, allowed: Mapping[str, object] | tuple[str, ...]) -> None:
    """Refuse a value that an option does not know.

    Raises:
        UsageError: Naming those that it does.
    """
    if value not in allowed:
        raise UsageError(f"unknown {option} `{value}`", hint=f"{spelled(option)}: {', '.join(allowed)}")


def within(option: str, value: float, *, low: float, high: float = float("inf")) -> None:
    """Refuse a number that lies outside `[low, high]`.

    Raises:
        UsageError: With the bounds.
    """
    if not low <= value <= high:
        bounds = f"at least {low:g}" if high == float("inf") else f"between {low:g} and {high:g}"
        raise UsageError(f"`{spelled(option)} {value:g}`: must be {bounds}")


def positive(option: str, value: float) -> None:
    """Refuse a number that is not finite and above 0.

    Raises:
        UsageError: If it is not.
    """
    if not 0 < value < float("inf"):
        raise UsageError(f"`{spelled(option)} {value:g}`: must be above 0 and finite")


def names_of(settings: type[Settings]) -> tuple[str, ...]:
    """Return the names of a method's settings."""
    return tuple(field.name for field in fields(settings))
