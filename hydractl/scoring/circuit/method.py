"""Greedy circuit extraction (Hydra Ensembles, Algorithm 1): each step removes the head whose removal maximizes the objective.

The search is exact (`circuit.search`) or lazy (`circuit.lazy_greedy`).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from hydractl.manifest.head_mask import Removal
from hydractl.progress import Progress
from hydractl.scoring.circuit import settings
from hydractl.scoring.circuit.lazy_greedy import Lazy
from hydractl.scoring.circuit.search import Exact
from hydractl.scoring.job import Ranking, ScoreJob

SEARCHES: Mapping[str, type[Exact]] = dict(zip(settings.SEARCHES, (Exact, Lazy), strict=True))


def score_circuit(job: ScoreJob, progress: Progress) -> Ranking:
    """Remove `budget` heads one by one; among equally good candidates the lowest (tower, layer, head) is removed.

    The score of a head is the step of its removal; all kept heads have a score one higher than the last step. A search
    that does not evaluate every candidate on all data records its work in the results. A resumed run has the same result
    as an uninterrupted one.
    """
    search = SEARCHES[job.set_for(settings.CircuitSettings).search](job)
    recorded = job.log.recorded
    with torch.inference_mode():
        start = search.restart(len(recorded))
        for removal in recorded[:start]:
            search.circuit.remove(removal.id)
        search.circuit.check_room()
        baseline = search.circuit.value() if job.log.baseline is None else job.log.baseline
        job.log.begin(baseline)
        removals = list(recorded)
        steps = range(start, job.budget)
        for step in progress.track(steps, label="Removing heads", total=len(steps)):
            if step == len(recorded) and recorded:
                search.recall(job.log.memory)
            best, value = search.best(step)
            if step < len(recorded):  # what the journal says counts, should rounding have changed since
                search.remove(recorded[step].id)
                continue
            search.remove(best)
            removal = Removal(tower=best.tower, layer=best.layer, head=best.head, objective=value)
            removals.append(removal)
            job.log.record(removal, search.memory())
        if recorded and len(recorded) >= job.budget:
            search.recall(job.log.memory)
        removals = search.refine(removals)
    return Ranking.of_removals(job, removals, baseline=baseline, results=search.results())
