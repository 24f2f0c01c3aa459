"""transformers' text classifiers: a row each. What is code of them is in `text_modules` and `deberta_modules`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from hydractl.families.base import TowerLayout
from hydractl.families.transformers.encoder import TextEncoderNames
from hydractl.families.transformers.models import FamilyRow, family_of_row
from hydractl.families.transformers.tokenizers import read_texts
from hydractl.manifest.header import Architecture, Tokenization
from hydractl.tasks import SINGLE_LABEL, TOKENS

if TYPE_CHECKING:
    from hydractl.families.surgery import HeadNumbers
    from hydractl.families.tower import Model

ROTATIONS = ("default", "linear", "yarn", "llama3")
"""Types of rotary embeddings with angles that do not depend on the length of the batch."""
MPNET_PADDING, MPNET_BUCKETS = 1, 32
"""Constant of the library's code, independent of the configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRow(FamilyRow):
    """The text classifiers of one encoder.

    Attributes:
        encoder: What its parts are called.
        unused: Positions that no token takes, given the configuration.
    """

    encoder: TextEncoderNames
    unused: Callable[[Any], int] = lambda _: 0

    @property
    @override
    def towers(self) -> Mapping[str, TowerLayout]:
        return {"text": self.encoder.layout()}

    @override
    def of(self, architecture: Architecture) -> TextRow:
        if architecture.task.by_word:
            return self.by_token()
        return self if architecture.pooling is None else replace(self, encoder=self.encoder.averaged())

    @override
    def by_token(self) -> TextRow:
        of_texts, of_tokens = SINGLE_LABEL.library, TOKENS.library
        classes = {name: f"{kind.removesuffix(of_texts)}{of_tokens}" for name, kind in self.classes.items()}
        return replace(self, classes=classes, encoder=self.encoder.by_token())

    @override
    def spared(self, architecture: Architecture) -> tuple[str, ...]:
        return () if architecture.pooling is None else self.encoder.spared

    @override
    def wrap(self, library: Any, head_numbers: Mapping[str, HeadNumbers]) -> Model:
        from hydractl.families.transformers.text_modules import wrap_text

        return wrap_text(library, head_numbers["text"], self.encoder)

    @override
    def texts(self, config: Any, source: Path | None) -> Tokenization:
        return read_texts(config, source, unused=self.unused(config), padding=self.padding)


def _causal(config: Any) -> str | None:  # noqa: ANN401 - as above
    if getattr(config, "is_decoder", False) or getattr(config, "add_cross_attention", False):
        return "it is a decoder with causal attention"
    return None


def _few_buckets(config: Any) -> str | None:  # noqa: ANN401 - as above
    if config.relative_attention_num_buckets < MPNET_BUCKETS:
        return f"it has fewer than the {MPNET_BUCKETS} relative positions that the library uses"
    return None


def _other_width(config: Any) -> str | None:  # noqa: ANN401 - as above
    width = config.hidden_size // config.num_attention_heads
    if getattr(config, "attention_head_size", width) != width:
        return "its `attention_head_size` is not its width divided by its number of heads"
    return None


def changing_angles(config: Any) -> str | None:  # noqa: ANN401 - as above
    """Return why angles of a configuration cannot be had once for all batches, or None."""
    rope_parameters = config.rope_parameters
    for kind in sorted(set(getattr(config, "layer_types", None) or ())) or [None]:
        parameters = rope_parameters if "rope_type" in rope_parameters else rope_parameters.get(kind)
        if parameters is None:
            return f"it has layers of the type `{kind}`"
        if parameters["rope_type"] not in ROTATIONS:
            return (
                f"its rotary embedding is of the type `{parameters['rope_type']}`, whose angles change with the length "
                "of the batch"
            )
    return None


def _unpadded(config: Any) -> str | None:  # noqa: ANN401 - as above
    if config.pad_token_id is None or (config.token_dropout and config.mask_token_id is None):
        return "it defines no padding token (`pad_token_id`) or mask token (`mask_token_id`)"
    return _causal(config)


def _rotated_values(config: Any) -> str | None:  # noqa: ANN401 - as above
    return "it also rotates values (`rotary_value`)" if config.rotary_value else _causal(config)


def _behind_padding(config: Any) -> int:  # noqa: ANN401 - as above
    """Return how many positions no token takes where they are counted from behind the padding token."""
    return int(config.pad_token_id) + 1


