"""Gradients of the cross-entropy for the weights of heads and for gates on their outputs, over all processes.

A gate ξ = 1 multiplies the output of a head before the output projection. ∂L/∂ξ_h is the first-order effect
of the head on the loss (Michel et al. 2019, section 4).

Axes: B samples of a batch, H remaining heads of a layer, L layers, C classes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple, TypeAlias, cast

import torch
from torch import nn

from hydractl.errors import DataError
from hydractl.families.attention import Attention
from hydractl.families.base import position_of
from hydractl.families.head_slicing import HeadTensor, TensorRole
from hydractl.families.tower import Model
from hydractl.metrics.per_sample import item_losses
from hydractl.runtime import at_least_single, on_cpu
from hydractl.scoring.attention_hooks import Gated, tapped, write_out_keys
from hydractl.scoring.job import Samples, ScoreJob

Layer: TypeAlias = "tuple[str, int]"
"""Name of a tower and number of a layer."""


class WeightBlock(NamedTuple):
    """Weight of q, k or v, or of all three, in one layer.

    Attributes:
        weight: The parameter.
        layout: Arrangement of the heads in the parameter.
    """

    weight: nn.Parameter
    layout: HeadTensor

    def by_head(self, x: torch.Tensor, heads: int) -> torch.Tensor:
        """Return a tensor split by heads, float64: shape (copies, H, n), with n numbers per head and copy.

        `copies` is 3 for a fused qkv weight, and 1 for a weight of q, k or v.

        Args:
            x: Tensor of the shape of the weight.
            heads: Number of heads H of the layer.
        """
        numbers_per_head = x.numel() // max(1, self.layout.copies * heads)
        return x.double().movedim(self.layout.axis, 0).reshape(self.layout.copies, heads, numbers_per_head)


Blocks: TypeAlias = "dict[Layer, list[WeightBlock]]"


def input_blocks(job: ScoreJob, layers: Collection[Layer]) -> Blocks:
    """Return the weights of q, k and v of some layers, without biases and output projections.

    Shared keys and values of these layers are first copied for each head.
    """
    for tower, layer in layers:
        write_out_keys(job.model.tower(tower), layer)
    blocks: Blocks = {layer: [] for layer in layers}
    for name, tensor in job.model.library_state().items():
        place = position_of(job.family, name)
        if place.heads is None or place.layer is None or place.heads.role != TensorRole.INPUT:
            continue
        if (key := (place.tower, place.layer)) in blocks:
            blocks[key].append(WeightBlock(cast("nn.Parameter", tensor), place.heads))
    return blocks


def sample_losses(model: Model, samples: Samples) -> torch.Tensor:
    """Return the cross-entropy of each sample, shape (B,), in at least fp32.

    Raises:
        DataError: If the samples have no labels.
    """
    inputs, labels = samples.labelled("computing gradients")
    return losses_of(model(inputs), labels)


def losses_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return `item_losses` in at least fp32."""
    return item_losses(logits.to(at_least_single(logits.dtype)), labels)


def batch_gradients(
    job: ScoreJob, weights: Sequence[nn.Parameter]
) -> Iterator[tuple[tuple[torch.Tensor, ...], torch.Tensor]]:
    """Yield the gradients of the summed cross-entropy and the losses (B,) of each batch of this process.

    Args:
        job: The job.
        weights: Parameters; all others are frozen.
    """
    job.model.requires_grad_(requires_grad=False)
    for weight in weights:
        weight.requires_grad_()
    for samples in job.id_data:
        with torch.enable_grad():
            losses = sample_losses(job.model, samples)
            # `materialize_grads` gives zeros for a layer without heads, whose weights are not used.
            gradients = torch.autograd.grad(losses.sum(), weights, materialize_grads=True)
        yield gradients, losses.detach()


