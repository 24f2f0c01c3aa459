"""Towers built from the modules of timm's vision transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from timm.layers import RelPosMlp
from timm.models import beit, deit, eva, vision_transformer, vision_transformer_relpos
from torch import nn
from typing_extensions import override

from hydractl.families.attention import (
    Attention,
    AttentionExtras,
    HeadBias,
    HeadGroup,
    HeadParts,
    PositionBias,
    SharedDropout,
)
from hydractl.families.stream import Product, Stream, compute_product, only_rows, residual, shallow_copy
from hydractl.families.tower import (
    PRE_NORM,
    Block,
    FunctionModule,
    HeadNumbers,
    LayerScale,
    Model,
    Tower,
    part,
)

READOUT = ("norm", "attn_pool", "fc_norm", "head_drop", "head", "head_dist")
NORMS_LAST = (
    vision_transformer.ResPostBlock,
    eva.EvaBlockPostNorm,
    vision_transformer_relpos.ResPostRelPosBlock,
)
NAMES = {
    "attn.members.0.q.": "attn.q_proj.",
    "attn.members.0.k.": "attn.k_proj.",
    "attn.members.0.v.": "attn.v_proj.",
    "attn.members.0.bias.host.": "attn.rel_pos.",
    "attn.members.0.bias.table": "attn.relative_position_bias_table",
    "attn.members.0.": "attn.",
    "": "",
}
"""Library's name of each part of a block."""
OWN_SCALES = {"ls1.gamma": "gamma_1", "ls2.gamma": "gamma_2"}
"""Library's names if the block has its layer scales as parameters."""


class TimmBlock(Block):
    """A block of timm: norm, attention, scale, residual; norm, MLP, scale, residual.

    Classes in `NORMS_LAST` have norms in place of the scales, before the residual. All modules are the
    library's; missing ones are identities.
    """

    feeds: Mapping[str, str] = PRE_NORM
    adds = True
    norm1: nn.Module
    norm2: nn.Module
    mlp: nn.Module
    ls1: nn.Module
    ls2: nn.Module
    drop_path1: nn.Module
    drop_path2: nn.Module

    def __init__(self, library: Any, head_numbers: tuple[int, ...], *, layer: int) -> None:  # noqa: ANN401 - as above
        super().__init__()
        self.layer = layer
        self.norms_last = isinstance(library, NORMS_LAST)
        if self.norms_last:
            self.feeds, self.adds = {}, False
        children = dict(library.named_children())
        for name, gamma in (("ls1", "gamma_1"), ("ls2", "gamma_2")):
            scale = library._parameters.get(gamma)
            children.setdefault(name, nn.Identity() if scale is None else LayerScale(scale))
        for name, child in children.items():
            self.add_module(name, Attention([head_group(child, head_numbers)]) if name == "attn" else child)

    @override
    def heads(self, stream: Stream, queries: slice | None = None) -> torch.Tensor:
        x = stream.tokens if self.norms_last else self.norm1(stream.tokens)
        if not stream.constants:
            return self.attn.heads(x, queries)
        rope = stream.constants.get("rope")
        if rope is not None:
            rope = rope[:, self.layer if rope.shape[1] > 1 else 0]
        return self.attn.heads(x, queries, AttentionExtras(rope=rope, bias=stream.constants.get("bias")))

    @override
    def join(self, stream: Stream, y: torch.Tensor | Product) -> Stream:
        if self.norms_last:
            x = stream.tokens + self.drop_path1(self.norm1(compute_product(y)))
            return stream.with_tokens(x + self.drop_path2(self.norm2(self.mlp(x))))
        x = residual(stream.tokens, y, self.ls1, self.drop_path1)
        return stream.with_tokens(residual(x, self.mlp(self.norm2(x)), self.ls2, self.drop_path2))


