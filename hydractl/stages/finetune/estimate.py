"""finetune --estimate: time and memory of a training run, from a few measured steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch

from hydractl.data.batches import CACHE_BYTES, Batch
from hydractl.data.datasets import Items
from hydractl.data.encode import encoded
from hydractl.messages import counted
from hydractl.model_inputs import Inputs
from hydractl.processes.distributed import require_one_process
from hydractl.progress import SILENT, Progress
from hydractl.stages.finetune.config import FinetuneConfig
from hydractl.stages.finetune.head_training import KeptFeatures, features_of, frozen_encoder, items_to_encode
from hydractl.stages.finetune.job import open_job, val_batches
from hydractl.stages.finetune.prepare import EVAL_BATCH, TrainingPlan, prepare
from hydractl.stages.finetune.trainable import check_initial_weights
from hydractl.stages.shared.time_and_memory import clock, highest_bytes, seconds_of
from hydractl.training.accelerator import Engine, start_engine
from hydractl.training.evaluate import classifier_metrics
from hydractl.training.resume import Snapshot
from hydractl.training.trainer import Job, TrainingRun

STEPS, LONG_S = 8, 20.0
"""Maximum number and duration of the measured steps after the first."""
BATCHES, CPU_BATCH = 2, 32
"""Number of measured batches of encoding and validation, and their size on a CPU, where larger batches are no faster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingEstimate:
    """Estimated time and memory of a training run that does not stop early.

    Attributes:
        steps: Training steps, over all learning rates.
        evaluations: Validations, over all learning rates.
        samples: Training samples.
        val_samples: Validation samples.
        seconds: Total time: the sum of the five that follow.
        preparing: Seconds to open the data, measured.
        encoding: Seconds to compute the features of a frozen encoder; 0 if none are stored.
        compiling: Seconds of compilation, over all learning rates; 0 without `--compile`.
        training: Seconds of all steps.
        validating: Seconds of all validations.
        memory: Bytes of weights, gradients, optimiser state and activations.
        device: Device of the measurement.
    """

    steps: int
    evaluations: int
    samples: int
    val_samples: int
    seconds: float
    preparing: float
    encoding: float
    compiling: float
    training: float
    validating: float
    memory: int
    device: str

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files written: none."""
        return ()


def run_estimate(config: FinetuneConfig, progress: Progress = SILENT) -> TrainingEstimate:
    """Measure a few steps and estimate the whole run. Nothing is written.

    Raises:
        InputError: If an input cannot be used.
        UsageError: If there are several processes, or if the options do not fit the model or the data.
    """
    require_one_process("finetune --estimate")
    begin = clock(torch.device("cpu"))
    work = prepare(config, progress, None)
    check_initial_weights(work)
    with start_engine(config.device, precision=config.recipe.precision) as engine:
        device, rates = engine.device, len(config.recipe.lr)
        items, begin_encoding = items_to_encode(work, engine), clock(device)
        features, encoding = (None, 0.0) if items is None else _encode_some(work, items, engine)
        end_encoding = clock(device)
        batches = val_batches(work, features)
        job = open_job(work, features, batches, engine, progress)
        preparing = clock(device) - end_encoding + begin_encoding - begin
        progress.step(f"Measuring {counted(min(1 + STEPS, job.total), 'step')} of {job.total}")
        memory = _memory(job, engine)
        run = TrainingRun(job, engine, Snapshot())
        first, step = _step_seconds(run)
        validation = _validation_seconds(work, run, batches)
    compiling = rates * max(0.0, first - step) if config.compile else 0.0
    evaluations = rates * -(-job.total // job.eval_every)
    training, validating = rates * job.total * step, evaluations * validation
    return TrainingEstimate(
        steps=rates * job.total,
        evaluations=evaluations,
        samples=len(work.train.items),
        val_samples=len(work.val.items),
        seconds=preparing + encoding + compiling + training + validating,
        preparing=preparing,
        encoding=encoding,
        compiling=compiling,
        training=training,
        validating=validating,
        memory=memory,
        device=str(device),
    )


def _memory(job: Job, engine: Engine) -> int:
    """Return the bytes of a model and of its first step, which is not compiled here."""
    run = TrainingRun(replace(job, compiles=None), engine, Snapshot())
    (pieces,) = job.feed.steps(0, 1, run.share)
    weights = sum(parameter.nbytes for parameter in run.model.parameters())
    return weights + highest_bytes(engine.device, partial(run.step, pieces))


def _step_seconds(run: TrainingRun) -> tuple[float, float]:
    """Return the seconds of the first step, and the mean of the steps after it. Both include the wait for the batch."""
    device = run.engine.device
    times = [clock(device)]
    for pieces in run.job.feed.steps(0, min(1 + STEPS, run.job.total), run.share):
        run.step(pieces)
        times.append(clock(device))
        if len(times) > BATCHES and times[-1] - times[1] > LONG_S:
            break
    first, *others = (after - before for before, after in pairwise(times))
    return first, sum(others) / len(others) if others else first


def _validation_seconds(work: TrainingPlan, run: TrainingRun, batches: Iterable[Batch[Inputs]]) -> float:
    """Return the seconds of one validation. Data that fit in memory are decoded once."""
    run.model.eval()
    engine, labels, times = run.engine, work.val.labels, 1.0
    if not isinstance(batches, list):  # features cost next to nothing
        limit_bytes = CACHE_BYTES if isinstance(batches, tuple) else 0
        batches, times = _sample_batches(work, work.val.items, engine, limit_bytes=limit_bytes)
    seconds, _ = seconds_of(engine.device, partial(classifier_metrics(engine, batches, labels), run.model))
    return times * seconds


def _encode_some(work: TrainingPlan, items: Items, engine: Engine) -> tuple[KeptFeatures, float]:
    """Return zeros of the shape of all features, and the estimated seconds to compute these."""
    encoder, recipe, seconds, features = frozen_encoder(work, engine), work.config.recipe, 0.0, []
    for data in (items, work.val.items):
        batches, times = _sample_batches(work, data, engine, limit_bytes=0)

        parts: list[torch.Tensor] = []

        def encode(batches: Iterable[Batch[Inputs]] = batches, parts: list[torch.Tensor] = parts) -> None:
            parts.extend(features_of(encoder, batch, recipe)[1] for batch in batches)

        seconds += times * seconds_of(engine.device, encode)[0]
        features.append(torch.zeros(1, *parts[0].shape[1:]).expand(len(data), -1, -1))
    return KeptFeatures(train=features[0], val=features[1]), seconds


def _sample_batches(
    work: TrainingPlan, items: Items, engine: Engine, *, limit_bytes: int
) -> tuple[Iterable[Batch[Inputs]], float]:
    """Return batches of evenly spaced samples of a data set, and the ratio of all samples to these."""
    size = CPU_BATCH if engine.device.type == "cpu" else EVAL_BATCH
    count = min(len(items), BATCHES * size)
    places = [i * len(items) // count for i in range(count)]
    batches = encoded(items, work.how, batch_size=size, indices=places, limit_bytes=limit_bytes)
    return batches, len(items) / count
