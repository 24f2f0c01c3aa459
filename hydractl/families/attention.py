"""Attention with ragged heads: one module for members (M = 1) and hydras (M > 1).

Axes: M members, B batch, T tokens, D width, H heads, K head width. A member's layer is a `HeadGroup`; any number of
heads is allowed, zero included. `Attention` puts the groups of M members side by side on the head axis.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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

    def __init__(self, library: nn.Module, *, heads: int) -> None:
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
        self.q_norm = library.q_norm
        self.k_norm = library.k_norm
        self.gate = None if library.gate is None else _resized(library.gate, out_features=width)
        self.attn_drop = library.attn_drop
        self.proj = _resized(library.proj, in_features=width)
        self.proj_drop = library.proj_drop

    def project_in(
        self, x: torch.Tensor, queries: slice | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return q (B, H, T', K), k and v (B, H, T, K) of x (B, T, D); `queries` picks the T' tokens that ask."""
        if queries is None:
            q, k, v = (
                F.linear(x, self.qkv.weight, self.qkv.bias)
                .unflatten(-1, (3, self.heads, self.head_dim))
                .unbind(-3)
            )
        else:
            width = self.heads * self.head_dim
            weight, bias = self.qkv.weight, self.qkv.bias
            b_q, b_kv = (None, None) if bias is None else (bias[:width], bias[width:])
            q = F.linear(x[:, queries], weight[:width], b_q).unflatten(-1, (self.heads, self.head_dim))
            k, v = F.linear(x, weight[width:], b_kv).unflatten(-1, (2, self.heads, self.head_dim)).unbind(-3)
        return self.q_norm(q.transpose(1, 2)), self.k_norm(k.transpose(1, 2)), v.transpose(1, 2)

    def attend(self, x: torch.Tensor, queries: slice | None) -> torch.Tensor:
        """Return every head's output (B, T', H, K), before the output projection."""
        asked = x if queries is None else x[:, queries]
        if self.heads == 0:
            return x.new_empty(*asked.shape[:2], 0, self.head_dim)
        q, k, v = self.project_in(x, queries)
        dropout = self.attn_drop.p if self.training else 0.0
        z = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, scale=self.scale).transpose(1, 2)
        if self.gate is not None:
            z = z * self.gate(asked).sigmoid().unflatten(-1, (self.heads, self.head_dim))
        return z

    def project(self, z: torch.Tensor) -> torch.Tensor:
        """Return the layer's attention output (B, T', D) of z (B, T', H, K)."""
        out: torch.Tensor = self.proj_drop(self.proj(z.flatten(-2)))
        return out

    def head_terms(self, z: torch.Tensor, head: int) -> torch.Tensor:
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
