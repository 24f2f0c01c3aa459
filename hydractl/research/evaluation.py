"""Options and measurements of `eval` that research adds. Importing this module does not load torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from typing_extensions import override

from hydractl.errors import UsageError
from hydractl.research.analyses.options import ANALYSING, NOTHING_ANALYSED, Analysing
from hydractl.research.baselines.options import baselines_of, is_baseline
from hydractl.settings import Role, by_default
from hydractl.stages.evaluate.extension import EvalExtension, RowMeasurer
from hydractl.stages.shared.command_config import InputRef

if TYPE_CHECKING:
    from hydractl.families.load import OpenModel
    from hydractl.stages.evaluate.config import EvalConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ResearchEval(EvalExtension):
    """Analyses of rows; baselines are values of `compare`."""

    analysing: Analysing = by_default(NOTHING_ANALYSED, ANALYSING)

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
        self.analysing.check_given(config)

    @override
    def further_inputs(self, config: EvalConfig) -> Sequence[InputRef]:
        options = baselines_of(config.compare)
        refs = (*(o.reads for o in options), *(o.val for o in options))
        return [InputRef(Role.DATA, ref) for ref in refs if ref is not None]

    @override
    def begin(self, config: EvalConfig, opened: Sequence[Sequence[OpenModel]]) -> RowMeasurer:
        from hydractl.research.analyses.context import check_rows, read_scores  # noqa: PLC0415 - loads torch
        from hydractl.research.measurer import ResearchMeasurer  # noqa: PLC0415 - as above
        from hydractl.stages.evaluate.open_models import check_one_question  # noqa: PLC0415 - as above

        options = {
            "--analyse": bool(self.analysing.analyse),
            "--compare KIND:MODEL": any(row.is_derived for row in config.compare),
        }
        check_one_question(options, opened[0][0])
        check_rows(self.analysing, opened)
        return ResearchMeasurer(self, read_scores(self.analysing, opened))
