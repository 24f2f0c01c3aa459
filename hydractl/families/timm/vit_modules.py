"""The tower of a timm vision transformer, out of timm's own modules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import ResPostBlock

from hydractl.families.attention import Attention, HeadGroup, HeadParts
from hydractl.families.dismantling import part
from hydractl.families.tower import Block, Hosted, Model, Stream, Tower

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import nn

READOUT_PARTS = {"norm", "attn_pool", "fc_norm", "head_drop", "head", "head_dist"}


class VitEmbed(Hosted):
    """Patches, prefix tokens and position embedding."""

    def forward(self, images: torch.Tensor) -> Stream:
        """Return the stream of images (B, C, height, width)."""
        host: Any = self.host
        return Stream(host.norm_pre(host.patch_drop(host._pos_embed(host.patch_embed(images)))))


class VitReadout(Hosted):
    """Final norm, pooling and classifier."""

    def forward(self, stream: Stream) -> torch.Tensor:
        """Return logits (N, C)."""
        host: Any = self.host
        logits: torch.Tensor = host.forward_head(host.norm(stream.tokens))
        return logits


class PreNormBlock(Block):
    """timm's `Block`: norm, attention, residual; norm, MLP, residual."""

    norm1: nn.Module
    norm2: nn.Module
    mlp: nn.Module
    ls1: nn.Module
    ls2: nn.Module
    drop_path1: nn.Module
    drop_path2: nn.Module

    def __init__(self, library: Any, attn: HeadGroup) -> None:  # noqa: ANN401 - timm is untyped
        super().__init__()
        for name, child in library.named_children():
            self.add_module(name, Attention([attn]) if name == "attn" else child)

    def heads(self, stream: Stream, queries: slice | None = None) -> torch.Tensor:
        """See `Block.heads`."""
        return self.attn.heads(self.norm1(stream.tokens), queries)

    def join(self, stream: Stream, y: torch.Tensor) -> Stream:
        """See `Block.join`."""
        x = stream.tokens + self.drop_path1(self.ls1(y))
        return stream.with_tokens(x + self.drop_path2(self.ls2(self.mlp(self.norm2(x)))))


class ResPostNormBlock(PreNormBlock):
    """timm's `ResPostBlock`: attention, norm, residual; MLP, norm, residual."""

    def heads(self, stream: Stream, queries: slice | None = None) -> torch.Tensor:
        """See `Block.heads`."""
        return self.attn.heads(stream.tokens, queries)

    def join(self, stream: Stream, y: torch.Tensor) -> Stream:
        """See `Block.join`."""
        x = stream.tokens + self.drop_path1(self.norm1(y))
        return stream.with_tokens(x + self.drop_path2(self.norm2(self.mlp(x))))


def wrap(library: Any, kept: Sequence[tuple[int, ...]]) -> Model:  # noqa: ANN401 - timm is untyped
    """Return the model whose parts are the library model's own modules; `kept` are each layer's heads."""
    blocks = [
        (ResPostNormBlock if isinstance(block, ResPostBlock) else PreNormBlock)(
            block, head_group(block.attn, heads)
        )
        for block, heads in zip(library.blocks, kept, strict=True)
    ]
    names = {"attn.members.0.": "blocks.{layer}.attn.", "": "blocks.{layer}."}
    return Model(
        {
            "vision": Tower(
                embed=VitEmbed(part(library, lambda n: n.split(".")[0] not in {"blocks", *READOUT_PARTS})),
                blocks=blocks,
                readout=VitReadout(part(library, lambda n: n.split(".")[0] in READOUT_PARTS)),
                reads=_tokens_read(library),
                names=names,
            )
        }
    )


def head_group(attention: Any, kept: tuple[int, ...]) -> HeadGroup:  # noqa: ANN401 - timm is untyped
    """Return the kept heads of timm's `Attention`, whose tensors are already cut."""
    return HeadGroup(
        HeadParts(
            kept=kept,
            head_dim=attention.head_dim,
            scale=attention.scale,
            qkv=attention.qkv,
            q_norm=attention.q_norm,
            k_norm=attention.k_norm,
            gate=attention.gate,
            dropout=attention.attn_drop.p,
            proj=attention.proj,
            proj_drop=attention.proj_drop,
        )
    )


def _tokens_read(library: Any) -> slice | None:  # noqa: ANN401 - timm is untyped
    if isinstance(library, VisionTransformerDistilled):
        return slice(0, 2)
    return slice(0, 1) if library.global_pool == "token" and library.attn_pool is None else None