BERT = TextEncoderNames(
    model="bert",
    extra_inputs=("token_type_ids",),
    layers="encoder.layer",
    final=("pooler",),
    projection=("dropout",),
    qkv=("attention.self.query", "attention.self.key", "attention.self.value"),
    output="attention.output.dense",
    post_norm=True,
    norms=("attention.output.LayerNorm", "output.LayerNorm"),
    mlp=("intermediate", "output.dense"),
    drops=("attention.output.dropout", "output.dropout"),
)
_BERT_ROW = TextRow(
    title="bert",
    encoder=BERT,
    classes={"bert": "BertForSequenceClassification"},
    refusal=_causal,
    refuses="decoders: their attention is causal",
)
_NO_POOLER = replace(BERT, final=(), projection=(), on_mean=("classifier.dropout", "classifier.out_proj"))
_PRE_NORM = replace(_NO_POOLER, post_norm=False)
LLAMA = TextEncoderNames(
    model="model",
    layers="layers",
    embed=("embed_tokens",),
    rotary="rotary_emb",
    final=("norm",),
    pooling="option",
    on_mean=("classifier",),
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    output="self_attn.o_proj",
    norms=("input_layernorm", "post_attention_layernorm"),
    attention_dropout="attention_dropout",
)
_ROTATED = replace(
    LLAMA,
    embed=("embeddings",),
    extra_inputs=("token_type_ids",),
    pooling="own",
    on_mean=("dropout", "classifier"),
    post_norm=True,
    norms=("post_attention_layernorm", "post_mlp_layernorm"),
    drops=("post_attention_dropout", "post_mlp_dropout"),
    attention_dropout="attention_probs_dropout_prob",
)
_ROTATED_ON_DISK = (
    (r"^new\.", "gte."),
    (r"\.encoder\.layers?\.", ".layers."),
    (r"\.emb_ln\.", ".embeddings.LayerNorm."),
    (r"\.(?:attn|mixer|attention)\.o(?:ut)?_proj\.", ".self_attn.o_proj."),
    (r"\.(?:attn|mixer|attention)\.(?:Wqkv|qkv_proj)\.", ".self_attn.q_proj."),
)
CHANGING = "rotary angles that change with the length of the batch"
_ROWS = (
    _BERT_ROW,
    replace(
        _BERT_ROW,
        title="roberta",
        encoder=replace(_NO_POOLER, model="roberta"),
        classes={
            "roberta": "RobertaForSequenceClassification",
            "xlm-roberta": "XLMRobertaForSequenceClassification",
            "camembert": "CamembertForSequenceClassification",
        },
        unused=_behind_padding,
    ),
    replace(
        _BERT_ROW,
        title="electra",
        encoder=replace(_NO_POOLER, model="electra", embed=("embeddings", "embeddings_project")),
        classes={"electra": "ElectraForSequenceClassification"},
    ),
    TextRow(
        title="distilbert",
        encoder=TextEncoderNames(
            model="distilbert",
            layers="transformer.layer",
            pooling="first",
            projection=("pre_classifier", "relu", "dropout"),
            qkv=("attention.q_lin", "attention.k_lin", "attention.v_lin"),
            output="attention.out_lin",
            post_norm=True,
            norms=("sa_layer_norm", "output_layer_norm"),
            mlp=("ffn.lin1", "ffn.activation", "ffn.lin2"),
            drops=("", "ffn.dropout"),
            attention_dropout="attention_dropout",
        ),
        classes={"distilbert": "DistilBertForSequenceClassification"},
    ),
    TextRow(
        title="modernbert",
        encoder=TextEncoderNames(
            model="model",
            code="rotated in single precision",
            layers="layers",
            rotary="rotary_emb",
            final=("final_norm",),
            pooling="option",
            projection=("head", "drop"),
            on_mean=("drop", "classifier"),
            on_tokens=("head", "drop", "classifier"),
            qkv=("attn.Wqkv",),
            output="attn.Wo",
            norms=("attn_norm", "mlp_norm"),
            drops=("attn.out_drop", ""),
            attention_dropout="attention_dropout",
        ),
        classes={"modernbert": "ModernBertForSequenceClassification"},
        refusal=changing_angles,
        refuses=CHANGING,
    ),
    TextRow(
        title="deberta",
        encoder=replace(
            BERT,
            model="deberta",
            code="disentangled",
            beside=("encoder.rel_embeddings", "encoder.LayerNorm"),
            final=(),
            projection=("pooler", "dropout"),
            qkv=tuple(f"attention.self.{name}_proj" for name in ("query", "key", "value")),
            further=tuple((name, f"attention.self.{name}_proj") for name in ("pos_key", "pos_query")),
            outside=(("conv", "encoder.conv"),),
        ),
        classes={"deberta-v2": "DebertaV2ForSequenceClassification"},
        remark=": v2, v3",
        refusal=_other_width,
        refuses="`attention_head_size` other than the width divided by the heads",
    ),
    TextRow(
        title="mpnet",
        encoder=replace(
            _NO_POOLER,
            model="mpnet",
            extra_inputs=(),
            code="shared bias",
            beside=("encoder.relative_attention_bias",),
            qkv=("attention.attn.q", "attention.attn.k", "attention.attn.v"),
            output="attention.attn.o",
            norms=("attention.LayerNorm", "output.LayerNorm"),
            drops=("attention.dropout", "output.dropout"),
        ),
        classes={"mpnet": "MPNetForSequenceClassification"},
        unused=lambda _: MPNET_PADDING + 1,
        refusal=_few_buckets,
        refuses=f"fewer relative positions than the {MPNET_BUCKETS} that the library looks up",
    ),
    replace(
        _BERT_ROW,
        title="ernie",
        encoder=replace(BERT, model="ernie"),
        classes={"ernie": "ErnieForSequenceClassification"},
    ),
    replace(
        _BERT_ROW,
        title="rembert",
        encoder=replace(BERT, model="rembert", embed=("embeddings", "encoder.embedding_hidden_mapping_in")),
        classes={"rembert": "RemBertForSequenceClassification"},
    ),
    replace(
        _BERT_ROW,
        title="roformer",
        encoder=replace(
            _NO_POOLER,
            model="roformer",
            embed=("embeddings", "embeddings_project"),
            unread=("encoder.embed_positions",),
            code="pairs",
        ),
        classes={"roformer": "RoFormerForSequenceClassification"},
        refusal=_rotated_values,
        refuses="decoders; `rotary_value`",
    ),
    replace(
        _BERT_ROW,
        title="data2vec-text",
        encoder=replace(_NO_POOLER, model="data2vec_text"),
        classes={"data2vec-text": "Data2VecTextForSequenceClassification"},
        unused=_behind_padding,
    ),
    replace(
        _BERT_ROW,
        title="megatron-bert",
        encoder=replace(
            BERT,
            post_norm=False,
            norms=("attention.ln", "ln"),
            final=("encoder.ln", "pooler"),
        ),
        classes={"megatron-bert": "MegatronBertForSequenceClassification"},
    ),
    replace(
        _BERT_ROW,
        title="xlm-roberta-xl",
        encoder=replace(
            _PRE_NORM,
            model="roberta",
            final=("encoder.LayerNorm",),
            norms=("attention.self_attn_layer_norm", "LayerNorm"),
            drops=("attention.output.dropout", ""),
        ),
        classes={"xlm-roberta-xl": "XLMRobertaXLForSequenceClassification"},
        unused=_behind_padding,
    ),
    replace(
        _BERT_ROW,
        title="roberta-prelayernorm",
        encoder=replace(
            _PRE_NORM,
            model="roberta_prelayernorm",
            final=("LayerNorm",),
            norms=("attention.LayerNorm", "intermediate.LayerNorm"),
            mlp=("intermediate.dense", "intermediate.intermediate_act_fn", "output.dense"),
        ),
        classes={"roberta-prelayernorm": "RobertaPreLayerNormForSequenceClassification"},
        unused=_behind_padding,
    ),
    replace(
        _BERT_ROW,
        title="esm",
        encoder=replace(
            _PRE_NORM,
            model="esm",
            extra_inputs=("attention_mask",),
            rotary="rotary_embeddings",
            final=("encoder.emb_layer_norm_after",),
            norms=("attention.LayerNorm", "LayerNorm"),
            unread=("contact_head",),
            code="scaled before",
        ),
        classes={"esm": "EsmForSequenceClassification"},
        unused=_behind_padding,
        refusal=_unpadded,
    ),
    TextRow(
        title="eurobert",
        encoder=replace(LLAMA, projection=("dense", "activation"), on_tokens=("classifier",)),
        classes={"eurobert": "EuroBertForSequenceClassification"},
        refusal=changing_angles,
        refuses=CHANGING,
    ),
    TextRow(
        title="ultrabert",
        encoder=replace(
            LLAMA, projection=("drop",), on_mean=("drop", "classifier"), on_tokens=("drop", "classifier")
        ),
        classes={"ultrabert": "UltrabertForSequenceClassification"},
        refusal=changing_angles,
        refuses=CHANGING,
        on_disk=((r"^ultrabert\.", "model."),),
    ),
    TextRow(
        title="gte",
        encoder=replace(_ROTATED, model="gte", final=("pooler",), projection=("dropout",)),
        classes={"gte": "GteForSequenceClassification"},
        refusal=changing_angles,
        refuses=CHANGING,
        on_disk=_ROTATED_ON_DISK,
    ),
    TextRow(
        title="nomic-bert",
        encoder=replace(_ROTATED, model="nomic_bert", final=("pooler",), projection=("dropout",)),
        classes={"nomic_bert": "NomicBertForSequenceClassification"},
        refusal=changing_angles,
        refuses=CHANGING,
        on_disk=_ROTATED_ON_DISK,
    ),
    TextRow(
        title="jina-v3",
        encoder=replace(_ROTATED, model="roberta", final=(), on_mean=_NO_POOLER.on_mean),
        classes={"jina_embeddings_v3": "JinaEmbeddingsV3ForSequenceClassification"},
        refusal=changing_angles,
        refuses=CHANGING,
        on_disk=_ROTATED_ON_DISK,
    ),
)
TEXTS = tuple(family_of_row(row) for row in _ROWS)
