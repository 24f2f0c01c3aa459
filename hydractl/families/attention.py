"""Attention with ragged heads: one module for members (M = 1) and hydras (M > 1).

Axes: M members, N = M B batch, T tokens, D width, H heads, K head width. `Attention` puts the groups of M members side by side
on the head axis, or computes them at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - the field's own name
from typing_extensions import override

from hydractl.families.attention_bias import NOTHING, AttentionExtras, StackedBias
from hydractl.families.batched_members import (
    MemberParallel,
    StackedLinear,
    StackedNorm,
    all_same,
    fixed,
    shallow_copy,
    stacked,
)
from hydractl.families.head_group import HeadGroup, Projection
from hydractl.families.stream import Product, computed
from hydractl.model_inputs import split_batch
from hydractl.runtime import on_device


def stack_head_groups(groups: Sequence[HeadGroup]) -> HeadGroup | None:
    """Return the heads of M members as one group, which computes them all at once; None if that is not possible.

    Queries, keys and values are one product then, whatever they were; keys that heads share are written out for each, as to
    gather them would be two calls more.
    """
    groups = [group.written_out() for group in groups]
    first, heads = groups[0], max(group.heads for group in groups)
    q_norm, k_norm = (stacked([getattr(group, name) for group in groups]) for name in ("q_norm", "k_norm"))
    if not heads or q_norm is None or k_norm is None:
        return None
    width = heads * first.head_dim
    joint = shallow_copy(first)
    joint.head_numbers, joint.members = tuple(range(heads)), len(groups)
    numbers = [[*group.head_numbers, *[0] * (heads - group.heads)] for group in groups]
    joint.numbers = fixed(on_device(torch.tensor(numbers), first.proj.weight.device))
    joint.q = joint.k = joint.v = joint.q_bias = joint.v_bias = None
    joint.q_norm, joint.k_norm = q_norm, k_norm
    joint.qkv = _stacked_projections([group.projections() for group in groups], width)
    cast("StackedLinear", joint.qkv).delays = True
    for name in set(first.along_heads) - {"q", "k", "v"}:
        layers = [getattr(group, name) for group in groups]
        if layers[0] is not None:
            projections = [[Projection(layer.weight, layer.bias)] for layer in layers]
            setattr(joint, name, _stacked_projections(projections, width))
    proj = [group.proj for group in groups]
    weight = torch.stack([F.pad(layer.weight, (0, width - layer.weight.shape[1])) for layer in proj])
    biased = cast("torch.Tensor | None", proj[0].bias) is not None
    joint.proj = _as_linear(weight, torch.stack([layer.bias for layer in proj]) if biased else None)
    if first.bias is not None:
        joint.bias = _stacked_bias(groups, heads)
    return joint


def on_one_stream(stacked_group: HeadGroup, groups: Sequence[HeadGroup]) -> HeadGroup | None:
    """Return M stacked members' heads as those of one group, for a stream that is the same for all members yet; None if they cannot be.

    Its projection gives each member a stream, of its own heads. So nothing that members agree on is computed for each of them, and
    queries, keys and values are one product with its bias inside.

    Args:
        stacked_group: What `stack_head_groups` makes of `groups`.
        groups: The members'.
    """
    if not all(all_same([getattr(group, name) for group in groups]) for name in ("q_norm", "k_norm")):
        return None
    heads = shallow_copy(stacked_group)
    heads.members, heads.projects_for = 1, stacked_group.members
    heads.head_numbers = tuple(range(stacked_group.members * stacked_group.heads))
    heads.numbers = None if stacked_group.numbers is None else fixed(stacked_group.numbers.view(1, -1))
    for name, parts in {"qkv": 3, **dict.fromkeys({*stacked_group.along_heads} - {"q", "k", "v"}, 1)}.items():
        if (layer := getattr(stacked_group, name)) is not None:
            setattr(heads, name, _as_one(layer, parts))
    if isinstance(stacked_group.bias, StackedBias):
        heads.bias = StackedBias(stacked_group.bias().flatten(0, 1).unsqueeze(0))
    return heads


def _as_one(layer: nn.Linear, parts: int) -> nn.Linear:
    """Return M members' layers of (parts, H, K) outputs as one layer of (parts, M, H, K) outputs."""
    weight, bias = layer.weight.unflatten(1, (parts, -1)).transpose(0, 1).flatten(0, 2), layer.bias
    joint = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    joint.weight = fixed(weight)
    if bias is not None:
        joint.bias = fixed(bias.unflatten(1, (parts, -1)).transpose(0, 1).flatten())
    return joint


