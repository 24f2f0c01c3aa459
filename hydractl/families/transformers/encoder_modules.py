"""The tower of a transformers encoder, out of the library's own modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, cast

import torch
from torch import nn
from typing_extensions import override

from hydractl.families.attention import Attention
from hydractl.families.attention_bias import AttentionExtras, PositionBias, looked_up
from hydractl.families.head_group import HeadGroup, HeadParts
from hydractl.families.stream import Product, Stream, residual
from hydractl.families.surgery import PRE_NORM, FunctionModule, HeadNumbers, LayerScale, part
from hydractl.families.tower import Block, Tower
from hydractl.families.transformers.encoder import EncoderNames, heads_of

FULL, LOCAL = "full_attention", "sliding_attention"
"""Layer types: attention to all tokens, and to neighbouring tokens only."""


class EncoderBlock(Block):
    """What blocks have in common whatever the order of their norms.

    Attributes:
        kind: Which tokens the block's look at; the stream holds angles by it, and a mask where not all look at all.
    """

    kind = FULL

    def __init__(self, layer: nn.Module, group: HeadGroup, encoder: EncoderNames) -> None:
        super().__init__()
        self.attn = Attention([group])
        self.norm1, self.norm2 = (layer.get_submodule(name) for name in encoder.norms)
        mlp = [layer.get_submodule(name) for name in encoder.mlp]
        self.mlp = mlp[0] if len(mlp) == 1 else nn.Sequential(*mlp)
        self.drop = _drop(layer, encoder, 1)
        self.drop_path = layer.get_submodule("drop_path") if encoder.drop_path else nn.Identity()

    @property
    @override
    def adds(self) -> bool:
        return True

    def side(self, stream: Stream) -> AttentionExtras:
        """Return what attention needs beside the tokens, of what the stream has: mask, angles, bias, positions."""
        context, constants = stream.context, stream.constants
        mask = context.get(self.kind, context.get("mask"))
        if not constants:
            return AttentionExtras(mask)
        return AttentionExtras(
            mask, *(constants.get(name) for name in (self.kind, "bias", "positions", "rows"))
        )


class PostNormBlock(EncoderBlock):
    """Attention, residual, norm; MLP, residual, norm (Vaswani et al. 2017)."""

    @override
    def heads(self, stream: Stream, queries: slice | None = None) -> torch.Tensor:
        return self.attn.heads(stream.tokens, queries, self.side(stream))

    @override
    def join(self, stream: Stream, y: torch.Tensor | Product) -> Stream:
        x = self.norm1(residual(stream.tokens, y, self.drop_path))
        return stream.with_tokens(self.norm2(residual(x, self.mlp(x), self.drop, self.drop_path)))


class PreNormBlock(EncoderBlock):
    """Norm, attention, scale, residual; norm, MLP, scale, residual."""

    @property
    @override
    def feeds(self) -> Mapping[str, str]:
        return PRE_NORM

    def __init__(self, layer: nn.Module, group: HeadGroup, encoder: EncoderNames) -> None:
        super().__init__(layer, group, encoder)
        self.scale1, self.scale2 = (_scale(layer, name) for name in encoder.scales or ("", ""))

    @override
    def heads(self, stream: Stream, queries: slice | None = None) -> torch.Tensor:
        return self.attn.heads(self.norm1(stream.tokens), queries, self.side(stream))

    @override
    def join(self, stream: Stream, y: torch.Tensor | Product) -> Stream:
        x = residual(stream.tokens, y, self.scale1, self.drop_path)
        return stream.with_tokens(
            residual(x, self.mlp(self.norm2(x)), self.drop, self.scale2, self.drop_path)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """What stands before and after the blocks of a tower.

    Attributes:
        embed: Make a `Stream` of inputs, given the library's model.
        read: Make the tower's output (N, F) of a `Stream`, given the library's model.
        reads: See `Tower`.
    """

    embed: Callable[[Any, Any], Stream]
    read: Callable[[Any, Stream], torch.Tensor]
    reads: slice | None = None


def tower(
    library: nn.Module,
    encoder: EncoderNames,
    head_numbers: HeadNumbers,
    ends: Ends,
    *,
    group: Callable[[HeadParts, Any], HeadGroup] = lambda parts, _: HeadGroup(parts),
    block: type[EncoderBlock] | None = None,
) -> Tower:
    """Return a tower whose parts are the library model's own modules.

    Args:
        library: The model, its tensors cut to the heads that are kept.
        encoder: What it calls its parts.
        head_numbers: Each layer's heads.
        ends: What stands around the blocks.
        group: Make a layer's heads of what all have and the library's layer.
        block: What blocks are, where that is more than the order of their norms tells.
    """
    config: Any = library.get_submodule(encoder.model).config
    make = block or (PostNormBlock if encoder.post_norm else PreNormBlock)
    if (shared := _optional_part(library.get_submodule(encoder.model), encoder.shared_bias)) is not None:
        shared.register_buffer("index", _index(shared), persistent=False)  # to be where the table is
    before, after = encoder.before, (*encoder.after, *encoder.classifier)
    layers: Any = library.get_submodule(encoder.blocks)
    return Tower(
        embed=FunctionModule(part(library, lambda name: f"{name}.".startswith(before)), ends.embed),
        blocks=[
            make(layer, group(_head_parts(layer, heads, encoder, config), layer), encoder)
            for layer, heads in zip(layers, head_numbers, strict=True)
        ],
        readout=FunctionModule(part(library, lambda name: f"{name}.".startswith(after)), ends.read),
        reads=ends.reads,
        names=encoder.tensors(),
    )


def embed_images(host: nn.Module, images: torch.Tensor, encoder: EncoderNames) -> Stream:
    """Return the stream of images (B, C, height, width): patches, prefix tokens, positions, norm.

    A bias that all layers share is a constant `bias` (1, H, T, T).
    """
    model = host.get_submodule(encoder.model)
    parts, shared = dict(model.named_children()), _optional_part(model, encoder.shared_bias)
    tokens: Any = images
    for name in encoder.embed:
        tokens = parts[name](tokens) if name in parts else tokens
    return Stream(
        tokens[0] if isinstance(tokens, tuple) else tokens,  # data2vec's tells the grid, too
        constants={}
        if shared is None
        else {"bias": looked_up(shared.relative_position_bias_table, shared.index)},
    )


def key_mask(texts: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return which keys are tokens and not padding, (B, 1, 1, T); all are where no mask is given, as in the library."""
    mask = texts.get("attention_mask")
    token_mask = torch.ones_like(texts["input_ids"]) if mask is None else mask
    return token_mask.bool()[:, None, None, :]


