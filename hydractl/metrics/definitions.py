"""Every number a report may hold: its name, unit, range and definition."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """What one number means.

    Attributes:
        name: The key in reports.
        label: What a person reads in a table's head.
        unit: Of the stored value; empty for a pure number.
        low: Smallest possible value.
        high: Largest possible value, `inf` if it has no bound that holds for every model.
        higher_is_better: None where more is neither better nor worse.
        definition: One sentence, with its source.
    """

    name: str
    label: str
    unit: str = ""
    low: float = 0.0
    high: float = 1.0
    higher_is_better: bool | None
    definition: str


def _by_name(*metrics: Metric) -> Mapping[str, Metric]:
    """Return a read-only table in the order given; two metrics of one name are a mistake."""
    table = {metric.name: metric for metric in metrics}
    if len(table) != len(metrics):
        raise ValueError("two metrics share a name")
    return MappingProxyType(table)


METRICS: Mapping[str, Metric] = _by_name(
    Metric(
        name="accuracy",
        label="Accuracy",
        higher_is_better=True,
        definition="Share of samples whose most probable class is the label.",
    ),
    Metric(
        name="brier",
        label="Brier",
        high=2.0,
        higher_is_better=False,
        definition="Squared error of the probabilities, summed over classes, mean over samples (Brier 1950).",
    ),
    Metric(
        name="nll",
        label="NLL",
        unit="nats",
        high=math.inf,
        higher_is_better=False,
        definition="Mean negative log-likelihood of the label under the mean of the members' softmaxes.",
    ),
    Metric(
        name="ece",
        label="ECE",
        higher_is_better=False,
        definition="Mean gap between confidence and accuracy of the predicted class over 15 bins of equal width, "
        "[lo, hi), weighted by count, as torchmetrics' MulticlassCalibrationError (Guo et al. 2017).",
    ),
    Metric(
        name="adaptive_ece",
        label="aECE",
        higher_is_better=False,
        definition="Mean gap between confidence and accuracy of the predicted class over 15 bins of equal count "
        "(Nguyen and O'Connor 2015).",
    ),
    Metric(
        name="auroc",
        label="AUROC",
        higher_is_better=True,
        definition="Probability that an OOD sample has a higher score than an ID sample, ties counting half "
        "(Hendrycks and Gimpel 2017).",
    ),
    Metric(
        name="fpr95",
        label="FPR95",
        higher_is_better=False,
        definition="Share of ID flagged at the highest threshold that catches at least 95 % of OOD "
        "(OpenOOD, OOD positive).",
    ),
    Metric(
        name="aupr",
        label="AUPR",
        higher_is_better=True,
        definition="Average precision (step sum) with OOD as the positive class, as scikit-learn's "
        "average_precision_score.",
    ),
    Metric(
        name="aupr_in",
        label="AUPR-in",
        higher_is_better=True,
        definition="Average precision (step sum) with ID as the positive class and the negated score.",
    ),
    Metric(
        name="aupr_out_trapezoid",
        label="AUPR-out (trapezoid)",
        higher_is_better=True,
        definition="Area under the precision-recall curve by trapezoids, OOD positive: OpenOOD's AUPR_OUT.",
    ),
    Metric(
        name="aupr_in_trapezoid",
        label="AUPR-in (trapezoid)",
        higher_is_better=True,
        definition="Area under the precision-recall curve by trapezoids, ID positive: OpenOOD's AUPR_IN.",
    ),
    Metric(
        name="mutual_information",
        label="Mutual information",
        unit="nats",
        high=math.inf,
        higher_is_better=None,
        definition="Entropy of the members' mean prediction less the members' mean entropy, mean over samples "
        "(Depeweg et al. 2018).",
    ),
    Metric(
        name="disagreement",
        label="Disagreement",
        higher_is_better=None,
        definition="Share of member pairs that predict different classes, mean over samples.",
    ),
    Metric(
        name="entropy",
        label="Entropy",
        unit="nats",
        high=math.inf,
        higher_is_better=None,
        definition="Entropy of the members' mean prediction, mean over samples.",
    ),
    Metric(
        name="temperature",
        label="Temperature",
        high=math.inf,
        higher_is_better=None,
        definition="What the logits of every member are divided by before its softmax, for all numbers of the "
        "row: given, or the minimum of the NLL on the data set `temperature` (Guo et al. 2017).",
    ),
    Metric(
        name="parameters",
        label="Parameters",
        high=math.inf,
        higher_is_better=False,
        definition="Numbers that the model's parameters hold, a shared parameter counted once.",
    ),
    Metric(
        name="macs",
        label="MACs",
        unit="MAC",
        high=math.inf,
        higher_is_better=False,
        definition="Multiply-accumulates of matrix products, convolutions and attention in one forward pass of "
        "one sample, half of torch's FLOP counter.",
    ),
    Metric(
        name="latency_ms",
        label="Latency",
        unit="ms",
        high=math.inf,
        higher_is_better=False,
        definition="Median wall-clock time of one forward pass of one sample, its last kernel included.",
    ),
    Metric(
        name="latency_batch_ms",
        label="Latency (batch)",
        unit="ms",
        high=math.inf,
        higher_is_better=False,
        definition="Median wall-clock time of one forward pass of `batch_size` samples, its last kernel included.",
    ),
)
