"""What a user may set of each scoring method, with its defaults. Importing it loads no torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from hydractl.settings import CheckedSettings

if TYPE_CHECKING:
    from hydractl.manifest.document import OptionValue

CIRCUIT, TAYLOR, GRADIENTS, GATES, CAHP = PANELS = ("Circuit", "Taylor", "Gradients", "Learned gates", "CAHP")
"""The groups that options are shown in, in order; a method's own may stand behind them."""


class BudgetMeaning(StrEnum):
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
class Settings(CheckedSettings):
    """A method without any; others declare theirs as fields, each an option of the same name."""

    @property
    def budget_means(self) -> BudgetMeaning:
        """What a budget means to the method so set."""
        return BudgetMeaning.NOTHING

    @property
    def objective(self) -> str | None:
        """What removals record."""
        return None

    @property
    def needs_ood(self) -> bool:
        """Whether out-of-distribution data is read."""
        return False

    @property
    def trains_weights(self) -> bool:
        """Whether the model's weights change with the scores."""
        return False

    def options(self) -> dict[str, OptionValue]:
        """Return what a scores file records of them."""
        return {k: v for k, v in asdict(self).items() if k != "objective" and v is not None}
