"""timm's architectures, shrunk to two blocks, at most four heads where they allow it, and the smallest image."""

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
    from hydractl.families.base import Described

MODULES = (
    "vision_transformer", "vision_transformer_hybrid", "vision_transformer_relpos", "deit", "vitamin", "beit", "beit3",
    "eva",
)  # fmt: skip
NUM_CLASSES = 7
MAX_HEADS = 4


def cases(*, everything: bool = False) -> list[Case]:
    """Return the architectures of the modules whose classes are covered, or all of timm's."""
    names = (
        timm.list_models()
        if everything
        else {name for module in MODULES for name in timm.list_models(module=module)}
    )
    return [Case(name=n, describe=partial(described, n), shrink=partial(shrunk, n)) for n in sorted(names)]


def described(name: str) -> Described:
    """Return an architecture as it is, on the meta device."""
    return family_for_name(name).describe(name, {"num_classes": NUM_CLASSES})


def shrunk(name: str) -> Described:
    """Return an architecture with two blocks and the smallest image, and fewer heads where it can be built so.

    Raises:
        UnsupportedModelError: If it cannot be built even in its own width.
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
    for extra in (narrow, narrow | {"mlp_ratio": 4.0}, narrow | {"num_kv_heads": heads}, {}):
        try:
            found = family.describe(name, options | extra)
            # a convolutional stem may have a width of its own, which only a forward pass finds out
            with torch.device("meta"), torch.no_grad():
                meta = family.build(found.architecture, full_mask(found.architecture.towers), None)
                meta(torch.empty(1, *image_size(found)))
        except (UnsupportedModelError, RuntimeError):
            continue
        return found
    raise UnsupportedModelError(f"`{name}` cannot be shrunk to two blocks")


def image_size(found: Described) -> tuple[int, ...]:
    """Return channels, height and width of what the model is asked.

    Raises:
        TypeError: If it is not asked about images alone.
    """
    if not isinstance(found.preprocess, Preprocess):
        raise TypeError(f"{found.architecture.name}: does not read images")
    return found.preprocess.input_size
