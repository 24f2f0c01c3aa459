"""The fuse plan: what becomes of each tensor, and where a member's part of a fused tensor lies.

A *shared* tensor is bit-identical in all members and stored once. A *merged* one is an MLP tensor that differs: the
mean over members (Hydra Ensembles, section 4.2). A *grouped* one is everything else that differs: the members'
tensors one after another along the axis that holds their heads, or along the first axis.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hydractl.families.base import Family, place_of
from hydractl.manifest.header import Fate, Header
from hydractl.tensors import TensorSpec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from hydractl.manifest.heads import Shape


def group_axis(family: Family, name: str) -> int:
    """Return the axis along which members' tensors lie in a grouped tensor."""
    heads = place_of(family, name).heads
    return heads.axis if heads else 0


def fused_spec(family: Family, name: str, fate: Fate, members: Sequence[TensorSpec]) -> TensorSpec:
    """Return dtype and shape of a fused tensor; a grouped 0-d tensor becomes a vector of M."""
    first = members[0]
    if fate != Fate.GROUPED:
        return first
    if not first.shape:
        return TensorSpec(first.dtype, (len(members),))
    axis = group_axis(family, name)
    shape = list(first.shape)
    shape[axis] = sum(spec.shape[axis] for spec in members)
    return TensorSpec(first.dtype, tuple(shape))


def trunk_length(family: Family, fates: Mapping[str, Fate], towers: Shape) -> int:
    """Return how many blocks run once, over all towers: in each those before its first grouped tensor.

    Args:
        family: Says where tensors stand.
        fates: Of all tensors.
        towers: How many blocks each has.
    """
    trunks = {name: tower.layers for name, tower in towers.items()}
    for name, fate in fates.items():
        place = place_of(family, name)
        if fate == Fate.GROUPED and place.part == "embed":
            trunks[place.tower] = 0
        elif fate == Fate.GROUPED and place.layer is not None:
            trunks[place.tower] = min(trunks[place.tower], place.layer)
    return sum(trunks.values())


def member_widths(family: Family, header: Header, name: str, length: int) -> list[int]:
    """Return each member's length along the group axis of a grouped tensor of `length` there.

    Heads may be ragged, so their lengths come from the masks; anything else is the same for all members.

    Raises:
        ValueError: If the lengths do not add up to `length`.
    """
    place = place_of(family, name)
    if place.heads is not None and place.layer is not None:
        width = place.heads.width(header.architecture.towers[place.tower].head_dim)
        widths = [width * len(mask[place.tower].keep[place.layer]) for mask in header.masks]
    else:
        widths = [length // len(header.masks)] * len(header.masks)
    if sum(widths) != length:
        raise ValueError(f"tensor {name}: members take {widths} along the grouped axis, which has {length}")
    return widths


def split_members(
    family: Family, header: Header, state: Mapping[str, torch.Tensor]
) -> list[dict[str, torch.Tensor]]:
    """Return each member's state dict as views into a hydra's tensors; shared and merged ones are the same objects.

    Raises:
        ValueError: If a tensor does not fit the plan or the masks.
    """
    plan = header.plan
    members: list[dict[str, torch.Tensor]] = [{} for _ in header.masks]
    for name, tensor in state.items():
        if plan is None or name not in plan.fates:
            raise ValueError(f"tensor {name} is not in the fuse plan")
        if plan.fates[name] != Fate.GROUPED:
            for member in members:
                member[name] = tensor
            continue
        axis = group_axis(family, name)
        widths = member_widths(family, header, name, tensor.shape[axis])
        for member, part in zip(members, tensor.split(widths, dim=axis), strict=True):
            member[name] = part.reshape(()) if name in family.scalars else part.contiguous()
    return members
