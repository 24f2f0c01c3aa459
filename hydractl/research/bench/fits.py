"""Which rivals a model can have, told before anything is made: by the checks of the very commands that would refuse later."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hydractl.cli.commands.run import StageOptions
from hydractl.data.datasets import Content
from hydractl.data.open_dataset import open_data
from hydractl.errors import HydraError, UsageError
from hydractl.families.load import OpenModel
from hydractl.fusion.prompts import Classes
from hydractl.heads.masks import check_enough
from hydractl.messages import listed
from hydractl.progress import Progress
from hydractl.research.baselines.bayesvlm import check_pairs, text_settings
from hydractl.research.baselines.options import BayesVlmOptions, baselines_of
from hydractl.research.baselines.rows import check_baseline
from hydractl.research.bench.config import BenchConfig
from hydractl.research.bench.measure import Sets
from hydractl.research.bench.rows import PLANS, Rival, SharedSettings
from hydractl.research.methods.options import TrainingOptions
from hydractl.stages.evaluate.refs import NamedModels
from hydractl.stages.evaluate.selective_threshold import check_stores
from hydractl.stages.finetune.config import FinetuneConfig
from hydractl.stages.finetune.prepare import check_classes, open_trained, open_training, trained_names
from hydractl.stages.prune.config import PruneConfig


def fitting(
    config: BenchConfig, base: OpenModel, terms: SharedSettings, sets: Sets, progress: Progress
) -> tuple[str, ...]:
    """Return the rivals that can be made, and say which cannot, and why.

    Raises:
        UsageError: If one cannot that was named.
    """
    look = _RivalChecker(config, base, terms, sets)
    reasons: dict[str, list[str]] = {}
    for name in config.rival_names:
        try:
            look.check(PLANS[name])
        except HydraError as error:
            if config.rivals is not None:
                raise UsageError(
                    f"`--rivals {name}`: {error.message}", hint=error.hint or "leave it out"
                ) from error
            reasons.setdefault(error.message, []).append(name)
    for why, names in reasons.items():
        progress.warn(f"skipping {listed(names)}: {why}")
    without = {name for names in reasons.values() for name in names}
    return tuple(name for name in config.rival_names if name not in without)


@dataclass(frozen=True, slots=True)
class _RivalChecker:
    """Looks at what a rival's stages and rows would be made of."""

    config: BenchConfig
    base: OpenModel
    terms: SharedSettings
    sets: Sets

    def check(self, plan: Rival) -> None:
        """Refuse a rival that cannot be made.

        Raises:
            HydraError: As the command that would make it.
        """
        self._is_given(plan)
        for stage in plan.stages(self.terms):
            if stage["command"] == FinetuneConfig.COMMAND:
                self._trains(stage, starts=plan.starts)
            elif stage["command"] == PruneConfig.COMMAND:
                self._prunes(stage)
            elif "store" in stage:
                check_stores(self.base, self._classes())
        rows = [NamedModels.parse(f"{name}={models}") for name, models in plan.rows(self.terms).items()]
        for options in baselines_of(rows):
            check_baseline(options, [self.base], self._classes())
            if isinstance(options, BayesVlmOptions):
                check_pairs(options, self.sets.open(options.reads, self.base, labelled=False))
                open_data(options.captions, content=Content.TEXTS, labelled=False)

    def _is_given(self, plan: Rival) -> None:
        if plan.starts and self.config.start is None:
            raise _lacking("--start", "train it from", "MODEL")
        if plan.compares:
            text_settings(self.base, self._classes())
            if self.config.pairs is None:
                raise _lacking("--pairs", "fit it on", "DATA::text=COLUMN")

    def _trains(self, stage: StageOptions, *, starts: bool) -> None:
        if not starts:
            check_classes(self.base)  # of whose folder `finetune` would make a classifier: another model
        method, out = stage.get("method"), str(stage["out"])
        config = FinetuneConfig(
            model=str(stage["model"]) if starts else self.terms.model,
            data=self.config.data,
            val=self.config.val,
            out=Path(out.replace("{i}", "0") if "repeat" in stage else out),  # the first of a repeated stage
            recipe=self.config.recipe,
            extensions=() if method is None else (TrainingOptions(method=str(method)),),
        )
        opened = open_trained(config)
        self.sets.open(config.data, opened)
        training = open_training(config, opened.header)
        training.check_base()
        trained_names(opened, training)

    def _prunes(self, stage: StageOptions) -> None:
        try:
            check_enough(int(str(stage["pool"])), int(str(stage["remove"])), members=self.terms.members)
        except ValueError as error:
            raise UsageError(str(error), hint="use fewer `--members`, or leave the rival out") from error

    def _classes(self) -> Classes | None:
        tested = self.sets.open(self.config.test, self.base)
        return self.config.naming.classes(self.base, data=tested.class_names)


def _lacking(option: str, purpose: str, value: str) -> UsageError:
    return UsageError(f"without `{option}` there is nothing to {purpose}", hint=f"add `{option} {value}`")
