"""Commands that use a model: `predict`, `export`, `push`."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from hydractl.cli.command import QUIET, command
from hydractl.cli.output import Terminal, line, size, table
from hydractl.messages import counted

if TYPE_CHECKING:
    from rich.console import Console

    from hydractl.stages.export.config import ExportConfig
    from hydractl.stages.export.run import ExportReport
    from hydractl.stages.predict.config import PredictConfig
    from hydractl.stages.predict.run import PredictReport
    from hydractl.stages.push.config import PushConfig
    from hydractl.stages.push.run import PushReport


MAX_LABELS = 20
"""Maximum number of classes in the table. Chosen by hand; twice the number doubles the table."""


@command("hydractl.stages.predict.config:PredictConfig", prints="the predictions as JSON lines")
def predict(config: PredictConfig, terminal: Terminal) -> None:
    r"""Predict labels, confidence and OOD scores, one line per input.

    A line has the path or row number, the most probable class, its probability, the K most probable classes,
    entropy and mutual information in nats, the vote of each member, and the OOD score (higher is stranger).
    With a threshold, the line shows whether the input is accepted (null if no threshold satisfies the risk).
    With a test of known inputs, lines of other inputs have a reason, `unknown` or `unsure`.
    With prediction sets, the line has the classes in the set. Labels of DATA are ignored.

    Examples:
      hydractl predict hydra.st photos/ -o predictions.jsonl
      hydractl predict hydra.st a.jpg b.png
      hydractl predict hydra.st photos/ --ood-score knn --train train/ \
        -o predictions.csv
      hydractl predict selective.st photos/ -o predictions.parquet
      hydractl predict sentiment.st reviews.csv::text=body -o predictions.csv
      cat lines.txt | hydractl predict sentiment.st - > predictions.jsonl
    """
    from hydractl.stages.predict.run import run_predict

    terminal.result(run_predict(config, terminal.progress()), show_predictions)


def show_predictions(report: PredictReport, out: Console) -> None:
    """Print the number of predictions per class."""
    often = sorted(report.labels.items(), key=lambda pair: -pair[1])
    if len(often) > MAX_LABELS:
        hidden_count = sum(times for _, times in often[MAX_LABELS:])
        often = [*often[:MAX_LABELS], (f"{len(often) - MAX_LABELS} more", hidden_count)]
    out.print(table(["label", "inputs"], [(name, str(times)) for name, times in often]))
    bad = f", {report.bad} of which are unreadable" if report.bad else ""
    line(out, f"{counted(report.inputs, 'input')}{bad}")
    if report.accepted is not None:
        good = report.inputs - report.bad
        rejected = "".join(f", {count} {reason}" for reason, count in (report.rejected or {}).items())
        line(
            out,
            f"Accepted by the {'threshold' if report.rejected is None else 'tests'}: {report.accepted} of {good} "
            f"({100 * report.accepted / max(good, 1):.1f} %){rejected}",
        )


@command("hydractl.stages.export.config:ExportConfig")
def export(config: ExportConfig, terminal: Terminal) -> None:
    r"""Export to ONNX, torch.export or a folder for transformers.

    ONNX and torch.export files run without hydractl, for any number of samples. They return probabilities,
    logits, member_logits, entropy, mutual_information and ood_score. The exported model is compared with the
    original before writing. A Python script next to the file applies the model's preprocessing and prints
    label, probability, OOD score and decision. `-o NAME/` writes a folder for pipelines and Auto classes of
    transformers, which load the model after `import hydractl`, with class names and threshold.

    Examples:
      hydractl export hydra.st -o hydra.onnx
      hydractl export hydra.st --with-preprocess -o hydra.onnx
      hydractl export hydra.st --data val/ -o hydra.pt2
      hydractl export hydra.st -o hydra/
      hydractl export hydra.st --quantize int8 --data val/ \
        --save-report int8.json -o int8.onnx
    """
    from hydractl.stages.export.run import run_export

    terminal.result(run_export(config, terminal.progress()), show_export)


def show_export(report: ExportReport, out: Console) -> None:
    """Print inputs and outputs of the exported model, its differences from the original, and the report."""
    from hydractl.cli.commands.measure import show_report

    rows = [("in", *tensor_text) for tensor_text in report.inputs] + [
        ("out", *tensor_text) for tensor_text in report.outputs
    ]
    if rows:
        out.print(table(["", "name", "type", "shape"], rows, left=4))
    line(
        out,
        f"{counted(report.members, 'member')}, {counted(report.classes, 'class', 'classes')}, {size(report.size_bytes)}",
    )
    for name, difference in report.differences.items():
        line(out, f"Largest difference on {name}: {difference:.1e}")
    if report.measured is not None:
        show_report(report.measured, out)


@command(
    "hydractl.stages.push.config:PushConfig",
    quiet=replace(QUIET, help="Print only the URL of the commit."),
    streams=(),
)
def push(config: PushConfig, terminal: Terminal) -> None:
    r"""Push a base, a member or a hydra to the Hub with a model card.

    A single commit contains weights, configuration, head masks, the report and the card. The card describes
    the model, the steps that made it, the metrics of `eval`, and how to load it. Pushing the same model again
    makes no commit. The token is read from HF_TOKEN or `hf auth login`.

    Examples:
      hydractl push hydra.st my-team/my-hydra --report report.json --dry-run
      hydractl push hydra.st my-team/my-hydra --report report.json \
        --base-model timm/vit_small_patch16_224.augreg_in21k \
        --license apache-2.0
      hydractl push hydra.st my-team/my-hydra --revision v2 --create-pr
    """
    from huggingface_hub import utils

    from hydractl.hub_client import without_bars
    from hydractl.stages.push.run import run_push

    with without_bars(utils) if terminal.quiet or terminal.as_json else nullcontext():
        report = run_push(config, terminal.progress())
    terminal.result(report, show_push)


def show_push(report: PushReport, out: Console) -> None:
    """Print each file with its state; in a dry run, also the card."""
    words = {None: "", True: "written", False: "unchanged"}
    rows = [(file.name, size(file.size_bytes), words[file.written]) for file in report.files]
    rows += [(name, "", "deleted") for name in report.deleted]
    out.print(table(["file", "bytes", report.repository], rows))
    if report.commit is None:
        line(out, "")
        for text in report.card.splitlines():
            line(out, text)
    elif report.unchanged:
        line(out, f"Nothing has changed since {report.url}")
