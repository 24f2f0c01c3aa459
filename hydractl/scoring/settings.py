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


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitSettings(Settings):
    """Of `circuit`.

    Attributes:
        objective: What the kept heads should be good at.
    """

    objective: str = "avg"

    def __post_init__(self) -> None:
        from hydractl.scoring.objective import OBJECTIVES  # noqa: PLC0415 - loads torch

        one_of("objective", self.objective, OBJECTIVES)

    @property
    def amount(self) -> Amount:
        """Removals."""
        return Amount.REMOVALS

    @property
    def needs_ood(self) -> bool:
        """As the objective says."""
        from hydractl.scoring.objective import OBJECTIVES  # noqa: PLC0415 - loads torch

        return OBJECTIVES[self.objective].needs_ood


@dataclass(frozen=True, slots=True, kw_only=True)
class TaylorSettings(Settings):
    """Of `taylor`.

    Attributes:
        scope: `layer`: each layer is scored without what went before it; `global`: all are scored at once.
    """

    scope: str = "layer"

    def __post_init__(self) -> None:
        one_of("scope", self.scope, ("layer", "global"))

    @property
    def amount(self) -> Amount:
        """What each layer keeps, if layers are scored one by one."""
        return Amount.KEEP if self.scope == "layer" else Amount.NOTHING

    @property
    def seeded(self) -> bool:
        """Yes: of the samples drawn."""
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


def names_of(settings: type[Settings]) -> tuple[str, ...]:
    """Return the names of a method's settings."""
    return tuple(field.name for field in fields(settings))
