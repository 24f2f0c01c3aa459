"""Training loop: steps, evaluations, early stopping, a learning-rate grid, and saving of the state.

The loop knows neither model files nor data formats; a `Job` has the model, the batches, the loss and the
evaluation. `classifier_metrics` validates a classifier in all processes.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from hydractl import progress
from hydractl.data.batches import Batch
from hydractl.errors import CheckFailed
from hydractl.metrics.classification import mean
from hydractl.metrics.per_sample import answers
from hydractl.model_inputs import Inputs, inputs_on
from hydractl.processes.signals import signals_held
from hydractl.runtime import on_cpu
from hydractl.training.accelerator import Engine
from hydractl.training.resume import Metrics, Position, Snapshot, StateFolder, Winner
from hydractl.training.trainer import Job, TrainingRun

SAVE_EVERY_S = 30.0
"""Seconds between saves of the state within an epoch. Chosen by hand; 60 would lose up to a minute of
training on a crash."""
EPOCH_SAVE_EVERY_S = 5.0
"""Minimum number of seconds between saves at the end of an epoch. Chosen by hand; 10 saves less often if
epochs are short."""
SPEAK_EVERY_S = 20.0
"""Seconds without an evaluation before the number of steps is reported. Chosen by hand; 40 halves the
messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """Result of a training.

    Attributes:
        weights: Trained parameters by name, on the CPU.
        lr: Peak learning rate with the best validation metrics.
        metrics: Validation metrics of these weights.
        step: Number of steps after which the weights were reached.
    """

    weights: dict[str, torch.Tensor]
    lr: float
    metrics: Metrics
    step: int


def train(job: Job, engine: Engine, *, folder: StateFolder | None, start: Snapshot) -> Trained:
    """Train each candidate of the learning-rate grid, and return the best; the first of equal candidates.

    Args:
        job: Model, batches, loss and settings.
        engine: Device and processes.
        folder: Folder of the state, also saved on an interruption; None saves nothing.
        start: State to start from.

    Raises:
        CheckFailed: If all candidates diverge. With `Recipe.keep_best`, a candidate that diverges after a
            finite evaluation still counts.
    """
    snapshot = start
    for candidate in range(start.position.candidate, len(job.recipe.lr)):
        if candidate != snapshot.position.candidate:
            snapshot = Snapshot(
                position=Position(candidate=candidate),
                winner=snapshot.winner,
                winner_weights=snapshot.winner_weights,
            )
        snapshot = _fit(TrainingRun(job, engine, snapshot), folder)
        snapshot = _compared(snapshot, job)
        engine.forget()
    if snapshot.winner is None:
        rates = ", ".join(f"{lr:g}" for lr in job.recipe.lr)
        raise CheckFailed(
            f"training diverged with learning rate {rates}: the outputs are not finite",
            hint="lower `--lr`, or add `--clip 1.0`",
        )
    won = snapshot.winner
    return Trained(
        weights=dict(zip(snapshot.winner_weights, on_cpu(*snapshot.winner_weights.values()), strict=True)),
        lr=job.recipe.lr[won.candidate],
        metrics=won.metrics,
        step=won.step,
    )


def _compared(snapshot: Snapshot, job: Job) -> Snapshot:
    """Return the snapshot with the finished candidate as winner, if it is better than the previous winner.

    A candidate is a learning rate of the recipe. If training with the candidate diverged, the function warns,
    and the candidate can only win with the best weights before (`Recipe.keep_best`).
    """
    position = snapshot.position
    if position.diverged:
        progress.warn(
            f"learning rate {job.recipe.lr[position.candidate]:g}: diverged by step {position.step}"
        )
    metrics = position.best if job.recipe.keep_best else position.last
    if metrics is None or (position.diverged and not job.recipe.keep_best):
        return snapshot
    if snapshot.winner is not None and not metrics.beats(snapshot.winner.metrics):
        return snapshot
    step = position.best_step if job.recipe.keep_best else position.step
    return replace(
        snapshot,
        winner=Winner(candidate=position.candidate, metrics=metrics, step=step),
        winner_weights=snapshot.best if job.recipe.keep_best else snapshot.average or snapshot.weights,
    )


