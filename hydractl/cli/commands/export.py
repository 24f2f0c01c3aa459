"""`hydractl export`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hydractl.cli.command import command
from hydractl.cli.commands.eval import render as measured
from hydractl.cli.output import Terminal, line, size, table
from hydractl.messages import counted
from hydractl.stages.export.config import ExportConfig

if TYPE_CHECKING:
    from rich.console import Console

    from hydractl.stages.export.run import ExportReport


@command(ExportConfig)
def export(config: ExportConfig, terminal: Terminal) -> None:
    r"""Export to ONNX, torch.export or a folder for transformers.

    ONNX and torch.export files run without hydractl. The exported model takes any number of samples and returns probabilities, logits, member_logits, entropy, mutual_information
    and ood_score. It is compared with the model before it is written. A Python script beside it runs it with the model's own
    preprocessing and prints label, probability, OOD score and decision. `-o NAME/` copies the model to a folder that pipelines and
    Auto classes of transformers load after `import hydractl`, with class names and threshold.

    Examples:
      hydractl export hydra.st -o hydra.onnx
      hydractl export hydra.st --with-preprocess -o hydra.onnx
      hydractl export hydra.st --data val/ -o hydra.pt2
      hydractl export hydra.st -o hydra/
      hydractl export hydra.st --quantize int8 --data val/ \
        --report int8.json -o int8.onnx
    """
    from hydractl.stages.export.run import run_export

    terminal.result(run_export(config, terminal.progress()), render)


def render(report: ExportReport, out: Console) -> None:
    """Show what goes in and comes out, how near it is, and what was measured."""
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
        measured(report.measured, out)