def mean_gradient(
    job: ScoreJob, blocks: Mapping[Layer, Sequence[WeightBlock]]
) -> dict[Layer, list[tuple[WeightBlock, torch.Tensor]]]:
    """Return the gradient of the mean cross-entropy of all samples for some weights.

    Batches are added in sequence in at least fp32: memory contains two gradients of these weights. The order
    is the order of the data: the result has the same bits for any number of processes.

    Args:
        job: The job.
        blocks: Weights of each layer.

    Returns:
        Pairs of weight and gradient for each layer.

    Raises:
        DataError: If the gradient is not finite, or samples have no labels.
    """
    weights = [block.weight for layer_blocks in blocks.values() for block in layer_blocks]

    def own_batches() -> Iterator[list[torch.Tensor]]:
        for gradients, losses in batch_gradients(job, weights):
            # `torch.tensor` would copy the number from the CPU.
            count = torch.full((), len(losses), device=losses.device)
            yield [*(g.to(at_least_single(g.dtype)) for g in gradients), losses.double().sum(), count]

    *sums, loss, count = job.team.added(own_batches())
    if not torch.stack([g.isfinite().all() for g in (*sums, loss)]).all():
        raise not_finite("gradients")
    means = iter([g / count for g in sums])
    return {layer: [(block, next(means)) for block in layer_blocks] for layer, layer_blocks in blocks.items()}


def not_finite(quantity: str) -> DataError:
    """Return the error for a quantity that is not finite."""
    return DataError(
        f"the {quantity} are not finite; check that the model is trained and its input is normalized"
    )


def gate_gradients(job: ScoreJob, *, batches: int | None = None) -> dict[str, torch.Tensor]:
    """Return ∂L_b/∂ξ for each batch b, with L_b the mean cross-entropy of its samples.

    Weights have no gradients, and towers that are not scored have no gates.

    Args:
        job: The job; heads may already be removed from its model.
        batches: Number of batches from the start of the data, over all processes; None for all.

    Returns:
        Signed gradients (b, L, H) of each scored tower in the order of the data, float64, on the CPU, equal
        in all processes. H is the number of heads in the base; removed heads have 0.

    Raises:
        DataError: If there is no data or no label, or a gradient is not finite.
    """
    team = job.team
    share = None if batches is None else len(range(team.rank, batches, team.world))
    job.model.requires_grad_(requires_grad=False)
    batch_gradients = team.in_order([_of_batch(job, samples) for samples in islice(job.id_data, share)])
    if not batch_gradients:
        raise DataError("there is no data to compute gradients on")
    flat = torch.stack(batch_gradients)
    if not flat.isfinite().all():
        raise not_finite("gradients")
    sizes = [t.layers * t.num_heads for t in job.scored.values()]
    return {
        name: part.unflatten(-1, (t.layers, t.num_heads))
        for (name, t), part in zip(job.scored.items(), flat.split(sizes, dim=-1), strict=True)
    }


def _of_batch(job: ScoreJob, samples: Samples) -> torch.Tensor:
    """Return the gradients of one batch, shape (N,): tower after tower, layer after layer."""
    inputs, labels = samples.labelled("computing gradients")
    wide = torch.promote_types(job.model.dtype, torch.float32)
    gates: dict[tuple[str, int], tuple[torch.Tensor, tuple[int, ...]]] = {}

    def gated(tower: str, layer: int, attention: Attention) -> Attention:
        group = attention.groups()[0]
        gate = torch.ones(group.heads, dtype=wide, device=job.model.device, requires_grad=True)
        gates[tower, layer] = gate, group.head_numbers
        return Gated(attention, gate)

    with torch.enable_grad(), tapped(job.model, job.scored, gated):
        loss = item_losses(job.model(inputs).to(wide), labels).mean()
        gradients = torch.autograd.grad(loss, [gate for gate, _ in gates.values()])
    rows = []
    for (tower, _), gradient, (_, head_numbers) in zip(
        gates, on_cpu(*gradients), gates.values(), strict=True
    ):
        row = torch.zeros(job.architecture.towers[tower].num_heads, dtype=torch.float64)
        row[list(head_numbers)] = gradient.double()
        rows.append(row)
    return torch.cat(rows)
