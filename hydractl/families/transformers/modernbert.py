"""transformers' ModernBERT: pre-norm, q, k and v fused, rotary embeddings, local and global layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hydractl.families.base import HeadTensor, Role, TowerLayout
from hydractl.families.transformers.models import Kind, family_of_kind
from hydractl.families.transformers.tokenizers import text_preprocess

if TYPE_CHECKING:
    from pathlib import Path

    from hydractl.families.tower import Model
    from hydractl.families.transformers.models import Kept
    from hydractl.manifest import Tokenization

LAYOUT = TowerLayout(
    block="model.layers.{layer}.",
    heads=(
        HeadTensor(name="attn.Wqkv.weight", axis=0, copies=3, role=Role.INPUT),
        HeadTensor(name="attn.Wqkv.bias", axis=0, copies=3, role=Role.BIAS),
        HeadTensor(name="attn.Wo.weight", axis=1, copies=1, role=Role.OUTPUT),
    ),
    attention=("attn.",),
    mlp=("mlp.",),
    readout=("model.final_norm.", "head."),
    head=("classifier.",),
)
ROTATIONS = ("default", "linear", "yarn", "llama3")
"""Rotary embeddings whose angles are the same however long the batch is."""


def _wrap(library: Any, kept: Kept) -> Model:  # noqa: ANN401 - transformers is untyped
    from hydractl.families.transformers.modernbert_modules import wrap_modernbert

    return wrap_modernbert(library, kept)


def _preprocess(config: Any, folder: Path | None) -> Tokenization:  # noqa: ANN401 - as above
    return text_preprocess(config, folder, max_length=config.max_position_embeddings)


def _refusal(config: Any) -> str | None:  # noqa: ANN401 - as above
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


MODERNBERT = family_of_kind(
    Kind(
        name="transformers-modernbert",
        covers="`ModernBertForSequenceClassification`",
        refuses="rotary angles that change with the length of the batch",
        classes={"modernbert": "ModernBertForSequenceClassification"},
        tower="text",
        layout=LAYOUT,
        wrap=_wrap,
        preprocess=_preprocess,
        refusal=_refusal,
        pads_left=False,
    )
)
