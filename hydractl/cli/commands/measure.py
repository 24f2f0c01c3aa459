"""Commands that measure: `eval` and `report`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from hydractl.cli.command import command
from hydractl.cli.output import Terminal, as_json, leader_is_silent, line, summarize, table, table_of
from hydractl.errors import CheckFailed, Interrupted, UsageError
from hydractl.manifest.terms import ID_NAME
from hydractl.messages import counted, listed
from hydractl.metrics.metric_spec import ON_ID_DATA, MetricNeeds, Unit
from hydractl.metrics.ood_scores import MSP, number_name
from hydractl.metrics.registry import METRICS, TEMPERATURE, needing
from hydractl.reporting.report_values import Quantity, format_value, number_of

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from hydractl.manifest.document import Fingerprint
    from hydractl.manifest.report import Report, Row
    from hydractl.stages.evaluate.config import EvalConfig
    from hydractl.stages.evaluate.run import EvalReport
    from hydractl.stages.report.config import ReportConfig
    from hydractl.stages.report.run import ReportReport


OF_PAGES = ("classes", "examples", "costs")
"""Sections shown only on pages. The first table in the terminal has the costs."""


def show_stored(config: EvalConfig, terminal: Terminal) -> None:
    """Print an existing report for `--if-changed`, and fail if a condition in the report failed."""
    from hydractl.manifest.report import Report
    from hydractl.stages.evaluate.run import EvalReport

    document = Report.read(cast("Path", config.out))
    report = EvalReport(document=document, paths=config.output_files(), config=config)
    if terminal.as_json:
        terminal.document(as_json(document))
    else:
        if not terminal.quiet:
            terminal.result(replace(report, paths=()), show)
        terminal.up_to_date(report.paths)
    conclude(report, terminal)


@command(
    "hydractl.stages.evaluate.config:EvalConfig",
    streams=("out", "save_predictions", "save_model"),
    unchanged=show_stored,
)
def evaluate(config: EvalConfig, terminal: Terminal) -> None:
    r"""Measure accuracy, calibration, OOD detection, diversity, cost.

    Prints a row for MODEL and for each `--compare`. A condition of `--fail-if` compares a metric of MODEL
    with a number: `ece>0.02`. For OOD data, add the name of the data in brackets: `auroc[near]<0.9`,
    `fpr95[birds]>50%`; with several OOD scores, add the score: `auroc@mi[far]<0.9`. Under `torchrun`,
    processes share the batches.

    Examples:
      hydractl eval hydra.st --data test/
      hydractl eval hydra.st --data test/ --near birds=birds/ --far noise \
        --compare base.st -o report.json
      hydractl eval hydra.st --data test/ --fail-if 'ece>0.5'
      hydractl eval hydra.st --data test/ --compare ensemble=a.st,b.st,c.st \
        --temperature val/
      hydractl eval hydra.st --data test/ --keep-examples 10 -o report.json
      hydractl eval hydra.st --data val/ --threshold-for 'risk<=0.1' \
        --save-model selective.st
      hydractl eval hydra.st --data val/ --sets 0.9 --save-model sets.st
    """
    from hydractl.stages.evaluate.run import run_eval

    writes = (
        config.out or config.save_predictions or config.fail_if or config.threshold_for or config.save_model
    )
    if terminal.quiet and not writes:
        raise UsageError(
            "`-q` prints only the paths written, but nothing is written",
            hint="add `-o report.json` or `--fail-if COND`, or leave out `-q`",
        )
    if config.keep_examples and config.out is None and not terminal.as_json:
        raise UsageError("`--keep-examples`: no report keeps them", hint="add `-o report.json`, or `--json`")
    report = run_eval(config, terminal.progress())
    if terminal.as_json and terminal.speaks:
        terminal.document(as_json(report.document))
    else:
        terminal.result(report, show)
    conclude(report, terminal)


def conclude(report: EvalReport, terminal: Terminal) -> None:
    """Add the headline table to the job summary of GitHub Actions, and raise if a check fails.

    Raises:
        CheckFailed: If a condition holds or no threshold was found.
        Interrupted: Instead of CheckFailed in other processes than the first, without a message.
    """
    if terminal.speaks:
        summarize(markdown(report.document))
    try:
        report.require_checks()
    except CheckFailed:
        if not leader_is_silent():  # Every rank detects the failure, but only the leader reports it.
            raise Interrupted("") from None
        raise


def markdown(document: Report) -> Iterator[str]:
    """Yield the lines of the headline table and the results of conditions, as Markdown."""
    from hydractl.hub.card import code
    from hydractl.reporting.page import literal

    columns, heads = _headline(document)

    def row(cells: Sequence[str]) -> str:
        return f"| {' | '.join(map(literal, cells))} |"

    yield row(["model", *heads])
    yield f"|---|{'---:|' * len(heads)}"
    yield from map(row, _cells(document, columns))
    yield ""
    for check in document.checks:
        yield f"- {'❌ failed' if check.failed else '✅ ok'}: {code(check.condition)}, measured {check.found:.6g}"


def show(report: EvalReport, out: Console) -> None:
    """Print the tables and the results of conditions."""
    show_report(report.document, out)
    for check in report.document.checks:
        line(out, f"{'failed' if check.failed else 'ok'}: {check.condition}, measured {check.found:.6g}")


def show_report(document: Report, out: Console) -> None:
    """Print a report: the headline table of all rows, notes about it, and the shorter tables of a page."""
    from hydractl.reporting.comparison import Compared
    from hydractl.reporting.sections import sections

    main, heads = _headline(document)
    if main:
        out.print(table(["model", *heads], _cells(document, main)))
    for remark in _remarks(document, main):
        line(out, remark)
    for row in document.rows:
        if row.known_test is not None:
            line(out, f"{row.name}: {row.known_test.summary}")
        if "threshold_for" in document.options:
            line(out, _threshold(row, document))
    for row in document.rows:
        if row.sets is not None:
            line(out, f"{row.name}: {row.sets.summary}")
    compared = Compared.of({"report": document})
    paired = {row.name for row in document.rows if row.difference is not None}
    differences = {name: numbers for name, numbers in compared.differences.items() if name in paired}
    for section in sections(replace(compared, differences=differences)):
        for report_table in section.tables if section.name not in OF_PAGES else ():
            out.print(table_of(report_table))


def _remarks(document: Report, main: Sequence[Quantity]) -> Iterator[str]:
    """Yield the lines of notes about the headline table."""
    tested = document.data.get(ID_NAME)
    if tested is not None:
        yield f"{_samples(tested, ': ')}{_notes(document, main)}"
    if stored := [fitted_scores for row in document.rows for fitted_scores in row.stored_scores]:
        fitted_on = dict.fromkeys(_samples(fitted_scores.data, ", ") for fitted_scores in stored)
        yield f"Feature-based OOD scores: as stored in the checkpoint, fitted on {listed([*fitted_on])}"
    if tuned := [row.name for row in document.rows if _is_marked(row)]:
        yield f"*: heads of {listed(tuned)} were chosen with OOD data, an advantage over other rows"
    for row in document.rows if document.ood_val else ():
        yield _best(row, document)
    if any(TEMPERATURE in row.values or row.stored_temperatures for row in document.rows):
        yield _scaling(document)


def _is_marked(row: Row) -> bool:
    return row.tuned_on_ood and bool(row.ood)


def _headline(document: Report) -> tuple[list[Quantity], list[str]]:
    """Return the quantities in the columns of the headline table and the headings.

    OOD data are ranked by the first score.
    """
    needs = (*ON_ID_DATA, MetricNeeds.OOD, MetricNeeds.WEIGHTS, MetricNeeds.TIME)
    columns = [
        Quantity(name, "all" if need is MetricNeeds.OOD else None)
        for need in needs
        for name in needing(METRICS, need)
        if METRICS[name].column
    ]
    main = [q for q in columns if any(number_of(row, q) is not None for row in document.rows)]
    batch = str(document.options.get("batch_size"))
    return main, [q.metric.head.replace("{batch_size}", batch) for q in main]


def _cells(document: Report, columns: Sequence[Quantity]) -> list[list[str]]:
    """Return the table cells of all rows. A cell without a number is empty."""
    return [
        [
            f"{row.name} *" if _is_marked(row) else row.name,
            *(
                "" if (number := number_of(row, q)) is None else format_value(q.metric, number.value)
                for q in columns
            ),
        ]
        for row in document.rows
    ]


def _notes(document: Report, main: Sequence[Quantity]) -> str:
    """Return notes about the headline columns: means over OOD sets, their OOD score, and fractions of 1."""
    scores, sets = document.ood_scores, len(document.near + document.far)
    means = [str(q.metric.column) for q in main if q.scope is not None]
    shares = [str(q.metric.column) for q in main if q.metric.unit is Unit.SHARE]
    by = f" by {scores[0]}" if scores != (MSP,) else ""
    over = f" over {sets} OOD sets" if sets > 1 else ""
    if means and (by or over):
        verb = "are" if len(means) > 1 else "is"
        kind = ("means" if len(means) > 1 else "a mean") if over else ""
        over = f"; {listed(means)} {verb} {kind}{over}{by}".replace("  ", " ")
    else:
        over = ""
    return over + (
        f". {listed(shares)} {'are shares' if len(shares) > 1 else 'is a share'} of 1" if shares else ""
    )


def _scaling(document: Report) -> str:
    """Return a sentence about the origin of the temperatures."""
    fitted_on = document.data.get(TEMPERATURE) if TEMPERATURE not in document.options else None
    sources = [] if fitted_on is None else [f"fitted on {_samples(fitted_on, ', ')}"]
    sources += ["as given"] if TEMPERATURE in document.options else []
    if any(row.stored_temperatures for row in document.rows):
        sources.append("times the stored temperature" if sources else "as stored in the checkpoint")
    mixed_rows = [row.name for row in document.rows if len({*row.stored_temperatures}) > 1]
    mixed = f"; the models of {listed(mixed_rows)} store different temperatures, which T does not include"
    of_labels = " (of labels: by their own)" * any(row.scale.by_label for row in document.rows)
    return f"Logits are divided by T{of_labels}, {', '.join(sources)}{mixed if mixed_rows else ''}"


def _best(row: Row, document: Report) -> str:
    """Return a sentence about the mean AUROC of each OOD score on validation data, the best first."""
    means = {
        score: sum(
            values[number_name("auroc", score, document.ood_scores)].value for values in row.ood_val.values()
        )
        / len(row.ood_val)
        for score in document.ood_scores
    }
    order = sorted(means, key=lambda score: (score != row.best_score, -means[score]))
    ranked_scores = [f"{score} {means[score]:.3f}" for score in order]
    return f"{row.name}: best on validation OOD ({listed(document.ood_val)}), by AUROC: {ranked_scores[0]}; then {', '.join(ranked_scores[1:])}"


def _threshold(row: Row, document: Report) -> str:
    """Return a sentence about the accepted inputs of a row and the guarantee.

    The threshold is None in old reports.
    """
    if row.threshold is None:
        return f"{row.name}: no threshold satisfies {document.options['threshold_for']}"
    return f"{row.name}: {row.threshold.summary}"


def _samples(data: Fingerprint, between: str) -> str:
    return data.reference + ("" if data.count is None else between + counted(data.count, "sample"))


@command("hydractl.stages.report.config:ReportConfig", compares=True)
def report(config: ReportConfig, terminal: Terminal) -> None:
    """Make a page with tables and figures from reports of `eval`.

    The page shows whether the first model is better than the others, by how much, and in which metrics not.
    For reports of several seeds it shows means, standard deviations and intervals; rows are matched by name.

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
        # Standard output already has the page.
        terminal.result(
            stage_report, (lambda _report, _out: None) if terminal.stdout_taken else show_comparison
        )


def show_comparison(report: ReportReport, out: Console) -> None:
    """Print the verdict with notes, and the tables."""
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
