"""What the demo's table says, in sentences that are computed from the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hydractl.manifest.report import Report

ACCURACY, AUROC = "accuracy", "mean OOD AUROC"


def findings(report: Report, *, against: Sequence[str], hydras: Sequence[str]) -> tuple[str, ...]:
    """Return what a reader should take from the table, a sentence or two each.

    Numbers are compared as the table shows them: shares of 1, with three digits.

    Args:
        report: With accuracy and OOD sets; its rows have intervals.
        against: Names of the rows that hydras are set against, that of the single model first.
        hydras: Names of the hydras' rows.
    """
    values_by_metric = {
        ACCURACY: {row.name: round(row.values["accuracy"].value, 3) for row in report.rows},
        AUROC: {row.name: round(row.means["all"]["auroc"], 3) for row in report.rows},
    }
    best = "; ".join(f"best {metric}: {_best(values)}" for metric, values in values_by_metric.items())
    compared = [
        f"{name}{_cost(report, name, against[0])}: "
        + "; ".join(_against(opponent, name, values_by_metric) for opponent in against)
        + "."
        for name in hydras
    ]
    return (f"{best[0].upper()}{best[1:]}.", *compared, _interval(report))


def _best(values: Mapping[str, float]) -> str:
    top = max(values.values())
    return f"{' and '.join(name for name, value in values.items() if value == top)} ({top:.3f})"


def _against(opponent: str, name: str, values_by_metric: Mapping[str, Mapping[str, float]]) -> str:
    parts = []
    for metric, values in values_by_metric.items():
        mine, theirs = values[name], values[opponent]
        how = "above" if mine > theirs else "below" if mine < theirs else "level with"
        parts.append(f"{metric} {mine:.3f} is {how} {theirs:.3f}")
    return f"against {opponent}, {' and '.join(parts)}"


def _cost(report: Report, name: str, single: str) -> str:
    """Say how many times a single model's multiply-accumulates a row takes, where they were counted."""
    macs = {row.name: row.values["macs"].value for row in report.rows if "macs" in row.values}
    return f", at {macs[name] / macs[single]:.2f} times the MACs of {single}" if macs else ""


def _interval(report: Report) -> str:
    """Say how sure an accuracy is: the widest interval of all rows."""
    values = [row.values["accuracy"] for row in report.rows]
    halves = [(v.high - v.low) / 2 for v in values if v.low is not None and v.high is not None]
    sentence = f"The test set has n = {values[0].count} samples"
    if halves:
        sentence += f"; the 95 % interval of an accuracy is ± {max(halves):.3f} at its widest, so smaller differences may be chance"
    return f"{sentence}."
