"""Head importance from weights, and random importance as a control.

Taylor importance is first-order (Hydra Ensembles, appendix D.1.1; Molchanov et al. 2019). Magnitude and
random importance need no data.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import torch

from hydractl import progress
from hydractl.families.base import position_of
from hydractl.families.head_slicing import TensorRole
from hydractl.scoring.attention_hooks import heads_left, keep_heads, write_out_keys
from hydractl.scoring.gradients import (
    Layer,
    WeightBlock,
    batch_gradients,
    input_blocks,
    mean_gradient,
    not_finite,
)
from hydractl.scoring.job import Ranking, ScoreJob, normalized, warn_of_unlike_towers
from hydractl.scoring.settings import MagnitudeSettings, TaylorSettings

_Rows: TypeAlias = "dict[Layer, list[float]]"


def score_taylor(job: ScoreJob) -> Ranking:
    """Compute the importance |weight × gradient| of the q, k and v rows of each head.

    Output projection and biases are ignored. With `variant` `l1` the importance s_h is the mean over q, k and
    v of 1/(K D) Σ |W ∘ G|. G is the gradient of the mean cross-entropy of the calibration data. With
    `molchanov` s_h is the mean over batches of (Σ W ∘ G_b)², with the sum over q, k and v together. G_b is
    the gradient of the mean cross-entropy of batch b, so s_h depends on the batch size.

    With `scope` `layer`, layers are processed from first to last. Each layer keeps its `keep` most important
    heads, and the gradients of the next layer are computed without the other heads, which the model of the
    job loses. With `global` all layers are scored on the whole model. Among equal heads the lower one is
    removed first. Finally the importance is normalized according to the settings.

    Raises:
        DataError: If gradients are not finite, or samples have no labels.
    """
    settings = job.set_for(TaylorSettings)
    scored: Callable[[ScoreJob, Sequence[Layer]], _Rows] = _l1 if settings.variant == "l1" else _molchanov
    tables = {name: [[0.0] * t.num_heads for _ in range(t.layers)] for name, t in job.scored.items()}
    places = [(tower, layer) for tower, t in job.scored.items() for layer in range(t.layers)]
    if settings.scope == "global":
        warn_of_unlike_towers(job, settings.normalize)
        for (tower, layer), importance in scored(job, places).items():
            tables[tower][layer] = importance
        return Ranking(scores=normalized(tables, settings.normalize))
    for place in progress.track(places, label="Scoring layers", total=len(places)):
        tower, layer = place
        importance = scored(job, [place])[place]
        tables[tower][layer] = importance
        order = sorted(range(len(importance)), key=lambda head: (importance[head], head))
        keep_heads(job.model.tower(tower), layer, order[max(0, len(order) - job.keep) :])
    return Ranking(scores=normalized(tables, settings.normalize))


def _l1(job: ScoreJob, layers: Sequence[Layer]) -> _Rows:
    """Return the importance of the heads of some layers with `variant` `l1`, by layer."""
    gradients = mean_gradient(job, input_blocks(job, layers))
    return {
        layer: torch.cat([_products(job, layer, b, g).abs().mean(dim=-1) for b, g in block_gradients])
        .mean(dim=0)
        .tolist()
        for layer, block_gradients in gradients.items()
    }


def _molchanov(job: ScoreJob, layers: Sequence[Layer]) -> _Rows:
    """Return the importance of the heads of some layers with `variant` `molchanov`, by layer."""
    blocks = input_blocks(job, layers)
    weights = [block.weight for layer_blocks in blocks.values() for block in layer_blocks]

    def own_batches() -> Iterator[list[torch.Tensor]]:
        for gradients, losses in batch_gradients(job, weights):
            block_gradients = iter(gradients)
            sums = [
                torch.stack(
                    [_products(job, layer, b, next(block_gradients)).sum(dim=(0, 2)) for b in layer_blocks]
                ).sum(dim=0)
                for layer, layer_blocks in blocks.items()
            ]
            yield [*((x / len(losses)) ** 2 for x in sums), torch.ones((), device=losses.device)]

    *sums, batches = job.team.added(own_batches())
    if not torch.stack([x.isfinite().all() for x in sums]).all():
        raise not_finite("gradients")
    return {layer: (x / batches).tolist() for layer, x in zip(blocks, sums, strict=True)}


def _products(job: ScoreJob, layer: Layer, block: WeightBlock, gradient: torch.Tensor) -> torch.Tensor:
    """Return weight times gradient of each head, shape (copies, H, n)."""
    heads = len(heads_left(job.model.tower(layer[0]), layer[1]))
    return block.by_head(block.weight.detach().double() * gradient, heads)


def score_random(job: ScoreJob) -> Ranking:
    """Draw the importance of each head uniformly from [0, 1). It depends on the seed only."""
    draw = random.Random(f"scores-{job.seed}").random  # noqa: S311 - reproducible, not secret
    return Ranking(
        scores={
            name: [[draw() for _ in range(t.num_heads)] for _ in range(t.layers)]
            for name, t in job.scored.items()
        }
    )


def score_magnitude(job: ScoreJob) -> Ranking:
    """Return the mean |w| of each head, over rows of q, k and v and columns of the output projection.

    The four matrices have equal weight for any sizes. Finally the importance is normalized according to the
    settings.
    """
    normalize = job.set_for(MagnitudeSettings).normalize
    warn_of_unlike_towers(job, normalize)
    importance = {
        name: torch.zeros(t.layers, t.num_heads, dtype=torch.float64) for name, t in job.scored.items()
    }
    weight = {name: torch.zeros(t.layers, 1, dtype=torch.float64) for name, t in job.scored.items()}
    for name, t in job.scored.items():
        for layer in range(t.layers):
            write_out_keys(job.model.tower(name), layer)
    for name, tensor in job.model.library_state().items():
        place = position_of(job.family, name)
        if (
            place.heads is None
            or place.layer is None
            or place.heads.role not in {TensorRole.INPUT, TensorRole.OUTPUT}
            or place.tower not in importance
        ):
            continue
        by_head = tensor.detach().double().movedim(place.heads.axis, 0)
        heads = by_head.reshape(place.heads.copies, job.scored[place.tower].num_heads, -1)
        importance[place.tower][place.layer] += heads.abs().mean(dim=-1).sum(dim=0).cpu()
        weight[place.tower][place.layer] += place.heads.copies
    tables = {name: (table / weight[name]).tolist() for name, table in importance.items()}
    return Ranking(scores=normalized(tables, normalize))
