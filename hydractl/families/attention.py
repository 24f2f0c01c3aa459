"""Attention with ragged heads: one module for members (M = 1) and hydras (M > 1).

Axes: M members, N = M B batch, T tokens, D width, H heads, K head width. A member's layer is a `HeadGroup`; any number
of heads is allowed, zero included. `Attention` puts the groups of M members side by side on the head axis.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple, TypeVar, cast

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - the field's own name
from typing_extensions import override

from hydractl.inputs import split_batch

AnyModule = TypeVar("AnyModule", bound=nn.Module)
Rotation = Literal["half", "pairs"]


class Side(NamedTuple):
    """What attention needs beside the tokens. `mask` is a sample's own; the others are a member's own: G is 1 or M.

    Attributes:
        mask: (N, 1, 1 or T, T), True where a query may look at a key.
        rope: (G, 2, 1 or H, T, K), cosines and sines of the rotary position embedding; H as before pruning.
        bias: (G, H, T, T), added to the scaled scores; H as before pruning. What layers share; see `HeadBias` for the rest.
        table: (G, P, D), whatever else a family's attention looks up.
    """

    mask: torch.Tensor | None = None
    rope: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    table: torch.Tensor | None = None

    @property
    def members(self) -> int:
        """G."""
        return next((x.shape[0] for x in self[1:] if x is not None and x.shape[0] > 1), 1)

    def split(self, members: int) -> list[Side]:
        """Return each member's share."""
        masks = [None] * members if self.mask is None else split_batch(self.mask, members)
        return [
            Side(mask, *(None if x is None else x[m : m + 1] for x in self[1:]))
            for m, mask in enumerate(masks)
        ]


NOTHING = Side()


class HeadBias(nn.Module):
    """What a layer adds to its scaled scores, which is the heads' own: it is cut with them."""

    def forward(self) -> torch.Tensor:
        """Return (H, T, T) of the heads that are kept."""
        raise NotImplementedError

    def select(self, positions: Sequence[int]) -> HeadBias:
        """Return a copy with only the heads at these positions among the kept, weights sliced."""
        raise NotImplementedError


class PositionBias(HeadBias):
    """A bias by relative position: a table (P, H), and for each query and key the row (T, T) that they look up."""

    index: torch.Tensor

    def __init__(self, table: nn.Parameter, index: torch.Tensor) -> None:
        super().__init__()
        self.table = table
        self.register_buffer("index", index, persistent=False)

    @override
    def forward(self) -> torch.Tensor:
        return self.table[self.index].movedim(-1, 0)

    @override
    def select(self, positions: Sequence[int]) -> PositionBias:
        return PositionBias(nn.Parameter(self.table.detach()[:, list(positions)]), self.index)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadParts:
    """A library attention's own parts, already cut to the heads that are kept.

    Attributes:
        kept: The heads' numbers before pruning, increasing.
        head_dim: K.
        scale: Of the scores.
        qkv: The fused projection; or else all three of `q`, `k`, `v`.
        q: Queries.
        k: Keys.
        v: Values.
        q_bias: A bias (H K) beside a fused projection that has none; keys then have no bias.
        v_bias: The same for values.
        proj: The output projection.
        q_norm: Norm of a head's query, of width K.
        k_norm: Norm of a head's key.
        gate: Elementwise gate of the heads' outputs: a projection to H K, before the sigmoid.
        bias: What is added to the heads' scaled scores.
        dropout: Probability, of the attention weights in training.
        proj_drop: What follows the output projection.
        rotation: Which numbers a rotary embedding pairs: the halves of a head, or neighbours.
    """

    kept: tuple[int, ...]
    head_dim: int
    scale: float
    proj: nn.Linear
    qkv: nn.Linear | None = None
    q: nn.Linear | None = None
    k: nn.Linear | None = None
    v: nn.Linear | None = None
    q_bias: nn.Parameter | None = None
    v_bias: nn.Parameter | None = None
    q_norm: nn.Module = field(default_factory=nn.Identity)
    k_norm: nn.Module = field(default_factory=nn.Identity)
    gate: nn.Linear | None = None
    bias: HeadBias | None = None
    dropout: float = 0.0
    proj_drop: nn.Module = field(default_factory=nn.Identity)
    rotation: Rotation = "half"


