"""transformers' DistilBERT: a BERT without segments and pooler."""

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
    block="distilbert.transformer.layer.{layer}.",
    heads=(
        *projections_apart("attention.{part}_lin", "qkv"),
        HeadTensor(name="attention.out_lin.weight", axis=1, copies=1, role=Role.OUTPUT),
    ),
    attention=("attention.",),
    mlp=("ffn.",),
    readout=("pre_classifier.",),
    head=("classifier.",),
)


def _wrap(library: Any, kept: Kept) -> Model:  # noqa: ANN401 - transformers is untyped
    from hydractl.families.transformers.distilbert_modules import wrap_distilbert

    return wrap_distilbert(library, kept)


def _preprocess(config: Any, folder: Path | None) -> Tokenization:  # noqa: ANN401 - as above
    return text_preprocess(config, folder, max_length=config.max_position_embeddings)


DISTILBERT = family_of_kind(
    Kind(
        name="transformers-distilbert",
        covers="`DistilBertForSequenceClassification`",
        classes={"distilbert": "DistilBertForSequenceClassification"},
        tower="text",
        layout=LAYOUT,
        wrap=_wrap,
        preprocess=_preprocess,
    )
)
