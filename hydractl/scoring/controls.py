"""Controls without data: random scores, and the magnitude of a head's weights."""

from __future__ import annotations

import random

import torch

from hydractl.families.base import place_of
from hydractl.families.layout import TensorRole
from hydractl.progress import Progress
from hydractl.scoring.attention_hooks import write_out_keys
from hydractl.scoring.job import Ranking, ScoreJob
from hydractl.scoring.normalize import normalized, warn_of_unlike_towers
from hydractl.scoring.settings import MagnitudeSettings


def score_random(job: ScoreJob, _: Progress) -> Ranking:
    """Draw every score uniformly from [0, 1), depending only on the seed."""
    draw = random.Random(f"scores-{job.seed}").random  # noqa: S311 - reproducible, not secret
    towers = job.scored
    return Ranking(
        scores={
            name: [[draw() for _ in range(t.num_heads)] for _ in range(t.layers)]
            for name, t in towers.items()
        }
    )


def score_magnitude(job: ScoreJob, progress: Progress) -> Ranking:
    """Return the mean of |w| over each head's rows of q, k and v and its columns of the output projection.

    The four matrices have equal weight whatever their sizes. Then scores are normalized according to the settings.
    """
    normalize = job.set_for(MagnitudeSettings).normalize
    warn_of_unlike_towers(job, normalize, progress)
    scores = {name: torch.zeros(t.layers, t.num_heads, dtype=torch.float64) for name, t in job.scored.items()}
    weight = {name: torch.zeros(t.layers, 1, dtype=torch.float64) for name, t in job.scored.items()}
    for name, t in job.scored.items():
        for layer in range(t.layers):
            write_out_keys(job.model.tower(name), layer)
    for name, tensor in job.model.library_state().items():
        place = place_of(job.family, name)
        if (
            place.heads is None
            or place.layer is None
            or place.heads.role not in {TensorRole.INPUT, TensorRole.OUTPUT}
        ):
            continue
        if place.tower not in scores:
            continue
        tower = job.architecture.towers[place.tower]
        heads = (
            tensor.detach()
            .double()
            .movedim(place.heads.axis, 0)
            .reshape(place.heads.copies, tower.num_heads, -1)
        )
        scores[place.tower][place.layer] += heads.abs().mean(dim=-1).sum(dim=0).cpu()
        weight[place.tower][place.layer] += place.heads.copies
    tables = {name: (table / weight[name]).tolist() for name, table in scores.items()}
    return Ranking(scores=normalized(tables, normalize))
