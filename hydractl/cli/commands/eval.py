"""`hydractl eval`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias, cast

from hydractl.cli.command import command
from hydractl.cli.output import Terminal, as_json, leader_is_silent, line, summarize, table
from hydractl.errors import CheckFailed, Interrupted, UsageError
from hydractl.manifest.shift_groups import ID_NAME
from hydractl.messages import counted, listed
from hydractl.metrics.metric_spec import Metric, MetricNeeds, Unit
from hydractl.metrics.ood_scores import MSP, number_name
from hydractl.metrics.registry import METRICS, TEMPERATURE, needing
from hydractl.reporting.analyses.tables import analysis_tables
from hydractl.reporting.report_values import (
    GROUPS,
    Quantity,
    ReportTable,
    difference_of,
    number_of,
    number_text,
    quantities,
    signed,
    written,
)
from hydractl.stages.evaluate.config import EvalConfig

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from hydractl.manifest.document import Fingerprint
    from hydractl.manifest.report import Report, Row
    from hydractl.stages.evaluate.report import EvalReport

Column: TypeAlias = tuple[str | None, Metric]


def show_stored(config: EvalConfig, terminal: Terminal) -> None:
    """Show the report that is there, as if it had been made, and exit as it says."""
    from hydractl.manifest.report import Report
    from hydractl.stages.evaluate.report import EvalReport

    document = Report.read(cast("Path", config.out))
    report = EvalReport(document=document, paths=config.output_files(), config=config)
    if terminal.as_json:
        terminal.document(as_json(document))
    else:
        if not terminal.quiet:
            terminal.result(replace(report, paths=()), show)
        terminal.up_to_date(report.paths)
    conclude(report, terminal)


@command(EvalConfig, streams=("out", "save_predictions", "store"), unchanged=show_stored)
def evaluate(config: EvalConfig, terminal: Terminal) -> None:
    r"""Measure accuracy, calibration, OOD detection, diversity, cost.

    Prints a row for MODEL and one for each `--compare`. A condition of `--fail-if` names a metric of MODEL, on OOD data with
    their name: `ece>0.02`, `auroc[near]<0.9`, `fpr95[birds]>50%`; with several OOD scores `auroc@mi[far]<0.9`; under corruption
    `acc[fog:3]<0.8`, `acc[shift]<0.7`. Under `torchrun`, processes share the batches.

    Examples:
      hydractl eval hydra.st --data test/
      hydractl eval hydra.st --data test/ --near birds=birds/ --far noise \
        --compare base.st -o report.json
      hydractl eval hydra.st --data test/ --fail-if 'ece>0.5'
      hydractl eval hydra.st --data test/ --compare ensemble=a.st,b.st,c.st \
        --temperature val/
      hydractl eval hydra.st --data test/ --corrupt fog:3 --corrupt jpeg
      hydractl eval hydra.st --data val/ --threshold-for 'risk<=0.1' \
        --store selective.st
    """
    from hydractl.stages.evaluate.run import run_eval

    writes = config.out or config.save_predictions or config.fail_if or config.threshold_for or config.store
    if terminal.quiet and not writes:
        raise UsageError(
            "`-q` prints the paths written, and nothing is written: nothing would be said",
            hint="add `-o report.json` or `--fail-if COND`, or leave `-q` out",
        )
    if config.curves and config.out is None and not terminal.as_json:
        raise UsageError("`--curves`: no report keeps them", hint="add `-o report.json`, or `--json`")
    report = run_eval(config, terminal.progress())
    if terminal.as_json and terminal.speaks:
        terminal.document(as_json(report.document))
    else:
        terminal.result(report, show)
    conclude(report, terminal)


def conclude(report: EvalReport, terminal: Terminal) -> None:
    """Add the headline table to the summary of a job on GitHub, and fail if a condition came true."""
    if terminal.speaks:
        summarize(markdown(report.document))
    try:
        report.require_checks()
    except CheckFailed:
        if not leader_is_silent():  # every process of a run finds it
            raise Interrupted("") from None
        raise


def markdown(document: Report) -> Iterator[str]:
    """Yield the lines of the headline table and of what came of the conditions."""
    from hydractl.hub.readme import code
    from hydractl.reporting.page import literal

    columns, heads = _headline(document)

    def row(cells: Sequence[str]) -> str:
        return f"| {' | '.join(map(literal, cells))} |"

    yield row(["model", *heads])
    yield f"|---|{'---:|' * len(heads)}"
    yield from map(row, _cells(document, columns, heads))
    yield ""
    for check in document.checks:
        yield f"- {'❌ failed' if check.failed else '✅ ok'}: {code(check.condition)}, found {check.found:.6g}"


def show(report: EvalReport, out: Console) -> None:
    """Show the tables, and what came of the conditions."""
    render(report.document, out)
    for check in report.document.checks:
        line(out, f"{'failed' if check.failed else 'ok'}: {check.condition}, found {check.found:.6g}")


def render(document: Report, out: Console) -> None:
    """Show a report: a table over all rows, one for each OOD set, one of the members' diversity.

    Of several OOD scores each has a column, and there is a table of means for each metric that they lead to.
    """
    kinds = dict.fromkeys(document.near, "near") | dict.fromkeys(document.far, "far")
    main, heads = _headline(document)
    ranked = _ranked(document)
    foreign = {name: _columns(document, name, MetricNeeds.OOD, MetricNeeds.MEMBERS) for name in kinds}
    members = [c for scope in (None, "all") for c in _columns(document, scope, MetricNeeds.MEMBERS)]
    if all(row.members == 1 for row in document.rows):
        members = []
    out.print(_table(document, main, heads))
    for remark in _remarks(document, main, [*foreign.values(), members]):
        line(out, remark)
    for _, metric in ranked if len(document.ood_scores) > 1 else ():
        by_score = _means(document, METRICS[metric.name])
        title = f"{METRICS[metric.name].column} by OOD score, means over data sets"
        out.print(_table(document, by_score, [str(m.column) for _, m in by_score], title=title))
    for row in document.rows if "threshold_for" in document.options else ():
        line(out, _threshold(row, document))
    _render_shift(document, out)
    labelled = _columns(document, None, MetricNeeds.LABELS)
    if compared := _differences(document, labelled):
        heads = ["", *(str(m.column) for _, m in labelled)]
        out.print(
            table(heads, compared, title="Differences of the first row from others, on the same resamples")
        )
    for name, columns in foreign.items():
        title = f"{name} ({kinds[name]} OOD: {_samples(document.data[name], ', ')})"
        heads = ["model", *(str(m.column) for _, m in columns)]
        cells = _cells(document, columns, heads[1:]) + _differences(document, columns)
        out.print(table(heads, cells, title=title))
    if members:
        heads = ["members", *(f"{m.column} {'ID' if scope is None else 'OOD'}" for scope, m in members)]
        out.print(_table(document, members, heads, title="Diversity of the members"))
    _show_tables(analysis_tables(document), out)


def _remarks(document: Report, main: Sequence[Column], others: Sequence[Sequence[Column]]) -> Iterator[str]:
    """Yield what must be known of the first table, in a line each."""
    tested = document.data.get(ID_NAME)
    if tested is not None:
        yield f"{_samples(tested, ': ')}{_notes(main, others)}"
    if len(others) > 1 and len(document.ood_scores) == 1 and document.ood_scores != (MSP,):
        yield f"OOD samples are told by {document.ood_scores[0]}"
    if stored := [fitted_scores for row in document.rows for fitted_scores in row.stored_scores]:
        fitted_on = dict.fromkeys(_samples(fitted_scores.data, ", ") for fitted_scores in stored)
        yield f"OOD scores of features are as the checkpoint stores them, fitted on {listed([*fitted_on])}"
    if tuned := [row.name for row in document.rows if _is_marked(row)]:
        yield f"*: heads of {listed(tuned)} were chosen by how well they tell OOD data, an advantage over other rows"
    for row in document.rows if document.ood_val else ():
        yield _best(row, document)
    if any(TEMPERATURE in row.values or row.stored_temperatures for row in document.rows):
        yield _scaling(document)


def _is_marked(row: Row) -> bool:
    return row.tuned_on_ood and bool(row.ood)


def _render_shift(document: Report, out: Console) -> None:
    """Show the numbers under corruption."""
    from hydractl.reporting.shift import shift_tables

    shift_quantities = quantities(document)
    rows = {row.name: {q: n for q in shift_quantities if (n := number_of(row, q))} for row in document.rows}
    differences = {
        row.name: {q: n for q in shift_quantities if (n := difference_of(row, q))}
        for row in document.rows[1:]
    }
    _show_tables(shift_tables(shift_quantities, rows, differences), out)


def _show_tables(tables: Iterable[ReportTable], out: Console) -> None:
    for section in tables:
        cells = [[name, *(" ".join(filter(None, cell)) for cell in row)] for name, row in section.rows]
        out.print(table([section.of, *section.heads], cells, title=section.title))


def _headline(document: Report) -> tuple[list[Column], list[str]]:
    """Return the columns of the first table, and what stands above them."""
    main = _columns(document, None, MetricNeeds.TEMPERATURE, MetricNeeds.LABELS)
    main += _ranked(document) + _columns(document, None, MetricNeeds.WEIGHTS, MetricNeeds.TIME)
    batch = str(document.options.get("batch_size"))
    return main, [str(m.column).replace("{batch_size}", batch) for _, m in main]


def _ranked(document: Report) -> list[Column]:
    """Return the columns of OOD data, by the first score."""
    return [c for c in _columns(document, "all", MetricNeeds.OOD) if "@" not in c[1].name]


def _columns(document: Report, scope: str | None, *needs: MetricNeeds) -> list[Column]:
    """Return what tables show of a scope, in the order of what it needs, as far as any row has it.

    Args:
        document: The report.
        scope: None for the ID set and costs, else an OOD set or a group of them for the mean over it.
        needs: Of the metrics.
    """
    metrics = [METRICS[name] for need in needs for name in needing(METRICS, need)]
    columns = [by for m in metrics if m.column for by in _by_score(document, m)]
    return [
        (scope, m)
        for m in columns
        if any(number_of(row, Quantity(m.name, scope)) is not None for row in document.rows)
    ]


def _by_score(document: Report, metric: Metric) -> list[Metric]:
    """Return a metric as a report has it: of several OOD scores by each, with the score in its heading."""
    scores = document.ood_scores if metric.needs is MetricNeeds.OOD else ()
    if len(scores) < 2:
        return [metric]
    return [
        replace(metric, name=number_name(metric.name, score, scores), column=f"{metric.column} {score}")
        for score in scores
    ]


def _means(document: Report, metric: Metric) -> list[Column]:
    """Return a metric's means over near and over far sets, by each of several OOD scores."""
    return [
        (scope, replace(m, column=f"{scope} {score}"))
        for scope, sets in (("near", document.near), ("far", document.far))
        for score, m in zip(document.ood_scores, _by_score(document, metric), strict=True)
        if sets
    ]


