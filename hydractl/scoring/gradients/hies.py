"""Head importance and entropy together: HIES (Choi et al., arXiv 2510.13832).

The entropy is that of attention weights relative to its maximum.

Axes: B batch, T tokens, H heads.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from hydractl.errors import DataError
from hydractl.families.attention import Attention
from hydractl.model_inputs import Inputs
from hydractl.progress import Progress
from hydractl.runtime import at_least_single
from hydractl.scoring.attention_hooks import AttentionTap, tapped
from hydractl.scoring.gradients.per_sample_gradients import absolute_gradients
from hydractl.scoring.gradients.settings import HiesSettings
from hydractl.scoring.job import Ranking, Samples, ScoreJob
from hydractl.scoring.normalize import min_max, normalized, warn_of_unlike_towers


def score_hies(job: ScoreJob, progress: Progress) -> Ranking:
    """Score heads by HIES_h = α HIS_h + (1 − α) (1 − AE_h) in [0, 1], both terms min-max scaled over all heads.

    HIS is Michel's importance with absolute values per sample (`absolute_gradients`), normalized according to the
    settings; AE is the relative entropy of attention (`attention_entropy`): a head with uniform attention is less
    important. A term that is equal for all heads has no effect. α = 1 ranks heads by HIS, α = 0 by AE.
    """
    settings = job.set_for(HiesSettings)
    if settings.alpha > 0:
        warn_of_unlike_towers(job, settings.normalize, progress)
    importance = min_max(normalized(absolute_gradients(job).tables, settings.normalize))
    entropy = min_max(attention_entropy(job))
    return Ranking(
        scores={
            name: [
                [
                    settings.alpha * importance_score + (1 - settings.alpha) * (1 - entropy_score)
                    for importance_score, entropy_score in zip(*rows, strict=True)
                ]
                for rows in zip(importance[name], entropy[name], strict=True)
            ]
            for name in importance
        }
    )


def attention_entropy(job: ScoreJob) -> dict[str, list[list[float]]]:
    """Return AE_h in [0, 1] of every head: the mean over samples of `relative_entropy` with equal weights.

    A tower with fixed inputs (a text tower with prompts) has the mean over its inputs.

    Raises:
        DataError: If attention weights are not finite.
    """
    fixed_sums: dict[str, torch.Tensor] = {}
    with torch.no_grad():
        batch_sums = [_of_batch(job, samples, fixed_sums) for samples in job.id_data]
    sums = torch.stack(job.team.in_order(batch_sums)).sum(dim=0)
    if not sums.isfinite().all():
        raise DataError(
            "attention weights are not finite; check that the model is trained and its input is normalized"
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
    token_entropy = torch.special.entr(weights.to(at_least_single(weights.dtype))).sum(dim=-1).double()
    # what padding asks may be anything, not a number included
    total = token_entropy.masked_fill(~real.unsqueeze(1), 0.0).sum(dim=-1)
    count = real.sum(dim=1, keepdim=True)
    most = count.clamp(min=2).double().log()
    relative: torch.Tensor = torch.where(count > 1, total / count / most, torch.zeros_like(total))
    return relative


def real_tokens(inputs: Inputs) -> torch.Tensor | None:
    """Return which tokens are no padding (B, T); None for images and for texts whose model is given no mask.

    Such a model sees padding as it sees any token, and here it counts as one.
    """
    if not isinstance(inputs, Mapping) or "attention_mask" not in inputs:
        return None
    return inputs["attention_mask"].bool()


def _of_batch(job: ScoreJob, samples: Samples, fixed_sums: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return for each scored tower the summed entropies of its heads and the number of samples, float64."""
    routed = job.model.routed(samples.inputs)
    parts = []
    for name in job.scored:
        sums = fixed_sums.get(name)
        if sums is None:
            sums = _of_tower(job, name, routed)
        if name in job.model.answer.fixed:
            fixed_sums[name] = sums
        parts.append(sums)
    return torch.cat(parts)


def _of_tower(job: ScoreJob, name: str, routed: Mapping[str, Inputs]) -> torch.Tensor:
    """Return the summed entropies of a tower's heads, layer after layer, and the number of samples."""
    entropy_by_layer: dict[int, torch.Tensor] = {}
    real = real_tokens(routed[name])

    def watched(_: str, layer: int, attention: Attention) -> Attention:
        def see(weights: torch.Tensor, _: torch.Tensor | None) -> None:
            entropy_by_layer[layer] = relative_entropy(weights, real)

        return AttentionTap(attention, see)

    with tapped(job.model, [name], watched):
        job.model.tower(name)(routed[name])
    entropies = torch.cat([entropy_by_layer[layer] for layer in sorted(entropy_by_layer)], dim=1)
    return torch.cat([entropies.sum(dim=0), entropies.new_tensor([len(entropies)])])


def _sizes(job: ScoreJob) -> list[int]:
    return [t.layers * t.num_heads + 1 for t in job.scored.values()]
