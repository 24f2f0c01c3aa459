"""`hydractl predict`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hydractl.cli.command import command
from hydractl.cli.output import Terminal, line, table
from hydractl.messages import counted
from hydractl.stages.predict.config import PredictConfig

if TYPE_CHECKING:
    from rich.console import Console

    from hydractl.stages.predict.run import PredictReport

MAX_LABELS = 20


@command(PredictConfig, prints="the predictions, a JSON object a line")
def predict(config: PredictConfig, terminal: Terminal) -> None:
    """Tell of every input what a model says, and how sure it is: a line an input, in their order.

    A line has the input's path, or its row number from 0; the most probable class and its probability; the K most probable
    ones; entropy and mutual information in nats; each member's vote; the OOD score, the higher the stranger; and, where there is a
    threshold, whether the input is accepted. Labels of DATA are not looked at. A table has a column for each of these.

    Memory holds some batches at a time. A file appears whole at the end; interrupted and started again, the command goes on
    where it was.

    Examples:
      hydractl predict hydra.st photos/ -o predictions.jsonl
      hydractl predict hydra.st photos/ --threshold report.json -o predictions.csv
      hydractl predict hydra.st photos/ --ood-score knn --fit train/::limit=10000 -o predictions.csv
      hydractl predict hydra.st a.jpg b.png
      hydractl predict hydra.st reviews.csv::text=body -o predictions.parquet
      cat lines.txt | hydractl predict hydra.st - | jq -r .label
      find . -name '*.jpg' -print0 | hydractl predict hydra.st -0 - --skip-bad -o predictions.csv
      torchrun --nproc-per-node 2 -m hydractl predict hydra.st photos/ -o predictions.jsonl
    """
    from hydractl.stages.predict.run import run_predict

    terminal.result(run_predict(config, terminal.progress()), render)


def render(report: PredictReport, out: Console) -> None:
    """Show how often each class was predicted."""
    often = sorted(report.labels.items(), key=lambda pair: -pair[1])
    if len(often) > MAX_LABELS:
        hidden_count = sum(times for _, times in often[MAX_LABELS:])
        often = [*often[:MAX_LABELS], (f"{len(often) - MAX_LABELS} more", hidden_count)]
    out.print(table(["label", "inputs"], [(name, str(times)) for name, times in often]))
    bad = f", {report.bad} of which cannot be read" if report.bad else ""
    line(out, f"{counted(report.inputs, 'input')}{bad}")
    if report.accepted is not None:
        good = report.inputs - report.bad
        line(
            out,
            f"Accepted by the threshold: {report.accepted} of {good} ({100 * report.accepted / max(good, 1):.1f} %)",
        )
