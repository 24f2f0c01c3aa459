"""Base class of the settings of scoring methods. Importing this module does not load torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from hydractl.settings import CheckedSettings

if TYPE_CHECKING:
    from hydractl.manifest.document import OptionValue

CIRCUIT, TAYLOR, GRADIENTS, GATES, CAHP = PANELS = ("Circuit", "Taylor", "Gradients", "Learned gates", "CAHP")
"""Panels of options in order; a method may add others after them."""


class BudgetMeaning(StrEnum):
    """Meaning of the budget of a method."""

    NOTHING = "nothing"
    """Every head is scored, whatever the budget."""
    KEEP = "keep"
    """The budget is the number of heads that each layer keeps."""
    REMOVALS = "removals"
    """The budget is the number of heads that are removed in total, one by one."""
    KEPT = "kept"
    """The budget is the number of heads that are kept in total."""
    CHOICE = "choice"
    """The budget is the number of heads that are kept in total; without one the method determines it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(CheckedSettings):
    """Settings of a method without options; other methods declare fields, each an option with the same name."""

    @property
    def budget_means(self) -> BudgetMeaning:
        """Meaning of the budget with these settings."""
        return BudgetMeaning.NOTHING

    @property
    def objective(self) -> str | None:
        """Objective that removals record."""
        return None

    @property
    def needs_ood(self) -> bool:
        """Whether OOD data are needed."""
        return False

    @property
    def needs_features(self) -> bool:
        """Whether the inputs of the classifier are needed."""
        return False

    @property
    def trains_weights(self) -> bool:
        """Whether the model's weights are trained."""
        return False

    def options(self) -> dict[str, OptionValue]:
        """Return the settings that a scores file records."""
        return {k: v for k, v in asdict(self).items() if k != "objective" and v is not None}
