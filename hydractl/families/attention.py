"""Attention with any number of heads per layer, for a single member or M members.

Axes: M members, N = M B batch, T tokens, D width, H heads, K head width. A member's layer is a `HeadGroup`
with any number of heads, including zero. `Attention` concatenates the groups of M members along the head
axis.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple, cast

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - the field's own name
from typing_extensions import override

from hydractl.families.head_slicing import (
    HeadTensor,
    TensorRole,
    projections_apart,
    select_heads,
    shared_keys,
)
from hydractl.families.stream import (
    MemberParallel,
    Product,
    StackedLinear,
    StackedNorm,
    all_same,
    apply_module,
    compute_product,
    frozen_parameter,
    member_slice,
    only_rows,
    product,
    products_of,
    shallow_copy,
    stack_modules,
)
from hydractl.model_inputs import split_batch
from hydractl.runtime import on_device


class AttentionExtras(NamedTuple):
    """Inputs of attention besides the tokens.

    `mask` has a row per sample. The other inputs are shared by all samples of a member: G is 1 or M.

    Attributes:
        mask: Shape (N, 1, 1 or T, T), True if a query may attend to a key.
        rope: Shape (G, 2, 1 or H, T, K), cosines and sines of the rotary position embedding, with H counted
            before pruning.
        bias: Shape (G, H, T, T), added to the scaled scores, with H counted before pruning. Shared by all
            layers; biases of a single layer are in `HeadBias`.
        table: Shape (G, P, D), embeddings of P relative positions.
        rows: Shape (G, T, T), the row of `table` for each query and key.
    """

    mask: torch.Tensor | None = None
    rope: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    table: torch.Tensor | None = None
    rows: torch.Tensor | None = None

    def split(self, members: int) -> list[AttentionExtras]:
        """Return the extras of each member."""
        masks = [None] * members if self.mask is None else split_batch(self.mask, members)
        # By name, because dynamo in torch 2.7 and 2.8 cannot slice a NamedTuple.
        shared_fields = (self.rope, self.bias, self.table, self.rows)
        return [
            AttentionExtras(mask, *(None if x is None else member_slice(x, m) for x in shared_fields))
            for m, mask in enumerate(masks)
        ]


NO_EXTRAS = AttentionExtras()


class QuietDropout(nn.Dropout):
    """Dropout that is not called in evaluation mode, unless a forward hook is registered."""

    @override
    def __call__(self, input: torch.Tensor) -> torch.Tensor:
        if self.training or self._forward_hooks or self._forward_pre_hooks:
            dropped: torch.Tensor = super().__call__(compute_product(input))
            return dropped
        return input


class SharedDropout(nn.Dropout):
    """Dropout for tensors without a sample axis, for example a table of positions.

    All samples of a step share the dropout mask.
    """


class HeadBias(nn.Module):
    """A bias of a layer, added to the scaled scores. Pruning removes heads of the bias, too."""

    def forward(self) -> torch.Tensor:
        """Return the bias (G, H, T, T) of the kept heads; G is 1, or M for stacked members."""
        raise NotImplementedError

    def select(self, positions: Sequence[int]) -> HeadBias:
        """Return a copy with the kept heads at `positions` only."""
        raise NotImplementedError


def look_up_bias(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Look up a bias (1, H, T, T) in a table (P, H), with the row of each query and key in `index` (T, T)."""
    return table[index].movedim(-1, 0).unsqueeze(0)


class PositionBias(HeadBias):
    """A bias by relative position, stored as a table; see `look_up_bias`."""

    index: torch.Tensor

    def __init__(self, table: nn.Parameter, index: torch.Tensor) -> None:
        super().__init__()
        self.table = table
        self.register_buffer("index", index, persistent=False)

    @override
    def forward(self) -> torch.Tensor:
        return look_up_bias(self.table, self.index)

    @override
    def select(self, positions: Sequence[int]) -> PositionBias:
        return PositionBias(nn.Parameter(self.table.detach()[:, list(positions)]), self.index)


class StackedBias(HeadBias):
    """The biases (M, H, T, T) of M members. Computed once, because biases depend on weights only."""

    def __init__(self, biases: torch.Tensor) -> None:
        super().__init__()
        self.biases = frozen_parameter(biases)

    @override
    def forward(self) -> torch.Tensor:
        return self.biases