def _fit(run: TrainingRun, folder: StateFolder | None) -> Snapshot:
    """Train a candidate to its last step, and return the final state. An interruption saves the state."""
    if folder is not None and run.engine.leads and run.position.step == 0 and run.position.candidate > 0:
        folder.save(replace(run.snapshot, position=run.position))
    try:
        _steps(run, folder)
    except KeyboardInterrupt:
        if not run.engine.shards:  # Gathering sharded tensors needs all processes, and the others have ended.
            run.save(folder)
        raise
    return run.saved()


def _save_is_due(run: TrainingRun) -> bool:
    """Return whether to save the state after a step."""
    step, every = run.position.step, run.job.save_every
    if every is not None:
        return step % every == 0
    wait = SAVE_EVERY_S if step % run.job.feed.steps_per_epoch else EPOCH_SAVE_EVERY_S
    return time.monotonic() - run.saved_at >= wait


def _steps(run: TrainingRun, folder: StateFolder | None) -> None:
    """Run the remaining steps, with evaluations, saves and progress messages."""
    job, first = run.job, run.position.step
    start_time = spoken = time.monotonic()
    if run.evaluation_due:  # The run was interrupted before this evaluation.
        run.evaluate()
        _log(run, None, evaluates=True)
        progress.step(_line(run, loss=None, left_s=0.0))
    # With several processes, a step cannot be finished after another process has left it.
    guard = signals_held if run.engine.world == 1 else contextlib.nullcontext
    has_steps = first < job.total and not run.position.ended
    for pieces in job.feed.steps(first, job.total, run.share) if has_steps else ():
        with guard():
            run.step(pieces)
        step = run.position.step
        loss = None
        if (evaluates := run.evaluation_due) or job.run_log.due(step):
            (loss,) = run.engine.sum([run.loss.item()])
        if evaluates:
            run.evaluate()
        _log(run, loss, evaluates=evaluates)
        time_now = time.monotonic()
        left_s = (time_now - start_time) / (step - first) * (job.total - step)
        if evaluates:
            spoken = time_now
            progress.step(_line(run, loss=loss, left_s=left_s))
        elif time_now - spoken > SPEAK_EVERY_S:
            spoken = time_now
            progress.step(f"step {step}/{job.total} · {left_s:.0f} s left")
        if folder is not None and run.engine.agree(due=_save_is_due(run)):
            run.save(folder)
        if run.position.ended:
            break


def _log(run: TrainingRun, loss: float | None, *, evaluates: bool) -> None:
    """Log the metrics of a step. Steps of successive learning rates are numbered consecutively."""
    position, job = run.position, run.job
    values = {}
    if loss is not None:
        values = {"train/loss": loss, "train/lr": run.rate, "epoch": position.step / job.feed.steps_per_epoch}
    if evaluates and position.last is not None and not position.diverged:
        values |= {f"{job.measured_on}/{name}": figure for name, figure in position.last.model_dump().items()}
    if values:
        job.run_log.log(values, step=position.candidate * job.total + position.step)


def _line(run: TrainingRun, *, loss: float | None, left_s: float) -> str:
    """Return the progress message after an evaluation.

    An example is `step 50/100 (epoch 0.5): loss 0.3000 · validation accuracy 0.9000, nll 0.3100 · 12 s left`.
    With several learning rates the message starts with `lr 0.001: `.
    """
    position, per_epoch = run.position, run.job.feed.steps_per_epoch
    metrics = position.last
    grid = f"lr {run.lr:g}: " if len(run.job.recipe.lr) > 1 else ""
    place = f"step {position.step}/{run.job.total} (epoch {position.step / per_epoch:.3g})"
    if position.diverged or metrics is None:
        return f"{grid}{place}: outputs are not finite"
    ahead = " · stopping early" if position.ended else f" · {left_s:.0f} s left" if left_s else ""
    trained = "" if loss is None else f"loss {loss:.4f} · "
    spans = "" if metrics.span_f1 is None else f"span F1 {metrics.span_f1:.4f}, "
    return f"{grid}{place}: {trained}{run.job.measured_on} {spans}accuracy {metrics.accuracy:.4f}, nll {metrics.nll:.4f}{ahead}"


