"""`hydractl lineage`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hydractl.cli.command import QUIET, command
from hydractl.cli.commands.inspect.documents import lineage_tree
from hydractl.cli.output import Terminal, line, model_cell
from hydractl.messages import quoted
from hydractl.reporting.lineage import short
from hydractl.stages.lineage.config import LineageConfig

if TYPE_CHECKING:
    from rich.console import Console

    from hydractl.stages.lineage.run import LineageReport


@command(
    LineageConfig,
    quiet=replace(QUIET, help="Print nothing; the exit code says whether the files match."),
)
def lineage(config: LineageConfig, terminal: Terminal) -> None:
    """Show or verify the files and stages that made a model.

    A model's header holds the digest of every file that a stage read. `--verify` finds files by content, then by name. Data
    sets are recorded by their items and cannot be verified.

    Examples:
      hydractl lineage hydra.st
      hydractl lineage hydra.st --verify a.st b.st c.st
      hydractl lineage hydra.st --json > lineage.json
    """
    from hydractl.stages.lineage.run import run_lineage

    report = run_lineage(config, terminal.progress())
    terminal.result(report, render)
    report.require_checks()


def render(report: LineageReport, out: Console) -> None:
    """Show the tree, or what came of each file."""
    if report.verified:
        for verified_file in report.verified:
            as_read = (
                f" is `{verified_file.read_as}`"
                if not verified_file.problem
                else f": {verified_file.problem}"
            )
            line(
                out,
                f"{'failed' if verified_file.problem else 'ok'}: {verified_file.file}{as_read}, {short(verified_file.sha256)}",
            )
        if report.left:
            line(out, f"not verified: {quoted(report.left)}")
    elif report.step is None:
        line(out, f"{model_cell(report.model)}: a {report.kind} that was not made by hydractl")
    else:
        out.print(lineage_tree(model_cell(report.model), report.step))
