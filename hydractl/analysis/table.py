"""The analyses by name, with what each needs. Importing it loads no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hydractl.analysis.subject import Subject


class Needs(Enum):
    """What an analysis cannot do without: the option that names it, or what a row must be."""

    OOD = "--near"
    SCORES = "--scores"
    CORRUPTIONS = "--corrupt"
    BASE = "the base as a row"
    MEMBERS = "a row of several members"
    WHOLE = "a base as a row"
    MERGED = "a hydra with merged weights, and a row of the members that it was fused from"


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """One row of the table.

    Attributes:
        name: As typed, and as the field of `manifest.Analyses`.
        source: Where the paper has it.
        needs: All of it is there, or there is no analysis.
    """

    name: str
    source: str
    needs: frozenset[Needs] = frozenset()

    def of(self, subject: Subject) -> object:
        """Return what is found of a row, as the field of `manifest.Analyses` takes it; nothing where it cannot be asked."""
        return import_module(f"hydractl.analysis.{self.name}").analyse(subject)


ANALYSES: Mapping[str, Analysis] = MappingProxyType(
    {
        analysis.name: analysis
        for analysis in (
            Analysis(
                name="proposition",
                source="Proposition 1, B.1",
                needs=frozenset({Needs.CORRUPTIONS, Needs.BASE}),
            ),
            Analysis(name="centroids", source="Table 5", needs=frozenset({Needs.OOD})),
            Analysis(name="pca", source="Figure 4", needs=frozenset({Needs.OOD, Needs.SCORES})),
            Analysis(name="members", source="Table 10", needs=frozenset({Needs.MEMBERS})),
            Analysis(name="mlps", source="Table 11", needs=frozenset({Needs.MERGED})),
            Analysis(name="heads", source="Figure 5", needs=frozenset({Needs.SCORES, Needs.WHOLE})),
            Analysis(name="taylor", source="Figure 7"),
        )
    }
)
