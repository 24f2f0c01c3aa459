"""A tiny text task: a tokenizer, a model reference, and files of reviews."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

from hydractl.manifest.header import Tokenization

if TYPE_CHECKING:
    from pathlib import Path

    from tokenizers import Tokenizer

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
GOOD, BAD = ("good", "fine", "great"), ("bad", "awful", "poor")
FILMS, GADGETS = ("film", "plot", "actor"), ("phone", "battery", "screen")
WORDS = (*SPECIAL, "the", "was", "very", "play", "##ed", "##ing", *GOOD, *BAD, *FILMS, *GADGETS)
MAX_LENGTH = 24


def tokenizer() -> Tokenizer:
    """Return a WordPiece tokenizer with the vocabulary `WORDS` and BERT's special tokens."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    made = Tokenizer(models.WordPiece({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))  # noqa: S106 - no password
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return made


def tokenization(**changes: object) -> Tokenization:
    """Return the tokenization settings for this tokenizer."""
    preprocess = Tokenization(
        tokenizer=tokenizer().to_str(),
        names=("attention_mask", "token_type_ids"),
        max_length=MAX_LENGTH,
        pad_id=0,
        vocab_size=len(WORDS),
    )
    return preprocess.model_copy(update=changes)


def arch(folder: Path) -> str:
    """Write the tokenizer into a folder. Return the reference of a tiny BERT with this tokenizer."""
    path = folder / "tokenizer.json"
    tokenizer().save(str(path))
    return (
        "arch:bert::hidden_size=32,num_hidden_layers=2,num_attention_heads=4,intermediate_size=48,"
        f"vocab_size={len(WORDS)},max_position_embeddings={MAX_LENGTH},num_labels=2,tokenizer={path}"
    )


def reviews(path: Path, count: int, *, seed: int, things: tuple[str, ...] = FILMS) -> Path:
    """Write `count` positive or negative reviews.

    Args:
        path: Output file in JSON Lines.
        count: Number of reviews.
        seed: Seed of the draw.
        things: Reviewed things; other words make OOD data.
    """
    draw = random.Random(seed)  # noqa: S311 - reproducible, not secret
    rows = []
    for _ in range(count):
        label = draw.choice(("negative", "positive"))
        judged = draw.choice(GOOD if label == "positive" else BAD)
        words = ["the", draw.choice(things), "was", *["very"] * draw.randrange(4), judged]
        rows.append({"text": " ".join(words), "label": label})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def gibberish(path: Path, count: int, *, seed: int) -> Path:
    """Write `count` meaningless texts without labels."""
    draw = random.Random(seed)  # noqa: S311 - reproducible, not secret
    texts = [" ".join(draw.choice(WORDS[4:9]) for _ in range(draw.randrange(1, 30))) for _ in range(count)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path
