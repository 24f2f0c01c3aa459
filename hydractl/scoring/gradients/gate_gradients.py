"""How a batch's loss answers to gates on the heads' outputs: what gradient methods share.

Every head's output is multiplied by a gate ξ = 1 before the output projection; ∂L/∂ξ_h is what the loss would gain, to
first order, from the head (Michel et al. 2019, section 4).
"""

from __future__ import annotations

from itertools import islice

import torch
from torch.nn import functional as F  # noqa: N812 - the field's own name

from hydractl.errors import DataError
from hydractl.families.attention import Attention
from hydractl.scoring.attention_hooks import Gated, tapped
from hydractl.scoring.job import Samples, ScoreJob


def gate_gradients(job: ScoreJob, *, batches: int | None = None) -> dict[str, torch.Tensor]:
    """Return ∂L_b/∂ξ of every batch b, where L_b is the mean cross-entropy of its samples.

    Nothing is trained: of the weights no gradient is computed. The towers that are not scored have no gates.

    Args:
        job: Its model may have lost heads.
        batches: Use the first so many of the data, counted over all processes; None for all.

    Returns:
        For each scored tower (b, L, H) in the order of the data, float64, on the CPU: signed, the same in every process. H
        counts the heads of the base; a head that is gone has 0.

    Raises:
        DataError: If there are no data or no labels, or a gradient is not finite.
    """
    team = job.team
    share = None if batches is None else len(range(team.rank, batches, team.world))
    job.model.requires_grad_(requires_grad=False)
    batch_gradients = team.in_order([_of_batch(job, samples) for samples in islice(job.id_data, share)])
    if not batch_gradients:
        raise DataError("there is no data to compute gradients on")
    flat = torch.stack(batch_gradients)
    if not flat.isfinite().all():
        raise DataError("the gradients are not finite; is the model trained, and is its input normalised?")
    sizes = [t.layers * t.num_heads for t in job.scored.values()]
    return {
        name: part.unflatten(-1, (t.layers, t.num_heads))
        for (name, t), part in zip(job.scored.items(), flat.split(sizes, dim=-1), strict=True)
    }


def _of_batch(job: ScoreJob, samples: Samples) -> torch.Tensor:
    """Return one batch's gradients (N,): tower after tower, layer after layer."""
    inputs, labels = samples.labelled("scoring by gradients")
    wide = torch.promote_types(job.model.dtype, torch.float32)
    gates: dict[tuple[str, int], tuple[torch.Tensor, tuple[int, ...]]] = {}

    def gated(tower: str, layer: int, attention: Attention) -> Attention:
        group = attention.groups()[0]
        gate = torch.ones(group.heads, dtype=wide, device=job.model.device, requires_grad=True)
        gates[tower, layer] = gate, group.head_numbers
        return Gated(attention, gate)

    with torch.enable_grad(), tapped(job.model, job.scored, gated):
        loss = F.cross_entropy(job.model(inputs).to(wide), labels)
        gradients = torch.autograd.grad(loss, [gate for gate, _ in gates.values()])
    rows = []
    for (tower, _), gradient, (_, head_numbers) in zip(gates, gradients, gates.values(), strict=True):
        row = torch.zeros(job.architecture.towers[tower].num_heads, dtype=torch.float64)
        row[list(head_numbers)] = gradient.cpu().double()
        rows.append(row)
    return torch.cat(rows)
