"""timm's `VisionTransformer` and `VisionTransformerDistilled` with plain attention.

Covered by the attention module: fused qkv with or without biases, q/k norms of one head's width, elementwise output
gates. Not covered, and refused by name: anything in which a head's share is not a slice of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hydractl.families.base import HeadTensor, Role, TowerLayout
from hydractl.families.timm.models import SUB_LN, Kind, family_of_kind, no_classifier

if TYPE_CHECKING:
    from hydractl.families.timm.models import Kept
    from hydractl.families.tower import Model

REFUSED_MODELS = {
    "VisionTransformerRelPos": "its relative position bias has a row of its own for each head",
    "Beit": "its relative position bias has a column of its own for each head",
    "Cait": "its talking heads mix the heads with one another",
}
REFUSED_BLOCKS = {
    "ParallelScalingBlock": "attention and MLP share one matrix, in parallel",
    "DiffParallelScalingBlock": "attention and MLP share one matrix, and each value head has two query heads",
    "ParallelThingsBlock": "a block holds several attentions in parallel",
}
REFUSED_ATTENTIONS = {"DiffAttention": "each value head has two query and two key heads"}


def refusal(library: Any) -> str | None:  # noqa: ANN401 - timm is untyped
    """Return why heads cannot be cut out of a timm model, or None if they can."""
    from timm.layers import Attention
    from timm.models.deit import VisionTransformerDistilled
    from timm.models.vision_transformer import Block, ResPostBlock, VisionTransformer
    from torch import nn

    kind = type(library).__name__
    if type(library) not in {VisionTransformer, VisionTransformerDistilled}:
        return f"class {kind}: {REFUSED_MODELS.get(kind, 'not a plain vision transformer')}"
    if reason := no_classifier(library):
        return reason
    for block in library.blocks:
        if type(block) not in {Block, ResPostBlock}:
            name = type(block).__name__
            return f"{name}: {REFUSED_BLOCKS.get(name, 'an unknown block')}"
        if type(block.attn) is not Attention:
            name = type(block.attn).__name__
            return f"{name}: {REFUSED_ATTENTIONS.get(name, 'an unknown attention')}"
        if not isinstance(block.attn.norm, nn.Identity):
            return SUB_LN
    return None


def _wrap(library: Any, kept: Kept) -> Model:  # noqa: ANN401 - as above
    from hydractl.families.timm.vit_modules import wrap

    return wrap(library, kept)


TIMM_VIT = family_of_kind(
    Kind(
        name="timm-vit",
        covers="`VisionTransformer`, `VisionTransformerDistilled`: ViT, DeiT, DINOv2, SigLIP, CLIP, AIMv2, hybrids",
        refuses="relative position biases: a row for each head; talking heads; parallel blocks; differential attention; "
        "sub-LN: one norm over all heads",
        layout=TowerLayout(
            block="blocks.{layer}.",
            heads=(
                HeadTensor(name="attn.qkv.weight", axis=0, copies=3, role=Role.INPUT),
                HeadTensor(name="attn.qkv.bias", axis=0, copies=3, role=Role.BIAS),
                HeadTensor(name="attn.gate.weight", axis=0, copies=1, role=Role.GATE),
                HeadTensor(name="attn.gate.bias", axis=0, copies=1, role=Role.BIAS),
                HeadTensor(name="attn.proj.weight", axis=1, copies=1, role=Role.OUTPUT),
            ),
            attention=("attn.",),
            mlp=("mlp.",),
            readout=("norm.", "fc_norm.", "attn_pool."),
            head=("head.", "head_dist."),
        ),
        claims=lambda _: True,
        refusal=refusal,
        wrap=_wrap,
        # timm fills even meta tensors with random numbers, for most of the time that building takes
        build_options={"weight_init": "skip"},
    )
)
