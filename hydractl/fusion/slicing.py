"""Pruning as slicing: which rows and columns of which tensors a mask keeps.

Removing head h of a layer removes its K rows of q, k and v (weights and biases) and its K columns of the output
projection; the projection's bias stays (Hydra Ensembles, Algorithm 1). Rows of k and v that several heads share go with the
last of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hydractl.families.base import Family, HeadTensor, TensorRole, place_of
from hydractl.tensor_spec import TensorSpec

if TYPE_CHECKING:
    import torch

    from hydractl.manifest.head_mask import Mask, TowerHeads
    from hydractl.manifest.header import Architecture


def kept_indices(tensor: HeadTensor, head_numbers: Sequence[int], tower: TowerHeads) -> torch.Tensor:
    """Return the kept indices along the head axis in increasing order: copy after copy, head after head."""
    import torch  # noqa: PLC0415 - shapes alone must not cost the import of torch

    heads = len(tensor.numbers(range(tower.num_heads), tower))
    grid = torch.arange(heads * tensor.width(tower.head_dim)).reshape(tensor.copies, heads, -1)
    return grid[:, tensor.numbers(head_numbers, tower)].reshape(-1)


def pruned_spec(
    family: Family, architecture: Architecture, mask: Mask, name: str, spec: TensorSpec
) -> TensorSpec:
    """Return a tensor's dtype and shape after a mask is applied.

    Raises:
        ValueError: If the tensor does not have the head axis that the architecture requires.
    """
    place = place_of(family, name)
    if place.heads is None or place.layer is None:
        return spec
    tower, heads = architecture.towers[place.tower], place.heads
    full = heads.size(range(tower.num_heads), tower)
    if spec.shape[heads.axis : heads.axis + 1] != (full,):
        raise ValueError(f"tensor {name} has shape {spec.shape}; axis {heads.axis} should be {full}")
    pruned_size = heads.size(mask[place.tower].keep[place.layer], tower)
    return TensorSpec(spec.dtype, (*spec.shape[: heads.axis], pruned_size, *spec.shape[heads.axis + 1 :]))


def unpruned_shape(
    family: Family, architecture: Architecture, mask: Mask, name: str, spec: TensorSpec
) -> tuple[int, ...]:
    """Return the shape of a member's tensor before pruning, the inverse of `pruned_spec`.

    Raises:
        ValueError: If the tensor does not have the heads that the mask keeps, or belongs to a block that does not exist.
    """
    place = place_of(family, name)
    if place.layer is not None and place.layer >= architecture.towers[place.tower].layers:
        raise ValueError(
            f"tensor `{name}` belongs to a block that the architecture does not have: it has "
            f"{architecture.towers[place.tower].layers}"
        )
    if place.heads is None or place.layer is None:
        return spec.shape
    tower, heads = architecture.towers[place.tower], place.heads
    pruned_size = heads.size(mask[place.tower].keep[place.layer], tower)
    if spec.shape[heads.axis : heads.axis + 1] != (pruned_size,):
        raise ValueError(
            f"tensor `{name}` has shape {spec.shape}; its mask says that axis {heads.axis} is {pruned_size}"
        )
    full_size = heads.size(range(tower.num_heads), tower)
    return (*spec.shape[: heads.axis], full_size, *spec.shape[heads.axis + 1 :])


def prune_tensor(
    family: Family, architecture: Architecture, mask: Mask, name: str, tensor: torch.Tensor
) -> torch.Tensor:
    """Return a tensor without its removed heads; a tensor without a head axis is returned unchanged."""
    place = place_of(family, name)
    if place.heads is None or place.layer is None:
        return tensor
    tower = architecture.towers[place.tower]
    head_numbers = mask[place.tower].keep[place.layer]
    if len(head_numbers) == tower.num_heads:
        return tensor
    index = kept_indices(place.heads, head_numbers, tower)
    return tensor.index_select(place.heads.axis, index)


def zero_dropped(
    family: Family, architecture: Architecture, mask: Mask, state: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return a full state dict in which the output-projection columns of removed heads are zero, the reference for pruning."""
    zeroed = dict(state)
    for name, tensor in state.items():
        place = place_of(family, name)
        if place.heads is None or place.layer is None or place.heads.role != TensorRole.OUTPUT:
            continue
        tower = architecture.towers[place.tower]
        dropped = mask[place.tower].drop[place.layer]
        index = kept_indices(place.heads, dropped, tower)
        zeroed[name] = tensor.index_fill(place.heads.axis, index, 0)
    return zeroed
