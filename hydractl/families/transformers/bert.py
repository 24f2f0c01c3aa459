"""transformers' BERT and its kin, post-norm and with q, k and v apart: BERT, RoBERTa, XLM-RoBERTa, CamemBERT, ELECTRA."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hydractl.families.base import HeadTensor, Role, TowerLayout, projections_apart
from hydractl.families.transformers.models import Kind, family_of_kind
from hydractl.families.transformers.tokenizers import text_preprocess

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hydractl.families.base import Family
    from hydractl.families.tower import Model
    from hydractl.families.transformers.models import Kept
    from hydractl.manifest import Tokenization


def layout(prefix: str, *, head: tuple[str, ...], readout: tuple[str, ...] = ()) -> TowerLayout:
    """Return where heads and MLPs lie in a model whose encoder is called `prefix`."""
    return TowerLayout(
        block=f"{prefix}.encoder.layer.{{layer}}.",
        heads=(
            *projections_apart("attention.self.{part}", ("query", "key", "value")),
            HeadTensor(name="attention.output.dense.weight", axis=1, copies=1, role=Role.OUTPUT),
        ),
        attention=("attention.self.", "attention.output.dense."),
        mlp=("intermediate.", "output.dense."),
        readout=readout,
        head=head,
    )


def _family(
    prefix: str,
    *,
    classes: dict[str, str],
    head: tuple[str, ...],
    readout: tuple[str, ...] = (),
    first_position: Callable[[Any], int] = lambda _: 0,
) -> Family:
    def wrap(library: Any, kept: Kept) -> Model:  # noqa: ANN401 - transformers is untyped
        from hydractl.families.transformers.bert_modules import wrap_bert

        return wrap_bert(library, kept, prefix=prefix)

    def preprocess(config: Any, folder: Path | None) -> Tokenization:  # noqa: ANN401 - as above
        length = config.max_position_embeddings - first_position(config)
        return text_preprocess(config, folder, max_length=length)

    return family_of_kind(
        Kind(
            name=f"transformers-{prefix}",
            covers=", ".join(f"`{name}`" for name in classes.values()),
            refuses="decoders: their attention is causal",
            classes=classes,
            tower="text",
            layout=layout(prefix, head=head, readout=readout),
            wrap=wrap,
            preprocess=preprocess,
            refusal=_refusal,
        )
    )


def _refusal(config: Any) -> str | None:  # noqa: ANN401 - as above
    if getattr(config, "is_decoder", False) or getattr(config, "add_cross_attention", False):
        return "it is a decoder; its attention is causal"
    return None


BERT = _family(
    "bert",
    classes={"bert": "BertForSequenceClassification"},
    head=("classifier.",),
    readout=("bert.pooler.",),
)
ROBERTA = _family(
    "roberta",
    classes={
        "roberta": "RobertaForSequenceClassification",
        "xlm-roberta": "XLMRobertaForSequenceClassification",
        "camembert": "CamembertForSequenceClassification",
    },
    head=("classifier.",),
    first_position=lambda config: (
        config.pad_token_id + 1
    ),  # positions are counted from behind the padding token
)
ELECTRA = _family("electra", classes={"electra": "ElectraForSequenceClassification"}, head=("classifier.",))
