"""`hydractl report`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hydractl.cli.command import command
from hydractl.cli.output import Terminal, as_json, line
from hydractl.errors import UsageError
from hydractl.stages.report.config import ReportConfig

if TYPE_CHECKING:
    from rich.console import Console

    from hydractl.stages.report.run import ReportReport


@command(ReportConfig, compares=True)
def report(config: ReportConfig, terminal: Terminal) -> None:
    """Make a page with tables and figures from reports of `eval`.

    Answers whether the first model is better than the others, by how much, and where not. Reports of several seeds give
    means, deviations and intervals; rows are matched by name.

    Examples:
      hydractl report report.json -o report.html
      hydractl report seed-0.json seed-1.json -o report.md --figures figures
      hydractl report --over sets pets.json cars.json -o sets.html
      hydractl report report.json -o - > report.md
    """
    from hydractl.stages.report.run import run_report

    if terminal.quiet and config.out is None and config.figures is None:
        raise UsageError(
            "`-q` prints only the paths written, but nothing is written",
            hint="add `-o report.html`, or leave out `-q`",
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
    """Show the verdict, what is to be known of it, and the tables."""
    from hydractl.cli.output import table_of
    from hydractl.reporting.sections import checks, tables
    from hydractl.reporting.verdict import remarks, sentence, verdict_table

    line(out, sentence(report.compared))
    out.print(table_of(verdict_table(report.compared)))
    for remark in remarks(report.compared):
        line(out, remark)
    for report_table in tables(report.compared):
        out.print(table_of(report_table))
    for _, check_text in checks(report.compared):
        line(out, check_text)
