"""Shrunken architectures of timm: two blocks, the smallest image, and at most four heads if possible."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import timm
import torch
from architectures_check import DEPTH, Case

from hydractl.errors import UnsupportedModelError
from hydractl.families.registry import family_for_name
from hydractl.families.timm.modules import head_width
from hydractl.heads.masks import full_mask
from hydractl.manifest.header import Preprocess

if TYPE_CHECKING:
    from hydractl.families.base import ModelDescription

MODULES = (
    "vision_transformer", "vision_transformer_hybrid", "vision_transformer_relpos", "deit", "vitamin", "beit", "beit3",
    "eva",
)  # fmt: skip
NUM_CLASSES = 7
MAX_HEADS = 4


def cases(*, everything: bool = False) -> list[Case]:
    """Return a case for each architecture of the supported modules, or for all architectures of timm."""
    names = (
        timm.list_models()
        if everything
        else {name for module in MODULES for name in timm.list_models(module=module)}
    )
    return [Case(name=n, describe=partial(described, n), shrink=partial(shrunk, n)) for n in sorted(names)]


def described(name: str) -> ModelDescription:
    """Describe an architecture in its original size, on the meta device."""
    return family_for_name(name).describe(name, {"num_classes": NUM_CLASSES})


def shrunk(name: str) -> ModelDescription:
    """Describe an architecture with two blocks, the smallest image, and fewer heads if it can be built.

    Raises:
        UnsupportedModelError: If the model cannot be built even at its original width.
    """
    family = family_for_name(name)
    with torch.device("meta"):
        model: Any = timm.create_model(name, num_classes=NUM_CLASSES)
    patch, stride = model.patch_embed.patch_size[0], max(model.patch_embed.feat_ratio(), 1)
    options: dict[str, object] = {
        "num_classes": NUM_CLASSES,
        "depth": DEPTH,
        "img_size": 2 * max(patch, stride),
    }
    heads = min(MAX_HEADS, model.blocks[0].attn.num_heads)
    narrow: dict[str, object] = {"num_heads": heads, "embed_dim": heads * head_width(model.blocks[0].attn)}
    # The original MLP ratio may be invalid for the narrow width, and grouped keys must divide the number of heads.
    # The last try keeps the original width.
    for extra in (narrow, narrow | {"mlp_ratio": 4.0}, narrow | {"num_kv_heads": heads}, {}):
        try:
            found = family.describe(name, options | extra)
            # A convolutional stem may have a fixed width. The mismatch raises only in a forward pass.
            with torch.device("meta"), torch.no_grad():
                meta = family.build(found.architecture, full_mask(found.architecture.towers), None)
                meta(torch.empty(1, *image_size(found)))
        except (UnsupportedModelError, RuntimeError):
            continue
        return found
    raise UnsupportedModelError(f"`{name}` cannot be shrunk to two blocks")


def image_size(found: ModelDescription) -> tuple[int, ...]:
    """Return channels, height and width of the model's input.

    Raises:
        TypeError: If the model does not take images only.
    """
    if not isinstance(found.preprocess, Preprocess):
        raise TypeError(f"{found.architecture.name}: does not read images")
    return found.preprocess.input_size
