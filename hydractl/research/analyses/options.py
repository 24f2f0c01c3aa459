"""Analyses of `eval --analyse` and their options. Importing this module does not load torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Self

from hydractl.errors import UsageError
from hydractl.provenance.command_config import NamedInputs
from hydractl.settings import Option, OptionGroup, Role, check, setting

ALL = "all"
PANEL = "Analyses"


class AnalysisNeeds(Enum):
    """Required inputs of an analysis: an option, or a property of a row."""

    OOD = "--near"
    SCORES = "--scores"
    CORRUPTIONS = "--corrupt"
    BASE = "the base as a row"
    MEMBERS = "a row with several members"
    WHOLE = "a base as a row"
    MERGED = "a hydra with merged weights, and a row with the members that it was fused from"


class Analysis(NamedTuple):
    """An analysis of `eval`.

    Attributes:
        path: `module:function` that maps an `AnalysisContext` to a field of `Analyses`.
        needs: Required inputs.
    """

    path: str
    needs: frozenset[AnalysisNeeds]


def _analysis(path: str, *needs: AnalysisNeeds) -> Analysis:
    return Analysis(f"hydractl.research.analyses.{path}", frozenset(needs))


ANALYSES: Mapping[str, Analysis] = MappingProxyType(
    {
        "proposition": _analysis(
            "gradients:analyse_proposition", AnalysisNeeds.CORRUPTIONS, AnalysisNeeds.BASE
        ),
        "centroids": _analysis("head_outputs:analyse_centroids", AnalysisNeeds.OOD),
        "pca": _analysis("head_outputs:analyse_pca", AnalysisNeeds.OOD, AnalysisNeeds.SCORES),
        "members": _analysis("ensembles:analyse_members", AnalysisNeeds.MEMBERS),
        "mlps": _analysis("ensembles:analyse_mlps", AnalysisNeeds.MERGED),
        "heads": _analysis("ensembles:analyse_heads", AnalysisNeeds.SCORES, AnalysisNeeds.WHOLE),
        "taylor": _analysis("gradients:analyse_taylor"),
    }
)
NEEDS_OF_OPTIONS = {
    AnalysisNeeds.OOD: "--near NAME=DATA",
    AnalysisNeeds.SCORES: "--scores scores.json",
    AnalysisNeeds.CORRUPTIONS: "--corrupt gaussian-noise:3",
}
"""Inputs that an option provides, each with an example of the option."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedImportance(NamedInputs):
    """A head importance file with a name for tables."""

    name: str
    ref: Path

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `NAME=FILE`, or FILE with the stem as name: `scores` for `a/scores.json`.

        Raises:
            UsageError: If name or file is empty.
        """
        name, equals, path_text = text.partition("=")
        if not equals or "/" in name:
            name, path_text = Path(text).stem, text
        if not name.strip() or not path_text:
            raise UsageError(
                f"`--scores {text}`: expected FILE or NAME=FILE", hint="`--scores circuit=scores.json`"
            )
        return cls(name=name, ref=Path(path_text))


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisOptions:
    """The options `--analyse` and `--scores`."""

    analyse: tuple[str, ...] = setting(
        (),
        f"Analyse the rows: {', '.join(ANALYSES)}, or `{ALL}` that apply (benchmarks/analysis.md).",
        parse=lambda text: tuple(text.split(",")),
        choices=(*ANALYSES, ALL),
        metavar="NAME,...",
        panel=PANEL,
        shows_default=False,
    )
    scores: tuple[NamedImportance, ...] = setting(
        (),
        "Scores of heads, for analyses that read them.",
        parse=NamedImportance.parse,
        repeated=True,
        metavar="[NAME=]FILE",
        panel=PANEL,
        role=Role.FILE,
    )

    def __post_init__(self) -> None:
        check(self)
        names = [scores.name for scores in self.scores]
        for name in names:
            if names.count(name) > 1:
                raise UsageError(
                    f"{names.count(name)} score files have the name `{name}`",
                    hint="give each file its own name: `--scores NAME=FILE`",
                )

    @property
    def named(self) -> tuple[str, ...]:
        """The analyses selected by name, which must apply; in the order of `ANALYSES`."""
        return tuple(name for name in ANALYSES if name in self.analyse)

    @property
    def chosen_analyses(self) -> tuple[str, ...]:
        """The selected analyses; with `all`, every analysis, applicable or not."""
        return tuple(ANALYSES) if ALL in self.analyse else self.named

    def check_given(self, needs_met: Collection[AnalysisNeeds]) -> None:
        """Check the options of analyses selected by name, and that an analysis uses `--scores` if given.

        Raises:
            UsageError: If an option is missing, with the name of the first such analysis, or if no analysis
                uses `--scores`.
        """
        for name in self.named:
            for need, example in NEEDS_OF_OPTIONS.items():
                if need in ANALYSES[name].needs and need not in needs_met:
                    raise UsageError(f"`--analyse {name}` needs `{need.value}`", hint=f"add `{example}`")
        users = [name for name, analysis in ANALYSES.items() if AnalysisNeeds.SCORES in analysis.needs]
        if self.scores and not {*users} & {*self.chosen_analyses}:
            raise UsageError(
                "`--scores` has no effect: no selected analysis reads scores",
                hint=f"add `--analyse {users[0]}`",
            )


NO_ANALYSES = AnalysisOptions()
ANALYSING = OptionGroup(lambda given: AnalysisOptions(**given), Option.of(AnalysisOptions))
