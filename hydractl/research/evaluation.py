"""Options of `eval` for research. Importing this module does not load torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from typing_extensions import override

from hydractl.errors import UsageError
from hydractl.evaluation.options import EvalExtension
from hydractl.messages import did_you_mean
from hydractl.metrics.metric_spec import MetricNeeds
from hydractl.metrics.registry import needing
from hydractl.plugins import load
from hydractl.provenance.command_config import InputRef
from hydractl.research.analyses.options import (
    ANALYSES,
    ANALYSING,
    NEEDS_OF_OPTIONS,
    NO_ANALYSES,
    AnalysisNeeds,
    AnalysisOptions,
)
from hydractl.research.baselines.options import baselines_of, is_baseline
from hydractl.research.corruptions.names import (
    ALL,
    ALL_CORRUPTIONS,
    IMAGES,
    SEVERITIES,
    SHIFT,
    TEXTS,
    Corruptions,
    scopes_of,
)
from hydractl.settings import Role, by_default, setting
from hydractl.stages import options as shared

if TYPE_CHECKING:
    from hydractl.evaluation.rows import RowMeasurer
    from hydractl.families.open_model import OpenModel
    from hydractl.stages.evaluate.config import EvalConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ResearchEval(EvalExtension):
    """Corruptions of the ID set and analyses of rows. Baselines are values of `--compare`."""

    corrupt: tuple[Corruptions, ...] = setting(
        (),
        f"Also measure `--data` under a corruption, at severities 1 to 5 (default: all five). `{ALL}`; for images "
        f"{', '.join(IMAGES)} (`frost=DIR`: its photographs); for texts {', '.join(TEXTS)}. "
        "Conditions of `--fail-if`: `acc[fog:3]<0.8`, `acc[shift]<0.7`.",
        parse=Corruptions.parse,
        repeated=True,
        metavar="NAME[:1-5]",
        suggestions=(ALL, *ALL_CORRUPTIONS),
        panel=shared.DATA,
        after="temperature",
    )
    analysing: AnalysisOptions = by_default(NO_ANALYSES, ANALYSING)

    @override
    def check_config(self, config: EvalConfig) -> None:
        if is_baseline(config.model):
            raise UsageError(
                f"`{config.model}`: MODEL must be a model, not a baseline",
                hint=f"add it as another row: `--compare NAME={config.model}`",
            )
        derived = [row.name for row in config.compare if row.is_derived]
        if derived and config.fitted:
            raise UsageError(
                f"`--ood-score {config.fitted[0]}`: feature-based scores are not available for the baseline `{derived[0]}`",
                hint="leave that row out, or measure it in a separate report with a logit-based score",
            )
        if self.corrupt and not needing(config.chosen, MetricNeeds.LABELS):
            raise UsageError(
                "`--corrupt` has no effect: no selected metric uses labelled data",
                hint="add one to `--metrics`, such as accuracy",
            )
        self.analysing.check_given(self._needs_met(has_ood=bool(config.ood)))

    @property
    @override
    def scopes(self) -> Sequence[str]:
        return scopes_of(
            (name, severity)
            for corruptions in self.corrupt
            for name in (ALL_CORRUPTIONS if corruptions.name == ALL else (corruptions.name,))
            for severity in corruptions.severities
        )

    @override
    def scope_hint(self, scope: str | None, measured: Sequence[str]) -> str | None:
        name, _, severity = str(scope).partition(":")
        corrupt = f"{ALL if name == SHIFT else name}{severity and f':{severity}'}"
        exists = name in {*ALL_CORRUPTIONS, SHIFT} and severity in {"", *map(str, SEVERITIES)}
        add = f"add `--corrupt {corrupt}`" if exists else None
        names = ", ".join(scope for scope in measured if ":" not in scope)
        hint: str = (
            add
            or did_you_mean(str(scope), measured)
            or did_you_mean(str(scope), (SHIFT, *ALL_CORRUPTIONS))
            or (f"there are {names}, and each with `:1` to `:5`" if measured else "add `--corrupt NAME`")
        )
        return hint

    def applicable_analyses(self, *, has_ood: bool) -> list[str]:
        """Return the names of the selected analyses whose options are given.

        Requirements on the rows are not checked.

        Args:
            has_ood: Whether the run has OOD sets.
        """
        met = self._needs_met(has_ood=has_ood)
        return [
            name
            for name in self.analysing.chosen_analyses
            if not ANALYSES[name].needs.intersection(NEEDS_OF_OPTIONS) - met
        ]

    def _needs_met(self, *, has_ood: bool) -> frozenset[AnalysisNeeds]:
        options = {
            AnalysisNeeds.OOD: has_ood,
            AnalysisNeeds.CORRUPTIONS: self.corrupt,
            AnalysisNeeds.SCORES: self.analysing.scores,
        }
        return frozenset(need for need, option_value in options.items() if option_value)

    @override
    def further_inputs(self, config: EvalConfig) -> Sequence[InputRef]:
        options = baselines_of(config.compare)
        refs = (*(o.data_ref for o in options), *(o.val for o in options))
        return [InputRef(Role.DATA, ref) for ref in refs if ref is not None]

    @override
    def begin(self, config: EvalConfig, model_files: Sequence[Sequence[OpenModel]]) -> RowMeasurer | None:
        derives = any(row.is_derived for row in config.compare)
        if not (self.corrupt or self.analysing.analyse or derives):
            return None
        measurer: RowMeasurer = load("hydractl.research.measurer:begin")(self, config, model_files)
        return measurer
