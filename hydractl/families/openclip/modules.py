"""Towers built from the modules of open_clip's models."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from typing_extensions import override

from hydractl.families.attention import Attention, AttentionExtras, HeadGroup, HeadParts
from hydractl.families.stream import Product, Stream, residual
from hydractl.families.timm import modules as timm
from hydractl.families.tower import (
    PRE_NORM,
    Block,
    Contrast,
    FunctionModule,
    HeadNumbers,
    Model,
    Tower,
    part,
    unit,
)

NAMES = {
    "attn.members.0.qkv.": "attn.in_proj_",
    "attn.members.0.proj.": "attn.out_proj.",
    "attn.members.0.q_norm.": "attn.ln_q.",
    "attn.members.0.k_norm.": "attn.ln_k.",
    "norm1.": "ln_1.",
    "norm_attn.": "ln_attn.",
    "ls1.": "ls_1.",
    "norm2.": "ln_2.",
    "mlp.": "mlp.",
    "ls2.": "ls_2.",
}
"""Library's name of each part of a block."""
TEXT_READS = {"first": slice(0, 1), "last": slice(-1, None)}


class OpenClipBlock(Block):
    """A block of open_clip: norm, attention, residual; norm, MLP, residual.

    A second norm after attention and layer scales are optional.
    """

    feeds = PRE_NORM
    adds = True

    def __init__(self, layer: Any, head_numbers: tuple[int, ...]) -> None:  # noqa: ANN401 - open_clip is untyped
        super().__init__()
        attn = layer.attn  # torch's `MultiheadAttention`, or open_clip's `Attention`
        parts = HeadParts(
            head_numbers=head_numbers,
            head_dim=attn.head_dim,
            scale=attn.head_dim**-0.5,
            qkv=_linear(attn.in_proj_weight, attn.in_proj_bias),
            proj=attn.out_proj,
            q_norm=getattr(attn, "ln_q", nn.Identity()),
            k_norm=getattr(attn, "ln_k", nn.Identity()),
            dropout=attn.attn_drop.p if hasattr(attn, "attn_drop") else attn.dropout,
            proj_drop=getattr(attn, "out_drop", nn.Identity()),
        )
        self.attn = Attention([HeadGroup(parts)])
        self.norm1: nn.Module = layer.ln_1
        self.norm_attn: nn.Module = getattr(layer, "ln_attn", nn.Identity())
        self.ls1: nn.Module = layer.ls_1
        self.norm2: nn.Module = layer.ln_2
        self.mlp: nn.Module = layer.mlp
        self.ls2: nn.Module = layer.ls_2

    @override
    def heads(self, stream: Stream, queries: slice | None = None) -> torch.Tensor:
        return self.attn.heads(
            self.norm1(stream.tokens), queries, AttentionExtras(mask=stream.context.get("mask"))
        )

    @override
    def join(self, stream: Stream, y: torch.Tensor | Product) -> Stream:
        x = residual(stream.tokens, y, self.norm_attn, self.ls1)
        return stream.with_tokens(residual(x, self.mlp(self.norm2(x)), self.ls2))


def _linear(weight: nn.Parameter, bias: nn.Parameter | None) -> nn.Linear:
    """Return a linear layer for a weight (out, in) that is a parameter of another module; out may be 0."""
    layer = nn.Linear(1, 1, bias=bias is not None, device="meta")
    layer.out_features, layer.in_features = weight.shape
    layer.weight = weight
    if bias is not None:
        layer.bias = bias
    return layer


def wrap(
    library: Any,  # noqa: ANN401 - as above
    head_numbers: Mapping[str, HeadNumbers],
    class_embeddings: torch.Tensor | None,
    *,
    width: int,
) -> Model:
    """Return a model built from the library model's own modules.

    Args:
        library: The model, with tensors already cut to the kept heads.
        head_numbers: Kept heads of each layer, by tower.
        class_embeddings: Shape (C, F), or None.
        width: F.
    """
    vision = _trunk_tower if "trunk" in library.visual._modules else _vision_tower
    towers = {
        "text": _text_tower(library, head_numbers["text"]),
        "vision": vision(library, head_numbers["vision"]),
    }
    return Model(
        towers,
        Contrast(
            logit_scale=library.logit_scale,
            logit_bias=library.logit_bias,
            width=width,
            class_embeddings=class_embeddings,
        ),
    )


def _text_tower(library: Any, head_numbers: HeadNumbers) -> Tower:  # noqa: ANN401 - as above
    prefix = "text." if "text" in library._modules else ""
    text = library.text if prefix else library
    pool, end = (text.pool_type, text.eos_id) if prefix else (text.text_pool_type, text.text_eos_id)
    embed = tuple(prefix + name for name in ("token_embedding", "positional_embedding"))
    readout = tuple(prefix + name for name in ("ln_final", "text_projection"))

    return Tower(
        embed=FunctionModule(
            part(library, lambda name: name.startswith(embed)),
            partial(_embed_texts, prefix=prefix, read=(pool, end), causal=text.attn_mask is not None),
        ),
        blocks=_blocks(text.transformer, head_numbers),
        readout=FunctionModule(
            part(library, lambda name: name.startswith(readout)),
            partial(_read_texts, prefix=prefix, pool=pool),
        ),
        read_tokens=TEXT_READS.get(pool),
        names=_names(f"{prefix}transformer"),
    )


