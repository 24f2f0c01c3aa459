"""Options and measurements of `eval` that research adds. Importing this module does not load torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from hydractl.research.analyses.options import ANALYSING, NOTHING_ANALYSED, Analysing
from hydractl.settings import by_default
from hydractl.stages.evaluate.extension import EvalExtension, RowMeasurer

if TYPE_CHECKING:
    from hydractl.families.load import OpenModel
    from hydractl.manifest.head_mask import HeadScores
    from hydractl.manifest.report import Row
    from hydractl.stages.evaluate.config import EvalConfig
    from hydractl.stages.evaluate.measure_row import Evaluation, LoadedRow


@dataclass(frozen=True, slots=True, kw_only=True)
class ResearchEval(EvalExtension):
    """Analyses of rows."""

    analysing: Analysing = by_default(NOTHING_ANALYSED, ANALYSING)

    @override
    def check_config(self, config: EvalConfig) -> None:
        self.analysing.check_given(config)

    @property
    @override
    def recorded(self) -> Mapping[str, str | tuple[str, ...] | None]:
        return {"analyse": self.analysing.analyse or None}

    @override
    def begin(self, config: EvalConfig, opened: Sequence[Sequence[OpenModel]]) -> RowMeasurer:
        from hydractl.research.analyses.context import check_rows, read_scores  # noqa: PLC0415 - loads torch
        from hydractl.stages.evaluate.open_models import check_one_question  # noqa: PLC0415 - as above

        check_one_question({"--analyse": bool(self.analysing.analyse)}, opened[0][0])
        check_rows(self.analysing, opened)
        return ResearchMeasurer(self, read_scores(self.analysing, opened))


@dataclass(frozen=True, slots=True)
class ResearchMeasurer(RowMeasurer):
    """Analyses of the rows of one run, with the scores of heads by their names."""

    options: ResearchEval
    scores: Mapping[str, HeadScores]

    @override
    def measure(self, run: Evaluation, row: LoadedRow) -> Callable[[Row], Row]:
        from hydractl.research.analyses.context import analyse  # noqa: PLC0415 - loads torch

        analyses = analyse(self.options.analysing, self.scores, run, row)
        return lambda measured: measured.model_copy(update={"analyses": analyses})

    @override
    def report_fields(self) -> Mapping[str, Any]:
        from hydractl.manifest.document import Fingerprint  # noqa: PLC0415 - `--help` loads no pydantic
        from hydractl.runtime import digest_file  # noqa: PLC0415 - as above

        return {
            "scores": tuple(
                Fingerprint(reference=f"{scores.name}={scores.ref.name}", sha256=digest_file(scores.ref))
                for scores in self.options.analysing.scores
            )
        }