TALLIED = 4
"""Number of sums that `tally` returns."""


def classifier_metrics(
    engine: Engine,
    batches: Iterable[Batch[Inputs]],
    labels: torch.Tensor,
    span_f1: Callable[[torch.Tensor], float] | None = None,
) -> Callable[[nn.Module], Metrics | None]:
    """Return a function that computes the validation metrics of a model with logits (B, C).

    Args:
        engine: Device and processes. Each process evaluates every `engine.world`-th batch.
        batches: Validation data, with the same order in each pass.
        labels: Classes of the model, shape (N,), int64; or (N, Q): 0 or 1 for each of Q labels, or the class
            of each word, negative for words without a label.
        span_f1: Function from the predicted class of each word (N, Q) to the F1 of spans; None for models
            without words.

    Returns:
        Function from a model to metrics, or to None if an output is not finite.
    """

    def measure(model: nn.Module) -> Metrics | None:
        sums, classes = [0.0] * TALLIED, torch.zeros_like(labels)
        # Weights that FSDP gathers in inference mode cannot be used in training.
        with torch.no_grad() if engine.shards else torch.inference_mode():
            i, last = 0, None
            for i, batch in enumerate(batches, start=1):
                last = batch.inputs
                if (i - 1) % engine.world != engine.rank:
                    continue
                logits = model(inputs_on(batch.inputs, engine.device))
                if span_f1 is not None:
                    classes[batch.indices, : logits.shape[1]] = logits.argmax(-1).cpu()
                batch_sums = tally(logits, labels[batch.indices])
                sums = [total + batch_sum for total, batch_sum in zip(sums, batch_sums, strict=True)]
            if engine.shards and last is not None and engine.rank >= i % engine.world > 0:
                # The other processes need this process's shards for their last batch.
                model(inputs_on(last, engine.device))
        metrics = metrics_of(engine.sum(sums))
        if span_f1 is None or metrics is None:
            return metrics
        # Each process has the predicted classes of its own batches, and zeros elsewhere.
        if engine.world > 1:
            classes = torch.tensor(engine.sum(classes.flatten().tolist())).long().view(labels.shape)
        return metrics.model_copy(update={"span_f1": span_f1(classes)})

    return measure


def tally(logits: torch.Tensor, labels: torch.Tensor) -> tuple[float, ...]:
    """Return the sums of a batch for `metrics_of`.

    Args:
        logits: Shape (B, C), or (B, Q, C) for Q labels or words.
        labels: Shape (B,) or (B, Q), int64, on the CPU. Negative labels are ignored.

    Returns:
        Number of correct predictions, sum of NLL in nats, number of labels, and 0. If a log-probability is
        not finite: 0, 0, 0 and 1.
    """
    log_probs, counted = logits.float().log_softmax(-1).cpu(), labels >= 0
    if not log_probs.isfinite().all():
        return 0.0, 0.0, 0.0, 1.0
    log_probs, labels = log_probs[counted], labels[counted]
    size = len(labels)
    if not size:
        return 0.0, 0.0, 0.0, 0.0
    per_sample = answers(log_probs.exp(), labels, log_probs=log_probs)
    return float(mean(per_sample["hits"])) * size, float(mean(per_sample["nll"])) * size, float(size), 0.0


def metrics_of(sums: Sequence[float]) -> Metrics | None:
    """Return the metrics of a data set, or None if an output was not finite.

    `sums` are the results of `tally`, added over all batches.
    """
    correct, loss, count, broken = sums
    # The count of correct predictions is a whole number; rounding removes the error of summing fractions.
    return None if broken else Metrics(accuracy=round(correct) / count, nll=loss / count)
