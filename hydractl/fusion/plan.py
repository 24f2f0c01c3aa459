"""The fuse plan: the fate of each tensor, the fused bytes, and each member's part of fused tensors.

A *shared* tensor is bit-identical in all members and stored once. A *merged* tensor differs and is averaged
over members: in MLPs (Hydra Ensembles, section 4.2), or anywhere before a given block, like a model soup
(Wortsman et al. 2022). All other different tensors are *grouped*: the members' tensors are concatenated along
the axis of heads, or along the first axis. This module also prunes the tensors of a member.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import torch

from hydractl.checkpoint import Chunks, Span, TensorSpec, tensor_bytes, tensor_of
from hydractl.errors import CheckpointError
from hydractl.families.base import Family, position_of
from hydractl.families.head_slicing import TensorRole
from hydractl.families.open_model import OpenModel
from hydractl.manifest.head_mask import Mask, Shape
from hydractl.manifest.header import Architecture, Fate, FusePlan, Header, Kind
from hydractl.messages import counted
from hydractl.runtime import one_thread


def group_axis(family: Family, name: str) -> int:
    """Return the axis along which a grouped tensor concatenates the members' tensors."""
    heads = position_of(family, name).heads
    return heads.axis if heads else 0


def fused_spec(family: Family, name: str, fate: Fate, members: Sequence[TensorSpec]) -> TensorSpec:
    """Return dtype and shape of a fused tensor.

    Shared and merged tensors have the dtype and shape of the first member's tensor. Grouped tensors are
    concatenated along the group axis, with the sum of the members' lengths. Grouped 0-d tensors become a
    vector of M numbers.

    Args:
        family: Family of the architecture.
        name: Name of the tensor.
        fate: Storage of the tensor in the hydra.
        members: Dtype and shape of each member's tensor.
    """
    first = members[0]
    if fate != Fate.GROUPED:
        return first
    if not first.shape:
        return TensorSpec(first.dtype, (len(members),))
    axis = group_axis(family, name)
    length = sum(spec.shape[axis] for spec in members)
    return TensorSpec(first.dtype, (*first.shape[:axis], length, *first.shape[axis + 1 :]))


def trunk_length(family: Family, fates: Mapping[str, Fate], towers: Shape) -> int:
    """Return the number of blocks that run once for all members, summed over towers.

    In each tower, these are the blocks before the first grouped tensor.

    Args:
        family: Family of the model; it gives the position of tensors.
        fates: Fates of all tensors.
        towers: Number of blocks of each tower.
    """
    trunks = {name: tower.layers for name, tower in towers.items()}
    for name, fate in fates.items():
        place = position_of(family, name)
        if fate == Fate.GROUPED and place.part == "embed":
            trunks[place.tower] = 0
        elif fate == Fate.GROUPED and place.layer is not None:
            trunks[place.tower] = min(trunks[place.tower], place.layer)
    return sum(trunks.values())


