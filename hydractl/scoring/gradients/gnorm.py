"""Greedy-Gnorm (arXiv 2602.04491): heads go one by one, each the one whose weights' gradients are smallest."""

from __future__ import annotations

import torch

from hydractl.progress import Progress
from hydractl.scoring.attention_hooks import heads_left
from hydractl.scoring.gradients.iterative import HeadImportance, remove_lowest
from hydractl.scoring.gradients.settings import GnormSettings
from hydractl.scoring.gradients.weight_gradients import input_blocks, mean_gradient
from hydractl.scoring.job import Ranking, ScoreJob
from hydractl.scoring.normalize import normalized, warn_of_unlike_towers

MATRICES = 3


def score_gnorm(job: ScoreJob, progress: Progress) -> Ranking:
    """Remove `budget` heads one by one, each time the one of the smallest S; see `gradient_norms` and `remove_lowest`.

    Cost: one forward and backward pass over the data a removal.
    """
    normalize = job.set_for(GnormSettings).normalize
    warn_of_unlike_towers(job, normalize, progress)

    def measure() -> HeadImportance:
        tables, loss = gradient_norms(job)
        return HeadImportance(normalized(tables, normalize), loss)

    return remove_lowest(job, progress, measure, at_once=1)


def gradient_norms(job: ScoreJob) -> HeadImportance:
    """Return S_h = ‖G_Q‖₂ ‖G_K‖₂ ‖G_V‖₂ of every head that is left, and the mean cross-entropy.

    G_Q are the rows of the head in the gradient of the mean cross-entropy with respect to the weight of the queries, and
    ‖·‖₂ the root of the sum of squares (Frobenius). Biases do not count. With a loss c times as large S is c³ times as
    large. A family with more projections than three (DeBERTa: of relative positions) has the product of all P norms to
    the power 3/P, which scales alike.

    Raises:
        DataError: If a gradient is not finite, or there are no labels.
    """
    layers = [
        (name, layer)
        for name, t in job.scored.items()
        for layer in range(t.layers)
        if heads_left(job.model.tower(name), layer)
    ]
    mean = mean_gradient(job, input_blocks(job, layers))
    tables: dict[str, list[list[float]]] = {n: [[] for _ in range(t.layers)] for n, t in job.scored.items()}
    for (name, layer), block_gradients in mean.blocks.items():
        heads = len(heads_left(job.model.tower(name), layer))
        norms = torch.cat(
            [block.by_head(gradient, heads).norm(dim=-1) for block, gradient in block_gradients]
        )
        tables[name][layer] = (norms.prod(dim=0) ** (MATRICES / len(norms))).tolist()
    return HeadImportance(tables, mean.loss)
