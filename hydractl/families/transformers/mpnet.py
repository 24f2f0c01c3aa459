"""transformers' MPNet: a BERT with one bias of relative positions for all layers, a column of it for each head."""

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

PADDING = 1
BUCKETS = 32
"""What the library's code says, whatever the configuration does."""

LAYOUT = TowerLayout(
    block="mpnet.encoder.layer.{layer}.",
    heads=(
        *projections_apart("attention.attn.{part}", "qkv"),
        HeadTensor(name="attention.attn.o.weight", axis=1, copies=1, role=Role.OUTPUT),
    ),
    attention=("attention.attn.",),
    mlp=("intermediate.", "output.dense."),
    readout=(),
    head=("classifier.",),
)


def _wrap(library: Any, kept: Kept) -> Model:  # noqa: ANN401 - transformers is untyped
    from hydractl.families.transformers.mpnet_modules import wrap_mpnet

    return wrap_mpnet(library, kept)


def _preprocess(config: Any, folder: Path | None) -> Tokenization:  # noqa: ANN401 - as above
    length = (
        config.max_position_embeddings - PADDING - 1
    )  # positions are counted from behind the padding token
    return text_preprocess(config, folder, max_length=length)


def _refusal(config: Any) -> str | None:  # noqa: ANN401 - as above
    if config.relative_attention_num_buckets < BUCKETS:
        return f"it has fewer than the {BUCKETS} relative positions that the library looks up"
    return None


MPNET = family_of_kind(
    Kind(
        name="transformers-mpnet",
        covers="`MPNetForSequenceClassification`",
        refuses="fewer relative positions than the 32 that the library looks up",
        classes={"mpnet": "MPNetForSequenceClassification"},
        tower="text",
        layout=LAYOUT,
        wrap=_wrap,
        preprocess=_preprocess,
        refusal=_refusal,
    )
)