def _table(
    document: Report, columns: Sequence[Column], heads: Sequence[str], *, title: str | None = None
) -> object:
    """Return a table of all rows; the head `members` stands for their number."""
    return table(["model", *heads], _cells(document, columns, heads), title=title)


def _cells(document: Report, columns: Sequence[Column], heads: Sequence[str]) -> list[list[str]]:
    """Return all rows as texts."""
    return [
        [
            f"{row.name} *" if _is_marked(row) else row.name,
            *([str(row.members)] if len(heads) > len(columns) else []),
            *(_cell(row, scope, m) for scope, m in columns),
        ]
        for row in document.rows
    ]


def _differences(document: Report, columns: Sequence[Column]) -> list[list[str]]:
    """Return by how much the first row is more than each other one that was measured on the same resamples, as texts.

    A difference has its sign, and its interval if there is one; where there is no difference, nothing stands.
    """
    return [
        [
            f"first less {row.name}",
            *(
                " ".join(filter(None, signed(difference_of(row, Quantity(m.name, scope)))))
                for scope, m in columns
            ),
        ]
        for row in document.rows[1:]
        if row.difference is not None
    ]


def _cell(row: Row, scope: str | None, metric: Metric) -> str:
    """Return a number as a person reads it, on an OOD set with its interval; nothing where the row has none."""
    number = number_of(row, Quantity(metric.name, scope))
    if number is None:
        return ""
    return written(metric, number.value) if scope in {None, *GROUPS} else number_text(metric, number)


