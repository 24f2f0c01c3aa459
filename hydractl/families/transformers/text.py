"""transformers' text classifiers: a row each. What is code of them is in `text_modules` and `deberta_modules`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hydractl.families.transformers.encoder import TextEncoder
from hydractl.families.transformers.models import Kind, family_of_kind
from hydractl.families.transformers.tokenizers import text_preprocess

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from hydractl.families.base import Family
    from hydractl.families.tower import Model
    from hydractl.families.transformers.models import Kept
    from hydractl.manifest import Tokenization

ROTATIONS = ("default", "linear", "yarn", "llama3")
"""Rotary embeddings whose angles are the same however long the batch is."""
MPNET_PADDING, MPNET_BUCKETS = 1, 32
"""What the library's code says, whatever the configuration does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The text classifiers of one encoder.

    Attributes:
        title: The family's name, without the library's.
        encoder: What its parts are called.
        classes: See `Kind`.
        covers: See `Family`; the classes, where nothing else is said.
        unused: Positions that no token takes, given the configuration.
        refusal: See `Kind`.
        refuses: See `Family`.
        pads_left: See `Kind`.
    """

    title: str
    encoder: TextEncoder
    classes: Mapping[str, str]
    covers: str = ""
    unused: Callable[[Any], int] = lambda _: 0
    refusal: Callable[[Any], str | None] = lambda _: None
    refuses: str = ""
    pads_left: bool = True


def _family(row: Row) -> Family:
    def wrap(library: Any, kept: Kept) -> Model:  # noqa: ANN401 - transformers is untyped
        from hydractl.families.transformers.text_modules import wrap_text

        return wrap_text(library, kept, row.encoder)

    def preprocess(config: Any, folder: Path | None) -> Tokenization:  # noqa: ANN401 - as above
        return text_preprocess(config, folder, max_length=config.max_position_embeddings - row.unused(config))

    return family_of_kind(
        Kind(
            name=f"transformers-{row.title}",
            covers=row.covers or ", ".join(f"`{name}`" for name in row.classes.values()),
            refuses=row.refuses,
            classes=row.classes,
            tower="text",
            layout=row.encoder.layout(),
            wrap=wrap,
            preprocess=preprocess,
            refusal=row.refusal,
            pads_left=row.pads_left,
        )
    )


def _causal(config: Any) -> str | None:  # noqa: ANN401 - as above
    if getattr(config, "is_decoder", False) or getattr(config, "add_cross_attention", False):
        return "it is a decoder; its attention is causal"
    return None


def _few_buckets(config: Any) -> str | None:  # noqa: ANN401 - as above
    if config.relative_attention_num_buckets < MPNET_BUCKETS:
        return f"it has fewer than the {MPNET_BUCKETS} relative positions that the library looks up"
    return None


def _other_width(config: Any) -> str | None:  # noqa: ANN401 - as above
    width = config.hidden_size // config.num_attention_heads
    if getattr(config, "attention_head_size", width) != width:
        return "its `attention_head_size` is not its width divided by its heads"
    return None


def _changing_angles(config: Any) -> str | None:  # noqa: ANN401 - as above
    for kind in sorted(set(config.layer_types)):
        parameters = config.rope_parameters.get(kind)
        if parameters is None:
            return f"it has layers of the type `{kind}`"
        if parameters["rope_type"] not in ROTATIONS:
            return (
                f"its rotary embedding is of the type `{parameters['rope_type']}`, whose angles change with the length "
                "of the batch"
            )
    return None


_BERT = TextEncoder(
    model="bert",
    takes=("token_type_ids",),
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
_BERT_ROW = Row(
    title="bert",
    encoder=_BERT,
    classes={"bert": "BertForSequenceClassification"},
    refusal=_causal,
    refuses="decoders: their attention is causal",
)
_ROWS = (
    _BERT_ROW,
    replace(
        _BERT_ROW,
        title="roberta",
        encoder=replace(_BERT, model="roberta", final=(), projection=()),
        classes={
            "roberta": "RobertaForSequenceClassification",
            "xlm-roberta": "XLMRobertaForSequenceClassification",
            "camembert": "CamembertForSequenceClassification",
        },
        unused=lambda config: config.pad_token_id + 1,  # positions are counted from behind the padding token
    ),
    replace(
        _BERT_ROW,
        title="electra",
        encoder=replace(
            _BERT, model="electra", embed=("embeddings", "embeddings_project"), final=(), projection=()
        ),
        classes={"electra": "ElectraForSequenceClassification"},
    ),
    Row(
        title="distilbert",
        encoder=TextEncoder(
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
    Row(
        title="modernbert",
        encoder=TextEncoder(
            model="model",
            code="rotated in single precision",
            layers="layers",
            rotary="rotary_emb",
            final=("final_norm",),
            pooling="option",
            projection=("head", "drop"),
            qkv=("attn.Wqkv",),
            output="attn.Wo",
            norms=("attn_norm", "mlp_norm"),
            drops=("attn.out_drop", ""),
            attention_dropout="attention_dropout",
        ),
        classes={"modernbert": "ModernBertForSequenceClassification"},
        refusal=_changing_angles,
        refuses="rotary angles that change with the length of the batch",
        pads_left=False,
    ),
    Row(
        title="deberta",
        encoder=replace(
            _BERT,
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
        covers="`DebertaV2ForSequenceClassification`: v2, v3",
        refusal=_other_width,
        refuses="`attention_head_size` other than the width divided by the heads",
        pads_left=False,
    ),
    Row(
        title="mpnet",
        encoder=replace(
            _BERT,
            model="mpnet",
            takes=(),
            code="shared bias",
            beside=("encoder.relative_attention_bias",),
            final=(),
            projection=(),
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
)
TEXTS = tuple(_family(row) for row in _ROWS)
