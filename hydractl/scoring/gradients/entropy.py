"""How widely heads look: the entropy of their attention weights, as a share of what is possible.

Axes: B batch, T tokens, H heads.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from hydractl.errors import DataError
from hydractl.families.attention import Attention
from hydractl.inputs import Inputs
from hydractl.runtime import at_least_single
from hydractl.scoring.job import Samples, ScoreJob
from hydractl.scoring.taps import Watched, tapped


def attention_entropy(job: ScoreJob) -> dict[str, list[list[float]]]:
    """Return AE_h in [0, 1] of every head: the mean over samples of `relative_entropy`, each sample weighing the same.

    A tower that is always asked the same (a text tower with the prompts) has the mean over what it is asked.

    Raises:
        DataError: If attention weights are not finite.
    """
    held: dict[str, torch.Tensor] = {}
    with torch.no_grad():
        own = [_of_batch(job, samples, held) for samples in job.id_data]
    sums = torch.stack(job.team.in_order(own)).sum(dim=0)
    if not sums.isfinite().all():
        raise DataError(
            "attention weights are not finite; is the model trained, and is its input normalised?"
        )
    tables = {}
    for (name, t), part in zip(job.scored.items(), sums.split(_sizes(job)), strict=True):
        tables[name] = (part[:-1] / part[-1]).unflatten(0, (t.layers, t.num_heads)).tolist()
    return tables


def relative_entropy(weights: torch.Tensor, real: torch.Tensor | None) -> torch.Tensor:
    """Return the entropy of attention (B, H), averaged over a sample's n tokens and divided by log n: in [0, 1].

    Only the sample's own tokens ask. n is their number, also where a token may look at fewer, as in causal attention or a
    local window. A single token looks at itself, which is all that it can: 0.

    Args:
        weights: (B, H, T, T), rows sum to 1.
        real: (B, T), True at what is no padding; None where nothing is.
    """
    if real is None:
        real = torch.ones(weights.shape[0], weights.shape[2], dtype=torch.bool, device=weights.device)
    each = torch.special.entr(weights.to(at_least_single(weights.dtype))).sum(dim=-1).double()
    # what padding asks may be anything, not a number included
    total = each.masked_fill(~real.unsqueeze(1), 0.0).sum(dim=-1)
    count = real.sum(dim=1, keepdim=True)
    most = count.clamp(min=2).double().log()
    found: torch.Tensor = torch.where(count > 1, total / count / most, torch.zeros_like(total))
    return found


def real_tokens(asked: Inputs) -> torch.Tensor | None:
    """Return which tokens are no padding (B, T); None for images and for texts whose model is given no mask.

    Such a model sees padding as it sees any token, and here it counts as one.
    """
    if not isinstance(asked, Mapping) or "attention_mask" not in asked:
        return None
    return asked["attention_mask"].bool()


def _of_batch(job: ScoreJob, samples: Samples, held: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return for each scored tower the summed entropies of its heads and the number of samples, float64."""
    routed = job.model.routed(samples.inputs)
    parts = []
    for name in job.scored:
        found = held.get(name)
        if found is None:
            found = _of_tower(job, name, routed)
        if name in job.model.answer.fixed:
            held[name] = found
        parts.append(found)
    return torch.cat(parts)


def _of_tower(job: ScoreJob, name: str, routed: Mapping[str, Inputs]) -> torch.Tensor:
    """Return the summed entropies of a tower's heads, layer after layer, and the number of samples."""
    found: dict[int, torch.Tensor] = {}
    real = real_tokens(routed[name])

    def watched(_: str, layer: int, attention: Attention) -> Attention:
        def see(weights: torch.Tensor, _: torch.Tensor | None) -> None:
            found[layer] = relative_entropy(weights, real)

        return Watched(attention, see)

    with tapped(job.model, [name], watched):
        job.model.tower(name)(routed[name])
    each = torch.cat([found[layer] for layer in sorted(found)], dim=1)
    return torch.cat([each.sum(dim=0), each.new_tensor([len(each)])])


def _sizes(job: ScoreJob) -> list[int]:
    return [t.layers * t.num_heads + 1 for t in job.scored.values()]
