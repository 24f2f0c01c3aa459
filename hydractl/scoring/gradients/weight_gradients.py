"""Gradient of the cross-entropy with respect to the weights of heads, over all processes.

Axes: B samples of a batch, H remaining heads of a layer, C classes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias, cast

import torch
from torch import nn

from hydractl.errors import DataError
from hydractl.families.base import place_of
from hydractl.families.layout import HeadTensor, TensorRole
from hydractl.families.tower import Model
from hydractl.metrics.per_sample import question_losses
from hydractl.runtime import at_least_single
from hydractl.scoring.attention_hooks import write_out_keys
from hydractl.scoring.job import Samples, ScoreJob

Layer: TypeAlias = "tuple[str, int]"
"""A tower's name and the number of one of its layers."""


class WeightBlock(NamedTuple):
    """A weight of a layer that contains heads: that of q, k or v, or of all three."""

    weight: nn.Parameter
    layout: HeadTensor

    def by_head(self, x: torch.Tensor, heads: int) -> torch.Tensor:
        """Return x, shaped like the weight, as (copies, H, n) in float64: each head's numbers of each copy."""
        numbers_per_head = x.numel() // max(1, self.layout.copies * heads)
        return x.double().movedim(self.layout.axis, 0).reshape(self.layout.copies, heads, numbers_per_head)


Blocks: TypeAlias = "dict[Layer, list[WeightBlock]]"


class MeanGradient(NamedTuple):
    """The gradient of the mean cross-entropy with respect to each block, and the mean cross-entropy itself."""

    blocks: dict[Layer, list[tuple[WeightBlock, torch.Tensor]]]
    loss: float


def input_blocks(job: ScoreJob, layers: Collection[Layer]) -> Blocks:
    """Return the weights of q, k and v of layers, without biases and output projections, each head's its own from here on."""
    for tower, layer in layers:
        write_out_keys(job.model.tower(tower), layer)
    blocks: Blocks = {layer: [] for layer in layers}
    for name, tensor in job.model.library_state().items():
        place = place_of(job.family, name)
        if place.heads is None or place.layer is None or place.heads.role != TensorRole.INPUT:
            continue
        if (key := (place.tower, place.layer)) in blocks:
            blocks[key].append(WeightBlock(cast("nn.Parameter", tensor), place.heads))
    return blocks


def sample_losses(model: Model, samples: Samples) -> torch.Tensor:
    """Return the cross-entropy of each sample, (B,), in at least single precision.

    Raises:
        DataError: If the samples have no labels.
    """
    inputs, labels = samples.labelled("computing gradients")
    return losses_of(model(inputs), labels)


def losses_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return `question_losses` in at least single precision."""
    return question_losses(logits.to(at_least_single(logits.dtype)), labels)


def mean_loss(job: ScoreJob) -> float:
    """Return the mean cross-entropy of all samples.

    Raises:
        DataError: If it is not finite, or samples have no labels.
    """
    # not inference mode: what a library keeps for later passes must allow gradients
    with torch.no_grad():
        batch_losses = [sample_losses(job.model, samples).double() for samples in job.id_data]
    return checked_loss(torch.cat(job.team.in_order(batch_losses)).mean().item())


def batch_gradients(
    job: ScoreJob, weights: Sequence[nn.Parameter]
) -> Iterator[tuple[tuple[torch.Tensor, ...], torch.Tensor]]:
    """Yield for each of this process's batches the gradients of its summed cross-entropy, and its losses (B,)."""
    job.model.requires_grad_(requires_grad=False)
    for weight in weights:
        weight.requires_grad_()
    for samples in job.id_data:
        with torch.enable_grad():
            losses = sample_losses(job.model, samples)
            # a layer that keeps no head leaves its weights out
            gradients = torch.autograd.grad(losses.sum(), weights, materialize_grads=True)
        yield gradients, losses.detach()


def mean_gradient(job: ScoreJob, blocks: Mapping[Layer, Sequence[WeightBlock]]) -> MeanGradient:
    """Return the gradient of the mean cross-entropy of all samples with respect to some weights.

    The gradient of each batch is added to the sum before the next is computed, in at least single precision, so memory
    holds two gradients of these weights. They are added in the order of the data, so the result is bit-identical for any
    number of processes.

    Raises:
        DataError: If it is not finite, or samples have no labels.
    """
    weights = [block.weight for layer_blocks in blocks.values() for block in layer_blocks]

    def own_batches() -> Iterator[list[torch.Tensor]]:
        for gradients, losses in batch_gradients(job, weights):
            # not `tensor`, which is copied from the processor
            count = torch.full((), len(losses), device=losses.device)
            yield [*(g.to(at_least_single(g.dtype)) for g in gradients), losses.double().sum(), count]

    *sums, loss, count = job.team.added(own_batches())
    if not torch.stack([g.isfinite().all() for g in sums]).all():
        raise not_finite("gradients")
    means = iter([g / count for g in sums])
    return MeanGradient(
        {layer: [(block, next(means)) for block in layer_blocks] for layer, layer_blocks in blocks.items()},
        checked_loss((loss / count).item()),
    )


def checked_loss(loss: float) -> float:
    """Return a loss.

    Raises:
        DataError: If it is not finite.
    """
    if not torch.tensor(loss).isfinite():
        raise not_finite("losses")
    return loss


def not_finite(quantity: str) -> DataError:
    """Return the error that something of a pass is not finite."""
    return DataError(
        f"the {quantity} are not finite; check that the model is trained and its input is normalized"
    )
