"""The tower of timm's `Eva`, out of timm's own modules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from timm.models.eva import EvaBlockPostNorm
from torch import nn

from hydractl.families.attention import HeadGroup, HeadParts, Side
from hydractl.families.dismantling import part
from hydractl.families.timm.vit_modules import READOUT_PARTS, PreNormBlock, ResPostNormBlock, VitReadout
from hydractl.families.tower import Hosted, Model, Stream, Tower

if TYPE_CHECKING:
    from hydractl.families.timm.models import Kept

NAMES = {
    "attn.members.0.q.": "attn.q_proj.",
    "attn.members.0.k.": "attn.k_proj.",
    "attn.members.0.v.": "attn.v_proj.",
    "attn.members.0.": "attn.",
    "ls1.gamma": "gamma_1",
    "ls2.gamma": "gamma_2",
    "": "",
}
"""For each part of a block the library's name."""


class EvaEmbed(Hosted):
    """Patches, prefix tokens, position embedding; the angles of the rotary embedding beside them."""

    def forward(self, images: torch.Tensor) -> Stream:
        """Return the stream of images (B, C, height, width); constant `rope` is (1, L or 1, 2, H or 1, T, K)."""
        host: Any = self.host
        tokens, rope = host._pos_embed(host.patch_embed(images))
        tokens = host.norm_pre(tokens)
        if rope is None:
            return Stream(tokens)
        return Stream(tokens, constants={"rope": _for_heads(rope, host.num_prefix_tokens)})


class LayerScale(nn.Module):
    """A factor for each feature, which `EvaBlock` holds itself."""

    def __init__(self, gamma: nn.Parameter) -> None:
        super().__init__()
        self.gamma = gamma

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x (N, T, D) scaled."""
        return self.gamma * x


class EvaPreNormBlock(PreNormBlock):
    """timm's `EvaBlock`: norm, attention, scale, residual; norm, MLP, scale, residual."""

    def __init__(self, library: Any, attn: HeadGroup, *, layer: int) -> None:  # noqa: ANN401 - timm is untyped
        super().__init__(library, attn)
        self.layer = layer
        self.ls1, self.ls2 = _scale(library.gamma_1), _scale(library.gamma_2)

    def heads(self, stream: Stream, queries: slice | None = None) -> torch.Tensor:
        """See `Block.heads`."""
        return self.attn.heads(self.norm1(stream.tokens), queries, _side(stream, self.layer))


class EvaPostNormBlock(ResPostNormBlock):
    """timm's `EvaBlockPostNorm`: attention, norm, residual; MLP, norm, residual."""

    def __init__(self, library: Any, attn: HeadGroup, *, layer: int) -> None:  # noqa: ANN401 - timm is untyped
        super().__init__(library, attn)
        self.layer = layer

    def heads(self, stream: Stream, queries: slice | None = None) -> torch.Tensor:
        """See `Block.heads`."""
        return self.attn.heads(stream.tokens, queries, _side(stream, self.layer))


def wrap(library: Any, kept: Kept) -> Model:  # noqa: ANN401 - timm is untyped
    """Return the model whose parts are the library model's own modules; `kept` are each layer's heads."""
    _compute_buffers(library)
    blocks = [
        (EvaPostNormBlock if isinstance(block, EvaBlockPostNorm) else EvaPreNormBlock)(
            block, head_group(block.attn, heads), layer=i
        )
        for i, (block, heads) in enumerate(zip(library.blocks, kept, strict=True))
    ]
    return Model(
        {
            "vision": Tower(
                embed=EvaEmbed(part(library, lambda n: n.split(".")[0] not in {"blocks", *READOUT_PARTS})),
                blocks=blocks,
                readout=VitReadout(part(library, lambda n: n.split(".")[0] in READOUT_PARTS)),
                reads=slice(0, 1) if library.global_pool == "token" else None,
                names={ours: f"blocks.{{layer}}.{theirs}" for ours, theirs in NAMES.items()},
            )
        }
    )


def head_group(attention: Any, kept: tuple[int, ...]) -> HeadGroup:  # noqa: ANN401 - timm is untyped
    """Return the kept heads of timm's `EvaAttention` or `AttentionRope`, whose tensors are already cut.

    The bias of the keys that `EvaAttention` has is always zero.
    """
    return HeadGroup(
        HeadParts(
            kept=kept,
            head_dim=attention.head_dim,
            scale=attention.scale,
            qkv=attention.qkv,
            q=attention.q_proj,
            k=attention.k_proj,
            v=attention.v_proj,
            q_bias=getattr(attention, "q_bias", None),
            v_bias=getattr(attention, "v_bias", None),
            q_norm=attention.q_norm,
            k_norm=attention.k_norm,
            gate=attention.gate,
            dropout=attention.attn_drop.p,
            proj=attention.proj,
            proj_drop=attention.proj_drop,
            rotation="half" if attention.rotate_half else "pairs",
        )
    )


def angles(library: Any) -> torch.Tensor:  # noqa: ANN401 - timm is untyped
    """Return sines and cosines of a model's rotary embedding: (T, 2 K), or (L, H, T, 2 K) where heads have their own."""
    found: torch.Tensor = library.rope.get_embed(shape=library.patch_embed.grid_size)
    return found


def _for_heads(rope: torch.Tensor, prefix: int) -> torch.Tensor:
    """Return (1, L or 1, 2, H or 1, T, K) of timm's sines and cosines; tokens before the patches are not turned."""
    rope = rope[None, None] if rope.ndim == 2 else rope
    sin, cos = rope.chunk(2, dim=-1)
    shape = (*cos.shape[:-2], prefix, cos.shape[-1])
    cos = torch.cat((cos.new_ones(shape), cos), dim=-2)
    sin = torch.cat((sin.new_zeros(shape), sin), dim=-2)
    return torch.stack((cos, sin), dim=1).unsqueeze(0)


def _side(stream: Stream, layer: int) -> Side:
    rope = stream.constants.get("rope")
    if rope is None:
        return Side()
    return Side(rope=rope[:, layer if rope.shape[1] > 1 else 0])


def _scale(gamma: nn.Parameter | None) -> nn.Module:
    return nn.Identity() if gamma is None else LayerScale(gamma)


def _compute_buffers(library: Any) -> None:  # noqa: ANN401 - timm is untyped
    """Compute what no state dict has, unless the weights themselves are on the meta device."""
    weight = library.patch_embed.proj.weight
    if library.rope is None or weight.is_meta:
        return
    for module in library.rope.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = torch.empty_like(buffer, device=weight.device)
    library.rope.init_non_persistent_buffers()
    library.rope.to(weight.dtype)  # as the library's own, which is converted whole
