"""Tensors of a pruned member: shapes before and after a mask, their numbers, and the masked base as their reference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hydractl.families.base import Family, place_of
from hydractl.families.layout import TensorRole
from hydractl.tensor_spec import TensorSpec

if TYPE_CHECKING:
    import torch

    from hydractl.manifest.head_mask import Mask
    from hydractl.manifest.header import Architecture


def pruned_spec(
    family: Family, architecture: Architecture, mask: Mask, name: str, spec: TensorSpec
) -> TensorSpec:
    """Return a tensor's dtype and shape after a mask is applied.

    Raises:
        ValueError: If the tensor does not have the head axis that the architecture requires.
    """
    return TensorSpec(spec.dtype, _resized(family, architecture, mask, (name, spec.shape), prunes=True))


def unpruned_shape(
    family: Family, architecture: Architecture, mask: Mask, name: str, spec: TensorSpec
) -> tuple[int, ...]:
    """Return the shape of a member's tensor before pruning, the inverse of `pruned_spec`.

    Raises:
        ValueError: If the tensor does not have the heads that the mask keeps, or belongs to a block that does not exist.
    """
    return _resized(family, architecture, mask, (name, spec.shape), prunes=False)


def _resized(
    family: Family,
    architecture: Architecture,
    mask: Mask,
    named: tuple[str, tuple[int, ...]],
    *,
    prunes: bool,
) -> tuple[int, ...]:
    name, shape = named
    place = place_of(family, name)
    if place.layer is None:
        return shape
    tower, heads = architecture.towers[place.tower], place.heads
    if place.layer >= tower.layers:
        raise ValueError(
            f"tensor `{name}` belongs to a block that the architecture does not have: it has {tower.layers}"
        )
    if heads is None:
        return shape
    sizes = (heads.size(tower.head_numbers, tower), heads.size(mask[place.tower].keep[place.layer], tower))
    old, new = sizes if prunes else reversed(sizes)
    if shape[heads.axis : heads.axis + 1] != (old,):
        by = "" if prunes else " by its mask"
        raise ValueError(f"tensor `{name}` has shape {shape}; axis {heads.axis} should be {old}{by}")
    return (*shape[: heads.axis], new, *shape[heads.axis + 1 :])


def prune_tensor(
    family: Family, architecture: Architecture, mask: Mask, name: str, tensor: torch.Tensor
) -> torch.Tensor:
    """Return a tensor without its removed heads; a tensor without a head axis is returned unchanged."""
    place = place_of(family, name)
    if place.heads is None or place.layer is None:
        return tensor
    tower, head_numbers = architecture.towers[place.tower], mask[place.tower].keep[place.layer]
    full = len(head_numbers) == tower.num_heads
    return tensor if full else place.heads.select(tensor, head_numbers, tower)


def zero_dropped(
    family: Family, architecture: Architecture, mask: Mask, state: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return a full state dict in which the output-projection columns of removed heads are zero, the reference for pruning."""
    zeroed = dict(state)
    for name, tensor in state.items():
        place = place_of(family, name)
        if place.heads is None or place.layer is None or place.heads.role != TensorRole.OUTPUT:
            continue
        index = place.heads.index(mask[place.tower].drop[place.layer], architecture.towers[place.tower])
        zeroed[name] = tensor.index_fill(place.heads.axis, tensor.new_tensor(index).long(), 0)
    return zeroed
