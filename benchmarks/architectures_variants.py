"""Configurations of supported transformers models in the sweep: a small plain model with variants."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

Options = dict[str, object]
TEXT: Options = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 61,
    "num_labels": 7,
}  # fmt: skip
IMAGE: Options = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 8, "patch_size": 4,
    "num_channels": 1, "num_labels": 7,
}  # fmt: skip
MLP: Options = {"intermediate_size": 48}
_PAIR: Options = {
    **{
        f"{tower}.{key}": value
        for tower in ("text", "vision")
        for key, value in (TEXT | MLP).items()
        if key not in {"vocab_size", "num_labels"}
    },
    "text.vocab_size": 61, "text.max_position_embeddings": 20, "vision.image_size": 12, "vision.patch_size": 4,
}  # fmt: skip
_TOWER: Options = {"num_labels": 7} | {
    f"vision.{key}": value for key, value in (IMAGE | MLP).items() if key != "num_labels"
}
_DISTILBERT = {k: v for k, v in TEXT.items() if k != "intermediate_size"} | {"hidden_dim": 48}
_MODERNBERT = TEXT | {
    "local_attention": 6, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2,
}  # fmt: skip
_V3: Options = {
    "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "share_att_key": True, "norm_rel_ebd": "layer_norm",
    "position_buckets": 8, "max_relative_positions": 16, "position_biased_input": False,
}  # fmt: skip

DECODERS = ("llama", "mistral", "ministral", "qwen2", "qwen3", "gemma", "arcee")
TINY: Mapping[str, Options] = MappingProxyType(
    {
        **dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert", "mpnet", "deberta-v2"), TEXT),
        **dict.fromkeys(
            ("ernie", "data2vec-text", "megatron-bert", "xlm-roberta-xl", "roberta-prelayernorm", "roformer"),
            TEXT,
        ),
        **dict.fromkeys(("gte", "nomic_bert", "jina_embeddings_v3"), TEXT),
        **dict.fromkeys(
            ("eurobert", "ultrabert"), TEXT | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
        ),
        **dict.fromkeys(DECODERS, TEXT | {"pad_token_id": 0, "num_key_value_heads": 2, "head_dim": 8}),
        "rembert": TEXT | {"input_embedding_size": 16},
        "esm": TEXT | {"pad_token_id": 0, "mask_token_id": 4, "position_embedding_type": "rotary"},
        "electra": TEXT | {"embedding_size": 16},
        "distilbert": _DISTILBERT,
        "modernbert": _MODERNBERT,
        **dict.fromkeys(("vit", "vit_msn", "deit", "ijepa", "beit", "data2vec-vision"), IMAGE | MLP),
        "DeiTForImageClassificationWithTeacher": IMAGE | MLP,
        **dict.fromkeys(("dinov2", "dinov2_with_registers"), IMAGE | {"mlp_ratio": 2}),
        **dict.fromkeys((f"{x}ForImageClassification" for x in ("CLIP", "MetaClip2", "Siglip")), _TOWER),
        **dict.fromkeys(("clip", "clipseg"), _PAIR | {"projection_dim": 16, "text.eos_token_id": 60}),
        "metaclip_2": _PAIR | {"projection_dim": 16, "text.vocab_size": 12, "text.eos_token_id": 2},
        "chinese_clip": _PAIR | {"projection_dim": 16},
        "altclip": _PAIR | {"projection_dim": 16, "text.project_dim": 24},
        "siglip": _PAIR | {"text.projection_size": 32},
    }
)
"""Small plain configuration of each supported architecture."""


def _each(key: str, *values: object) -> tuple[Options, ...]:
    return tuple({key: value} for value in values)


_ACTIVATIONS = _each("hidden_act", "relu", "gelu_new", "silu")
_BERT: tuple[Options, ...] = (
    *_ACTIVATIONS,
    *_each("type_vocab_size", 1, 3),
    *_each("pad_token_id", 5),
    *_each("max_position_embeddings", 16),
    *_each("chunk_size_feed_forward", 4),
    *_each("layer_norm_eps", 1e-3),
    {"is_decoder": True},
    {"is_decoder": True, "add_cross_attention": True},
)
_ROBERTA = (*_BERT, *_each("classifier_dropout", 0.5))
_ROTARY: tuple[Options, ...] = (
    *_ACTIVATIONS,
    *_each("rope_parameters", {"rope_type": "default", "rope_theta": 3e4}, *(
        {"rope_type": rope, "rope_theta": 1e4, "factor": 2.0} for rope in ("linear", "yarn", "dynamic")
    )),
)  # fmt: skip
_VIT: tuple[Options, ...] = (
    *_ACTIVATIONS,
    {"qkv_bias": False},
    *_each("image_size", [8, 12]),
    *_each("patch_size", 2, [4, 2], 16),
    *_each("num_channels", 3, 2),
)
_BEIT: tuple[Options, ...] = (
    *_ACTIVATIONS,
    *_each("image_size", 12),
    {"use_mean_pooling": False},
    *_each("layer_scale_init_value", 0.0),
    {"use_absolute_position_embeddings": True, "use_mask_token": True},
    {"use_relative_position_bias": True},
    {"use_shared_relative_position_bias": True},
)
_DINO: tuple[Options, ...] = (
    *_ACTIVATIONS,
    {"qkv_bias": False},
    *_each("image_size", 12, [8, 12]),
    *_each("layerscale_value", 0.5),
    {"use_swiglu_ffn": True},
    *_each("drop_path_rate", 0.2),
)
_PAIRS: tuple[Options, ...] = (
    *_each("vision.hidden_act", "relu", "gelu_new"),
    *_each("text.hidden_act", "relu", "gelu_new"),
    *_each("vision.patch_size", 6),
    *_each("vision.num_channels", 1),
    *_each("text.max_position_embeddings", 8),
)

_V3_CHANGES: tuple[Options, ...] = (
    {"norm_rel_ebd": "none"},
    *_each("position_buckets", -1, 4),
    {"position_biased_input": True},
    {"conv_kernel_size": 3},
    {"conv_kernel_size": 5, "conv_groups": 2, "conv_act": "relu"},
    {"max_relative_positions": -1},
)

VARIANTS: Mapping[str, tuple[Options, ...]] = MappingProxyType(
    {
        **dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert"), _ROBERTA),
        "electra": (*_ROBERTA, *_each("embedding_size", 32)),
        **dict.fromkeys(("data2vec-text", "xlm-roberta-xl", "roberta-prelayernorm"), _ROBERTA),
        **dict.fromkeys(("megatron-bert", "rembert"), _BERT),
        "ernie": (*_ROBERTA, {"use_task_id": True}),
        "roformer": (*_BERT, *_each("embedding_size", 16), {"rotary_value": True}),
        "esm": (
            {"position_embedding_type": "absolute"},
            {"token_dropout": True},
            {"emb_layer_norm_before": True},
            *_each("pad_token_id", 5),
            {"is_decoder": True},
        ),
        "eurobert": (
            *_ROTARY,
            *_each("classifier_pooling", "bos", "mean"),
            *_each("head_dim", 16),
            *_each("num_key_value_heads", 2),
            {"attention_bias": True, "mlp_bias": True},
        ),
        **dict.fromkeys(
            DECODERS,
            (
                *_ROTARY,
                *_each("num_key_value_heads", 1, 4),
                *_each("head_dim", 16),
                *_each("pad_token_id", 5),
            ),
        ),
        "ultrabert": (
            *_ACTIVATIONS,
            *_each("classifier_pooling", "mean"),
            *_each("sliding_window", 3),
            *_each("layer_types", ["full_attention"] * 2, ["sliding_attention"] * 2),
            *_each("num_key_value_heads", 2),
        ),
        "gte": (*_ROTARY, *_each("type_vocab_size", 0, 2)),
        "nomic_bert": (*_ROTARY, *_each("head_dim", 16)),
        "jina_embeddings_v3": (*_ROTARY, *_each("type_vocab_size", 2)),
        "distilbert": (
            *_each("activation", "relu", "silu"),
            {"sinusoidal_pos_embds": True},
            *_each("pad_token_id", 5),
            *_each("max_position_embeddings", 16),
        ),
        "modernbert": (
            *_each("hidden_activation", "relu", "silu"),
            *_each("classifier_activation", "relu"),
            *_each("classifier_pooling", "mean"),
            *_each("local_attention", 128),
            *_each("layer_types", ["full_attention"] * 2, ["sliding_attention"] * 2),
            *_each("rope_parameters", *(
                {kind: {"rope_type": rope, "rope_theta": 1e4, "factor": 2.0} if rope != "default"
                    else {"rope_type": rope, "rope_theta": 3e4} for kind in ("full_attention", "sliding_attention")}
                for rope in ("default", "linear", "yarn", "dynamic")
            )),
            {"attention_bias": True, "mlp_bias": True, "norm_bias": True, "classifier_bias": True},
        ),
        "deberta-v2": (
            *_ACTIVATIONS,
            *_each("type_vocab_size", 2),
            *_each("embedding_size", 16),
            *_each("pooler_hidden_act", "relu"),
            *_each("attention_head_size", 16),
            _V3,
            *(_V3 | {"share_att_key": share, "pos_att_type": kinds}
                for share in (True, False) for kinds in (["c2p"], ["p2c"], ["c2p", "p2c"], [])),
            *(_V3 | change for change in _V3_CHANGES),
        ),
        "mpnet": (
            *_ACTIVATIONS,
            *_each("relative_attention_num_buckets", 48, 16),
            *_each("max_position_embeddings", 16),
            *_each("pad_token_id", 5),
        ),
        **dict.fromkeys(("vit", "vit_msn", "deit", "ijepa"), _VIT),
        "DeiTForImageClassificationWithTeacher": _VIT,
        "beit": _BEIT,
        "data2vec-vision": _BEIT,
        "dinov2": (*_DINO, {"use_mask_token": False}),
        "dinov2_with_registers": (*_DINO, *_each("num_register_tokens", 0, 1)),
        **dict.fromkeys(
            ("clip", "clipseg"), (*_PAIRS, *_each("projection_dim", 24), *_each("text.eos_token_id", 2))
        ),
        "metaclip_2": (*_PAIRS, *_each("projection_dim", 24), *_each("text.eos_token_id", 5)),
        "chinese_clip": (*_PAIRS, *_each("text.type_vocab_size", 1, 3), *_each("text.pad_token_id", 5)),
        "altclip": (*_PAIRS[:-1], *_each("text.type_vocab_size", 1, 2), *_each("text.pad_token_id", 5)),
        "siglip": (*_PAIRS, {"vision.vision_use_head": False}, *_each("text.projection_size", 24)),
        **dict.fromkeys(
            ("CLIPForImageClassification", "MetaClip2ForImageClassification"),
            _each("vision.hidden_act", "relu", "gelu_new"),
        ),
        "SiglipForImageClassification": (
            *_each("vision.hidden_act", "relu", "gelu_new"),
            {"vision.vision_use_head": False},
        ),
    }
)  # fmt: skip
"""Changes to the plain configuration, for each architecture; each change is one case."""
