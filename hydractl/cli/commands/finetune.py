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


@command(FinetuneConfig)
def finetune(config: FinetuneConfig, terminal: Terminal) -> None:
    r"""Train a backbone, a base, a member or a hydra on labelled data.

    Draws a new classifier if the model has none, or one for other classes. Trains a hydra on the mean loss of its members,
    including the weights that they share. A teacher sees the same batches and adds a term to the loss.

    The same command resumes an interrupted run. If training diverges, it exits with 5 and writes nothing.

    Examples:
      hydractl finetune base.st --data train/ --val val/ -o tuned.st
      hydractl finetune base.st --data train/ --val val/ \
        --lr 1e-4 --epochs 5 --seed 1 -o tuned.st
      hydractl finetune hydra.st --data train/ --val val/ \
        --teacher a.st,b.st,c.st -o tuned.st
      hydractl finetune base.st --data train/ --val val/ \
        --recipe vit-finetune -o tuned.st
      hydractl finetune arch:vit_tiny_patch16_224 \
        --data train/ --val val/ -o base.st
    """
    from hydractl.stages.finetune.run import run_finetune

    terminal.result(run_finetune(config, terminal.progress()), render)


def render(report: FinetuneReport, out: Console) -> None:
    """Show what came of it."""
    spans = {} if report.span_f1 is None else {"validation span F1 ↑": f"{report.span_f1:.4f}"}
    cells = (
        *spans.values(),
        f"{report.accuracy:.4f}",
        f"{report.nll:.4f}",
        f"{report.lr:g}",
        f"{report.step}/{report.total_steps}",
        count(report.trained_parameters),
        count(report.frozen_parameters),
    )
    columns = ["model", *spans, "validation accuracy ↑", "NLL ↓", "lr", "steps", "trained", "frozen"]
    out.print(table(columns, [(str(report.path), *cells)]))
