"""The short table at the end of `make` and `demo`: quality and cost of each row of a report."""

from __future__ import annotations

from collections.abc import Mapping

from hydractl.cli.output import console, line, table_of
from hydractl.manifest.shift_groups import ID_NAME
from hydractl.metrics.metric_spec import MetricNeeds
from hydractl.reporting.comparison import Compared
from hydractl.reporting.report_values import Cell, Quantity, ReportTable, written
from hydractl.reporting.verdict import judged_quantities

COSTS = {"compute": Quantity("macs"), "training": Quantity("training_macs")}


def quality(compared: Compared) -> Mapping[str, Quantity]:
    """Return the quantities of the table by heading: those of labelled data, and AUROC by the last OOD score of the report."""
    report = compared.reports[0]
    kinds = (
        {"near": "near", "far": "far"} | dict.fromkeys(report.near, "near") | dict.fromkeys(report.far, "far")
    )
    return {
        q.metric.head if q.scope is None else f"{kinds.get(q.scope, q.scope)} ↑": q
        for q in judged_quantities(compared)
        if q.metric.needs is not MetricNeeds.OOD or q.by(report.ood_scores) == report.ood_scores[-1]
    }


def show_quality(compared: Compared, *, unit: str) -> None:
    """Print the table of all rows, with costs relative to the row `unit`, and what its columns mean."""
    report, out = compared.reports[0], console()
    costs = {name: cost for name, cost in COSTS.items() if cost in compared.rows[unit]}
    out.print(table_of(_quality_table(compared, costs, unit=unit)))
    auroc = f"near, far: AUROC by {report.ood_scores[-1]}; " if report.near or report.far else ""
    line(out, f"{auroc}{', '.join(costs)}: times {unit}")


def _quality_table(compared: Compared, costs: Mapping[str, Quantity], *, unit: str) -> ReportTable:
    quantities = quality(compared)
    rows = (
        (
            name,
            (
                *(Cell(written(q.metric, numbers[q].value)) for q in quantities.values()),
                *(
                    Cell(f"{numbers[cost].value / compared.rows[unit][cost].value:.2f}")
                    for cost in costs.values()
                ),
            ),
        )
        for name, numbers in compared.rows.items()
    )
    title = f"Quality on {compared.reports[0].data[ID_NAME].count} test samples, and cost"
    return ReportTable(title=title, heads=(*quantities, *costs), rows=tuple(rows))
