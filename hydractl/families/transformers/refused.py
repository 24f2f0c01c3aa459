"""Models of transformers whose heads cannot be cut here, by `model_type`, and why."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "albert": "its layers share one set of weights, so no layer has heads of its own",
        "deberta": "its queries, keys and values are interleaved head by head in one matrix; DeBERTa-v2 and v3 are "
        "supported",
        "dinov3_vit": "the library has no classifier for it; timm's DINOv3 models are supported",
    }
)