def _embed_texts(
    host: Any,  # noqa: ANN401 - as above
    texts: Mapping[str, torch.Tensor],
    *,
    prefix: str,
    read: tuple[str, int],
    causal: bool,
) -> Stream:
    """Return the stream of texts (B, T): embeddings (B, T, D), and a context with causal mask and end tokens.

    Padding is attended to like any other token, because the library has no padding mask.

    Args:
        host: Part of the library's model with the embeddings.
        texts: `input_ids` (B, T).
        prefix: `text.` if the text tower is the module `text` of the library's model, else empty.
        read: Pooling, and the id of the end token. Poolings: `first` and `last` read this token, `argmax` the
            highest id of a text, and `eos` the first end token.
        causal: Whether a token attends only to itself and earlier tokens.

    Returns:
        The context contains `mask` (B, 1, T, T), true for attended tokens, only if `causal`; and `end` (B,),
        the position of the token to read, only for `argmax` and `eos`.
    """
    text, ids = host.text if prefix else host, texts["input_ids"]
    pool, end = read
    length = ids.shape[1]
    tokens = text.token_embedding(ids) + text.positional_embedding[:length]
    context = {}
    if causal:
        earlier = torch.ones(length, length, dtype=torch.bool, device=ids.device).tril()
        context["mask"] = earlier.expand(len(ids), 1, length, length)
    if pool not in TEXT_READS:
        context["end"] = (ids if pool == "argmax" else (ids == end).long()).argmax(dim=-1)
    return Stream(tokens, context)


def _read_texts(host: Any, stream: Stream, *, prefix: str, pool: str) -> torch.Tensor:  # noqa: ANN401 - as above
    """Return embeddings (N, F) of length 1: one token, normed and projected."""
    text, tokens = host.text if prefix else host, stream.tokens
    if pool in TEXT_READS:
        read = tokens[:, TEXT_READS[pool]].squeeze(1)
    else:
        read = tokens[torch.arange(len(tokens), device=tokens.device), stream.context["end"]]
    read, projection = text.ln_final(read), text.text_projection
    if projection is None:
        return unit(read)
    return unit(projection(read) if isinstance(projection, nn.Module) else read @ projection)


def _vision_tower(library: Any, head_numbers: HeadNumbers) -> Tower:  # noqa: ANN401 - as above
    visual = library.visual
    readout = ("visual.attn_pool", "visual.ln_post", "visual.proj")
    inside = ("visual.transformer", *readout)

    return Tower(
        embed=FunctionModule(
            part(library, lambda name: name.startswith("visual.") and not name.startswith(inside)),
            _embed_images,
        ),
        blocks=_blocks(visual.transformer, head_numbers),
        readout=FunctionModule(part(library, lambda name: name.startswith(readout)), _read_images),
        read_tokens=slice(0, 1) if (visual.attn_pool is None and visual.pool_type == "tok") else None,
        names=_names("visual.transformer"),
    )


def _embed_images(host: Any, images: torch.Tensor) -> Stream:  # noqa: ANN401 - as above
    return Stream(host.visual._embeds(images))


def _read_images(host: Any, stream: Stream) -> torch.Tensor:  # noqa: ANN401 - as above
    pooled, _ = host.visual._pool(stream.tokens)
    return unit(pooled if host.visual.proj is None else pooled @ host.visual.proj)


def _trunk_tower(library: Any, head_numbers: HeadNumbers) -> Tower:  # noqa: ANN401 - as above
    trunk, prefix = library.visual.trunk, "visual.trunk."
    readout = ("visual.head", *(f"{prefix}{name}." for name in timm.READOUT))
    inside = (f"{prefix}blocks.", *readout)
    return Tower(
        embed=FunctionModule(
            part(library, lambda name: name.startswith(prefix) and not f"{name}.".startswith(inside)),
            _embed_by_trunk,
        ),
        blocks=timm.blocks(trunk, head_numbers),
        readout=FunctionModule(
            part(library, lambda name: f"{name}.".startswith(readout)),
            _read_by_trunk,
        ),
        read_tokens=timm.tokens_read(trunk),
        names=timm.block_names(trunk, prefix),
    )


def _embed_by_trunk(host: Any, images: torch.Tensor) -> Stream:  # noqa: ANN401 - as above
    return timm.embed(host.visual.trunk, images)


def _read_by_trunk(host: Any, stream: Stream) -> torch.Tensor:  # noqa: ANN401 - as above
    return unit(host.visual.head(timm.read(host.visual.trunk, stream)))


def _blocks(transformer: Any, head_numbers: HeadNumbers) -> list[Block]:  # noqa: ANN401 - as above
    return [
        OpenClipBlock(layer, heads) for layer, heads in zip(transformer.resblocks, head_numbers, strict=True)
    ]


def _names(transformer: str) -> dict[str, str]:
    return {ours: f"{transformer}.resblocks.{{layer}}.{theirs}" for ours, theirs in NAMES.items()}
