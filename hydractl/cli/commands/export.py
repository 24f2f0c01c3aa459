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
    """Write a model as one file that runs without hydractl: ONNX, or a program of torch.export.

    It answers with probabilities, logits, member_logits, entropy and mutual_information, for any number of samples; labels
    and how inputs are made are in its metadata. It is compared with the model before it is written.

    Examples:
      hydractl export hydra.st -o hydra.onnx
      hydractl export hydra.st -o hydra.pt2 --data val/
      hydractl export hydra.st --with-preprocess -o hydra.onnx
      hydractl export hydra.st --quantize int8 --data val/ --ood noise --report int8.json -o hydra-int8.onnx
    """
    from hydractl.stages.export.run import run_export

    terminal.result(run_export(config, terminal.progress()), render)


def render(report: ExportReport, out: Console) -> None:
    """Show what goes in and comes out, how near it is, and what was measured."""
    rows = [("in", *tensor_text) for tensor_text in report.inputs] + [
        ("out", *tensor_text) for tensor_text in report.outputs
    ]
    out.print(table(["", "name", "type", "shape"], rows, left=4))
    line(
        out,
        f"{counted(report.members, 'member')}, {counted(report.classes, 'class', 'classes')}, {size(report.size_bytes)}",
    )
    for name, difference in report.differences.items():
        line(out, f"Largest difference on {name}: {difference:.1e}")
    if report.measured is not None:
        measured(report.measured, out)
