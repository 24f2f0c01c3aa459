"""Attention with ragged heads: one module for members (M = 1) and hydras (M > 1).

Axes: M members, B batch, T tokens, D width, H heads, K head width. A member's layer is a `HeadGroup`; any number of
heads is allowed, zero included. `Attention` puts the groups of M members side by side on the head axis.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - the field's own name

if TYPE_CHECKING:
    from collections.abc import Sequence


class HeadGroup(nn.Module):
    """The heads that one member keeps in one layer, with a fused qkv projection.

    Submodules carry the library's names (`qkv`, `q_norm`, `k_norm`, `gate`, `proj`), so a state dict reads as
    the library's, sliced. Covered: biases or none, q/k norms of width K, an elementwise output gate.
    """

    qkv: nn.Linear
    gate: nn.Linear | None
    proj: nn.Linear

    def __init__(self, library: Any, *, heads: int) -> None:  # noqa: ANN401 - libraries are untyped
        """Take over a library attention's parts, resized to `heads` heads on the same device.

        Args:
            library: A module with `head_dim`, `scale`, `qkv`, `proj` and optional `q_norm`, `k_norm`, `gate`.
            heads: How many heads are kept, 0 or more.
        """
        super().__init__()
        self.heads = heads
        self.head_dim: int = library.head_dim
        self.scale: float = library.scale
        width = heads * self.head_dim
        self.qkv = _resized(library.qkv, out_features=3 * width)
        self.q_norm: nn.Module = library.q_norm
        self.k_norm: nn.Module = library.k_norm
        self.gate = None if library.gate is None else _resized(library.gate, out_features=width)
        self.attn_drop: nn.Dropout = library.attn_drop
        self.proj = _resized(library.proj, in_features=width)
        self.proj_drop: nn.Module = library.proj_drop

    def attend(self, x: torch.Tensor, queries: slice | None) -> torch.Tensor:
        """Return every head's output (B, T', H, K) before the output projection; `queries` picks the T' tokens."""
        asked = x if queries is None else x[:, queries]
        if self.heads == 0:
            return x.new_empty(*asked.shape[:2], 0, self.head_dim)
        z = self._attend_all(x) if queries is None else self._attend_some(x, asked)
        if self.gate is not None:
            z = z * self.gate(asked).sigmoid().unflatten(-1, (self.heads, self.head_dim))
        return z

    def _attend_all(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, self.head_dim)).transpose(1, 3).unbind(2)
        return self._attention(self.q_norm(q), self.k_norm(k), v).transpose(1, 2)

    def _attend_some(self, x: torch.Tensor, asked: torch.Tensor) -> torch.Tensor:
        """Attend from the tokens `asked` (B, T', D) to all of x (B, T, D).

        Where few ask, keys and values are not computed: q·(W_k x + b_k) = (W_kᵀ q)·x + q·b_k, of which the second
        term is the same for all tokens and drops out of the softmax; and as attention weights sum to 1,
        Σ a (W_v x + b_v) = W_v (Σ a x) + b_v. A norm on the keys forbids the first step.
        """
        width = self.heads * self.head_dim
        w_q, w_k, w_v = (w.unflatten(0, (self.heads, self.head_dim)) for w in self.qkv.weight.split(width))
        biases = cast("torch.Tensor | None", self.qkv.bias)
        b_q, _, b_v = (None,) * 3 if biases is None else biases.split(width)
        q = self.q_norm(
            F.linear(asked, w_q.flatten(0, 1), b_q).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        )
        if not isinstance(self.k_norm, nn.Identity) or asked.shape[1] > self.head_dim // 4:
            weight, bias = self.qkv.weight[width:], None if biases is None else biases[width:]
            k, v = (
                F.linear(x, weight, bias)
                .unflatten(-1, (2, self.heads, self.head_dim))
                .transpose(1, 3)
                .unbind(2)
            )
            return self._attention(q, self.k_norm(k), v).transpose(1, 2)
        folded = torch.matmul(q, w_k)  # (B, H, T', D): what each query looks for in x itself
        mixed = self._attention(folded.flatten(1, 2).unsqueeze(1), x.unsqueeze(1), x.unsqueeze(1))
        z = torch.matmul(mixed.squeeze(1).unflatten(1, (self.heads, -1)), w_v.transpose(1, 2)).transpose(1, 2)
        return z if b_v is None else z + b_v.unflatten(0, (self.heads, -1))

    def _attention(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        dropout = self.attn_drop.p if self.training else 0.0
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, scale=self.scale)

    def project(self, z: torch.Tensor) -> torch.Tensor:
        """Return the layer's attention output (B, T', D) of z (B, T', H, K)."""
        out: torch.Tensor = self.proj_drop(self.proj(z.flatten(-2)))
        return out

    def select(self, kept: Sequence[int]) -> HeadGroup:
        """Return a copy with only the heads at the positions `kept`, weights sliced."""
        rows = torch.tensor(
            [h * self.head_dim + k for h in kept for k in range(self.head_dim)], dtype=torch.long
        )
        rows = rows.to(self.proj.weight.device)
        width = self.heads * self.head_dim
        other = copy.copy(self)
        other.__dict__["_modules"] = dict(self._modules)
        other.heads = len(kept)
        other.qkv = _rows(self.qkv, torch.cat([rows, rows + width, rows + 2 * width]))
        other.gate = None if self.gate is None else _rows(self.gate, rows)
        other.proj = _resized(self.proj, in_features=len(rows))
        other.proj.weight = nn.Parameter(self.proj.weight.detach()[:, rows])
        other.proj.bias = self.proj.bias
        return other

    def head_term(self, z: torch.Tensor, head: int) -> torch.Tensor:
        """Return head `head`'s own term of `project`, (B, T', D): the sum over heads, plus the bias, is `project`."""
        columns = slice(head * self.head_dim, (head + 1) * self.head_dim)
        return F.linear(z[..., head, :], self.proj.weight[:, columns])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's attention output (B, T, D), so that the library's own block runs with this module."""
        return self.project(self.attend(x, None))


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

    def heads(self, x: torch.Tensor, queries: slice | None = None) -> torch.Tensor:
        """Return every head's output (B, T', H, K) of x (M B, T, D)."""
        groups = self.groups()
        if len(groups) == 1:
            return groups[0].attend(x, queries)
        parts = x.unflatten(0, (len(groups), -1)).unbind(0)
        return torch.cat(
            [group.attend(part, queries) for group, part in zip(groups, parts, strict=True)], dim=-2
        )

    def project(self, z: torch.Tensor) -> torch.Tensor:
        """Return (M B, T', D) of z (B, T', H, K)."""
        groups = self.groups()
        if len(groups) == 1:
            return groups[0].project(z)
        parts = z.split([group.heads for group in groups], dim=-2)
        return torch.cat([group.project(part) for group, part in zip(groups, parts, strict=True)])


def _resized(
    layer: nn.Linear, *, in_features: int | None = None, out_features: int | None = None
) -> nn.Linear:
    """Return an uninitialised layer like `layer` with another width."""
    sizes = (
        layer.in_features if in_features is None else in_features,
        layer.out_features if out_features is None else out_features,
    )
    if sizes == (layer.in_features, layer.out_features):
        return layer
    resized = nn.Linear(
        1, 1, bias=layer.bias is not None, device=layer.weight.device, dtype=layer.weight.dtype
    )
    resized.in_features, resized.out_features = sizes
    resized.weight = nn.Parameter(layer.weight.new_empty(sizes[1], sizes[0]))
    if layer.bias is not None:
        resized.bias = nn.Parameter(layer.bias.new_empty(sizes[1]))
    return resized


def _rows(layer: nn.Linear, rows: torch.Tensor) -> nn.Linear:
    """Return a linear layer with only some output features."""
    sliced = _resized(layer, out_features=len(rows))
    sliced.weight = nn.Parameter(layer.weight.detach()[rows])
    if layer.bias is not None:
        sliced.bias = nn.Parameter(layer.bias.detach()[rows])
    return sliced
