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


@command(PredictConfig, prints="the predictions as JSON lines")
def predict(config: PredictConfig, terminal: Terminal) -> None:
    r"""Predict labels, confidence and OOD scores, one line per input.

    A line has the path or row number, the most probable class, its probability, the K most probable classes, entropy and mutual
    information in nats, the vote of each member, the OOD score (higher is stranger) and, with a threshold, whether the input is
    accepted (null if no threshold keeps the risk) and, with prediction sets, the classes in its set. Ignores labels of DATA.

    Examples:
      hydractl predict hydra.st photos/ -o predictions.jsonl
      hydractl predict hydra.st a.jpg b.png
      hydractl predict hydra.st photos/ --ood-score knn --fit train/ \
        -o predictions.csv
      hydractl predict selective.st photos/ -o predictions.parquet
      hydractl predict sentiment.st reviews.csv::text=body -o predictions.csv
      cat lines.txt | hydractl predict sentiment.st - > predictions.jsonl
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
    bad = f", {report.bad} of which are unreadable" if report.bad else ""
    line(out, f"{counted(report.inputs, 'input')}{bad}")
    if report.accepted is not None:
        good = report.inputs - report.bad
        line(
            out,
            f"Accepted by the threshold: {report.accepted} of {good} ({100 * report.accepted / max(good, 1):.1f} %)",
        )
