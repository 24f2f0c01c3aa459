"""Which numbers `eval` can measure, by what they need."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from hydractl.errors import UsageError
from hydractl.metrics.table import METRICS

if TYPE_CHECKING:
    from collections.abc import Sequence

LABELLED = ("accuracy", "brier", "nll", "ece", "adaptive_ece")
DIVERSITY = ("mutual_information", "disagreement", "entropy")
RANKING = ("auroc", "fpr95", "aupr", "aupr_in", "aupr_out_trapezoid", "aupr_in_trapezoid")
SIZES = ("parameters", "macs")
LATENCIES = ("latency_ms", "latency_batch_ms")
ALL = (*LABELLED, *DIVERSITY, *RANKING, *SIZES, *LATENCIES)


def choose_metrics(wanted: Sequence[str] | None, *, ood: bool, latency: bool) -> tuple[str, ...]:
    """Return the metrics to measure, in the order of reports.

    Args:
        wanted: Their names; None for all that can be measured.
        ood: Whether there is an OOD set.
        latency: Whether time may be measured.

    Raises:
        UsageError: If a name is unknown, or cannot be measured.
    """
    measurable = [m for m in ALL if (ood or m not in RANKING) and (latency or m not in LATENCIES)]
    if wanted is None:
        return tuple(measurable)
    for name in wanted:
        check_metric(name)
        if name not in measurable:
            raise UsageError(
                f"`{name}` cannot be measured "
                + ("without an OOD data set" if name in RANKING else "with `--no-latency`"),
                hint="add `--near NAME=DATA` or `--far NAME=DATA`"
                if name in RANKING
                else "drop `--no-latency`",
            )
    return tuple(m for m in measurable if m in wanted)


def check_metric(name: str) -> None:
    """Refuse a name that is no metric.

    Raises:
        UsageError: With the nearest known one.
    """
    if name not in ALL:
        raise UsageError(
            f"unknown metric `{name}`",
            hint=" ".join(filter(None, (_nearest(name), f"Known metrics: {', '.join(ALL)}"))),
        )


def _nearest(name: str) -> str | None:
    """Return a hint with the metric whose name, or heading in a table, begins with or is near to `name`."""
    known = {metric: metric for metric in ALL} | {METRICS[m].label.lower(): m for m in reversed(ALL)}
    wanted = name.lower().replace("-", "_")
    found = [known[wanted]] if wanted in known else [m for m in ALL if wanted and m.startswith(wanted)]
    found = found or [known[near] for near in difflib.get_close_matches(wanted, known, n=1)]
    return f"did you mean `{found[0]}`?" if found else None


def metrics_for_ood(metrics: Sequence[str]) -> tuple[str, ...]:
    """Return those that are measured on every OOD set."""
    return tuple(m for m in metrics if m in RANKING or m in DIVERSITY)
