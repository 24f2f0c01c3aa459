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
        **dict.fromkeys(
            ("bart", "mbart", "mt5", "t5", "umt5"),
            "it has an encoder and decoder, of which the decoder answers",
        ),
        **dict.fromkeys(
            ("deepseek_v2", "deepseek_v3", "minicpm3"),
            "its keys and values are latent (MLA): no head has rows of its own",
        ),
        "gemma2": "its attention scores have soft caps",
        **dict.fromkeys(
            ("gemma3", "gemma3_text"), "its blocks also have norms after attention and after the MLP"
        ),
        **dict.fromkeys(
            ("gpt_oss", "jetmoe", "mixtral", "olmoe", "phimoe", "qwen2_moe", "qwen3_moe"),
            "its MLPs are mixtures of experts: a router chooses some for each token",
        ),
        **dict.fromkeys(("jamba", "qwen3_5", "qwen3_next"), "some of its layers have no attention"),
        **dict.fromkeys(("cohere2", "llama4", "smollm3"), "some of its layers have no positions (NoPE)"),
        "dinov3_vit": "the library has no classifier for it; timm's DINOv3 models are supported",
    }
)
