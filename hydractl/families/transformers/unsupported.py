"""Models of transformers whose heads cannot be cut here, by `model_type`, and why."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "align": "its image tower is an EfficientNet, which has no heads",
        "albert": "its layers share one set of weights, so heads of one layer cannot be removed",
        "deberta": "its queries, keys and values are interleaved head by head in one matrix; DeBERTa-v2 and v3 are "
        "supported",
        **dict.fromkeys(
            ("big_bird", "longformer"), "its attention is sparse: a token attends to a few others only"
        ),
        "esmc": "its queries and keys are normalized over all heads",
        **dict.fromkeys(
            ("flaubert", "xlm"),
            "it stores attention, norms and MLPs in separate lists, not by layer",
        ),
        "mobilebert": "its layers reduce the width of the stream before attention",
        "roc_bert": "it also reads shapes and sounds of characters",
        "squeezebert": "its projections are grouped convolutions",
        "xmod": "its layers have one adapter per language, which another input selects",
        "siglip2": "its images are lists of patches with separate grids; SigLIP 2 with a fixed size "
        "has the supported type `siglip`",
        **dict.fromkeys(
            ("donut-swin", "swin", "swinv2"),
            "its attention is within windows, and its width changes from stage to stage",
        ),
        "dinov3_vit": "the library has no classifier for it; timm's DINOv3 models are supported",
    }
)
