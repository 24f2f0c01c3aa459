"""Program that runs fine-tunings in several processes, one after another under one launcher."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

from support.progress_log import ProgressLog

TRAIN = "digits::split=train,classes=0-6,limit=60"
# The split has 300 samples: two validation batches. With a limit there is a single batch, and the other
# processes stay empty.
VAL = "digits::split=val,classes=0-6,limit={}"


class CutAt(ProgressLog):
    """A `Progress` that interrupts at step 4 in all processes."""

    def step(self, message):
        if message.startswith("step 4/"):
            raise KeyboardInterrupt


def config(model, out, *, val=40, given, recipe):
    """Return a configuration for six steps, evaluated and saved after every second step."""
    from hydractl.data.reference import DataRef
    from hydractl.stages.finetune.config import FinetuneConfig
    from hydractl.training.recipe import Recipe

    # Biases of keys cancel in the softmax. Their gradients are rounding errors, which AdamW would amplify.
    base = Recipe(
        optimizer="sgd", lr=(0.05,), weight_decay=0.0, steps=6, epochs=None, batch_size=15, accumulate=2,
        eval_every=2, dropout=0.1, clip=1.0,
    )  # fmt: skip
    return FinetuneConfig(
        model=str(model), out=Path(out), train=DataRef.parse(TRAIN), val=DataRef.parse(VAL.format(val)),
        recipe=replace(base, **recipe), device="cpu", save_every=2, **given,
    )  # fmt: skip


def main(jobs: str) -> None:
    """Run each fine-tuning of a JSON file with DDP or FSDP.

    The keys `shards`, `cut` and `left` select FSDP, an interruption, and whether the interrupted run is
    resumed.
    """
    from hydractl.errors import Interrupted
    from hydractl.stages.finetune.run import run_finetune

    for job in json.loads(Path(jobs).read_text()):
        shards, cut, left = job.pop("shards"), job.pop("cut"), job.pop("left", False)
        if shards:
            os.environ["ACCELERATE_USE_FSDP"] = "true"
        made = config(**job)
        if cut:
            try:
                run_finetune(made, CutAt())
            except (KeyboardInterrupt, Interrupted):  # the second process raises the latter
                pass
            else:
                raise AssertionError("was not interrupted")
        assert left or (run_finetune(made).resumed_from == 2) == cut
        os.environ.pop("ACCELERATE_USE_FSDP", None)


if __name__ == "__main__":
    main(*sys.argv[1:])
