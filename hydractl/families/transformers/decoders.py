"""transformers' decoders that classify a text by its last token: a row for all of one shape, Llama's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from typing_extensions import override

from hydractl.families.transformers.models import family_of_row
from hydractl.families.transformers.text import CHANGING, LLAMA, TextRow, changing_angles
from hydractl.families.transformers.tokenizers import padding_token

CLASSES: Mapping[str, str] = MappingProxyType(
    {
        name.lower(): f"{name}ForSequenceClassification"
        for name in ("Llama", "Mistral", "Ministral", "Qwen2", "Qwen3", "Gemma", "Arcee")
    }
)


def _refusal(config: Any) -> str | None:  # noqa: ANN401 - transformers is untyped
    if config.pad_token_id is None:
        return (
            "its config.json has no `pad_token_id`, by which the last token of a padded text is found; write the tokenizer's "
            "there, or the id of its end of text: `model.config.pad_token_id = tokenizer.eos_token_id`, and save it again"
        )
    if getattr(config, "use_bidirectional_attention", None):
        return "its attention is not causal (`use_bidirectional_attention`)"
    return changing_angles(config)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderRow(TextRow):
    """Decoders of one shape."""

    @override
    def backbone_options(self, options: dict[str, object], folder: Path) -> dict[str, object]:
        pad = options.get("pad_token_id")  # language models need none, and many have none
        return options | {"pad_token_id": padding_token(folder) if pad is None else pad}


_DECODER = DecoderRow(
    title="decoder",
    encoder=replace(
        LLAMA,
        causal=True,
        head_norms=("self_attn.q_norm", "self_attn.k_norm"),
        pooling="last",
        on_mean=("score",),
        on_tokens=("dropout", "score"),
        head=("score",),
    ),
    classes=CLASSES,
    refusal=_refusal,
    refuses=f"no `pad_token_id`; {CHANGING}; Gemma with attention that is not causal",
)
DECODERS = (family_of_row(_DECODER),)
