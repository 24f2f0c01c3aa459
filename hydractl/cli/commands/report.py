"""`hydractl report`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hydractl.cli.command import command
from hydractl.cli.output import Terminal, as_json, line, table
from hydractl.errors import UsageError
from hydractl.stages.report.config import ReportConfig

if TYPE_CHECKING:
    from rich.console import Console

    from hydractl.stages.report.run import ReportReport


@command(ReportConfig, compares=True)
def report(config: ReportConfig, terminal: Terminal) -> None:
    """Make a page of what `eval` measured: is the first model better than the others, by how much, and where is it not?

    Reports of several seeds give means, deviations and intervals, and differences that are taken seed by seed: rows are
    matched by their names. With `--over sets` they are of several data sets, whose mean is taken. Curves, head maps and lineage are there if `eval --curves` kept them.

    Examples:
      hydractl eval hydra.st --data val/ --far noise --compare base.st --curves -o report.json
      hydractl report report.json -o report.html
      hydractl report seed-*.json -o report.md --figures figures
      hydractl report --over sets cifar100.json food.json pets.json -o zero-shot.html
      hydractl report report.json -o - | gh pr comment --body-file -
    """
    from hydractl.stages.report.run import run_report

    if terminal.quiet and config.out is None and config.figures is None:
        raise UsageError(
            "`-q` prints the paths written, and nothing is written: nothing would be said",
            hint="add `-o report.html`, or leave `-q` out",
        )
    stage_report = run_report(config, terminal.progress())
    if terminal.as_json:
        terminal.document(as_json(stage_report.document()))
    elif stage_report.up_to_date:
        terminal.up_to_date(stage_report.paths)
    else:
        # the page on standard output says it all
        terminal.result(stage_report, (lambda _report, _out: None) if terminal.stdout_taken else render)


def render(report: ReportReport, out: Console) -> None:
    """Show the sentences and the tables."""
    from hydractl.reporting.sections import checks, tables, verdict

    for sentence in (*verdict(report.compared), *report.compared.notes):
        line(out, sentence)
    for report_table in tables(report.compared):
        rows = [
            [name, *(" ".join(filter(None, cell)) for cell in cells)] for name, cells in report_table.rows
        ]
        out.print(table(["model", *report_table.heads], rows, title=report_table.title))
    for _, check_text in checks(report.compared):
        line(out, check_text)
