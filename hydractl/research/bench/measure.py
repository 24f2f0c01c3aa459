"""Select the possible rivals of `bench`, and estimate the duration from a few timed training steps."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

from hydractl import progress
from hydractl.cli.commands.run import StageOptions
from hydractl.cli.timing import FORWARD, MORE_STEPS, step_and_start, training_seconds, training_work
from hydractl.data.datasets import Content, Dataset, content_of
from hydractl.data.open_dataset import open_data
from hydractl.data.reference import DataRef
from hydractl.errors import HydraError, UsageError
from hydractl.evaluation.guarantees import check_stores
from hydractl.evaluation.options import NamedModels
from hydractl.families.open_model import OpenModel, open_model
from hydractl.heads.masks import check_distinct_masks
from hydractl.manifest.header import Kind
from hydractl.messages import listed
from hydractl.prediction.class_names import Classes
from hydractl.progress import SILENT, reporting
from hydractl.research.baselines.bayesvlm import check_pairs, text_settings
from hydractl.research.baselines.options import BayesVlmOptions, baselines_of
from hydractl.research.baselines.rows import check_baseline
from hydractl.research.bench.config import BenchConfig, CostModel, WorkEstimate
from hydractl.research.bench.rows import PAIRS, PLANS, TEST, TRAIN, VAL, Rival, SharedSettings
from hydractl.research.methods.options import TrainingOptions
from hydractl.stages.evaluate.config import EvalConfig
from hydractl.stages.evaluate.run import run_eval
from hydractl.stages.finetune.config import FinetuneConfig
from hydractl.stages.finetune.run import open_training
from hydractl.stages.prune.config import PruneConfig
from hydractl.training.plan import check_classes, open_student, trained_names
from hydractl.training.recipe import Recipe


def base_of(config: BenchConfig) -> OpenModel:
    """Open the base of the rivals.

    Raises:
        InputError: If the model cannot be read.
        UsageError: If the model is pruned or fused, or if classes are named for a model with stored classes.
    """
    model_file = open_model(config.model)
    if model_file.header.kind is not Kind.BASE:
        raise UsageError(
            f"{config.model}: is a {model_file.header.kind.value}, but rivals are made from an unpruned model",
            hint="give its base, and this model with `--hydra-model` or `--compare`",
        )
    config.naming.classes(model_file)
    return model_file


class Sets:
    """Cache of opened data sets, because listing a folder with a million images is slow."""

    def __init__(self) -> None:
        self._opened: dict[tuple[DataRef, Content, bool], Dataset] = {}

    def open(self, ref: DataRef, model: OpenModel, *, labelled: bool = True) -> Dataset:
        """Open a data set as the model's kind of input (images or texts), once.

        Raises:
            InputError: If the data set cannot be read.
        """
        key = ref, content_of(model.header.preprocess), labelled
        if key not in self._opened:
            with reporting(SILENT):
                self._opened[key] = open_data(ref, content=key[1], labelled=labelled)
        return self._opened[key]


def work_of(config: BenchConfig, base: OpenModel, sets: Sets) -> WorkEstimate:
    """Return the work of trainings and predictions, from the numbers of samples and training steps.

    Raises:
        InputError: If a data set cannot be read.
    """
    towers = base.header.architecture.towers.values()

    def count(ref: DataRef, *, labelled: bool = True) -> int:
        return len(sets.open(ref, base, labelled=labelled))

    batch = config.recipe.batch_size

    def training(recipe: Recipe) -> float:
        return training_work(recipe, samples=count(config.train), validated=count(config.val))

    from_start = config.recipe
    if config.start_epochs is not None:
        from_start = replace(from_start, steps=None, epochs=config.start_epochs)
    counts = {
        TEST: count(config.test) + sum(count(o.ref, labelled=False) for o in (*config.near, *config.far)),
        TRAIN: count(config.train),
        VAL: count(config.val),
    }
    if config.pairs is not None:
        counts[PAIRS] = count(replace(config.pairs, text=None), labelled=False)
    return WorkEstimate(
        training=training(config.recipe),
        from_start=training(from_start),
        answers={data: samples / batch * FORWARD for data, samples in counts.items()},
        blocks=max(t.layers for t in towers),
        heads=sum(t.layers * t.num_heads for t in towers),
    )


def measure(config: BenchConfig, base: OpenModel) -> CostModel:
    """Time a few training steps (for a zero-shot model: batches of predictions) and discard the outputs.

    Raises:
        HydraError: If the model cannot be trained on the data.
    """
    trains = base.header.prompting is None
    progress.step(f"Timing {MORE_STEPS} {'steps of training' if trains else 'batches of'} {config.model}")
    step, begin = step_and_start(lambda steps, out: _seconds(config, steps, out, trains=trains))
    return CostModel(step=step, begin=begin)


def _seconds(config: BenchConfig, steps: int, out: Path, *, trains: bool) -> float:
    """Return the duration of a number of training steps, or of predictions with the same computation."""
    recipe = config.recipe
    if trains:
        return training_seconds(config.model, config.train, config.val, recipe, steps=steps, out=out)
    start_time = time.monotonic()
    run_eval(
        EvalConfig(
            model=config.model,
            data=replace(config.test, limit=steps * recipe.batch_size),
            metrics=("accuracy",),
            batch_size=recipe.batch_size,
            naming=config.naming,
        )
    )
    return (time.monotonic() - start_time) / FORWARD


def supported_rivals(
    config: BenchConfig, base: OpenModel, terms: SharedSettings, sets: Sets
) -> tuple[str, ...]:
    """Return the names of the supported rivals. With `all`, warns about the other rivals and the reasons.

    Raises:
        UsageError: If a rival in `--rivals` is not supported.
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
    """Checks of a rival's stages and rows before anything runs."""

    config: BenchConfig
    base: OpenModel
    terms: SharedSettings
    sets: Sets

    def check(self, plan: Rival) -> None:
        """Check whether a rival can be trained and measured.

        Raises:
            HydraError: The same error as the command that would fail.
        """
        self._is_given(plan)
        for stage in plan.stages(self.terms):
            if stage["command"] == FinetuneConfig.COMMAND:
                self._trains(stage, starts=plan.starts)
            elif stage["command"] == PruneConfig.COMMAND:
                self._prunes(stage)
            elif "save-model" in stage:
                check_stores(self.base, self._classes())
        rows = [NamedModels.parse(f"{name}={models}") for name, models in plan.rows(self.terms).items()]
        for options in baselines_of(rows):
            check_baseline(options, [self.base], self._classes())
            if isinstance(options, BayesVlmOptions):
                check_pairs(options, self.sets.open(options.data_ref, self.base, labelled=False))
                with reporting(SILENT):
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
            # `finetune` would add a classifier for the classes of the folder, which makes another model
            check_classes(self.base)
        method, out = stage.get("method"), str(stage["out"])
        config = FinetuneConfig(
            model=str(stage["model"]) if starts else self.terms.model,
            train=self.config.train,
            val=self.config.val,
            # the first output of a repeated stage
            out=Path(out.replace("{i}", "0") if "repeat" in stage else out),
            recipe=self.config.recipe,
            extensions=() if method is None else (TrainingOptions(method=str(method)),),
        )
        model_file = open_student(
            config.extension.reference(config.model), seed=config.seed, image_options={}
        )
        self.sets.open(config.train, model_file)
        training = open_training(config, model_file.header)
        training.check_base()
        trained_names(model_file, training)

    def _prunes(self, stage: StageOptions) -> None:
        try:
            check_distinct_masks(
                int(str(stage["pool"])), int(str(stage["remove"])), members=self.terms.members
            )
        except ValueError as error:
            raise UsageError(str(error), hint="use fewer `--members`, or leave the rival out") from error

    def _classes(self) -> Classes | None:
        tested = self.sets.open(self.config.test, self.base)
        return self.config.naming.classes(self.base, data=tested.class_names)


def _lacking(option: str, purpose: str, value: str) -> UsageError:
    return UsageError(f"without `{option}` there is nothing to {purpose}", hint=f"add `{option} {value}`")
