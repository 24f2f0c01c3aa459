"""Shrunken models of open_clip's registry: two blocks per tower, four heads of width 8, four patches."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import architectures_timm
import open_clip
import timm
import torch
from architectures_check import DEPTH, Case

from hydractl.families.registry import family_for_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hydractl.families.base import ModelDescription

HEADS, HEAD_WIDTH = 4, 8
WIDTH = HEADS * HEAD_WIDTH
WORDS, LENGTH = 61, 12
SMALL_TEXT: dict[str, object] = {
    "text.width": WIDTH,
    "text.heads": HEADS,
    "text.layers": DEPTH,
    "text.vocab_size": WORDS,
    "text.context_length": LENGTH,
}


def cases() -> list[Case]:
    """Return one case per model of the registry."""
    return [
        Case(name=name, describe=partial(described, name), shrink=partial(shrunk, name))
        for name in sorted(open_clip.list_models())
    ]


def described(name: str) -> ModelDescription:
    """Describe a model in its original size, without weights."""
    return family_for_name(f"openclip:{name}").describe(f"openclip:{name}", {})


def shrunk(name: str) -> ModelDescription:
    """Describe a small version of a model with the same options."""
    config = open_clip.get_model_config(name)
    vision = config["vision_cfg"]
    if vision.get("timm_model_name"):
        return _shrunk_trunk(name, config)
    options: dict[str, object] = {
        "embed_dim": WIDTH,
        "vision.width": WIDTH,
        "vision.head_width": HEAD_WIDTH,
        "vision.layers": DEPTH,
        "vision.image_size": 2 * vision["patch_size"],
        **SMALL_TEXT,
    }
    return family_for_name(f"openclip:{name}").describe(f"openclip:{name}", options)


def _shrunk_trunk(name: str, own: Mapping[str, Any]) -> ModelDescription:
    """Describe a small version of a model with an image tower of timm.

    open_clip has no options for the sizes of a timm tower, so the shrunken tower is registered in timm under
    a new name.
    """
    timm_name = own["vision_cfg"]["timm_model_name"]
    config = architectures_timm.shrunk(timm_name).architecture.config
    sizes: dict[str, Any] = {key: value for key, value in config.items() if key != "num_classes"}
    small = f"{timm_name}_shrunk"

    def make(*, pretrained: bool = False, **options: object) -> Any:  # noqa: ANN401 - timm is untyped
        return timm.create_model(timm_name, pretrained=pretrained, **sizes | options)

    make.__name__ = small
    if not timm.is_model(small):
        timm.models.register_model(make)
    with torch.device("meta"):
        width = make(num_classes=0).num_features
    # Without a projection, embeddings have the width of the tower's pooled features.
    width = width if own["vision_cfg"].get("timm_proj") == "none" else WIDTH
    options: dict[str, object] = {
        "embed_dim": width,
        "vision.timm_model_name": small,
        "vision.image_size": sizes["img_size"],
        **SMALL_TEXT,
    }
    if own["text_cfg"].get("proj_type") == "none":
        options["text.width"] = width
    return family_for_name(f"openclip:{name}").describe(f"openclip:{name}", options)