def _head_parts(
    layer: nn.Module,
    head_numbers: tuple[int, ...],
    encoder: EncoderNames,
    config: Any,  # noqa: ANN401 - as above
) -> HeadParts:
    *inputs, proj = (cast("nn.Linear", layer.get_submodule(name)) for name in (*encoder.qkv, encoder.output))
    fused, (q, k, v) = (inputs[0], (None,) * 3) if len(inputs) == 1 else (None, inputs)
    shape, position_bias = heads_of(config), _optional_part(layer, encoder.bias)
    norms = [_optional_part(layer, name) or nn.Identity() for name in encoder.head_norms or ("", "")]
    return HeadParts(
        head_numbers=head_numbers,
        head_dim=shape.head_dim,
        scale=shape.head_dim**-0.5,
        sharing=shape.sharing,
        q_norm=norms[0],
        k_norm=norms[1],
        qkv=fused,
        q=q,
        k=k,
        v=v,
        proj=proj,
        proj_drop=_drop(layer, encoder, 0),
        bias=None
        if position_bias is None
        else PositionBias(position_bias.relative_position_bias_table, _index(position_bias)),
        dropout=getattr(config, encoder.attention_dropout),
    )


def _optional_part(holder: nn.Module, name: str) -> Any:  # noqa: ANN401 - as above
    """Return a part that not all models have, None if it is not there."""
    return dict(holder.named_modules()).get(name) if name else None


def _index(bias: Any) -> torch.Tensor:  # noqa: ANN401 - as above
    """Return what the library's bias of relative positions looks up, (T, T), for images of the size that it was made for.

    A copy, as the library keeps its own for all who ask, which may have been made where nothing is trained.
    """
    index: torch.Tensor = bias.generate_relative_position_index(bias.window_size)
    return index.clone()


def _drop(layer: nn.Module, encoder: EncoderNames, after: int) -> nn.Module:
    name = encoder.drops[after] if encoder.drops else ""
    return layer.get_submodule(name) if name else nn.Identity()


def _scale(layer: nn.Module, name: str) -> nn.Module:
    gamma = attrgetter(name)(layer) if name else None  # BEiT has the number 1 for none, data2vec has None
    return LayerScale(gamma) if isinstance(gamma, nn.Parameter) else nn.Identity()


def set_aside(library: nn.Module, prefixes: tuple[str, ...]) -> None:
    """Keep parameters that nothing depends on as buffers, which have no gradient and which training must not move.

    Members that differ in them alone are the same.
    """
    for path, module in library.named_modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if f"{path}.{name}".startswith(prefixes):
                del module._parameters[name]
                module.register_buffer(name, parameter.detach())
                module.__dict__["aside"] = {*module.__dict__.get("aside", ()), name}
