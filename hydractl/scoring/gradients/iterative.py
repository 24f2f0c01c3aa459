"""Removing the lowest-scored heads step by step, with scores computed anew without those that are gone."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from hydractl.manifest.head_mask import HeadId, Removal
from hydractl.progress import Progress
from hydractl.scoring.attention_hooks import heads_left, remove_head
from hydractl.scoring.gradients.weight_gradients import mean_loss
from hydractl.scoring.job import Ranking, ScoreJob
from hydractl.scoring.normalize import Tables


class HeadImportance(NamedTuple):
    """Scores of the heads that are left, in each layer in the order of `heads_left`, and the mean cross-entropy."""

    tables: Tables
    loss: float


def remove_lowest(
    job: ScoreJob, progress: Progress, measure: Callable[[], HeadImportance], *, at_once: int
) -> Ranking:
    """Remove `job.budget` heads, the `at_once` lowest-scored in each step; of equal ones the lower (tower, layer, head).

    What a removal records as its objective is −(mean cross-entropy) once its step is done, the same for all heads of a
    step: `circuit`'s objective `-nll`. The next step's pass knows it anyway; only the last one costs a pass of its own.
    A head's score is its place in the order of removal, as with `circuit`; heads that stay have one more than the last.

    An interrupted run goes on after the last step that was recorded as a whole, and ends with the same bytes.

    Args:
        job: Its model loses the heads.
        progress: Shows the steps.
        measure: Scores what is left of the model.
        at_once: How many go before scores are computed anew, at least 1.
    """
    recorded = job.log.recorded
    removals = list(recorded[: len(recorded) // at_once * at_once])
    for removal in removals:
        remove_head(job.model, removal.id)
    importance = _measured(job, measure, removed=len(removals))
    baseline = -importance.loss if job.log.baseline is None else job.log.baseline
    job.log.begin(baseline)
    steps = range(len(removals), job.budget, at_once)
    for begin in progress.track(steps, label="Removing heads", total=len(steps)):
        lowest = _lowest(job, importance.tables)[: min(at_once, job.budget - begin)]
        for head in lowest:
            remove_head(job.model, head)
        importance = _measured(job, measure, removed=begin + len(lowest))
        for head in lowest:
            removal = Removal(tower=head.tower, layer=head.layer, head=head.head, objective=-importance.loss)
            if len(removals) >= len(
                recorded
            ):  # a step that was cut off is done again; some of it is on record
                job.log.record(removal)
            removals.append(removal)
    return Ranking.of_removals(job, removals, baseline=baseline)


def _measured(job: ScoreJob, measure: Callable[[], HeadImportance], *, removed: int) -> HeadImportance:
    """Return scores where a further step needs them, and else the loss alone."""
    return measure() if removed < job.budget else HeadImportance({}, mean_loss(job))


def _lowest(job: ScoreJob, tables: Tables) -> list[HeadId]:
    """Return the heads that are left by ascending score."""
    scores = {
        HeadId(tower, layer, head): score
        for tower, rows in tables.items()
        for layer, row in enumerate(rows)
        for head, score in zip(heads_left(job.model.tower(tower), layer), row, strict=True)
    }
    return sorted(scores, key=lambda head: scores[head])
