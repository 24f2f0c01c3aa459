"""transformers' DeBERTa-v2 and v3: disentangled attention to words and to relative positions (He et al. 2021)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hydractl.families.base import HeadTensor, Role, TowerLayout, projections_apart
from hydractl.families.transformers.models import Kind, family_of_kind
from hydractl.families.transformers.tokenizers import text_preprocess

if TYPE_CHECKING:
    from pathlib import Path

    from hydractl.families.tower import Model
    from hydractl.families.transformers.models import Kept
    from hydractl.manifest import Tokenization

LAYOUT = TowerLayout(
    block="deberta.encoder.layer.{layer}.",
    heads=(
        *projections_apart("attention.self.{part}_proj", ("query", "key", "value", "pos_key", "pos_query")),
        HeadTensor(name="attention.output.dense.weight", axis=1, copies=1, role=Role.OUTPUT),
    ),
    attention=("attention.self.", "attention.output.dense."),
    mlp=("intermediate.", "output.dense."),
    readout=("pooler.",),
    head=("classifier.",),
)


def _wrap(library: Any, kept: Kept) -> Model:  # noqa: ANN401 - transformers is untyped
    from hydractl.families.transformers.deberta_modules import wrap_deberta

    return wrap_deberta(library, kept)


def _preprocess(config: Any, folder: Path | None) -> Tokenization:  # noqa: ANN401 - as above
    return text_preprocess(config, folder, max_length=config.max_position_embeddings)


def _refusal(config: Any) -> str | None:  # noqa: ANN401 - as above
    width = config.hidden_size // config.num_attention_heads
    if getattr(config, "attention_head_size", width) != width:
        return "its `attention_head_size` is not its width divided by its heads"
    return None


DEBERTA = family_of_kind(
    Kind(
        name="transformers-deberta",
        covers="`DebertaV2ForSequenceClassification`: v2, v3",
        refuses="`attention_head_size` other than the width divided by the heads",
        classes={"deberta-v2": "DebertaV2ForSequenceClassification"},
        tower="text",
        layout=LAYOUT,
        wrap=_wrap,
        preprocess=_preprocess,
        refusal=_refusal,
        pads_left=False,
    )
)
