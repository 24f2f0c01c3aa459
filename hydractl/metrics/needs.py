"""Which numbers `eval` can measure, by what they need."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from hydractl.errors import UsageError
from hydractl.metrics.definitions import METRICS

if TYPE_CHECKING:
    from collections.abc import Sequence

LABELLED = ("accuracy", "brier", "nll", "ece", "adaptive_ece")
DIVERSITY = ("mutual_information", "disagreement", "entropy")
RANKING = ("auroc", "fpr95", "aupr", "aupr_in", "aupr_out_trapezoid", "aupr_in_trapezoid")
TEMPERATURE = "temperature"
SIZES = ("parameters", "macs")
LATENCIES = ("latency_ms", "latency_batch_ms")
ALL = (*LABELLED, *DIVERSITY, *RANKING, TEMPERATURE, *SIZES, *LATENCIES)


def choose_metrics(
    wanted: Sequence[str] | None, *, ood: bool, latency: bool, scaled: bool = False
) -> tuple[str, ...]:
    """Return the metrics to measure, in the order of reports. The temperature is always among them if there is one.

    Args:
        wanted: Their names; None for all that can be measured.
        ood: Whether there is an OOD set.
        latency: Whether time may be measured.
        scaled: Whether logits are divided by a temperature.

    Raises:
        UsageError: If a name is unknown, or cannot be measured.
    """
    missing = [
        *(() if ood else RANKING),
        *(() if latency else LATENCIES),
        *(() if scaled else (TEMPERATURE,)),
    ]
    measurable = [m for m in ALL if m not in missing]
    if wanted is None:
        return tuple(measurable)
    for name in wanted:
        check_metric(name)
        if name not in measurable:
            why, hint = _reason(name)
            raise UsageError(f"`{name}` cannot be measured {why}", hint=hint)
    return tuple(m for m in measurable if m in wanted or m == TEMPERATURE)


def _reason(name: str) -> tuple[str, str]:
    """Return why a metric cannot be measured, and what to do about it."""
    if name in RANKING:
        return "without an OOD data set", "add `--near NAME=DATA` or `--far NAME=DATA`"
    if name == TEMPERATURE:
        return "without `--temperature`", "add `--temperature DATA`, a labelled split to fit it on"
    return "with `--no-latency`", "drop `--no-latency`"


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