def _notes(main: Sequence[Column], others: Sequence[Sequence[Column]]) -> str:
    """Return what must be known of the columns that are shown: which are means, and which are shares."""
    means = [str(m.column) for scope, m in main if scope is not None]
    share_metrics = {m.name for columns in (main, *others) for _, m in columns if m.unit is Unit.SHARE}
    order = (
        needing(METRICS, MetricNeeds.LABELS)
        + needing(METRICS, MetricNeeds.OOD)
        + needing(METRICS, MetricNeeds.MEMBERS)
    )
    shares = [str(METRICS[name].column) for name in order if name in share_metrics]
    sets = len(others) - 1
    over = f"; {listed(means)} {'are means' if len(means) > 1 else 'is a mean'} over {sets} OOD sets"
    return (over if means and sets > 1 else "") + (
        f". {listed(shares)} {'are shares' if len(shares) > 1 else 'is a share'} of 1" if shares else ""
    )


def _scaling(document: Report) -> str:
    """Return where the temperatures are from."""
    fitted_on = document.data.get(TEMPERATURE) if TEMPERATURE not in document.options else None
    sources = [] if fitted_on is None else [f"fitted on {_samples(fitted_on, ', ')}"]
    sources += ["as given"] if TEMPERATURE in document.options else []
    if any(row.stored_temperatures for row in document.rows):
        sources.append("times what a checkpoint stores" if sources else "as the checkpoint stores it")
    mixed_rows = [row.name for row in document.rows if len({*row.stored_temperatures}) > 1]
    mixed = f"; the models of {listed(mixed_rows)} store different ones, which T does not count"
    return f"Logits are divided by T, {', '.join(sources)}{mixed if mixed_rows else ''}"


def _best(row: Row, document: Report) -> str:
    """Return which OOD score is best on validation data, by the mean of its AUROC there, beside the others."""
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
    """Return which inputs a row accepts, and what that promises; reports of before say nothing where it accepts none."""
    if row.threshold is None:
        return f"{row.name}: no threshold keeps {document.options['threshold_for']}"
    return f"{row.name}: {row.threshold.summary}"


def _samples(data: Fingerprint, between: str) -> str:
    return data.reference + ("" if data.count is None else between + counted(data.count, "sample"))
