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

from hydractl.families.head_group import HeadGroup, Projection
from hydractl.families.side import NOTHING, Side, StackedBias
from hydractl.families.stacked import Abreast, StackedLinear, StackedNorm, fixed, shallow, stacked
from hydractl.inputs import split_batch


def at_once(groups: Sequence[HeadGroup]) -> HeadGroup | None:
    """Return the heads of M members as one group, which computes them all at once; None if that is not possible.

    Queries, keys and values are one product then, whatever they were.
    """
    first, heads = groups[0], max(group.heads for group in groups)
    norms = {name: stacked([getattr(group, name) for group in groups]) for name in ("q_norm", "k_norm")}
    if not heads or None in norms.values():
        return None
    width = heads * first.head_dim
    found = shallow(first)
    found.kept, found.members = tuple(range(heads)), len(groups)
    numbers = [[*group.kept, *[0] * (heads - group.heads)] for group in groups]
    found.numbers = fixed(torch.tensor(numbers, device=first.proj.weight.device))
    found.q = found.k = found.v = found.q_bias = found.v_bias = None
    found.qkv = _stacked_projections([group.projections() for group in groups], width)
    for name in set(first.along_heads) - {"q", "k", "v"}:
        layers = [getattr(group, name) for group in groups]
        if layers[0] is not None:
            each = [[Projection(layer.weight, layer.bias)] for layer in layers]
            setattr(found, name, _stacked_projections(each, width))
    for name, norm in norms.items():
        setattr(found, name, norm)
    proj = [group.proj for group in groups]
    weight = torch.stack([F.pad(layer.weight, (0, width - layer.weight.shape[1])) for layer in proj])
    biased = cast("torch.Tensor | None", proj[0].bias) is not None
    found.proj = _as_linear(weight, torch.stack([layer.bias for layer in proj]) if biased else None)
    if first.bias is not None:
        found.bias = _stacked_bias(groups, heads)
    return found


def _stacked_bias(groups: Sequence[HeadGroup], heads: int) -> StackedBias:
    """Return what members add to their scores as one, padded to `heads` heads."""
    some = {m: group.bias() for m, group in enumerate(groups) if group.heads and group.bias is not None}
    none = next(iter(some.values()))[:, :0]
    each = [some.get(m, none) for m in range(len(groups))]
    return StackedBias(torch.cat([F.pad(x, (0, 0, 0, 0, 0, heads - x.shape[1])) for x in each]))


def _stacked_projections(members: Sequence[Sequence[Projection]], width: int) -> nn.Linear:
    """Return members' projections as one layer, each padded to `width` output features."""
    weights, biases = [], []
    for projections in members:
        weights.append(torch.cat([F.pad(p.weight, (0, 0, 0, width - len(p.weight))) for p in projections]))
        own = [p.weight.new_zeros(len(p.weight)) if p.bias is None else p.bias for p in projections]
        biases.append(torch.cat([F.pad(bias, (0, width - len(bias))) for bias in own]))
    none = all(p.bias is None for p in members[0])
    return _as_linear(torch.stack(weights), None if none else torch.stack(biases))


def _as_linear(weight: torch.Tensor, bias: torch.Tensor | None) -> nn.Linear:
    """Return what stands where a group of one member has a linear layer."""
    return cast("nn.Linear", StackedLinear(weight, bias))


class Attention(Abreast):
    """The attention of M members in one layer.

    The stream of M > 1 members lies member after member on the batch axis: (M B, T, D). Head outputs lie member
    after member on the head axis, (B, T, H_1 + ... + H_M, K); of stacked members on the batch axis, (M B, T, H, K).
    """

    def groups(self) -> list[HeadGroup]:
        """Return the members' head groups."""
        return [group for group in self.members if isinstance(group, HeadGroup)]

    @override
    def at_once(self) -> HeadGroup | None:
        groups = self.groups()
        return at_once(groups) if len(groups) > 1 else None

    @override
    def first_layers(self, norm: StackedNorm) -> Sequence[StackedLinear]:
        one = self._copy
        layers = (one.qkv, one.gate) if isinstance(one, HeadGroup) else ()
        return cast("Sequence[StackedLinear]", [layer for layer in layers if layer is not None])

    @property
    def one(self) -> HeadGroup | None:
        """The group that computes all there is to compute, None where members run in turn."""
        if (stacked := self.stacked) is not None:
            return cast("HeadGroup", stacked)
        members = self.members
        return cast("HeadGroup", next(iter(members))) if len(members) == 1 else None

    def heads(self, x: torch.Tensor, queries: slice | None = None, side: Side = NOTHING) -> torch.Tensor:
        """Return every head's output (B, T', H, K) of x (M B, T, D)."""
        if (one := self.one) is not None:
            return one.attend(x, queries, side)
        groups = self.groups()
        shares = zip(groups, split_batch(x, len(groups)), side.split(len(groups)), strict=True)
        found = [group.attend(part, queries, own) for group, part, own in shares]
        some = [z for group, z in zip(groups, found, strict=True) if group.heads]
        return torch.cat(some, dim=-2) if some else found[0]

    def project(self, z: torch.Tensor) -> torch.Tensor:
        """Return (M B, T', D) of z (B, T', H, K)."""
        if (one := self.one) is not None:
            return one.project(z)
        groups = self.groups()
        parts = z.split([group.heads for group in groups], dim=-2)
        return torch.cat([group.project(part) for group, part in zip(groups, parts, strict=True)])