def member_widths(family: Family, header: Header, name: str, length: int) -> list[int]:
    """Return each member's size along the group axis of a grouped tensor.

    Members may have different numbers of heads, so sizes of head axes come from the masks. Other sizes are
    equal for all members.

    Args:
        family: Family of the model.
        header: Header of the hydra.
        name: Name of the tensor.
        length: Size of the grouped tensor along the group axis.

    Raises:
        ValueError: If the sizes do not add up to `length`.
    """
    place = position_of(family, name)
    if place.heads is not None and place.layer is not None:
        tower = header.architecture.towers[place.tower]
        widths = [place.heads.size(mask[place.tower].keep[place.layer], tower) for mask in header.masks]
    else:
        widths = [length // len(header.masks)] * len(header.masks)
    if sum(widths) != length:
        raise ValueError(
            f"tensor {name}: members take {widths} along the grouped axis, which has size {length}"
        )
    return widths


def join_members(
    family: Family, fates: Mapping[str, Fate], members: Sequence[Mapping[str, torch.Tensor]]
) -> dict[str, torch.Tensor]:
    """Return a hydra's tensors from its members' state dicts, the inverse of `split_members`."""
    return {
        name: members[0][name]
        if fate != Fate.GROUPED
        else (torch.cat if members[0][name].ndim else torch.stack)(
            [member[name] for member in members], dim=group_axis(family, name)
        )
        for name, fate in fates.items()
    }


def split_members(
    family: Family, header: Header, state: Mapping[str, torch.Tensor]
) -> list[dict[str, torch.Tensor]]:
    """Return each member's state dict: views into grouped tensors, and all other tensors as shared objects.

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
        if axis >= tensor.ndim:
            raise ValueError(f"tensor {name} has {counted(tensor.ndim, 'axis', 'axes')}, too few to split it")
        widths = member_widths(family, header, name, tensor.shape[axis])
        for member, part in zip(members, tensor.split(widths, dim=axis), strict=True):
            member[name] = part.reshape(()) if name in family.scalars else part.contiguous()
    return members


PIECE_BYTES = 1 << 18
"""Size of a piece in bytes (256 KiB), chosen by hand for the cache of a core. Twice the size halves the
number of tasks and needs twice the cache."""
LATER = "members are still identical: the hydra predicts like one model until `finetune` trains it"


class Fusion:
    """Fused tensors of members. Fates are determined at once, bytes on request.

    Attributes:
        fates: Fate of each tensor, by name.
        specs: Dtype and shape of each fused tensor, by name.
        same: Whether a tensor is bit-identical in all members, by name.
    """

    def __init__(
        self,
        members: Sequence[OpenModel],
        *,
        mlp: Literal["merge", "keep"],
        merge_trunk: int = 0,
        own_from: int | None = None,
    ) -> None:
        """Compare the members' tensors.

        Args:
            members: Members of the same architecture, with the same heads before block `merge_trunk`.
            mlp: Fate of different MLPs.
            merge_trunk: Average all different tensors before this block of each tower, including the
                embedding.
            own_from: Store separate tensors for each member from this block of each tower on, even if they
                are equal. Not less than `merge_trunk`.

        Raises:
            CheckpointError: If a tensor to average is not floating point.
        """
        self.members = members
        self.family, self.towers = members[0].family, members[0].header.architecture.towers
        self.checkpoints = [m.checkpoint for m in members]
        self.mlp = mlp
        self.own_from = own_from
        self.same = {name: self._identical(name) for name in sorted(self.checkpoints[0].specs)}
        self._assign_fates(merge_trunk)

    def merging(self, merge_trunk: int) -> Fusion:
        """Return the fusion with another number of merged blocks, without reading tensors again."""
        second = copy.copy(self)
        second._assign_fates(merge_trunk)
        return second

    def _assign_fates(self, merge_trunk: int) -> None:
        self.merge_trunk = merge_trunk
        self.fates = {name: self._fate(name) for name in self.same}
        self.specs = {
            name: fused_spec(self.family, name, fate, [c.specs[name] for c in self.checkpoints])
            for name, fate in self.fates.items()
        }

    @property
    def plan(self) -> FusePlan:
        """The plan for the header."""
        return FusePlan(
            fates=self.fates,
            trunk=trunk_length(self.family, self.fates, self.towers),
            mlp=self.mlp,
            merge_trunk=self.merge_trunk,
            own_from=self.own_from,
        )

    @property
    def header(self) -> Header:
        """Header of the hydra, without provenance: the first member's, with the plan and all masks."""
        return self.members[0].header.of_other_weights(
            {
                "kind": Kind.HYDRA,
                "masks": tuple(m.header.masks[0] for m in self.members),
                "plan": self.plan,
            }
        )

    @property
    def averages(self) -> bool:
        """Whether any tensor is averaged."""
        return Fate.MERGED in self.fates.values()

    @property
    def sameness(self) -> str | None:
        """Reason why the hydra predicts like a single model. None if its members may disagree."""
        if len(self.members) == 1:
            return "there is only one member: the hydra predicts like one model"
        if Fate.GROUPED in self.fates.values():
            return LATER if all(self.same.values()) else None
        if self.averages:
            averaged, instead = (
                ("tensors", "a lower `--trunk`") if self.merge_trunk else ("MLPs", "`--mlp keep`")
            )
            return (
                f"members differ only in averaged {averaged}, so the hydra predicts like one model; use "
                f"{instead} to keep them separate"
            )
        return "members are identical: the hydra predicts like one model"

    @property
    def separates_equal(self) -> bool:
        """Whether `own_from` separates equal tensors, or tensors that would be averaged."""
        return any(
            self._owned(name) and (identical or self._averaged(name)) for name, identical in self.same.items()
        )

    def chunks(self, name: str) -> Chunks:
        """Return a fused tensor's bytes."""
        fate = self.fates[name]
        if fate == Fate.SHARED:
            return [self.checkpoints[0].spans[name]]
        if fate == Fate.MERGED:
            return self._mean(name)
        if group_axis(self.family, name) == 0:
            return [checkpoint.spans[name] for checkpoint in self.checkpoints]
        # As bytes, because torch does not concatenate tensors of every dtype.
        parts = [checkpoint.tensor(name).view(torch.uint8) for checkpoint in self.checkpoints]
        return [tensor_bytes(torch.cat(parts, dim=group_axis(self.family, name)))]

    def tensor(self, name: str) -> torch.Tensor:
        """Return a fused tensor in memory, with the same bytes as in the file."""
        return tensor_of(self.specs[name], self.chunks(name))

    def _fate(self, name: str) -> Fate:
        if self._owned(name):
            return Fate.GROUPED
        if self.same[name]:
            return Fate.SHARED
        if not self._averaged(name):
            return Fate.GROUPED
        if not (spec := self.checkpoints[0].specs[name]).is_floating:
            raise CheckpointError(
                f"tensor `{name}` differs between the members and is {spec.dtype}, which cannot be averaged",
                hint=("the members may come from different models; `--trunk 0 --mlp keep` averages nothing"),
            )
        return Fate.MERGED

    def _owned(self, name: str) -> bool:
        place = position_of(self.family, name)
        return (
            self.own_from is not None
            and place.part != "embed"
            and (place.layer is None or place.layer >= self.own_from)
        )

    def _averaged(self, name: str) -> bool:
        place = position_of(self.family, name)
        return (
            place.part == "embed" and self.merge_trunk > 0
            if place.layer is None
            else place.layer < self.merge_trunk or (self.mlp == "merge" and place.part == "mlp")
        )

    def _identical(self, name: str) -> bool:
        """Compare bytes in parallel and stop at the first difference."""
        return all(c.specs[name] == self.checkpoints[0].specs[name] for c in self.checkpoints) and all(
            chunk == chunks[0]
            # `bytes` objects compare faster than memory views
            for chunks in zip(*(map(bytes, c.spans[name].pieces()) for c in self.checkpoints), strict=True)
            for chunk in chunks[1:]
        )

    def _mean(self, name: str) -> Iterator[memoryview | bytes]:
        """Average over members: sum in float64 in the given order, and round once.

        The function works on pieces that fit into the cache, several in parallel, with a single thread per
        piece.
        """
        dtype = self.specs[name].torch_dtype

        def mean_of(spans: tuple[Span, ...]) -> memoryview | bytes:
            first, *others = (torch.frombuffer(span.read(), dtype=dtype) for span in spans)
            total = first.double()
            for addend in others:
                total += addend
            return tensor_bytes((total / len(spans)).to(dtype))

        parts = [c.spans[name].parts(PIECE_BYTES) for c in self.checkpoints]
        with one_thread(), ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
            yield from pool.map(mean_of, zip(*parts, strict=True))


def pruned_spec(
    family: Family, architecture: Architecture, mask: Mask, name: str, spec: TensorSpec
) -> TensorSpec:
    """Return a tensor's dtype and shape after a mask is applied.

    Raises:
        ValueError: If the tensor does not have the head axis of the architecture.
    """
    return TensorSpec(spec.dtype, _resized(family, architecture, mask, (name, spec.shape), prunes=True))


def unpruned_shape(
    family: Family, architecture: Architecture, mask: Mask, name: str, spec: TensorSpec
) -> tuple[int, ...]:
    """Return the shape of a member's tensor before pruning, the inverse of `pruned_spec`.

    Raises:
        ValueError: If the tensor does not have the kept heads of the mask, or belongs to a block that does
            not exist.
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
    place = position_of(family, name)
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
    """Return a tensor without its removed heads. Tensors without a head axis are returned unchanged."""
    place = position_of(family, name)
    if place.heads is None or place.layer is None:
        return tensor
    tower, head_numbers = architecture.towers[place.tower], mask[place.tower].keep[place.layer]
    full = len(head_numbers) == tower.num_heads
    return tensor if full else place.heads.select(tensor, head_numbers, tower)


def zero_dropped(
    family: Family, architecture: Architecture, mask: Mask, state: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return a state dict in which the output projection of removed heads is zero, the reference for pruning."""
    zeroed = dict(state)
    for name, tensor in state.items():
        place = position_of(family, name)
        if place.heads is None or place.layer is None or place.heads.role != TensorRole.OUTPUT:
            continue
        index = place.heads.index(mask[place.tower].drop[place.layer], architecture.towers[place.tower])
        zeroed[name] = tensor.index_fill(place.heads.axis, tensor.new_tensor(index).long(), 0)
    return zeroed
