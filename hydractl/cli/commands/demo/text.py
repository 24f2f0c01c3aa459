"""The demo on texts: reviews out of a grammar, whose one rule a small BERT has to find."""

from __future__ import annotations

import string
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from hydractl.cli.commands.demo.plan import DemoTask, Experiment, Part

TOKENIZER = "tokenizer.json"
PADDING, UNKNOWN, FIRST, LAST = SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
MAX_LENGTH = 64
REVIEWS = Experiment(
    # BERT's own initialiser is for widths near 768: so narrow a model hardly learns from it
    architecture="arch:bert::hidden_size=48,num_hidden_layers=3,num_attention_heads=8,intermediate_size=96,num_labels=2,"
    f"max_position_embeddings={MAX_LENGTH},initializer_range=0.1,hidden_dropout_prob=0.0,attention_probs_dropout_prob=0.0",
    train="reviews::split=train",
    val="reviews::split=val",
    test="reviews::split=test",
    ood_val="reviews::domain=gadgets",
    near=("restaurants=reviews::domain=restaurants", "hotels=reviews::domain=hotels"),
    far=("manual=manual::limit=300", "letters=letters::limit=300"),
    training=("--optimizer", "adamw", "--lr", "2e-3", "--batch-size", "64"),
    epochs=(8, 18, 2),
    trunk=2,
    fine_tuning=("--optimizer", "adamw", "--lr", "2e-4", "--epochs", "2", "--batch-size", "64"),
    removed=8,
    pool=16,
    kept_per_layer=5,
)


def plan(out: Path, seed: int) -> tuple[Part, ...]:
    """Return every command of the demo in order."""
    text_options = f"vocab_size={len(vocabulary())},tokenizer={out / TOKENIZER}"
    return replace(REVIEWS, architecture=f"{REVIEWS.architecture},{text_options}").plan(out, seed)


def prepare(out: Path, seed: int, say: Callable[[str], None]) -> None:
    """Write the tokenizer that the base is trained with.

    Raises:
        OutputError: If it cannot be written.
    """
    del seed
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    from hydractl.output.atomic_write import publish_text

    ids = {word: i for i, word in enumerate(vocabulary())}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{FIRST} $A {LAST}",
        pair=f"{FIRST} $A {LAST} $B:1 {LAST}:1",
        special_tokens=[(word, ids[word]) for word in (FIRST, LAST)],
    )
    path = out / TOKENIZER
    publish_text(path, tokenizer.to_str(pretty=True))
    say(f"Wrote {path}: the {len(ids)} tokens of reviews of films; other words are spelt")


def vocabulary() -> tuple[str, ...]:
    """Return every token, in order of its id: special ones, the words of the reviews, and letters for all other words."""
    from hydractl.data.toys.prose import vocabulary as words

    letters = (*string.ascii_lowercase, *(f"##{letter}" for letter in string.ascii_lowercase))
    return (*SPECIAL, *dict.fromkeys((*words(), *letters)))


TASK = DemoTask(plan=plan, prepare=prepare, prepared_files=(TOKENIZER,))
