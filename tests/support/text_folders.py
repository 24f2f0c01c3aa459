"""Folders of text models as saved by `save_pretrained`: weights, configuration and tokenizer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from support.builders import Sample, base

if TYPE_CHECKING:
    from pathlib import Path

    from support.variants import Variant

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "cat", "sat", "on", "a", "mat")


def save_tokenizer(folder: Path) -> None:
    """Write a tokenizer with the vocabulary `WORDS`."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token=WORDS[1]))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    named = {f"{word[1:-1].lower()}_token": word for word in WORDS[:4]}
    PreTrainedTokenizerFast(tokenizer_object=made, **named).save_pretrained(folder)


def save_text_model(variant: Variant, folder: Path, **options: object) -> Sample:
    """Save the base of a variant with its library and a tokenizer. Return the base.

    Args:
        variant: Variant of a text model.
        folder: Output folder.
        options: Options of `save_pretrained`.
    """
    sample = base(variant)
    library = sample.library()
    if sample.header.architecture.task.by_label:
        library.config.problem_type = sample.header.architecture.problem_type
    library.save_pretrained(folder, **options)
    save_tokenizer(folder)
    return sample


def edit_config(folder: Path, **changes: object) -> None:
    """Change keys of a saved config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