def _stacked_bias(groups: Sequence[HeadGroup], heads: int) -> StackedBias:
    """Return what members add to their scores as one, padded to `heads` heads."""
    biases = {m: group.bias() for m, group in enumerate(groups) if group.heads and group.bias is not None}
    none = next(iter(biases.values()))[:, :0]
    member_biases = [biases.get(m, none) for m in range(len(groups))]
    return StackedBias(torch.cat([F.pad(x, (0, 0, 0, 0, 0, heads - x.shape[1])) for x in member_biases]))


def _stacked_projections(members: Sequence[Sequence[Projection]], width: int) -> nn.Linear:
    """Return members' projections as one layer, each padded to `width` output features."""
    weights, biases = [], []
    for projections in members:
        weights.append(torch.cat([F.pad(p.weight, (0, 0, 0, width - len(p.weight))) for p in projections]))
        member_biases = [p.weight.new_zeros(len(p.weight)) if p.bias is None else p.bias for p in projections]
        biases.append(torch.cat([F.pad(bias, (0, width - len(bias))) for bias in member_biases]))
    none = all(p.bias is None for p in members[0])
    return _as_linear(torch.stack(weights), None if none else torch.stack(biases))


def _as_linear(weight: torch.Tensor, bias: torch.Tensor | None) -> nn.Linear:
    """Return what stands where a group of one member has a linear layer."""
    return cast("nn.Linear", StackedLinear(weight, bias))


class Attention(MemberParallel):
    """The attention of M members in one layer.

    The stream of M > 1 members lies member after member on the batch axis: (M B, T, D). Head outputs lie member
    after member on the head axis, (B, T, H_1 + ... + H_M, K); of stacked members on the batch axis, (M B, T, H, K).

    Attributes:
        projects_for: How many members' streams it makes of the one that it reads.
    """

    projects_for = 1

    def groups(self) -> list[HeadGroup]:
        """Return the members' head groups."""
        return [group for group in self.members if isinstance(group, HeadGroup)]

    @override
    def at_once(self) -> HeadGroup | None:
        groups = self.groups()
        return stack_head_groups(groups) if len(groups) > 1 else None

    @override
    def first_layers(self, norm: StackedNorm) -> Sequence[StackedLinear]:
        group = self._copy
        layers = (group.qkv, group.gate) if isinstance(group, HeadGroup) else ()
        return cast("Sequence[StackedLinear]", [layer for layer in layers if layer is not None])

    def on_one_stream(self) -> Attention | None:
        """Return the stacked heads as they read one stream that members share yet, None where they are not stacked, or cannot."""
        if not isinstance(self._copy, HeadGroup):
            return None
        group = on_one_stream(self._copy, self.groups())
        if group is None:
            return None
        attention = Attention([group]).eval()
        attention.projects_for = group.projects_for
        return attention

    @override
    def delay(self, width: int) -> None:
        if isinstance(group := self._copy, HeadGroup):
            cast("StackedLinear", group.proj).delays = True

    @property
    def joint_group(self) -> HeadGroup | None:
        """The group that computes all there is to compute, None where members run in turn."""
        if (stacked := self.stacked) is not None:
            return cast("HeadGroup", stacked)
        members = self.members
        return cast("HeadGroup", next(iter(members))) if len(members) == 1 else None

    def heads(
        self, x: torch.Tensor, queries: slice | None = None, side: AttentionExtras = NOTHING
    ) -> torch.Tensor:
        """Return every head's output (B, T', H, K) of x (M B, T, D)."""
        if (group := self.joint_group) is not None:
            return group.attend(x, queries, side)
        groups = self.groups()
        shares = zip(groups, split_batch(x, len(groups)), side.split(len(groups)), strict=True)
        outputs_by_member = [group.attend(part, queries, member_side) for group, part, member_side in shares]
        nonempty = [z for group, z in zip(groups, outputs_by_member, strict=True) if group.heads]
        return torch.cat(nonempty, dim=-2) if nonempty else outputs_by_member[0]

    def project(self, z: torch.Tensor) -> torch.Tensor | Product:
        """Return (M B, T', D) of z (B, T', H, K); not computed yet where the block has that added, see `Block.adds`."""
        if (group := self.joint_group) is not None:
            return group.project(z)
        groups = self.groups()
        parts = z.split([group.heads for group in groups], dim=-2)
        return torch.cat([computed(group.project(part)) for group, part in zip(groups, parts, strict=True)])
