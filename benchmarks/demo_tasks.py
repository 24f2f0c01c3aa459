"""Models, data and training options: digits as in `hydractl demo --full`, and generated film reviews."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from film_reviews import tokens

from hydractl.cli.commands import run as demos


class DemoTask:
    """Parameters of `full.toml`, in the form of command-line options.

    Args:
        changes: Parameters with other values.
    """

    def __init__(self, changes: Mapping[str, Any]) -> None:
        params = tomllib.loads(demos.pipeline("full", Path(), 0))["params"] | changes
        self.architecture: str = params["model"]
        self.train, self.val, self.test, self.ood_val = (
            params[name] for name in ("train", "val", "test", "guide")
        )
        self.near, self.far = ((params[f"{kind}_1"], params[f"{kind}_2"]) for kind in ("near", "far"))
        usual = ("--optimizer", "adamw", "--batch-size", "64", "--augment", params["augment"])
        self.training = (*usual, "--lr", str(params["lr"]))
        self.epochs = params["epochs"]
        self.fine_tuning = (*usual, "--lr", str(params["lr_tuned"]), "--epochs", str(params["epochs_tuned"]))


def reviews(out: Path) -> DemoTask:
    """Return the task on the files of `film_reviews.write_reviews` in `out`.

    Weights begin with a range of 0.1, because BERT's own is for widths near 768, and a small model hardly
    learns from it.
    """
    tables = {
        "train": "train", "val": "val", "test": "test", "guide": "gadgets", "near_1": "restaurants", "near_2": "hotels",
    }  # fmt: skip
    return DemoTask(
        {key: str(out / f"{name}.jsonl") for key, name in tables.items()}
        | {
            "model": "arch:bert::hidden_size=48,num_hidden_layers=3,num_attention_heads=8,intermediate_size=96,num_labels=2,"
            "max_position_embeddings=64,initializer_range=0.1,hidden_dropout_prob=0.0,attention_probs_dropout_prob=0.0,"
            f"vocab_size={len(tokens())},tokenizer={out}/tokenizer.json",
            "far_1": "manual=manual::limit=300",
            "far_2": "letters=letters::limit=300",
            "augment": "none",
            "lr": 2e-3,
            "epochs": 8,
            "lr_tuned": 2e-4,
            "epochs_tuned": 2,
        }
    )


DIGITS = DemoTask({})