class Projection(NamedTuple):
    """Weight (H K, D) and bias (H K) of queries, keys or values."""

    weight: torch.Tensor
    bias: torch.Tensor | None

    def of(self, x: torch.Tensor, heads: int) -> torch.Tensor:
        """Return (B, H, T, K) of x (B, T, D)."""
        found: torch.Tensor = F.linear(x, self.weight, self.bias).unflatten(-1, (heads, -1))
        return found.transpose(1, 2)


class HeadGroup(nn.Module):
    """The heads that one member keeps in one layer.

    Covered: q, k and v fused or apart, biases or none, q/k norms of width K, rotary embeddings, padding masks, biases of
    the scores a head, an elementwise output gate.

    Attributes:
        along_heads: The linear layers whose output features are `(H K)`.
    """

    along_heads: ClassVar[tuple[str, ...]] = ("q", "k", "v", "gate")

    def __init__(self, parts: HeadParts) -> None:
        super().__init__()
        self.kept = parts.kept
        self.head_dim = parts.head_dim
        self.scale = parts.scale
        self.dropout = parts.dropout
        self.rotation: Rotation = parts.rotation
        self.qkv, self.q, self.k, self.v = parts.qkv, parts.q, parts.k, parts.v
        self.q_bias, self.v_bias = parts.q_bias, parts.v_bias
        self.q_norm, self.k_norm = parts.q_norm, parts.k_norm
        self.gate, self.bias = parts.gate, parts.bias
        self.proj: nn.Linear = parts.proj
        self.proj_drop = parts.proj_drop

    @property
    def heads(self) -> int:
        """How many heads are kept, 0 or more."""
        return len(self.kept)

    def attend(self, x: torch.Tensor, queries: slice | None, side: Side = NOTHING) -> torch.Tensor:
        """Return every head's output (B, T', H, K) before the output projection; `queries` picks the T' tokens."""
        asked = x if queries is None else x[:, queries]
        if self.heads == 0:
            return x.new_empty(*asked.shape[:2], 0, self.head_dim)
        if self._can_fold(asked, queries, side):
            z = self._attend_folded(x, asked, side)
        else:
            q, k, v = self._project_in(x, asked)
            z = self._attention(
                *self.positioned(q, k, queries, side), v, self.scores_bias(q, k, queries, side)
            )
            z = z.transpose(1, 2)
        if self.gate is not None:
            z = z * self.gate(asked).sigmoid().unflatten(-1, (self.heads, self.head_dim))
        return z

    def weights(self, x: torch.Tensor, side: Side = NOTHING) -> torch.Tensor:
        """Return every head's attention weights (B, H, T, T) of x (B, T, D), without dropout; a row sums to 1.

        They are what attention answers where token t's value is the t-th unit vector, so a family's own way to score
        is in them, whatever it is.
        """
        batch, tokens = x.shape[:2]
        if self.heads == 0:
            return x.new_empty(batch, 0, tokens, tokens)
        q, k, _ = self._project_in(x, x)
        units = torch.eye(tokens, dtype=q.dtype, device=x.device).expand(batch, self.heads, -1, -1)
        return F.scaled_dot_product_attention(
            *self.positioned(q, k, None, side),
            units,
            attn_mask=self.scores_bias(q, k, None, side),
            scale=self.scale,
        )

    def positioned(
        self, q: torch.Tensor, k: torch.Tensor, queries: slice | None, side: Side
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return queries (B, H, T', K) and keys (B, H, T, K) normed and rotated."""
        q, k = self.q_norm(q), self.k_norm(k)
        if side.rope is None:
            return q, k
        rope = side.rope[0]
        if rope.shape[1] > 1:
            rope = rope[:, list(self.kept)]
        cos, sin = rope.to(q.dtype).unbind(0)
        at = slice(None) if queries is None else queries
        return (
            q * cos[:, at] + _rotated(q, self.rotation) * sin[:, at],
            k * cos + _rotated(k, self.rotation) * sin,
        )

    def scores_bias(
        self, q: torch.Tensor, k: torch.Tensor, queries: slice | None, side: Side
    ) -> torch.Tensor | None:
        """Return what scaled_dot_product_attention takes as its mask: boolean, or added to the scaled scores."""
        del k
        at = slice(None) if queries is None else queries
        mask = side.mask if side.mask is None or side.mask.shape[-2] == 1 else side.mask[..., at, :]
        shared = None if side.bias is None else side.bias[:, list(self.kept)]
        own = None if self.bias is None else self.bias().unsqueeze(0)
        found = own if shared is None else shared if own is None else own + shared
        if found is None:
            return mask
        bias = found[..., at, :].to(q.dtype)
        return bias if mask is None else bias.masked_fill(~mask, torch.finfo(q.dtype).min)

    def _can_fold(self, asked: torch.Tensor, queries: slice | None, side: Side) -> bool:
        """Return whether keys and values can be left out: few ask, and nothing happens to a key on its own.

        In training a key bias of its own would be left without a gradient, and weights that dropout thins out no longer
        sum to 1, as the values' bias needs.
        """
        return (
            queries is not None
            and not (self.training and self.dropout)
            and asked.shape[1] <= self.head_dim // 4
            and isinstance(self.k_norm, nn.Identity)
            and self.bias is None
            and not (self.k is not None and torch.is_grad_enabled())
            and side[1:] == NOTHING[1:]
            and (side.mask is None or side.mask.shape[-2] == 1)
        )

    def _projections(self) -> tuple[Projection, Projection, Projection]:
        if self.qkv is None:
            q, k, v = (cast("nn.Linear", layer) for layer in (self.q, self.k, self.v))
            return Projection(q.weight, q.bias), Projection(k.weight, k.bias), Projection(v.weight, v.bias)
        width = self.heads * self.head_dim
        w_q, w_k, w_v = self.qkv.weight.split(width)
        biases = cast("torch.Tensor | None", self.qkv.bias)
        b_q, b_k, b_v = (self.q_bias, None, self.v_bias) if biases is None else biases.split(width)
        return Projection(w_q, b_q), Projection(w_k, b_k), Projection(w_v, b_v)

    def _project_in(
        self, x: torch.Tensor, asked: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return queries of the tokens asked, and keys and values of all."""
        if self.qkv is not None and asked is x and self.q_bias is None and self.v_bias is None:
            q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, self.head_dim)).transpose(1, 3).unbind(2)
            return q, k, v
        of_q, of_k, of_v = self._projections()
        return of_q.of(asked, self.heads), of_k.of(x, self.heads), of_v.of(x, self.heads)

    def _attend_folded(self, x: torch.Tensor, asked: torch.Tensor, side: Side) -> torch.Tensor:
        """Attend from the tokens `asked` (B, T', D) to all of x (B, T, D) without computing keys or values.

        q·(W_k x + b_k) = (W_kᵀ q)·x + q·b_k, of which the second term is the same for all tokens and drops out of the
        softmax; and as attention weights sum to 1, Σ a (W_v x + b_v) = W_v (Σ a x) + b_v.
        """
        of_q, of_k, of_v = self._projections()
        q = self.q_norm(of_q.of(asked, self.heads))
        w_k, w_v = (w.unflatten(0, (self.heads, self.head_dim)) for w in (of_k.weight, of_v.weight))
        folded = torch.matmul(q, w_k)  # (B, H, T', D): what each query looks for in x itself
        mixed = self._attention(folded.flatten(1, 2).unsqueeze(1), x.unsqueeze(1), x.unsqueeze(1), side.mask)
        z = torch.matmul(mixed.squeeze(1).unflatten(1, (self.heads, -1)), w_v.transpose(1, 2)).transpose(1, 2)
        return z if of_v.bias is None else z + of_v.bias.unflatten(0, (self.heads, -1))

    def _attention(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        dropout = self.dropout if self.training else 0.0
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=self.scale)

    def project(self, z: torch.Tensor) -> torch.Tensor:
        """Return the layer's attention output (B, T', D) of z (B, T', H, K)."""
        if self.heads or z.requires_grad:
            mixed = self.proj(z.flatten(-2))
        else:  # a matrix product over nothing, which runtimes of exported models refuse: nothing, and the bias
            nothing = self.proj.weight.sum(1)
            bias = cast("torch.Tensor | None", self.proj.bias)
            mixed = (nothing if bias is None else nothing + bias).expand(*z.shape[:-2], -1)
        out: torch.Tensor = self.proj_drop(mixed)
        return out

    def select(self, positions: Sequence[int]) -> HeadGroup:
        """Return a copy with only the heads at these positions among the kept, weights sliced."""
        rows = torch.tensor([h * self.head_dim + k for h in positions for k in range(self.head_dim)]).long()
        rows = rows.to(self.proj.weight.device)
        width = self.heads * self.head_dim
        other = shallow(self)
        other.kept = tuple(self.kept[h] for h in positions)
        if self.qkv is not None:
            other.qkv = only_rows(self.qkv, torch.cat([rows, rows + width, rows + 2 * width]))
        for name in self.along_heads:
            if (layer := getattr(self, name)) is not None:
                setattr(other, name, only_rows(layer, rows))
        for name in ("q_bias", "v_bias"):
            if (bias := getattr(self, name)) is not None:
                setattr(other, name, nn.Parameter(bias.detach()[rows]))
        other.bias = None if self.bias is None else self.bias.select(positions)
        other.proj = shallow(self.proj)
        other.proj.in_features = len(rows)
        other.proj.weight = nn.Parameter(self.proj.weight.detach()[:, rows])
        return other

    def head_term(self, z: torch.Tensor, head: int) -> torch.Tensor:
        """Return head `head`'s own term of `project`, (B, T', D): the sum over heads, plus the bias, is `project`."""
        columns = slice(head * self.head_dim, (head + 1) * self.head_dim)
        return F.linear(z[..., head, :], self.proj.weight[:, columns])


class Attention(nn.Module):
    """The attention of M members in one layer.

    The stream of M > 1 members lies member after member on the batch axis: (M B, T, D). Head outputs lie member
    after member on the head axis: (B, T, H_1 + ... + H_M, K).
    """

    def __init__(self, members: Sequence[HeadGroup]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def groups(self) -> list[HeadGroup]:
        """Return the members' head groups."""
        return [group for group in self.members if isinstance(group, HeadGroup)]

    def heads(self, x: torch.Tensor, queries: slice | None = None, side: Side = NOTHING) -> torch.Tensor:
        """Return every head's output (B, T', H, K) of x (M B, T, D)."""
        groups = self.groups()
        if len(groups) == 1 and side.members == 1:
            return groups[0].attend(x, queries, side)
        # members that have the same heads may still differ in what is beside the tokens
        each = groups * side.members if len(groups) == 1 else groups
        shares = zip(each, split_batch(x, len(each)), side.split(len(each)), strict=True)
        found = [group.attend(part, queries, own) for group, part, own in shares]
        if len(groups) == 1:
            return torch.cat(found)
        some = [z for group, z in zip(groups, found, strict=True) if group.heads]
        return torch.cat(some, dim=-2) if some else found[0]

    def project(self, z: torch.Tensor) -> torch.Tensor:
        """Return (M B, T', D) of z (B, T', H, K)."""
        groups = self.groups()
        if len(groups) == 1:
            return groups[0].project(z)
        parts = z.split([group.heads for group in groups], dim=-2)
        return torch.cat([group.project(part) for group, part in zip(groups, parts, strict=True)])


def _rotated(x: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """Return x (..., K) turned by a quarter in each plane of the rotary embedding."""
    if rotation == "half":
        first, second = x.chunk(2, dim=-1)
        return torch.cat((-second, first), dim=-1)
    first, second = x[..., ::2], x[..., 1::2]
    return torch.stack((-second, first), dim=-1).flatten(-2)


def shallow(module: AnyModule) -> AnyModule:
    """Return a copy that has the same parts, each of which may be replaced without touching the original."""
    other = copy.copy(module)
    for parts in ("_modules", "_parameters"):
        other.__dict__[parts] = dict(getattr(module, parts))
    return other


def only_rows(layer: nn.Linear, rows: torch.Tensor) -> nn.Linear:
    """Return a linear layer with only some output features."""
    sliced = shallow(layer)
    sliced.out_features = len(rows)
    sliced.weight = nn.Parameter(layer.weight.detach()[rows])
    if layer.bias is not None:
        sliced.bias = nn.Parameter(layer.bias.detach()[rows])
    return sliced
