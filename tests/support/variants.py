"""Small variants of all architectures for the contracts, in a table for each family."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from hydractl.model_inputs import WORDS
from hydractl.tasks import MULTI_LABEL, TOKENS

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import nn


@dataclass(frozen=True, eq=False)
class Variant:
    """A small configuration of an architecture.

    Attributes:
        family: Name of the family.
        name: Name in test IDs.
        arch: Architecture or model type.
        options: Options of the architecture.
    """

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
    "one-logit": ("vit_tiny_patch16_224", {"num_classes": 1}),
    "multi-label": ("vit_tiny_patch16_224", {"problem_type": MULTI_LABEL.problem_type}),
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
EVA_MIXED = "vit_small_patch16_rope_mixed_224"
TIMM_EVA: dict[str, tuple[str, dict[str, object]]] = {
    "qkv-apart": ("eva02_base_patch14_448", {}),
    "qkv-fused-swiglu": ("eva02_tiny_patch14_224", {}),
    "no-rope": ("eva_giant_patch14_224", {}),
    "no-rope-token-pool": ("eva_giant_patch14_224", {"global_pool": "token"}),
    "no-qkv-bias": ("eva_giant_patch14_224", {"qkv_bias": False}),
    "qk-norm": ("eva02_tiny_patch14_224", {"qk_norm": True}),
    "post-norm": ("eva02_enormous_patch14_clip_224", {}),
    "post-norm-rope": ("eva02_enormous_patch14_clip_224", {"use_rot_pos_emb": True}),
    "dinov3": ("vit_small_patch16_dinov3", {}),
    "dinov3-token": ("vit_small_patch16_dinov3", {"global_pool": "token"}),
    "dinov3-qkv-bias": ("vit_small_patch16_dinov3_qkvb", {}),
    "dinov3-static": ("vit_small_patch16_dinov3", {"dynamic_img_size": False}),
    "attention-scale-only": ("vit_small_patch16_dinov3", {"attn_only_layer_scale": True}),
    "pe-map-pool": ("vit_pe_core_tiny_patch16_384", {"attn_pool_num_heads": 4}),
    "rope": ("vit_small_patch16_rope_224", {}),
    "rope-with-positions": ("vit_small_patch16_rope_ape_224", {}),
    "rope-mixed": (EVA_MIXED, {}),
    "rope-mixed-dynamic": (EVA_MIXED, {"dynamic_img_size": True}),
    "rope-apart": ("vit_small_patch16_rope_224", {"qkv_fused": False}),
    "rope-multimodal": ("vit_small_patch16_rope_224", {"rope_type": "mrope", "rope_grid_indexing": "ij"}),
    "no-class-token": ("vit_medium_patch16_rope_reg1_gap_256", {"class_token": False}),
    "oblong-max-pool": ("vit_small_patch16_dinov3", {"global_pool": "max", "img_size": [8, 12]}),
}
TIMM_BEIT: dict[str, tuple[str, dict[str, object]]] = {
    "tables": ("beit_base_patch16_224", {}),
    "one-table": ("beit_base_patch16_224", {"use_rel_pos_bias": False, "use_shared_rel_pos_bias": True}),
    "both-and-positions": ("beit_base_patch16_224", {"use_shared_rel_pos_bias": True, "use_abs_pos_emb": True}),
    "class-token": ("beitv2_base_patch16_224", {"global_pool": "token", "img_size": [8, 12]}),
    "no-bias": ("beit_base_patch16_224", {
        "use_rel_pos_bias": False, "qkv_bias": False, "init_values": None, "swiglu_mlp": True, "scale_mlp": True,
    }),
}  # fmt: skip
TIMM_RELPOS: dict[str, tuple[str, dict[str, object]]] = {
    "networks": ("vit_relpos_small_patch16_224", {}),
    "networks-class-token": (
        "vit_relpos_base_patch16_cls_224",
        {"rel_pos_type": "mlp_swin", "qk_norm": True},
    ),
    "networks-norms-last": ("vit_relpos_base_patch16_rpn_224", {"rel_pos_dim": 16}),
    "one-network": ("vit_srelpos_small_patch16_224", {}),
    "tables": ("vit_relpos_base_patch16_clsgap_224", {"rel_pos_type": "bias"}),
    "one-table": ("vit_srelpos_small_patch16_224", {"rel_pos_type": "bias", "img_size": [8, 12]}),
}
TINY_TEXT: dict[str, object] = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 61,
    "num_labels": 7,
}  # fmt: skip
BERT: dict[str, tuple[str, dict[str, object]]] = {
    "plain": ("bert", {}),
    "one-logit": ("bert", {"num_labels": 1}),
    "multi-label": ("bert", {"problem_type": MULTI_LABEL.problem_type}),
    "mean-pool": ("bert", {"pooling": "mean"}),
}
ROBERTA: dict[str, tuple[str, dict[str, object]]] = {
    "plain": ("roberta", {}),
    "mean-pool": ("roberta", {"pooling": "mean"}),
    "multilingual": ("xlm-roberta", {"max_position_embeddings": 20, "pad_token_id": 1}),
    "french": ("camembert", {}),
}
ELECTRA: dict[str, tuple[str, dict[str, object]]] = {
    "plain": ("electra", {"embedding_size": 32}),
    "projected": ("electra", {"embedding_size": 16}),
}
DISTILBERT: dict[str, tuple[str, dict[str, object]]] = {
    "plain": ("distilbert", {"hidden_dim": 48}),
    "sinusoids": ("distilbert", {"hidden_dim": 48, "sinusoidal_pos_embds": True}),
}
_SMALL_WINDOW: dict[str, object] = {
    "local_attention": 6, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2,
}  # fmt: skip
MODERNBERT: dict[str, tuple[str, dict[str, object]]] = {
    "plain": ("modernbert", _SMALL_WINDOW),
    "mean-pool": ("modernbert", _SMALL_WINDOW | {"classifier_pooling": "mean"}),
    "local-last": ("modernbert", _SMALL_WINDOW | {
        "attention_bias": True, "mlp_bias": True, "norm_bias": True, "classifier_bias": True,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    }),
}  # fmt: skip
_V3: dict[str, object] = {
    "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "share_att_key": True, "norm_rel_ebd": "layer_norm",
    "position_buckets": 8, "max_relative_positions": 16, "position_biased_input": False, "type_vocab_size": 0,
}  # fmt: skip
DEBERTA: dict[str, tuple[str, dict[str, object]]] = {
    "v3": ("deberta-v2", _V3),
    "convolution": ("deberta-v2", _V3 | {"conv_kernel_size": 3, "conv_act": "gelu"}),
    "own-projections": ("deberta-v2", _V3 | {"share_att_key": False, "norm_rel_ebd": "none"}),
    "words-to-positions": ("deberta-v2", _V3 | {"pos_att_type": "c2p", "position_buckets": -1}),
    "positions-to-words": ("deberta-v2", _V3 | {"pos_att_type": "p2c", "share_att_key": False}),
    "absolute": ("deberta-v2", {"type_vocab_size": 2, "embedding_size": 16}),
}
MPNET: dict[str, tuple[str, dict[str, object]]] = {"plain": ("mpnet", {})}
ERNIE: dict[str, tuple[str, dict[str, object]]] = {
    "plain": ("ernie", {}),
    "task": ("ernie", {"use_task_id": True}),
}
REMBERT: dict[str, tuple[str, dict[str, object]]] = {"plain": ("rembert", {"input_embedding_size": 16})}
ROFORMER: dict[str, tuple[str, dict[str, object]]] = {
    "plain": ("roformer", {"max_position_embeddings": 20}),
    "projected": ("roformer", {"max_position_embeddings": 20, "embedding_size": 16}),
}
DATA2VEC_TEXT: dict[str, tuple[str, dict[str, object]]] = {"plain": ("data2vec-text", {})}
MEGATRON_BERT: dict[str, tuple[str, dict[str, object]]] = {"plain": ("megatron-bert", {})}
XLM_ROBERTA_XL: dict[str, tuple[str, dict[str, object]]] = {"plain": ("xlm-roberta-xl", {})}
ROBERTA_PRELAYERNORM: dict[str, tuple[str, dict[str, object]]] = {"plain": ("roberta-prelayernorm", {})}
_ESM: dict[str, object] = {"pad_token_id": 0, "mask_token_id": 4, "token_dropout": True}
ESM: dict[str, tuple[str, dict[str, object]]] = {
    "rotary": ("esm", _ESM | {"position_embedding_type": "rotary"}),
    "absolute": ("esm", _ESM | {"emb_layer_norm_before": True, "token_dropout": False}),
}
_ROPE: dict[str, object] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
EUROBERT: dict[str, tuple[str, dict[str, object]]] = {
    "late": ("eurobert", _ROPE),
    "mean-pool": (
        "eurobert",
        _ROPE | {"classifier_pooling": "mean", "attention_bias": True, "mlp_bias": True},
    ),
    "first-token": ("eurobert", _ROPE | {"classifier_pooling": "bos"}),
    "shared-keys": ("eurobert", _ROPE | {"classifier_pooling": "bos", "num_key_value_heads": 2}),
}
_SHARED: dict[str, object] = {"pad_token_id": 0, "num_key_value_heads": 2, "head_dim": 8}
DECODER: dict[str, tuple[str, dict[str, object]]] = {
    "llama": ("llama", _SHARED | {"attention_bias": True, "mlp_bias": True}),
    "llama-scaled": (
        "llama",
        _SHARED
        | {
            "num_key_value_heads": 1,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 16,
            },
        },
    ),
    "llama-own-keys": ("llama", _SHARED | {"num_key_value_heads": 4}),
    "mistral": ("mistral", _SHARED | {"sliding_window": None}),
    "mistral-window": ("mistral", _SHARED | {"sliding_window": 5}),
    "ministral": ("ministral", _SHARED | {"sliding_window": 5}),
    "qwen2": ("qwen2", _SHARED),
    "qwen2-window": (
        "qwen2",
        _SHARED | {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    ),
    "qwen3": ("qwen3", _SHARED),
    "gemma": ("gemma", _SHARED | {"num_key_value_heads": 1}),
    "arcee": ("arcee", _SHARED),
    "mean-pool": ("qwen3", _SHARED | {"pooling": "mean"}),
    "one-logit": ("qwen3", _SHARED | {"num_labels": 1}),
}
ULTRABERT: dict[str, tuple[str, dict[str, object]]] = {
    "plain": ("ultrabert", _ROPE | {"sliding_window": 3}),
    "mean-pool": ("ultrabert", _ROPE | {"sliding_window": 3, "classifier_pooling": "mean"}),
}
GTE: dict[str, tuple[str, dict[str, object]]] = {
    "plain": ("gte", {}),
    "no-segments": ("gte", {"type_vocab_size": 0}),
}
NOMIC_BERT: dict[str, tuple[str, dict[str, object]]] = {"plain": ("nomic_bert", {})}
JINA: dict[str, tuple[str, dict[str, object]]] = {"plain": ("jina_embeddings_v3", {})}
_TOWER = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
TINY_PAIR: dict[str, object] = {
    **{f"{tower}.{key}": value for tower in ("text", "vision") for key, value in _TOWER.items()},
    "text.vocab_size": 61, "text.max_position_embeddings": 20, "vision.image_size": 12, "vision.patch_size": 4,
}  # fmt: skip
CLIP: dict[str, tuple[str, dict[str, object]]] = {
    "plain": ("clip", {"projection_dim": 16, "text.eos_token_id": 60}),
    "old-end": ("clip", {"projection_dim": 24, "text.eos_token_id": 2}),
    "metaclip": ("metaclip_2", {"projection_dim": 16, "text.vocab_size": 12, "text.eos_token_id": 2}),
    "segmenter": ("clipseg", {"projection_dim": 16, "text.eos_token_id": 60}),
}
CHINESE_CLIP: dict[str, tuple[str, dict[str, object]]] = {"plain": ("chinese_clip", {"projection_dim": 16})}
ALTCLIP: dict[str, tuple[str, dict[str, object]]] = {
    "plain": ("altclip", {"projection_dim": 16, "text.project_dim": 24, "text.pad_token_id": 1}),
}
SIGLIP: dict[str, tuple[str, dict[str, object]]] = {"plain": ("siglip", {"text.projection_size": 32})}

TINY_VISION: dict[str, object] = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "image_size": 8, "patch_size": 4,
    "num_channels": 1, "num_labels": 7,
}  # fmt: skip
_MLP: dict[str, object] = {"intermediate_size": 48}
VIT: dict[str, tuple[str, dict[str, object]]] = {
    "plain": ("vit", _MLP),
    "no-qkv-bias": ("vit", _MLP | {"qkv_bias": False}),
    "oblong": ("vit", _MLP | {"image_size": [8, 12]}),
    "masked-siamese": ("vit_msn", _MLP),
}
DEIT: dict[str, tuple[str, dict[str, object]]] = {
    "plain": ("deit", _MLP),
    "distilled": ("DeiTForImageClassificationWithTeacher", _MLP),
}
IJEPA: dict[str, tuple[str, dict[str, object]]] = {"plain": ("ijepa", _MLP)}
BEIT: dict[str, tuple[str, dict[str, object]]] = {
    "plain": ("beit", _MLP),
    "positions": ("beit", _MLP | {"use_absolute_position_embeddings": True, "use_mask_token": True}),
    "relative": ("beit", _MLP | {"use_relative_position_bias": True}),
    "shared-relative": ("beit", _MLP | {"use_shared_relative_position_bias": True}),
    "class-token": ("beit", _MLP | {"use_mean_pooling": False, "layer_scale_init_value": 0.0}),
}
DATA2VEC_VISION: dict[str, tuple[str, dict[str, object]]] = {
    "plain": ("data2vec-vision", _MLP),
    "relative": ("data2vec-vision", _MLP | {
        "use_relative_position_bias": True, "use_shared_relative_position_bias": True,
    }),
    "class-token": ("data2vec-vision", _MLP | {
        "use_mean_pooling": False, "layer_scale_init_value": 0.0, "use_absolute_position_embeddings": True,
        "use_mask_token": True,
    }),
}  # fmt: skip
DINOV2: dict[str, tuple[str, dict[str, object]]] = {
    "plain": ("dinov2", {"mlp_ratio": 2}),
    "swiglu": ("dinov2", {"mlp_ratio": 2, "use_swiglu_ffn": True, "use_mask_token": False, "drop_path_rate": 0.1}),
}  # fmt: skip
DINOV2_REGISTERS: dict[str, tuple[str, dict[str, object]]] = {
    "plain": ("dinov2_with_registers", {"mlp_ratio": 2, "num_register_tokens": 3}),
}
VISION_TOWER: dict[str, tuple[str, dict[str, object]]] = {
    "siglip": ("SiglipForImageClassification", {}),
    "siglip-headless": ("SiglipForImageClassification", {"vision.vision_use_head": False}),
    "clip": ("CLIPForImageClassification", {}),
    "metaclip": ("MetaClip2ForImageClassification", {}),
}
TINY_VISION_TOWER: dict[str, object] = {"num_labels": 7} | {
    f"vision.{key}": value for key, value in (TINY_VISION | _MLP).items() if key != "num_labels"
}

_OPEN_CLIP = "openclip:ViT-B-32"
TINY_OPEN_CLIP: dict[str, object] = {
    "embed_dim": 24, "vision.image_size": 12, "vision.patch_size": 4, "vision.width": 32, "vision.head_width": 8,
    "vision.layers": 3, "vision.mlp_ratio": 1.5, "text.context_length": 20, "text.vocab_size": 61, "text.width": 32,
    "text.heads": 4, "text.layers": 3, "text.mlp_ratio": 1.5,
}  # fmt: skip
OPEN_CLIP: dict[str, tuple[str, dict[str, object]]] = {
    "plain": (_OPEN_CLIP, {}),
    "scaled": (_OPEN_CLIP, {
        "vision.ls_init_value": 0.5, "text.ls_init_value": 0.5, "vision.pool_type": "avg",
        "vision.final_ln_after_pool": True, "vision.no_ln_pre": True, "init_logit_bias": -10, "quick_gelu": True,
        "text.no_causal_mask": True, "text.pool_type": "last", "text.proj_bias": True,
    }),
}  # fmt: skip
OPEN_CLIP_CUSTOM: dict[str, tuple[str, dict[str, object]]] = {
    "plain": (_OPEN_CLIP, {"custom_text": True, "text.pool_type": "eos", "text.eos_id": 60}),
    "normed": (_OPEN_CLIP, {
        "custom_text": True, "init_logit_bias": -10, "vision.attentional_pool": True, "vision.attn_pooler_queries": 3,
        "vision.attn_pooler_heads": 4, "vision.qk_norm": True, "vision.scale_attn": True, "vision.scale_fc": True,
        "text.qk_norm": True, "text.pool_type": "first", "text.no_causal_mask": True,
    }),
}  # fmt: skip


def _trunk(name: str, pool: str, projection: str, **options: object) -> tuple[str, dict[str, object]]:
    """Return a model of open_clip with an image tower of `support.trunks`."""
    timm = {"timm_model_name": f"tiny_trunk_{name}", "timm_pool": pool, "timm_proj": projection}
    return (_OPEN_CLIP, {f"vision.{key}": value for key, value in timm.items()} | options)


OPEN_CLIP_TIMM: dict[str, tuple[str, dict[str, object]]] = {
    "relative-positions": _trunk("relpos", "", "linear", **{"vision.timm_proj_bias": True}),
    "map-pool": _trunk("map", "map", "none", embed_dim=32),
}
OPEN_CLIP_TIMM_CUSTOM: dict[str, tuple[str, dict[str, object]]] = {
    "map-pool": _trunk("map", "map", "none", custom_text=True, embed_dim=32, init_logit_bias=-10),
    "rope": _trunk("rope", "map", "", custom_text=True),
    "class-token": _trunk("post_norm", "token", "", custom_text=True),
    "mean-mlp": _trunk("map", "avg", "mlp", custom_text=True),
}


def _table(
    family: str, tiny: dict[str, object], rows: dict[str, tuple[str, dict[str, object]]]
) -> list[Variant]:
    return [Variant(family, name, arch, tiny | options) for name, (arch, options) in rows.items()]


def _without(tiny: dict[str, object], name: str) -> dict[str, object]:
    return {key: value for key, value in tiny.items() if key != name}


_VARIANTS: tuple[Variant, ...] = (
    *_table("timm-vit", TINY, TIMM_VIT),
    *_table("timm-eva", TINY, TIMM_EVA),
    *_table("timm-beit", TINY, TIMM_BEIT),
    *_table("timm-relpos", TINY, TIMM_RELPOS),
    *_table("transformers-bert", TINY_TEXT, BERT),
    *_table("transformers-roberta", TINY_TEXT, ROBERTA),
    *_table("transformers-electra", TINY_TEXT, ELECTRA),
    *_table("transformers-distilbert", _without(TINY_TEXT, "intermediate_size"), DISTILBERT),
    *_table("transformers-modernbert", TINY_TEXT, MODERNBERT),
    *_table("transformers-deberta", TINY_TEXT, DEBERTA),
    *_table("transformers-mpnet", TINY_TEXT, MPNET),
    *_table("transformers-ernie", TINY_TEXT, ERNIE),
    *_table("transformers-rembert", TINY_TEXT, REMBERT),
    *_table("transformers-roformer", TINY_TEXT, ROFORMER),
    *_table("transformers-data2vec-text", TINY_TEXT, DATA2VEC_TEXT),
    *_table("transformers-megatron-bert", TINY_TEXT, MEGATRON_BERT),
    *_table("transformers-xlm-roberta-xl", TINY_TEXT, XLM_ROBERTA_XL),
    *_table("transformers-roberta-prelayernorm", TINY_TEXT, ROBERTA_PRELAYERNORM),
    *_table("transformers-esm", TINY_TEXT, ESM),
    *_table("transformers-eurobert", TINY_TEXT, EUROBERT),
    *_table(
        "transformers-ultrabert", TINY_TEXT, ULTRABERT if find_spec("transformers.models.ultrabert") else {}
    ),
    *_table("transformers-decoder", TINY_TEXT, DECODER),
    *_table("transformers-gte", TINY_TEXT, GTE),
    *_table("transformers-nomic-bert", TINY_TEXT, NOMIC_BERT),
    *_table("transformers-jina-v3", TINY_TEXT, JINA),
    *_table("transformers-clip", TINY_PAIR, CLIP),
    *_table("transformers-chinese-clip", TINY_PAIR, CHINESE_CLIP),
    *_table("transformers-altclip", TINY_PAIR, ALTCLIP),
    *_table("transformers-siglip", TINY_PAIR, SIGLIP),
    *_table("transformers-vit", TINY_VISION, VIT),
    *_table("transformers-deit", TINY_VISION, DEIT),
    *_table("transformers-ijepa", TINY_VISION, IJEPA),
    *_table("transformers-beit", TINY_VISION, BEIT),
    *_table("transformers-data2vec-vision", TINY_VISION, DATA2VEC_VISION),
    *_table("transformers-dinov2", TINY_VISION, DINOV2),
    *_table("transformers-dinov2-registers", TINY_VISION, DINOV2_REGISTERS),
    *_table("transformers-vision-tower", TINY_VISION_TOWER, VISION_TOWER),
    *_table("openclip", TINY_OPEN_CLIP, OPEN_CLIP),
    *_table("openclip-custom-text", TINY_OPEN_CLIP, OPEN_CLIP_CUSTOM),
    *_table("openclip-timm", TINY_OPEN_CLIP, OPEN_CLIP_TIMM),
    *_table("openclip-timm-custom-text", TINY_OPEN_CLIP, OPEN_CLIP_TIMM_CUSTOM),
)
_OF_TEXTS = {
    v.family: v for v in reversed(_VARIANTS) if "num_labels" in v.options and "vocab_size" in v.options
}
VARIANTS = (
    *_VARIANTS,
    *(
        Variant(v.family, "tokens", v.arch, v.options | {"problem_type": TOKENS.problem_type})
        for v in reversed(_OF_TEXTS.values())
    ),
)
READERS = ("timm-vit", "timm-eva", "transformers-bert", "transformers-clip", "openclip")
"""One family per implementation of towers, for slow tests."""
PLAIN = VARIANTS[0]
OF_CLASSES = [v for v in VARIANTS if v.name not in {"multi-label", "tokens"}]
"""Variants with one class per input, which feature-based OOD scores require."""


def variant(name: str) -> Variant:
    """Return a variant by its full name, or the first variant with this short name."""
    return next(v for v in VARIANTS if name in {str(v), v.name})


def of_depth(variant: Variant, blocks: int) -> Variant:
    """Return a variant with another number of blocks. Only for models with a single tower."""
    key = "depth" if "depth" in variant.options else "num_hidden_layers"
    return Variant(variant.family, f"{variant.name}-{blocks}", variant.arch, variant.options | {key: blocks})


def _timm(arch: str, options: dict[str, object]) -> nn.Module:
    import timm

    model: nn.Module = timm.create_model(arch, pretrained=False, **options)
    return model


def _transformers(name: str, options: dict[str, object]) -> nn.Module:
    """Return the library's model, changed to take all inputs as one argument and return logits."""
    import transformers

    from hydractl.families.registry import family_for_name

    kind = (
        transformers.AutoModelForTokenClassification
        if options.get("problem_type") == TOKENS.problem_type
        else {
            ("text",): transformers.AutoModelForSequenceClassification,
            ("vision",): transformers.AutoModelForImageClassification,
            ("text", "vision"): transformers.AutoModel,
        }[tuple(family_for_name(name).towers)]
    )
    own = getattr(transformers, name, None)  # Some architectures have the name of a class.
    plain = {key: value for key, value in options.items() if key not in {"pooling", "problem_type"}}
    made: nn.Module = (
        kind.from_config(transformers.AutoConfig.for_model(name, architectures=[], **plain))
        if own is None
        else own(own.config_class(**plain))
    )
    if "pooling" in options:
        return _averaged(made)
    forward = made.forward

    def logits(inputs: torch.Tensor | Mapping[str, torch.Tensor]) -> torch.Tensor:
        texts: Mapping[str, torch.Tensor] = getattr(made, "texts", {})
        named = dict(inputs) if isinstance(inputs, Mapping) else {"pixel_values": inputs, **texts}
        words = named.pop(WORDS, None)
        answer = forward(**named)
        found: torch.Tensor = answer.logits if "logits" in answer else answer.logits_per_image
        return found if words is None else found.take_along_dim(words.clamp(min=0).unsqueeze(-1), 1)

    made.forward = logits  # type: ignore[method-assign]
    return made


