"""The short table at the end of `make` and `demo`: quality and cost of each row of a report."""

from __future__ import annotations

from collections.abc import Mapping

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


def quality_table(compared: Compared, *, unit: str) -> ReportTable:
    """Return the table of all rows, with costs relative to the row `unit`."""
    quantities = quality(compared)
    costs = {name: cost for name, cost in COSTS.items() if cost in compared.rows[unit]}
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
