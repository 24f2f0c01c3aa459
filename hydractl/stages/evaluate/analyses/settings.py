"""Which analyses, and by which scores of heads. Importing this module does not load torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Self

from hydractl.errors import UsageError
from hydractl.plugins import load, plugins
from hydractl.settings import Option, OptionGroup, Role, check, setting
from hydractl.stages.evaluate.analyses.spec import Analysis, AnalysisNeeds
from hydractl.stages.shared.command_config import NamedInputs

ANALYSES: Mapping[str, Analysis] = MappingProxyType(
    {analysis.name: analysis for plugin in plugins() for analysis in load(plugin.analyses)}
)
ALL = "all"
PANEL = "Analyses"
NEEDS_OF_OPTIONS = (AnalysisNeeds.OOD, AnalysisNeeds.SCORES, AnalysisNeeds.CORRUPTIONS)
"""Inputs of an analysis that options provide."""
EXAMPLES = {
    AnalysisNeeds.OOD: "--near NAME=DATA",
    AnalysisNeeds.SCORES: "--scores scores.json",
    AnalysisNeeds.CORRUPTIONS: "--corrupt gaussian-noise:3",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedScores(NamedInputs):
    """A file of scores and what tables call it."""

    name: str
    ref: Path

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `NAME=FILE`, or a bare FILE named after itself.

        Raises:
            UsageError: If either is empty.
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
class Analysing:
    """What is asked."""

    analyse: tuple[str, ...] = setting(
        (),
        f"Analyse the rows: {', '.join(ANALYSES)}, or `{ALL}` that apply (docs/analysis.md).",
        parse=lambda text: tuple(text.split(",")),
        choices=(*ANALYSES, ALL),
        metavar="NAME,...",
        panel=PANEL,
        shows_default=False,
    )
    scores: tuple[NamedScores, ...] = setting(
        (),
        "Scores of heads, for analyses that read them.",
        parse=NamedScores.parse,
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
        """The analyses that must be made."""
        return tuple(name for name in ANALYSES if name in self.analyse)

    @property
    def chosen_analyses(self) -> tuple[str, ...]:
        """Those, and all others that may be made."""
        return tuple(ANALYSES) if ALL in self.analyse else self.named

    def needs_met(
        self, *, ood: Collection[object], corrupted: Collection[object]
    ) -> frozenset[AnalysisNeeds]:
        """Return what options give: OOD sets, corruptions, scores."""
        options = {
            AnalysisNeeds.OOD: ood,
            AnalysisNeeds.CORRUPTIONS: corrupted,
            AnalysisNeeds.SCORES: self.scores,
        }
        return frozenset(need for need, option_value in options.items() if option_value)

    def check_given(self, *, ood: Collection[object], corrupted: Collection[object]) -> None:
        """Refuse analyses without the options that they need, and scores that none looks at.

        Raises:
            UsageError: Naming the first.
        """
        needs_met = self.needs_met(ood=ood, corrupted=corrupted)
        for name in self.named:
            for need in NEEDS_OF_OPTIONS:
                if need in ANALYSES[name].needs and need not in needs_met:
                    raise UsageError(
                        f"`--analyse {name}` needs `{need.value}`",
                        hint=f"add `{EXAMPLES[need]}`",
                    )
        if self.scores and not any(
            AnalysisNeeds.SCORES in ANALYSES[name].needs for name in self.chosen_analyses
        ):
            users = [name for name, analysis in ANALYSES.items() if AnalysisNeeds.SCORES in analysis.needs]
            raise UsageError(
                "`--scores` has no effect: no selected analysis reads scores",
                hint=f"add `--analyse {users[0]}`",
            )


NOTHING_ANALYSED = Analysing()
ANALYSING = OptionGroup(lambda given: Analysing(**given), Option.of(Analysing))
