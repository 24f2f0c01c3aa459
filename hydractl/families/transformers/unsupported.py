"""Models of transformers whose heads cannot be cut here, by `model_type`, and why."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "align": "its image tower is an EfficientNet, which has no heads",
        "albert": "its layers share one set of weights, so no layer has heads of its own",
        "deberta": "its queries, keys and values are interleaved head by head in one matrix; DeBERTa-v2 and v3 are "
        "supported",
        **dict.fromkeys(
            ("big_bird", "longformer"), "its attention is sparse: a token looks at a few others, not at all"
        ),
        "esmc": "its queries and keys are normed over all heads together",
        **dict.fromkeys(
            ("flaubert", "xlm"),
            "it lists the attentions, norms and MLPs of its layers apart, not layer by layer",
        ),
        "mobilebert": "its layers narrow the stream before their attention reads it",
        "roc_bert": "it reads the shapes and the sounds of characters beside their tokens",
        "squeezebert": "its projections are grouped convolutions",
        "xmod": "its layers hold an adapter for each language, which an input beside the text picks",
        "siglip2": "its images are lists of patches with grids of their own; SigLIP 2 of a fixed size is of type `siglip`, "
        "which is supported",
        **dict.fromkeys(
            ("donut-swin", "swin", "swinv2"),
            "its attention is within windows, and its width changes from stage to stage",
        ),
        "dinov3_vit": "the library has no classifier for it; timm's DINOv3 models are supported",
    }
)
