"""How long the plan of `bench` takes: a few steps of training, timed, and how many there will be."""

from __future__ import annotations

import time
from dataclasses import replace
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory

from hydractl.data.datasets import Content, Items
from hydractl.data.encode import content_of
from hydractl.data.open_dataset import open_data
from hydractl.data.reference import DataRef
from hydractl.errors import UsageError
from hydractl.families.load import OpenModel, open_model
from hydractl.manifest.header import Kind
from hydractl.progress import Progress
from hydractl.research.bench.config import BenchConfig
from hydractl.research.bench.plan import FORWARD, CostModel, WorkEstimate
from hydractl.research.bench.rows import PAIRS, TEST, TRAIN, VAL
from hydractl.stages.evaluate.config import EvalConfig
from hydractl.stages.evaluate.run import run_eval
from hydractl.stages.finetune.config import FinetuneConfig
from hydractl.stages.finetune.run import run_finetune
from hydractl.training.recipe import Recipe

FEW_STEPS, MORE_STEPS = 2, 10
"""Steps that are timed; their difference leaves out what a command does besides. What only the first command does is not timed."""


def base_of(config: BenchConfig) -> OpenModel:
    """Open what rivals are made of.

    Raises:
        InputError: If it cannot be read.
        UsageError: If it is pruned or fused, or classes are named for one that has its own.
    """
    opened = open_model(config.model)
    if opened.header.kind is not Kind.BASE:
        raise UsageError(
            f"{config.model}: is a {opened.header.kind.value}, but rivals are made from an unpruned model",
            hint="give its base, and this model with `--hydra` or `--compare`",
        )
    config.naming.classes(opened)
    return opened


class Sets:
    """Labelled and other data as models read them, each opened once: folders of a million images take long."""

    def __init__(self) -> None:
        self._opened: dict[tuple[DataRef, Content, bool], Items] = {}

    def open(self, ref: DataRef, model: OpenModel, *, labelled: bool = True) -> Items:
        """Return a data set as a model reads it.

        Raises:
            InputError: If it cannot be read.
        """
        key = ref, content_of(model.header.preprocess), labelled
        if key not in self._opened:
            self._opened[key] = open_data(ref, content=key[1], labelled=labelled)
        return self._opened[key]


def work_of(config: BenchConfig, base: OpenModel, sets: Sets) -> WorkEstimate:
    """Count samples and steps.

    Raises:
        InputError: If a data set cannot be read.
    """
    towers = base.header.architecture.towers.values()

    def count(ref: DataRef, *, labelled: bool = True) -> int:
        return len(sets.open(ref, base, labelled=labelled))

    batch = config.recipe.batch_size

    def training(recipe: Recipe) -> float:
        batches = ceil(count(config.data) / batch)
        steps = recipe.total_steps(batches)
        validated = ceil(steps / batches) * count(config.val) / batch * FORWARD
        return max(1, len(recipe.lr)) * (steps + validated)

    from_start = config.recipe
    if config.start_epochs is not None:
        from_start = replace(from_start, steps=None, epochs=config.start_epochs)
    counts = {
        TEST: count(config.test) + sum(count(o.ref, labelled=False) for o in (*config.near, *config.far)),
        TRAIN: count(config.data),
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


def measure(config: BenchConfig, base: OpenModel, progress: Progress) -> CostModel:
    """Train a few steps, which are thrown away; of what compares images with texts, answer a few batches.

    Raises:
        HydraError: Whatever keeps the model from being trained on these data.
    """
    trains = base.header.prompting is None
    progress.step(f"Timing {MORE_STEPS} {'steps of training' if trains else 'batches of'} {config.model}")
    with TemporaryDirectory() as folder:
        out = Path(folder)
        _, few_seconds, more_seconds = (
            _trained(config, steps, out / f"{steps}.st") if trains else _answered(config, steps) / FORWARD
            for steps in (1, FEW_STEPS, MORE_STEPS)
        )
    step = (
        (more_seconds - few_seconds) / (MORE_STEPS - FEW_STEPS)
        if more_seconds > few_seconds
        else more_seconds / MORE_STEPS
    )
    return CostModel(step=step, begin=max(0.0, few_seconds - FEW_STEPS * step))


def _answered(config: BenchConfig, batches: int) -> float:
    size = config.recipe.batch_size
    start_time = time.monotonic()
    run_eval(
        EvalConfig(
            model=config.model,
            data=replace(config.test, limit=batches * size),
            metrics=("accuracy",),
            batch_size=size,
            naming=config.naming,
        )
    )
    return time.monotonic() - start_time


def _trained(config: BenchConfig, steps: int, out: Path) -> float:
    lr = config.recipe.lr[:1]
    start_time = time.monotonic()
    run_finetune(
        FinetuneConfig(
            model=config.model,
            data=config.data,
            val=replace(config.val, limit=1),
            out=out,
            recipe=replace(config.recipe, steps=steps, epochs=None, warmup=0, swa=None, lr=lr),
        )
    )
    return time.monotonic() - start_time
