"""Models, data and training options of `hydractl demo --full` and `hydractl demo --task text`."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydractl.cli.commands import run as demos

if TYPE_CHECKING:
    from collections.abc import Sequence


class DemoTask:
    """Parameters of a demo, in the form of command-line options.

    Args:
        files: Files of the demo's pipeline.
        out: Folder of the tokenizer; replaces `{out}` in the architecture.
    """

    def __init__(self, files: Sequence[str], out: Path) -> None:
        params: dict[str, Any] = tomllib.loads(demos.pipeline(files, out, 0))["params"]
        self.architecture: str = params["model"].replace("{out}", str(out))
        self.train, self.val, self.test, self.ood_val = (
            params[name] for name in ("train", "val", "test", "guide")
        )
        self.near, self.far = ((params[f"{kind}_1"], params[f"{kind}_2"]) for kind in ("near", "far"))
        usual = ("--optimizer", "adamw", "--batch-size", "64", "--augment", params["augment"])
        self.training = (*usual, "--lr", str(params["lr"]))
        self.epochs = params["epochs"]
        self.fine_tuning = (*usual, "--lr", str(params["lr_tuned"]), "--epochs", str(params["epochs_tuned"]))


def reviews(out: Path) -> DemoTask:
    """Return the task on reviews. Its tokenizer is stored in `out`."""
    return DemoTask(demos.DEMOS["text"], out)


DIGITS = DemoTask(demos.FULL, Path())