class HostedBias(HeadBias):
    """Position bias of timm: `RelPosBias` (a table) or `RelPosMlp` (a network with an output per head)."""

    def __init__(self, host: Any, heads: int) -> None:  # noqa: ANN401 - as above
        super().__init__()
        self.host = host
        host.num_heads, host.bias_shape = heads, (*host.bias_shape[:2], heads)

    @override
    def forward(self) -> torch.Tensor:
        return cast("torch.Tensor", self.host.get_bias())

    @override
    def select(self, positions: Sequence[int]) -> HostedBias:
        host: Any = shallow_copy(self.host)
        if "mlp" in host._modules:
            host.mlp = shallow_copy(host.mlp)
            host.mlp.fc2 = only_rows(host.mlp.fc2, torch.tensor(positions).long())
        else:
            table = host.relative_position_bias_table.detach()
            host.relative_position_bias_table = nn.Parameter(table[:, list(positions)])
        return HostedBias(host, len(positions))


def wrap(library: Any, head_numbers: HeadNumbers) -> Model:  # noqa: ANN401 - timm is untyped
    """Return a model built from the library model's own modules.

    Args:
        library: The model, with tensors already cut to the kept heads.
        head_numbers: Kept heads of each layer.
    """
    complete(library)
    return Model(
        {
            "vision": Tower(
                embed=FunctionModule(
                    part(library, lambda n: n.split(".")[0] not in {"blocks", *READOUT}), embed
                ),
                blocks=blocks(library, head_numbers),
                readout=FunctionModule(part(library, lambda n: n.split(".")[0] in READOUT), read),
                read_tokens=tokens_read(library),
                names=block_names(library),
            )
        }
    )


def embed(library: Any, images: torch.Tensor) -> Stream:  # noqa: ANN401 - as above
    """Return the stream of images (B, C, height, width): patches, prefix tokens, position embedding.

    Optional constants of the stream: `rope` (1, L or 1, 2, H or 1, T, K) and `bias` (1, H, T, T).
    """
    tokens = library.patch_embed(images)
    if isinstance(library, vision_transformer.VisionTransformer):
        return Stream(library.norm_pre(library.patch_drop(library._pos_embed(tokens))))
    if isinstance(library, eva.Eva):
        tokens, rope = library._pos_embed(tokens)
        constants = {} if rope is None else {"rope": _for_heads(rope, library.num_prefix_tokens)}
        return Stream(library.norm_pre(tokens), constants=constants)
    if library.cls_token is not None:
        tokens = torch.cat((library.cls_token.expand(tokens.shape[0], -1, -1), tokens), dim=1)
    if isinstance(library, beit.Beit):
        tokens = library.pos_drop(tokens if library.pos_embed is None else tokens + library.pos_embed)
        bias = None if library.rel_pos_bias is None else library.rel_pos_bias().unsqueeze(0)
    else:
        bias = None if library.shared_rel_pos is None else library.shared_rel_pos.get_bias()
    return Stream(tokens, constants={} if bias is None else {"bias": bias})


def read(library: Any, stream: Stream) -> torch.Tensor:  # noqa: ANN401 - as above
    """Return logits (N, C): final norm, pooling and classifier."""
    return cast("torch.Tensor", library.forward_head(library.norm(stream.tokens)))


def blocks(library: Any, head_numbers: HeadNumbers) -> list[TimmBlock]:  # noqa: ANN401 - as above
    """Return the blocks of a timm model with tensors already cut to the kept heads."""
    return [
        TimmBlock(block, heads, layer=i)
        for i, (block, heads) in enumerate(zip(library.blocks, head_numbers, strict=True))
    ]


def block_names(library: Any, prefix: str = "") -> Mapping[str, str]:  # noqa: ANN401 - as above
    """Return the argument `names` of `Tower` for a timm model under the name `prefix`."""
    names = NAMES | OWN_SCALES if "gamma_1" in library.blocks[0]._parameters else NAMES
    return {ours: f"{prefix}blocks.{{layer}}.{theirs}" for ours, theirs in names.items()}


def tokens_read(library: Any) -> slice | None:  # noqa: ANN401 - as above
    """Return the tokens that the readout reads, or None for all."""
    if isinstance(library, deit.VisionTransformerDistilled):
        return slice(0, 2)
    pooled = "attn_pool" in library._modules and library.attn_pool is not None
    return slice(0, 1) if library.global_pool == "token" and not pooled else None


