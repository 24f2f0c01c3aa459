"""Greedy-Gnorm (arXiv 2602.04491): removes heads one by one, each time the one with the smallest gradient norms."""

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
    """Remove `budget` heads one by one, each time the one with the smallest S; see `gradient_norms` and `remove_lowest`.

    Cost: one forward and backward pass over the data per removal.
    """
    normalize = job.set_for(GnormSettings).normalize
    warn_of_unlike_towers(job, normalize, progress)

    def measure() -> HeadImportance:
        tables, loss = gradient_norms(job)
        return HeadImportance(normalized(tables, normalize), loss)

    return remove_lowest(job, progress, measure, at_once=1)


def gradient_norms(job: ScoreJob) -> HeadImportance:
    """Return S_h = ‖G_Q‖₂ ‖G_K‖₂ ‖G_V‖₂ of every remaining head, and the mean cross-entropy.

    G_Q are the head's rows in the gradient of the mean cross-entropy with respect to the query weight, and ‖·‖₂ is the
    Frobenius norm. Biases are ignored. Scaling the loss by c scales S by c³. A family with more than three projections
    (DeBERTa, for relative positions) uses the product of all P norms to the power 3/P, which scales in the same way.

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