Rotation = Literal["half", "pairs"]
SHARED = ("k", "v")
"""Names of the projections that several query heads may share."""
OWN_TENSORS = (
    HeadTensor(name="qkv.weight", axis=0, copies=3, role=TensorRole.INPUT),
    HeadTensor(name="qkv.bias", axis=0, copies=3, role=TensorRole.BIAS),
    HeadTensor(name="q_bias", axis=0, copies=1, role=TensorRole.BIAS),
    HeadTensor(name="v_bias", axis=0, copies=1, role=TensorRole.BIAS),
    HeadTensor(name="proj.weight", axis=1, copies=1, role=TensorRole.OUTPUT),
)
"""Tensors of a `HeadGroup` with a head axis, besides the layers in `along_heads`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadParts:
    """Modules and settings of a library's attention. Weights are already cut to the kept heads.

    Attributes:
        head_numbers: Numbers of the heads before pruning, increasing.
        head_dim: K.
        scale: Factor of the scores.
        qkv: Fused projection. None if `q`, `k` and `v` are separate.
        q: Projection of queries.
        k: Projection of keys.
        v: Projection of values.
        q_bias: Bias (H K) of queries if the fused projection has no bias; keys then have no bias.
        v_bias: Bias (H K) of values in the same case.
        proj: Output projection.
        q_norm: Norm of a head's query, of width K.
        k_norm: Norm of a head's key, of width K.
        gate: Projection to H K for an elementwise gate of the heads' outputs, before the sigmoid.
        bias: Bias added to the scaled scores of the heads.
        dropout: Dropout probability of attention weights in training.
        proj_drop: Dropout after the output projection.
        rotation: Pairs of features in a rotary embedding: the halves of a head, or neighbouring features.
        sharing: Number of query heads per key head before pruning. With more than 1, `k` and `v` are separate
            layers.
    """

    head_numbers: tuple[int, ...]
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
    sharing: int = 1


class Projection(NamedTuple):
    """Weight and bias of queries, keys or values: (H K, D) and (H K), or (M, H K, D) and (M, H K)."""

    weight: torch.Tensor
    bias: torch.Tensor | None

    def of(self, x: torch.Tensor, heads: int) -> torch.Tensor:
        """Project x (N, T, D) to (N, H, T, K)."""
        projected = product(x, self.weight, self.bias)
        return projected.view(*x.shape[:-1], heads, projected.shape[-1] // heads).transpose(1, 2)


def _by_heads(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return the products (B, H, T', D) of x (B, H, T', K) and a weight (H, K, D).

    Computed as one product per head, because a product per sample would be small.
    """
    products = torch.matmul(x.transpose(0, 1).flatten(1, 2), weight)
    return products.view(len(weight), x.shape[0], x.shape[2], weight.shape[-1]).transpose(0, 1)


