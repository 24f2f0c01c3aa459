"""open_clip's registry, shrunk: two blocks a tower, four heads of eight, four patches, few words."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import open_clip
from coverage_check import DEPTH, Case

from hydractl.families.registry import family_for_name

if TYPE_CHECKING:
    from hydractl.families.base import Described

HEADS, HEAD_WIDTH = 4, 8
WIDTH = HEADS * HEAD_WIDTH
WORDS, LENGTH = 61, 12


def cases() -> list[Case]:
    """Return all of the registry."""
    return [
        Case(name=name, describe=partial(described, name), shrink=partial(shrunk, name))
        for name in sorted(open_clip.list_models())
    ]


def described(name: str) -> Described:
    """Return a model as it is, without weights."""
    return family_for_name(f"openclip:{name}").describe(f"openclip:{name}", {})


def shrunk(name: str) -> Described:
    """Return a model with its own options, but small."""
    config = open_clip.get_model_config(name)
    options: dict[str, object] = {
        "embed_dim": WIDTH,
        "vision.width": WIDTH,
        "vision.head_width": HEAD_WIDTH,
        "vision.layers": DEPTH,
        "vision.image_size": 2 * config["vision_cfg"]["patch_size"],
        "text.width": WIDTH,
        "text.heads": HEADS,
        "text.layers": DEPTH,
        "text.vocab_size": WORDS,
        "text.context_length": LENGTH,
    }
    return family_for_name(f"openclip:{name}").describe(f"openclip:{name}", options)
