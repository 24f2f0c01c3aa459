"""Numbers stored for a row of a report, by the names in claims and page."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from promise_plan import Plan

from hydractl.manifest.report import Row

Numbers = dict[str, float]
QUALITY = ("accuracy", "brier", "nll", "ece", "adaptive_ece")
SIZES = ("macs", "parameters")
OOD = ("auroc", "fpr95", "aupr", "mutual_information", "disagreement")


def values(row: Row, names: Sequence[str]) -> Numbers:
    """Return the named metrics of the ID set."""
    return {name: row.values[name].value for name in names}


def diversity(row: Row) -> Numbers:
    """Return mutual information and disagreement on the ID set; 0 for a single member."""
    return {
        name: row.values[name].value if name in row.values else 0.0
        for name in ("mutual_information", "disagreement")
    }


def ood_metrics(row: Row, plan: Plan) -> Numbers:
    """Return OOD metrics by maximum softmax probability: means over near, far, and all OOD test sets."""
    groups = {"near": [*plan.data.near], "far": [*plan.data.far]}
    groups["ood"] = groups["near"] + groups["far"]
    return {
        f"{name} {group}": statistics.fmean(row.ood[s][name].value for s in sets)
        for group, sets in groups.items()
        for name in OOD
    }
