"""Estimate of the duration of a training from a few timed steps, for `bench` and `make`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory

from hydractl.data.reference import DataRef
from hydractl.stages.finetune.config import FinetuneConfig
from hydractl.stages.finetune.run import run_finetune
from hydractl.training.recipe import Recipe

FEW_STEPS, MORE_STEPS = 2, 10
"""Steps of the two timed runs. The difference excludes the start of a command. A first run of a single step
is not timed, because libraries are loaded then. Chosen by hand; doubling doubles the time and lowers the
noise of the estimate."""
FORWARD = 1 / 3
"""Share of a forward pass in the cost of a training step; the backward pass costs two forward passes."""


def training_work(recipe: Recipe, *, samples: int, validated: int) -> float:
    """Return the cost of a training with validation after each epoch, in training steps.

    Args:
        recipe: Recipe of the training. Each learning rate is a training.
        samples: Number of training samples.
        validated: Number of validation samples.
    """
    batches = ceil(samples / recipe.batch_size)
    steps = recipe.total_steps(batches)
    validation = ceil(steps / batches) * validated / recipe.batch_size * FORWARD
    return max(1, len(recipe.lr)) * (steps + validation)


def step_and_start(run: Callable[[int, Path], float]) -> tuple[float, float]:
    """Return the seconds of a step, and of the start of a command.

    Args:
        run: Runs a number of steps, writes to the given path, and returns the seconds. Outputs are discarded.
    """
    with TemporaryDirectory() as folder:
        _, few, more = (run(steps, Path(folder) / f"{steps}.st") for steps in (1, FEW_STEPS, MORE_STEPS))
    step = (more - few) / (MORE_STEPS - FEW_STEPS) if more > few else more / MORE_STEPS
    return step, max(0.0, few - FEW_STEPS * step)


def training_seconds(
    model: str, data: DataRef, val: DataRef, recipe: Recipe, *, steps: int, out: Path
) -> float:
    """Train a model for some steps, and return the seconds.

    Raises:
        HydraError: If the model cannot be trained on the data.
    """
    begin = time.monotonic()
    run_finetune(
        FinetuneConfig(
            model=model,
            train=data,
            # The limit applies before the part, which could then be empty.
            val=val if val.part else replace(val, limit=1),
            out=out,
            recipe=replace(recipe, steps=steps, epochs=None, warmup=0, swa=None, lr=recipe.lr[:1]),
        )
    )
    return time.monotonic() - begin
