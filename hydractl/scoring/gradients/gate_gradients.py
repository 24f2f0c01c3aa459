"""Gradients of the loss of batches with respect to gates on head outputs, shared by gradient methods.

The output of every head is multiplied by a gate ξ = 1 before the output projection; ∂L/∂ξ_h is the first-order effect of
the head on the loss (Michel et al. 2019, section 4).
"""

from __future__ import annotations

from itertools import islice

import torch

from hydractl.errors import DataError
from hydractl.families.attention import Attention
from hydractl.metrics.per_sample import question_losses
from hydractl.runtime import on_cpu
from hydractl.scoring.attention_hooks import Gated, tapped
from hydractl.scoring.job import Samples, ScoreJob


def gate_gradients(job: ScoreJob, *, batches: int | None = None) -> dict[str, torch.Tensor]:
    """Return ∂L_b/∂ξ of every batch b, where L_b is the mean cross-entropy of its samples.

    Weights have no gradients. Towers that are not scored have no gates.

    Args:
        job: Job whose model may already lack heads.
        batches: Number of batches to use from the start of the data, over all processes; None for all.

    Returns:
        Signed gradients (b, L, H) for each scored tower in the order of the data, float64, on the CPU, the same in every
        process. H is the number of heads in the base; a removed head has 0.

    Raises:
        DataError: If there are no data or labels, or a gradient is not finite.
    """
    team = job.team
    share = None if batches is None else len(range(team.rank, batches, team.world))
    job.model.requires_grad_(requires_grad=False)
    batch_gradients = team.in_order([_of_batch(job, samples) for samples in islice(job.id_data, share)])
    if not batch_gradients:
        raise DataError("there is no data to compute gradients on")
    flat = torch.stack(batch_gradients)
    if not flat.isfinite().all():
        raise DataError(
            "the gradients are not finite; check that the model is trained and its input is normalized"
        )
    sizes = [t.layers * t.num_heads for t in job.scored.values()]
    return {
        name: part.unflatten(-1, (t.layers, t.num_heads))
        for (name, t), part in zip(job.scored.items(), flat.split(sizes, dim=-1), strict=True)
    }


def _of_batch(job: ScoreJob, samples: Samples) -> torch.Tensor:
    """Return one batch's gradients (N,): tower after tower, layer after layer."""
    inputs, labels = samples.labelled("computing gradients")
    wide = torch.promote_types(job.model.dtype, torch.float32)
    gates: dict[tuple[str, int], tuple[torch.Tensor, tuple[int, ...]]] = {}

    def gated(tower: str, layer: int, attention: Attention) -> Attention:
        group = attention.groups()[0]
        gate = torch.ones(group.heads, dtype=wide, device=job.model.device, requires_grad=True)
        gates[tower, layer] = gate, group.head_numbers
        return Gated(attention, gate)

    with torch.enable_grad(), tapped(job.model, job.scored, gated):
        loss = question_losses(job.model(inputs).to(wide), labels).mean()
        gradients = torch.autograd.grad(loss, [gate for gate, _ in gates.values()])
    rows = []
    for (tower, _), gradient, (_, head_numbers) in zip(
        gates, on_cpu(*gradients), gates.values(), strict=True
    ):
        row = torch.zeros(job.architecture.towers[tower].num_heads, dtype=torch.float64)
        row[list(head_numbers)] = gradient.double()
        rows.append(row)
    return torch.cat(rows)
