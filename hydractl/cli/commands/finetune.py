"""`hydractl finetune`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hydractl.cli.command import command
from hydractl.cli.output import Terminal, table
from hydractl.messages import count
from hydractl.stages.finetune.config import FinetuneConfig

if TYPE_CHECKING:
    from rich.console import Console

    from hydractl.stages.finetune.run import FinetuneReport


@command(FinetuneConfig, provenance=True)
def finetune(config: FinetuneConfig, terminal: Terminal) -> None:
    """Train a backbone, a base, a member or a hydra on labelled data; `arch:NAME` trains from random weights.

    The classifier fits the data: it is drawn anew where a backbone has none, or a model one for other classes. Of a hydra,
    what members share is trained once and what is their own apart, on the mean of their losses; `--train own` leaves the
    shared part as it is. Teachers see the same batches and have their part in the loss.

    A run that was interrupted goes on where it was when the same command is given again. Training that diverges
    exits 5 and writes nothing.

    Examples:
      hydractl finetune member.st --data train/ --val val/ --lr 1e-4 --epochs 5 -o tuned.st
      hydractl finetune member.st --data train/ --val val/ --recipe imagenet1k -o tuned.st
      hydractl finetune hydra.st --data train/ --val val/ -o tuned.st
      hydractl finetune hydra.st --data train/ --val val/ --teacher a.st,b.st,c.st -o taught.st
      hydractl finetune bert/ --data reviews.jsonl --val val.jsonl --recipe sst2-base -o base.st
      hydractl finetune minilm/ --data train.jsonl --val val.jsonl --pooling mean -o base.st
      hydractl finetune arch:vit_tiny_patch16_224 --data train/ --val val/ --seed 1 -o base.st
      hydractl finetune base.st --data train/ --val val/ --method lora-ensemble --lr 1e-3 --seed 1 -o lora-1.st
      torchrun --nproc-per-node 2 -m hydractl finetune member.st --data train/ --val val/ -o tuned.st
      accelerate launch --num_processes 8 --use_fsdp -m hydractl finetune vit-g.st --data train/ --val val/ -o tuned.st
    """
    from hydractl.stages.finetune.run import run_finetune

    terminal.result(run_finetune(config, terminal.progress()), render)


def render(report: FinetuneReport, out: Console) -> None:
    """Show what came of it."""
    cells = (
        f"{report.accuracy:.4f}",
        f"{report.nll:.4f}",
        f"{report.lr:g}",
        f"{report.step}/{report.total_steps}",
        count(report.trained_parameters),
        count(report.frozen_parameters),
    )
    columns = ["model", "validation accuracy", "nll", "lr", "steps", "trained", "frozen"]
    out.print(table(columns, [(str(report.path), *cells)]))