def head_group(attention: Any, head_numbers: tuple[int, ...]) -> HeadGroup:  # noqa: ANN401 - as above
    """Return the heads of a timm attention with tensors already cut to the kept heads.

    A stored bias of keys next to biases of queries and values is always zero, and is left out.
    """
    modules, parameters = attention._modules, attention._parameters
    return HeadGroup(
        HeadParts(
            head_numbers=head_numbers,
            head_dim=head_width(attention),
            scale=attention.scale,
            qkv=modules.get("qkv"),
            q=modules.get("q_proj"),
            k=modules.get("k_proj"),
            v=modules.get("v_proj"),
            q_bias=parameters.get("q_bias"),
            v_bias=parameters.get("v_bias"),
            **{name: modules[name] for name in ("q_norm", "k_norm") if name in modules},
            gate=modules.get("gate"),
            bias=_head_bias(attention, len(head_numbers)),
            dropout=attention.attn_drop.p,
            proj=attention.proj,
            proj_drop=attention.proj_drop,
            rotation="half" if getattr(attention, "rotate_half", False) else "pairs",
        )
    )


def head_width(attention: Any) -> int:  # noqa: ANN401 - as above
    """Return K. All attentions of timm have a scale, but not all store the head width."""
    width: float = attention.scale**-2
    return round(width)


def _head_bias(attention: Any, heads: int) -> HeadBias | None:  # noqa: ANN401 - as above
    if (table := attention._parameters.get("relative_position_bias_table")) is not None:
        return PositionBias(table, attention.relative_position_index)
    position_bias = attention._modules.get("rel_pos")
    return None if position_bias is None else HostedBias(position_bias, heads)


def angles(library: Any) -> torch.Tensor:  # noqa: ANN401 - timm is untyped
    """Return sines and cosines of Eva's rotary embedding: (T, 2 K), or (L, H, T, 2 K) for angles per head."""
    return cast("torch.Tensor", library.rope.get_embed(shape=library.patch_embed.grid_size))


def _for_heads(rope: torch.Tensor, prefix: int) -> torch.Tensor:
    """Reshape timm's sines and cosines to (1, L or 1, 2, H or 1, T, K). Prefix tokens are not rotated."""
    rope = rope[None, None] if rope.ndim == 2 else rope
    sin, cos = rope.chunk(2, dim=-1)
    shape = (*cos.shape[:-2], prefix, cos.shape[-1])
    cos = torch.cat((cos.new_ones(shape), cos), dim=-2)
    sin = torch.cat((sin.new_zeros(shape), sin), dim=-2)
    return torch.stack((cos, sin), dim=1).unsqueeze(0)


def complete(library: Any) -> None:  # noqa: ANN401 - timm is untyped
    """Prepare a library model for `part`: compute missing buffers, and mark dropout without a sample axis.

    Non-persistent buffers are computed by the library's code, unless the weights are on the meta device. In
    networks for tables of biases, all samples share the dropout mask.
    """
    for module in library.modules():
        if isinstance(module, RelPosMlp):
            module.mlp.drop1, module.mlp.drop2 = (
                SharedDropout(drop.p) for drop in (module.mlp.drop1, module.mlp.drop2)
            )
    weight = next(library.patch_embed.parameters())
    if weight.is_meta:
        return
    for module in library.modules():
        if not hasattr(module, "init_non_persistent_buffers"):
            continue
        missing_buffers = {name: x for name, x in module._buffers.items() if x is not None and x.is_meta}
        for name, buffer in missing_buffers.items():
            module._buffers[name] = torch.empty_like(buffer, device=weight.device)
        module.init_non_persistent_buffers()
        for name, buffer in missing_buffers.items():
            if buffer.is_floating_point():  # to the dtype of the weights, as if the whole model had been cast
                module._buffers[name] = module._buffers[name].to(weight.dtype)