def _averaged(made: Any) -> nn.Module:
    """Return a text classifier on the mean of the base model's tokens, with dropout and a linear layer."""
    from torch import nn

    encoder, parts = made.base_model, dict(made.named_children())
    head = parts.get("classifier", parts.get("score"))
    for name, part in parts.items():
        if part is not encoder and not isinstance(part, nn.Dropout) and part is not head:
            delattr(made, name)
    if hasattr(encoder, "pooler"):
        encoder.pooler = None
    if not isinstance(head, nn.Linear):
        del head.dense
    drops = [
        m
        for n, m in made.named_modules()
        if isinstance(m, nn.Dropout) and not n.startswith(made.base_model_prefix)
    ]
    (linear,) = (m for m in head.modules() if isinstance(m, nn.Linear))

    def logits(inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        tokens = encoder(**inputs).last_hidden_state
        kept = inputs["attention_mask"].unsqueeze(-1).to(tokens.dtype)
        mean = (tokens * kept).sum(1) / kept.sum(1)
        for drop in drops[:1]:
            mean = drop(mean)
        found: torch.Tensor = linear(mean)
        return found

    made.forward = logits
    return made  # type: ignore[no-any-return]


def _open_clip(name: str, options: dict[str, object]) -> nn.Module:
    """Return the library's model, changed to take all inputs as one argument and return logits."""
    import open_clip

    own = {k: v for k, v in options.items() if k != "custom_text"}
    made: nn.Module = (open_clip.CustomTextCLIP if options.get("custom_text") else open_clip.CLIP)(**own)

    def logits(inputs: torch.Tensor | Mapping[str, torch.Tensor]) -> torch.Tensor:
        images = inputs["pixel_values"] if isinstance(inputs, Mapping) else inputs
        texts = inputs if isinstance(inputs, Mapping) else made.texts
        found: torch.Tensor = made.get_logits(images, texts["input_ids"])[0]
        return found

    made.forward = logits  # type: ignore[method-assign]
    return made


LIBRARY: MappingProxyType[str, Callable[[str, dict[str, Any]], nn.Module]] = MappingProxyType(
    {"timm": _timm, "transformers": _transformers, "openclip": _open_clip}
)
