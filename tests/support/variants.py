"""The architecture variants that the contracts run over, a table for each family."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn


@dataclass(frozen=True, eq=False)
class Variant:
    """One architecture, shrunk; `name` is what the test is called."""

    family: str
    name: str
    arch: str
    options: dict[str, object]

    def __str__(self) -> str:
        return f"{self.family}-{self.name}"


TINY: dict[str, object] = {
    "img_size": 8, "patch_size": 4, "in_chans": 1, "embed_dim": 32, "depth": 3, "num_heads": 4, "num_classes": 7,
}  # fmt: skip
TIMM_VIT: dict[str, tuple[str, dict[str, object]]] = {
    "class-token": ("vit_tiny_patch16_224", {}),
    "average-pool": ("vit_base_patch16_siglip_gap_224", {}),
    "average-pool-with-class-token": ("vit_tiny_patch16_224", {"global_pool": "avg"}),
    "pool-all-tokens": ("vit_tiny_patch16_224", {"global_pool": "avg", "pool_include_prefix": True}),
    "max-pool": ("vit_tiny_patch16_224", {"global_pool": "avgmax"}),
    "map-pool": ("vit_base_patch16_siglip_224", {}),
    "prr-pool": ("vit_tiny_patch16_224", {"global_pool": "prr"}),
    "registers": ("vit_base_patch14_reg4_dinov2", {}),
    "embedded-registers": ("vit_tiny_patch16_224", {"reg_tokens": 3}),
    "layer-scale": ("vit_tiny_patch16_224", {"init_values": 1e-5}),
    "swiglu": ("vit_giant_patch14_dinov2", {"mlp_ratio": 4.0}),
    "rms-norm-swiglu": ("aimv2_large_patch14_224", {}),
    "pre-norm": ("vit_base_patch32_clip_224", {}),
    "qk-norm": ("vit_tiny_patch16_224", {"qk_norm": True}),
    "distilled": ("deit_tiny_distilled_patch16_224", {}),
    "distilled-dynamic": ("deit_tiny_distilled_patch16_224", {"dynamic_img_size": True}),
    "res-post": ("vit_base_patch16_rpn_224", {}),
    "no-qkv-bias": ("vit_tiny_patch16_224", {"qkv_bias": False}),
    "no-projection-bias": ("vit_tiny_patch16_224", {"proj_bias": False}),
    "mlp-norm": ("vit_tiny_patch16_224", {"scale_mlp_norm": True}),
    "no-position": ("vit_tiny_patch16_224", {"pos_embed": "none"}),
    "dynamic-size": ("vit_tiny_patch16_224", {"dynamic_img_size": True}),
    "hybrid": ("vit_tiny_r_s16_p8_224", {"img_size": 32, "patch_size": 1, "in_chans": 3}),
}
VARIANTS: tuple[Variant, ...] = tuple(
    Variant("timm-vit", name, arch, TINY | options) for name, (arch, options) in TIMM_VIT.items()
)
PLAIN = VARIANTS[0]


def variant(name: str) -> Variant:
    """Return a variant by its short name."""
    return next(v for v in VARIANTS if v.name == name)


def _timm(arch: str, options: dict[str, object]) -> nn.Module:
    import timm

    model: nn.Module = timm.create_model(arch, pretrained=False, **options)
    return model


LIBRARY: MappingProxyType[str, Callable[[str, dict[str, Any]], nn.Module]] = MappingProxyType(
    {"timm-vit": _timm}
)
