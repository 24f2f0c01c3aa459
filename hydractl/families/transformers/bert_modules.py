"""The tower of a transformers BERT, out of the library's own modules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hydractl.families.attention import Attention, HeadGroup, HeadParts, Side
from hydractl.families.dismantling import part
from hydractl.families.tower import Block, Model, Stream, Tower

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hydractl.families.transformers.models import Kept

NAMES = {
    "attn.members.0.q.": "attention.self.query.",
    "attn.members.0.k.": "attention.self.key.",
    "attn.members.0.v.": "attention.self.value.",
    "attn.members.0.proj.": "attention.output.dense.",
    "norm1.": "attention.output.LayerNorm.",
    "up.": "intermediate.",
    "down.": "output.dense.",
    "norm2.": "output.LayerNorm.",
}
"""For each part of `PostNormBlock` the library's name."""


class PostNormBlock(Block):
    """Attention, residual, norm; MLP, residual, norm (Vaswani et al. 2017)."""

    norm1: nn.Module
    up: nn.Module
    down: nn.Module
    norm2: nn.Module
    drop: nn.Module

    def __init__(
        self,
        attn: HeadGroup,
        *,
        norm1: nn.Module,
        up: nn.Module,
        down: nn.Module,
        norm2: nn.Module,
        drop: nn.Module,
    ) -> None:
        super().__init__()
        self.attn = Attention([attn])
        self.norm1, self.up, self.down, self.norm2, self.drop = norm1, up, down, norm2, drop

    def heads(self, stream: Stream, queries: slice | None = None) -> torch.Tensor:
        """See `Block.heads`."""
        return self.attn.heads(stream.tokens, queries, self.side(stream))

    def side(self, stream: Stream) -> Side:
        """Return what attention needs beside the tokens."""
        return Side(mask=stream.context["mask"])

    def join(self, stream: Stream, y: torch.Tensor) -> Stream:
        """See `Block.join`."""
        x = self.norm1(y + stream.tokens)
        return stream.with_tokens(self.norm2(self.drop(self.down(self.up(x))) + x))


class BertEmbed(nn.Module):
    """Word, position and segment embeddings."""

    def __init__(self, host: nn.Module, *, prefix: str) -> None:
        super().__init__()
        self.host = host
        self.prefix = prefix

    def forward(self, texts: Mapping[str, torch.Tensor]) -> Stream:
        """Return the stream of texts (B, T) and their padding mask."""
        encoder: Any = getattr(self.host, self.prefix)
        tokens = encoder.embeddings(
            input_ids=texts["input_ids"], token_type_ids=texts.get("token_type_ids", None)
        )
        if hasattr(encoder, "embeddings_project"):
            tokens = encoder.embeddings_project(tokens)
        return Stream(tokens, {"mask": key_mask(texts)})


class BertReadout(nn.Module):
    """Pooler, if there is one, and classifier: of the first token."""

    def __init__(self, host: nn.Module, *, prefix: str) -> None:
        super().__init__()
        self.host = host
        self.prefix = prefix

    def forward(self, stream: Stream) -> torch.Tensor:
        """Return logits (N, C)."""
        host: Any = self.host
        pooler = getattr(getattr(host, self.prefix), "pooler", None)
        logits: torch.Tensor = host.classifier(
            stream.tokens if pooler is None else host.dropout(pooler(stream.tokens))
        )
        return logits


def key_mask(texts: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return which keys are tokens and not padding, (B, 1, 1, T); all are where no mask is given, as in the library."""
    mask = texts.get("attention_mask")
    kept = torch.ones_like(texts["input_ids"]) if mask is None else mask
    return kept.bool()[:, None, None, :]


def wrap_bert(library: Any, kept: Kept, *, prefix: str) -> Model:  # noqa: ANN401 - transformers is untyped
    """Return the model whose parts are the library model's own modules; `kept` are each layer's heads."""
    layers = getattr(library, prefix).encoder.layer
    readout = ("classifier", "dropout", f"{prefix}.pooler")
    block = f"{prefix}.encoder.layer.{{layer}}."
    return Model(
        {
            "text": Tower(
                embed=BertEmbed(
                    part(library, lambda n: not n.startswith((f"{prefix}.encoder", *readout))), prefix=prefix
                ),
                blocks=[_block(layer, heads) for layer, heads in zip(layers, kept, strict=True)],
                readout=BertReadout(part(library, lambda n: n.startswith(readout)), prefix=prefix),
                reads=slice(0, 1),
                names={ours: block + theirs for ours, theirs in NAMES.items()},
            )
        }
    )


def _block(layer: Any, kept: tuple[int, ...]) -> PostNormBlock:  # noqa: ANN401 - as above
    own, out = layer.attention.self, layer.attention.output
    group = HeadGroup(
        HeadParts(
            kept=kept,
            head_dim=own.attention_head_size,
            scale=own.attention_head_size**-0.5,
            q=own.query,
            k=own.key,
            v=own.value,
            proj=out.dense,
            proj_drop=out.dropout,
            dropout=own.dropout.p,
        )
    )
    return PostNormBlock(
        group,
        norm1=out.LayerNorm,
        up=layer.intermediate,
        down=layer.output.dense,
        norm2=layer.output.LayerNorm,
        drop=layer.output.dropout,
    )
