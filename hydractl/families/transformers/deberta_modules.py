"""What is code in a DeBERTa-v2 or v3: disentangled attention to words and to relative positions (He et al. 2021).

P is the number of relative positions that are told apart: one for each bucket to either side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, cast

import torch
from torch import nn
from typing_extensions import override

from hydractl.families.attention_bias import AttentionExtras, SharedDropout
from hydractl.families.batched_members import StackedLinear
from hydractl.families.head_group import HeadGroup, HeadParts, Projection
from hydractl.families.stream import Product, Stream
from hydractl.families.surgery import Hosted
from hydractl.families.tower import Tower
from hydractl.families.transformers.encoder import EncoderNames, TextEncoderNames
from hydractl.families.transformers.encoder_modules import PostNormBlock, key_mask


class DisentangledGroup(HeadGroup):
    """Heads whose scores are three products: of words, of a word and a relative position, and the other way round."""

    along_heads: ClassVar[tuple[str, ...]] = (*HeadGroup.along_heads, "pos_key", "pos_query")

    def __init__(self, parts: HeadParts, layer: Any) -> None:  # noqa: ANN401 - transformers is untyped
        """Take what relative positions need from the library's layer."""
        attention = layer.attention.self
        super().__init__(replace(parts, scale=_scale(attention)))
        self.share = attention.share_att_key
        self.kinds = tuple(kind for kind in ("c2p", "p2c") if kind in attention.pos_att_type)
        self.pos_key: nn.Linear | None = getattr(attention, "pos_key_proj", None)
        self.pos_query: nn.Linear | None = getattr(attention, "pos_query_proj", None)
        self.pos_drop = (
            SharedDropout(attention.pos_dropout.p) if attention.relative_attention else nn.Identity()
        )

    @override
    def scores_bias(
        self, q: torch.Tensor, k: torch.Tensor, queries: slice | None, side: AttentionExtras
    ) -> torch.Tensor | None:
        """Return the products with relative positions, scaled as the one of words is."""
        if side.table is None or not self.kinds:
            return super().scores_bias(q, k, queries, side)
        table = self.pos_drop(side.table)
        of_q, of_k, _ = self.projections()
        lookup = cast("torch.Tensor", side.rows)[0]
        rows = lookup if queries is None else lookup[queries]
        index = rows.expand(*q.shape[:2], *rows.shape)
        bias = torch.zeros((), dtype=q.dtype, device=q.device)
        if "c2p" in self.kinds:
            positions = self._heads_of(of_k if self.share else self.pos_key, table)
            bias = bias + _multiply_by_member(torch.matmul, q * self.scale, positions.mT).gather(-1, index)
        if "p2c" in self.kinds:
            positions = self._heads_of(of_q if self.share else self.pos_query, table)
            products = _multiply_by_member(
                lambda keys, rows: torch.matmul(rows, keys), k.mT, positions * self.scale
            )
            bias = bias + products.gather(-2, index)
        return bias if side.mask is None else bias.masked_fill(~side.mask, torch.finfo(q.dtype).min)

    def _heads_of(
        self, layer: Projection | nn.Linear | StackedLinear | None, table: torch.Tensor
    ) -> torch.Tensor:
        """Return (G, H, P, K) of the relative positions (1 or M, P, D)."""
        assert layer is not None  # noqa: S101 - the library makes what its configuration asks for
        members = self.members if len(table) == 1 else len(table)
        return Projection(layer.weight, layer.bias).of(table.expand(members, -1, -1), self.heads)


class ConvStep(Hosted):
    """A convolution over neighbouring tokens of the embedding, added to what the first block makes of it."""

    @override
    def forward(self, x: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return tokens (N, T, D) of `embedded` and `tokens` (N, T, D) and the padding `mask` (N, 1, 1, T)."""
        return cast("torch.Tensor", self.host(x["embedded"], x["tokens"], x["mask"][:, 0, 0].long()))


class DebertaBlock(PostNormBlock):
    """BERT's block; the first may be followed by a convolution."""

    conv: nn.Module | None

    def __init__(self, layer: nn.Module, group: HeadGroup, encoder: EncoderNames) -> None:
        super().__init__(layer, group, encoder)
        self.conv = None

    @property
    @override
    def tokenwise(self) -> bool:
        return self.conv is None

    @override
    def join(self, stream: Stream, y: torch.Tensor | Product) -> Stream:
        out = super().join(stream, y)
        if self.conv is None:
            return out
        parts = {"embedded": stream.tokens, "tokens": out.tokens, "mask": stream.context["mask"]}
        return stream.with_tokens(self.conv(parts))


def _multiply_by_member(
    multiply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], x: torch.Tensor, by_member: torch.Tensor
) -> torch.Tensor:
    """Return the products (N, H, ...) of x (N, H, ...) and what is a member's own, (G, H, ...)."""
    if len(by_member) == 1:
        return multiply(x, by_member)
    return multiply(x.unflatten(0, (len(by_member), -1)), by_member.unsqueeze(1)).flatten(0, 1)


def embed(host: Any, texts: Mapping[str, torch.Tensor], encoder: TextEncoderNames) -> Stream:  # noqa: ANN401 - as above
    """Return the stream of texts (B, T) and their padding mask.

    Constants are the relative positions (1, P, D), and which of them each query and key look up, (1, T, T).
    """
    deberta = host.get_submodule(encoder.model)
    mask = key_mask(texts)
    tokens = deberta.embeddings(
        input_ids=texts["input_ids"],
        token_type_ids=texts.get("token_type_ids"),
        mask=mask[:, 0, 0].long(),
    )
    table = None if deberta.encoder is None else deberta.encoder.get_rel_embedding()
    if table is None:
        return Stream(tokens, {"mask": mask})
    rows = (deberta.encoder.get_rel_pos(tokens) + len(table) // 2).clamp(0, len(table) - 1)
    # a view of a parameter passes for one that wants a gradient even where none is computed
    return Stream(tokens, {"mask": mask}, {"positions": table.clone().unsqueeze(0), "rows": rows})


def convolve(tower: Tower, library: Any) -> None:  # noqa: ANN401 - as above
    """Give the first block the convolution that follows it, if there is one; alone, it needs all tokens."""
    conv, (first, *others) = library.deberta.encoder.conv, tower.layers()
    if conv is not None and isinstance(first, DebertaBlock):
        first.conv = ConvStep(conv)
        tower.reads = tower.reads if others else None


def _scale(attention: Any) -> float:  # noqa: ANN401 - as above
    """Return 1 / sqrt(K times the products that are summed), the root rounded to single precision as the library's is."""
    products = 1 + sum(kind in attention.pos_att_type for kind in ("c2p", "p2c"))
    with torch.device("cpu"):
        return 1 / torch.tensor(attention.attention_head_size * products, dtype=torch.float32).sqrt().item()
