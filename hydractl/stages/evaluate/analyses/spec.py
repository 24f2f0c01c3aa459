"""What `eval` needs to know of any analysis. Importing this module does not load torch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from hydractl.plugins import load

if TYPE_CHECKING:
    from hydractl.stages.evaluate.analyses.context import AnalysisContext


class AnalysisNeeds(Enum):
    """What an analysis cannot do without: the option that names it, or what a row must be."""

    OOD = "--near"
    SCORES = "--scores"
    CORRUPTIONS = "--corrupt"
    BASE = "the base as a row"
    MEMBERS = "a row with several members"
    WHOLE = "a base as a row"
    MERGED = "a hydra with merged weights, and a row with the members that it was fused from"


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """One row of the table.

    Attributes:
        name: As typed, and as the field of `manifest.Analyses`.
        path: Of its function, `module:name`; it takes an `AnalysisContext`.
        source: Where the paper has it.
        needs: All of it is there, or there is no analysis.
    """

    name: str
    path: str
    source: str
    needs: frozenset[AnalysisNeeds] = frozenset()

    def of(self, context: AnalysisContext) -> object:
        """Return what is found of a row, as the field of `manifest.Analyses` takes it; nothing where it cannot be asked."""
        return load(self.path)(context)