class HeadGroup(nn.Module):
    """The kept heads of a member in a layer, or the heads of M stacked members.

    Supported: fused or separate q, k and v with or without biases, q/k norms of width K, rotary embeddings,
    padding masks, biases per head, an elementwise output gate, and grouped-query attention. A stacked group
    pads each member to the largest number of heads with heads of zero weight; see `stack_head_groups`.

    Attributes:
        along_heads: Linear layers with output features `(H K)`.
        members: M.
        projects_for: Number of member streams returned by `project`, each from an equal share of the heads.
        numbers: Shape (M, H), the heads' numbers before pruning, 0 for padding heads. None for a single
            member.
    """

    along_heads: ClassVar[tuple[str, ...]] = ("q", "k", "v", "gate")
    members = projects_for = 1

    def __init__(self, parts: HeadParts) -> None:
        super().__init__()
        self.head_numbers = parts.head_numbers
        self.numbers: nn.Parameter | None = None
        self.head_dim = parts.head_dim
        self.scale = parts.scale
        self.dropout = parts.dropout
        self.rotation: Rotation = parts.rotation
        self.sharing = parts.sharing
        self.qkv, self.q, self.k, self.v = parts.qkv, parts.q, parts.k, parts.v
        self.q_bias, self.v_bias = parts.q_bias, parts.v_bias
        self.q_norm, self.k_norm = parts.q_norm, parts.k_norm
        self.gate, self.bias = parts.gate, parts.bias
        self.proj: nn.Linear = parts.proj
        self.proj_drop = parts.proj_drop

    @property
    def heads(self) -> int:
        """The number of kept heads, 0 or more."""
        return len(self.head_numbers)

    @property
    def keys(self) -> list[int]:
        """The numbers, before pruning, of the key heads that the kept query heads use, increasing."""
        return shared_keys(self.head_numbers, self.sharing)

    def repeat_keys(self, x: torch.Tensor) -> torch.Tensor:
        """Repeat the keys or values (B, G, T, K) of shared heads for each query head: (B, H, T, K)."""
        shares = Counter(head // self.sharing for head in self.head_numbers)
        parts = zip(x.split(1, dim=1), shares.values(), strict=True)
        return torch.cat([key.expand(-1, count, -1, -1) for key, count in parts], dim=1)

    def without_sharing(self) -> HeadGroup:
        """Return a copy with separate keys and values for each query head.

        Returns the group itself if no keys are shared.
        """
        if self.sharing == 1:
            return self
        copied, keys, width = shallow_copy(self), self.keys, range(self.head_dim)
        places = [keys.index(head // self.sharing) for head in self.head_numbers]
        rows = torch.tensor([place * self.head_dim + k for place in places for k in width], dtype=torch.long)
        for name in SHARED:
            setattr(copied, name, only_rows(getattr(self, name), on_device(rows, self.proj.weight.device)))
        copied.sharing = 1
        return copied

    def attend(
        self, x: torch.Tensor, queries: slice | None, side: AttentionExtras = NO_EXTRAS
    ) -> torch.Tensor:
        """Return the output (B, T', H, K) of every head, before the output projection.

        Args:
            x: Normed tokens, (B, T, D).
            queries: Tokens used as queries, or None for all.
            side: Further inputs.
        """
        query_tokens = x if queries is None else x[:, queries]
        if self.heads == 0:
            return x.new_empty(*query_tokens.shape[:2], 0, self.head_dim)
        if self._can_fold(query_tokens, queries, side):
            z = self._attend_folded(x, query_tokens, side)
        else:
            q, k, v = self._project_in(x, queries)
            bias = self.scores_bias(q, k, queries, side)
            q, k = self.positioned(q, k, queries, side)
            if self.sharing > 1:  # `repeat_keys` takes several calls
                k, v = self.repeat_keys(k), self.repeat_keys(v)
            z = self._attention(q, k, v, bias).transpose(1, 2)
        if self.gate is not None:
            z = z * self.gate(query_tokens).sigmoid().unflatten(-1, (self.heads, self.head_dim))
        return z

    def weights(self, x: torch.Tensor, side: AttentionExtras = NO_EXTRAS) -> torch.Tensor:
        """Return the attention weights (B, H, T, T) of every head for x (B, T, D), without dropout.

        Rows sum to 1. Computed by attention with the t-th unit vector as value of token t, which covers the
        scores of every family.
        """
        batch, tokens = x.shape[:2]
        if self.heads == 0:
            return x.new_empty(batch, 0, tokens, tokens)
        q, k, _ = self._project_in(x, None)
        bias = self.scores_bias(q, k, None, side)
        q, k = self.positioned(q, k, None, side)
        return F.scaled_dot_product_attention(
            q,
            k if self.sharing == 1 else self.repeat_keys(k),
            torch.eye(tokens, dtype=q.dtype, device=x.device).expand(batch, self.heads, -1, -1),
            attn_mask=bias,
            scale=self.scale,
        )

    def positioned(
        self, q: torch.Tensor, k: torch.Tensor, queries: slice | None, side: AttentionExtras
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return queries (B, H, T', K) and keys (B, H, T, K) after norms and rotary embedding.

        For shared keys, H of the keys is the number of key heads.
        """
        q, k = apply_module(self.q_norm, q), apply_module(self.k_norm, k)
        if side.rope is None:
            return q, k
        rope = self.select_kept(side.rope, 2) if side.rope.shape[2] > 1 else side.rope
        cos, sin = (per_member(x) for x in rope.to(q.dtype).unbind(1))
        at = slice(None) if queries is None else queries
        q, k = (x if len(rope) == 1 else x.unflatten(0, (len(rope), -1)) for x in (q, k))
        q = q * cos[..., at, :] + _rotated(q, self.rotation) * sin[..., at, :]
        k = k * cos + _rotated(k, self.rotation) * sin
        return (q, k) if len(rope) == 1 else (q.flatten(0, 1), k.flatten(0, 1))

    def select_kept(self, x: torch.Tensor, axis: int) -> torch.Tensor:
        """Select the kept heads of x along an axis with all heads before pruning.

        Args:
            x: Shape (G, ..., H, ...).
            axis: The head axis.

        Returns:
            Shape (G, ..., kept heads, ...), or (M, ...) for stacked members.
        """
        if self.numbers is not None:
            index = self.numbers.view(*self.numbers.shape, *(1,) * (x.ndim - 2)).movedim(1, axis)
            index = index.expand(-1, *x.shape[1:axis], -1, *x.shape[axis + 1 :])
            return x.expand(len(index), *x.shape[1:]).gather(axis, index)
        if len(self.head_numbers) == x.shape[axis]:
            return x
        # Indexing with a list would copy the list to the device, and the processor would wait for the copy.
        heads = x.unbind(axis)
        return torch.stack([heads[h] for h in self.head_numbers], axis)

    def scores_bias(
        self, q: torch.Tensor, k: torch.Tensor, queries: slice | None, side: AttentionExtras
    ) -> torch.Tensor | None:
        """Return the `attn_mask` of `scaled_dot_product_attention` for T' queries, or None.

        A mask alone is boolean, (N, 1, 1 or T', T). A bias is added to the scaled scores, (1 or N, H, T', T),
        and contains the mask.
        """
        del k
        at = slice(None) if queries is None else queries
        mask = side.mask if side.mask is None or side.mask.shape[-2] == 1 else side.mask[..., at, :]
        bias = None if self.bias is None else self.bias().unsqueeze(1)
        if side.bias is not None:
            # For stacked members the bias is looked up for each sample at once, which saves the copy in
            # `_of_samples`.
            copies = q.shape[0] // self.members if self.members > 1 and mask is None else 1
            shared = self.select_kept(side.bias.unsqueeze(1).expand(-1, copies, -1, -1, -1), 2)
            bias = shared if bias is None else bias + shared
        return mask if bias is None else _of_samples(bias[..., at, :].to(q.dtype), q.shape[0], mask)

    def _can_fold(self, query_tokens: torch.Tensor, queries: slice | None, side: AttentionExtras) -> bool:
        """Return whether attention can skip keys and values: few queries, and no operation on single keys.

        With gradients, a separate key projection needs its bias in the graph. The bias of the values requires
        attention weights with sum 1, which dropout changes.
        """
        return (
            queries is not None
            and not (self.training and self.dropout)
            # Folding multiplies about T'/K times as often as keys and values do; the margin of 4 is chosen by
            # hand.
            and query_tokens.shape[1] <= self.head_dim // 4
            and isinstance(self.k_norm, nn.Identity)
            and self.members == 1
            and self.sharing == 1
            and self.bias is None
            and not (self.k is not None and torch.is_grad_enabled())
            and side.rope is None  # by name, as in `AttentionExtras.split`
            and side.bias is None
            and side.table is None
            and (side.mask is None or side.mask.shape[-2] == 1)
        )

    def projections(self) -> tuple[Projection, Projection, Projection]:
        """Return the projections of queries, keys and values."""
        if self.qkv is None:
            q, k, v = cast("tuple[nn.Linear, nn.Linear, nn.Linear]", (self.q, self.k, self.v))
            return Projection(q.weight, q.bias), Projection(k.weight, k.bias), Projection(v.weight, v.bias)
        parted = (3, self.heads * self.head_dim)
        w_q, w_k, w_v = self.qkv.weight.unflatten(-2, parted).unbind(-3)
        biases = cast("torch.Tensor | None", self.qkv.bias)
        b_q, b_k, b_v = (
            (self.q_bias, None, self.v_bias) if biases is None else biases.unflatten(-1, parted).unbind(-2)
        )
        return Projection(w_q, b_q), Projection(w_k, b_k), Projection(w_v, b_v)

    def _project_in(
        self, x: torch.Tensor, queries: slice | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the queries of the selected tokens, and the keys and values of all tokens."""
        if self.qkv is not None and self.q_bias is None and self.v_bias is None:
            # For stacked members, an additional operator costs more than the unused queries.
            if queries is None or self.members > 1:
                projected = products_of(*self.qkv(x)) if self.members > 1 else self.qkv(x)
                q, k, v = self._split_projections(projected).unbind(2)
                return q if queries is None else q[:, :, queries], k, v
            width, weight = self.heads * self.head_dim, self.qkv.weight
            bias = cast("torch.Tensor | None", self.qkv.bias)
            k, v = self._split_projections(
                F.linear(x, weight[width:], bias if bias is None else bias[width:])
            ).unbind(2)
            return self.projections()[0].of(x[:, queries], self.heads), k, v
        query_tokens = x if queries is None else x[:, queries]
        of_q, of_k, of_v = self.projections()
        keys = self.heads if self.sharing == 1 else len(self.keys)
        return of_q.of(query_tokens, self.heads), of_k.of(x, keys), of_v.of(x, keys)

    def _split_projections(self, x: torch.Tensor) -> torch.Tensor:
        """Split P projections (N, T, P H K) of each token into (N, H, P, T, K)."""
        count = x.shape[-1] // (self.heads * self.head_dim)  # not -1, which is ambiguous for an empty batch
        return x.reshape(*x.shape[:2], count, self.heads, self.head_dim).transpose(1, 3)

    def _attend_folded(
        self, x: torch.Tensor, query_tokens: torch.Tensor, side: AttentionExtras
    ) -> torch.Tensor:
        """Attend from tokens (B, T', D) to all of x (B, T, D) without computing keys or values.

        q·(W_k x + b_k) = (W_kᵀ q)·x + q·b_k: the second term is equal for all tokens and drops out of the
        softmax. Attention weights sum to 1: Σ a (W_v x + b_v) = W_v (Σ a x) + b_v.
        """
        of_q, of_k, of_v = self.projections()
        q = self.q_norm(of_q.of(query_tokens, self.heads))
        w_k, w_v = (w.unflatten(0, (self.heads, self.head_dim)) for w in (of_k.weight, of_v.weight))
        folded = _by_heads(q, w_k)  # (B, H, T', D): queries in the space of x
        mixed = self._attention(folded.flatten(1, 2).unsqueeze(1), x.unsqueeze(1), x.unsqueeze(1), side.mask)
        z = _by_heads(mixed.squeeze(1).unflatten(1, (self.heads, -1)), w_v.transpose(1, 2)).transpose(1, 2)
        return z if of_v.bias is None else z + of_v.bias.unflatten(0, (self.heads, -1))

    def _attention(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        dropout = self.dropout if self.training else 0.0
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=self.scale)

    def project(self, z: torch.Tensor) -> torch.Tensor | Product:
        """Return the attention output (B, T', D) of the layer for head outputs z (B, T', H, K)."""
        if self.projects_for > 1:
            z = z.unflatten(2, (self.projects_for, -1)).movedim(2, 0)  # (M, B, T', H, K)
        if self.heads or z.requires_grad:
            mixed = self.proj(z.flatten(-2))
        else:  # runtimes of exported models refuse a product with an empty matrix: its result is 0
            nothing = self.proj.weight.sum(1)
            bias = cast("torch.Tensor | None", self.proj.bias)
            mixed = (nothing if bias is None else nothing + bias).expand(*z.shape[:-2], -1)
        projected: torch.Tensor | Product = apply_module(self.proj_drop, mixed)
        return projected

    def select(self, positions: Sequence[int]) -> HeadGroup:
        """Return a copy with the kept heads at `positions` only."""
        head_numbers = tuple(self.head_numbers[h] for h in positions)
        selected = shallow_copy(self)
        for name in ("qkv", "proj", *self.along_heads):
            if (layer := getattr(self, name)) is not None:
                setattr(selected, name, shallow_copy(layer))
        for tensor in (*OWN_TENSORS, *projections_apart("{part}", self.along_heads, shared=SHARED)):
            select_heads(selected, "", tensor, head_numbers, self)
        selected.head_numbers = head_numbers
        selected.bias = None if self.bias is None else self.bias.select(positions)
        return selected

    def head_term(self, z: torch.Tensor, head: int) -> torch.Tensor:
        """Return the summand (B, T', D) of a head in `project`. All summands plus the bias equal `project`.

        Args:
            z: Head outputs (B, T', H, K).
            head: Position among the kept heads.
        """
        columns = slice(head * self.head_dim, (head + 1) * self.head_dim)
        return F.linear(z[..., head, :], self.proj.weight[:, columns])


def per_member(x: torch.Tensor) -> torch.Tensor:
    """Reshape x (G, H, ...) to broadcast with tensors (N, H, ...) if G is 1, else (M, B, H, ...)."""
    return x.squeeze(0) if len(x) == 1 else x.unsqueeze(1)


def _of_samples(bias: torch.Tensor, samples: int, mask: torch.Tensor | None) -> torch.Tensor:
    """Return biases (G, 1 or B, H, T', T) in the shape (1 or N, H, T', T) that fused attention accepts.

    Masked entries get the lowest number of the dtype. Biases of several members are copied for each sample:
    fused attention needs four axes, and torch uses a slower kernel for five. Members on the head axis would
    instead need copies of queries, keys and values, together as large at T = 3 K.

    Args:
        bias: Biases of one or all members.
        samples: N.
        mask: Shape (N, 1, 1 or T', T), False for masked keys; or None.
    """
    if mask is not None:
        bias = bias.masked_fill(~mask.unflatten(0, (len(bias), -1)), torch.finfo(bias.dtype).min)
    elif len(bias) > 1:
        bias = bias.expand(-1, samples // len(bias), -1, -1, -1)
    return bias.flatten(0, 1)


def _rotated(x: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """Rotate x (..., K) by 90 degrees in each plane of the rotary embedding."""
    if rotation == "half":
        first, second = x.chunk(2, dim=-1)
        return torch.cat((-second, first), dim=-1)
    first, second = x[..., ::2], x[..., 1::2]
    return torch.stack((-second, first), dim=-1).flatten(-2)


def stack_head_groups(groups: Sequence[HeadGroup]) -> HeadGroup | None:
    """Return a group that computes the heads of M members at once.

    Queries, keys and values become a fused projection. Shared keys are repeated per head, because gathering
    them would take two more calls. None if no member has heads, or the q/k norms cannot be stacked.
    """
    groups = [group.without_sharing() for group in groups]
    first, heads = groups[0], max(group.heads for group in groups)
    q_norm, k_norm = (
        stack_modules([getattr(group, name) for group in groups]) for name in ("q_norm", "k_norm")
    )
    if not heads or q_norm is None or k_norm is None:
        return None
    width = heads * first.head_dim
    joint = shallow_copy(first)
    joint.head_numbers, joint.members = tuple(range(heads)), len(groups)
    numbers = [[*group.head_numbers, *[0] * (heads - group.heads)] for group in groups]
    joint.numbers = frozen_parameter(on_device(torch.tensor(numbers), first.proj.weight.device))
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
    """Return a group that computes the heads of all stacked members from one shared stream.

    Nothing is computed once per member before the output projection, and queries, keys and values are a
    single product with its bias. `project` returns one stream per member.

    Args:
        stacked_group: Result of `stack_head_groups` for `groups`.
        groups: Groups of the members.

    Returns:
        The group, or None if q/k norms differ.
    """
    if not all(all_same([getattr(group, name) for group in groups]) for name in ("q_norm", "k_norm")):
        return None
    heads = shallow_copy(stacked_group)
    heads.members, heads.projects_for = 1, stacked_group.members
    heads.head_numbers = tuple(range(stacked_group.members * stacked_group.heads))
    heads.numbers = (
        None if stacked_group.numbers is None else frozen_parameter(stacked_group.numbers.view(1, -1))
    )
    for name, parts in {"qkv": 3, **dict.fromkeys({*stacked_group.along_heads} - {"q", "k", "v"}, 1)}.items():
        if (layer := getattr(stacked_group, name)) is not None:
            setattr(heads, name, _as_one(layer, parts))
    if isinstance(stacked_group.bias, StackedBias):
        heads.bias = StackedBias(stacked_group.bias().flatten(0, 1).unsqueeze(0))
    return heads


def _as_one(layer: nn.Linear, parts: int) -> nn.Linear:
    """Merge layers (parts, H, K) of M members into a layer with outputs (parts, M, H, K)."""
    weight, bias = layer.weight.unflatten(1, (parts, -1)).transpose(0, 1).flatten(0, 2), layer.bias
    joint = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    joint.weight = frozen_parameter(weight)
    if bias is not None:
        joint.bias = frozen_parameter(bias.unflatten(1, (parts, -1)).transpose(0, 1).flatten())
    return joint


def _stacked_bias(groups: Sequence[HeadGroup], heads: int) -> StackedBias:
    """Return the attention-score biases (M, H, T, T) of M members, padded with zeros to H = `heads`.

    All entries are zero for a member without heads or bias. At least one member must have a bias.
    """
    biases = {m: group.bias() for m, group in enumerate(groups) if group.heads and group.bias is not None}
    none = next(iter(biases.values()))[:, :0]
    member_biases = [biases.get(m, none) for m in range(len(groups))]
    return StackedBias(torch.cat([F.pad(x, (0, 0, 0, 0, 0, heads - x.shape[1])) for x in member_biases]))


def _stacked_projections(members: Sequence[Sequence[Projection]], width: int) -> nn.Linear:
    """Stack the projections of all members, each padded to `width` output features."""
    weights, biases = [], []
    for projections in members:
        weights.append(torch.cat([F.pad(p.weight, (0, 0, 0, width - len(p.weight))) for p in projections]))
        member_biases = [p.weight.new_zeros(len(p.weight)) if p.bias is None else p.bias for p in projections]
        biases.append(torch.cat([F.pad(bias, (0, width - len(bias))) for bias in member_biases]))
    none = all(p.bias is None for p in members[0])
    return _as_linear(torch.stack(weights), None if none else torch.stack(biases))


def _as_linear(weight: torch.Tensor, bias: torch.Tensor | None) -> nn.Linear:
    """Return a `StackedLinear`, typed as the linear layer in its place."""
    return cast("nn.Linear", StackedLinear(weight, bias))


class Attention(MemberParallel):
    """The attention of M members in one layer.

    The streams of M > 1 members are concatenated along the batch axis: (M B, T, D). Head outputs are
    concatenated along the head axis, (B, T, H_1 + ... + H_M, K), or along the batch axis for stacked members,
    (M B, T, H, K).

    Attributes:
        projects_for: Number of member streams computed from the input stream.
    """

    projects_for = 1

    def groups(self) -> list[HeadGroup]:
        """Return the head groups of the members."""
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
        """Return the stacked heads for a stream shared by all members.

        None if heads are not stacked, or q/k norms differ.
        """
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
        """The group that computes all heads: stacked members or a single member. None if members run in turn."""
        if (stacked := self.stacked) is not None:
            return cast("HeadGroup", stacked)
        members = self.members
        return cast("HeadGroup", next(iter(members))) if len(members) == 1 else None

    def heads(
        self, x: torch.Tensor, queries: slice | None = None, side: AttentionExtras = NO_EXTRAS
    ) -> torch.Tensor:
        """Return the output of every head for x (M B, T, D), before the output projection.

        The class docstring has the shape.
        """
        if (group := self.joint_group) is not None:
            return group.attend(x, queries, side)
        groups = self.groups()
        shares = zip(groups, split_batch(x, len(groups)), side.split(len(groups)), strict=True)
        outputs_by_member = [group.attend(part, queries, member_side) for group, part, member_side in shares]
        nonempty = [z for group, z in zip(groups, outputs_by_member, strict=True) if group.heads]
        return torch.cat(nonempty, dim=-2) if nonempty else outputs_by_member[0]

    def project(self, z: torch.Tensor) -> torch.Tensor | Product:
        """Return the attention outputs (M B, T', D) for head outputs z.

        The output is a `Product` after `delay`, if members are stacked.
        """
        if (group := self.joint_group) is not None:
            return group.project(z)
        groups = self.groups()
        parts = z.split([group.heads for group in groups], dim=-2)
        return torch.cat(
            [compute_product(group.project(part)) for group, part in zip(groups, parts, strict=True)]
        )
