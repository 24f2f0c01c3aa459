"""Small architectures in timm's registry, because open_clip and timm's hybrids have no options for sizes."""

from __future__ import annotations

from functools import partial

import timm
from timm.layers import BatchNormAct2d, HybridEmbed
from timm.models import register_model
from torch import nn

SIZES = {"img_size": 12, "patch_size": 4, "embed_dim": 32, "depth": 3, "num_heads": 4}


@register_model
def tiny_trunk_map(*, pretrained: bool = False, **options: object) -> nn.Module:
    return _tiny("vit_base_patch16_siglip_224", pretrained, options)


@register_model
def tiny_trunk_rope(*, pretrained: bool = False, **options: object) -> nn.Module:
    return _tiny("vit_pe_core_tiny_patch16_384", pretrained, options)


@register_model
def tiny_trunk_post_norm(*, pretrained: bool = False, **options: object) -> nn.Module:
    return _tiny("eva02_enormous_patch14_clip_224", pretrained, options)


@register_model
def tiny_trunk_relpos(*, pretrained: bool = False, **options: object) -> nn.Module:
    return _tiny("vit_relpos_medium_patch16_cls_224", pretrained, options)


@register_model
def tiny_batch_norm(*, pretrained: bool = False, **options: object) -> nn.Module:
    """Return a hybrid with running statistics in the stem, like timm's hybrids with ResNets."""
    stem = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False), BatchNormAct2d(8))
    embed = partial(HybridEmbed, backbone=stem)
    return _tiny("vit_tiny_patch16_224", pretrained, {"embed_layer": embed, "patch_size": 1} | options)


def _tiny(name: str, pretrained: bool, options: dict[str, object]) -> nn.Module:
    made: nn.Module = timm.create_model(name, pretrained=pretrained, **SIZES | options)
    return made
