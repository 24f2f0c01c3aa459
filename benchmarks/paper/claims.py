"""Claims of the tables in the hydra paper (ICLR 2026), as comparisons of rows of `measure.py`, with verdicts.

A claim compares two rows by one metric. Differences are paired by seed, with a 95 % interval by Student's t.
A claim *holds* if the whole interval supports it, *fails* if the whole interval contradicts it, and is *open*
if the interval includes zero. A claim of equality holds if the whole interval is within the named margin.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import zero_shot
from intervals import half_interval
from plan import (
    APART,
    CIRCUIT,
    CIRCUIT_OOD,
    ENSEMBLE,
    FIVE,
    HYDRA,
    HYDRA_T,
    MC_DROPOUT,
    MIMO,
    PACKED,
    SINGLE,
    TAYLOR,
    UNTUNED,
    VARIED,
)
from zero_shot import BAYES, FEWER, HYDRA_SCALED, SCALED, VILU, VISION

METRIC_NAMES = {
    "nll": "NLL",
    "ece": "ECE",
    "auroc ood": "OOD AUROC",
    "auroc near": "near-OOD AUROC",
    "auroc far": "far-OOD AUROC",
    "fpr95 ood": "OOD FPR95",
    "disagreement ood": "disagreement on OOD data",
    "accuracy under shift all": "accuracy under corruption",
    "accuracy under shift 5": "accuracy under corruption of severity 5",
    "brier under shift all": "Brier score under corruption",
    "euclidean ood": "Euclidean distance of OOD centroids",
    "mahalanobis ood": "Mahalanobis distance of OOD centroids",
}
"""Metric names on the page, if different from the stored names."""
Seeds = Sequence[Mapping[str, Mapping[str, float]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A comparison in the paper.

    Attributes:
        table: Table of the paper.
        first: Row with the claimed property.
        other: Row for comparison.
        metric: Compared metric.
        is_higher: Whether the first row has the higher value.
        paper_numbers: The paper's two numbers, with the data set.
        equal: Margin for a claim of equality; None for a claim of difference.
        tuned: True for models fine-tuned on their data, False for zero-shot models.
    """

    table: str
    first: str
    other: str
    metric: str
    is_higher: bool = True
    paper_numbers: str
    equal: float | None = None
    tuned: bool = True

    @property
    def words(self) -> str:
        """The claim as a sentence."""
        metric = METRIC_NAMES.get(self.metric, self.metric)
        if self.equal is not None:
            return f"{self.first} and {self.other} differ in {metric} by at most {self.equal:g}"
        return f"{self.first} has {'higher' if self.is_higher else 'lower'} {metric} than {self.other}"


ACCURACY, OOD = "accuracy", "auroc ood"
CLAIMS = (
    Claim(table="1, 2", first=HYDRA, other=SINGLE, metric=OOD, paper_numbers="86.29, 84.40 (ImageNet-1k); 89.43, 85.46 (CIFAR-100); 77.6, 70.16 (SST-2)"),
    Claim(table="1, 2", first=HYDRA, other=ENSEMBLE, metric=OOD, paper_numbers="86.29, 85.48 (ImageNet-1k); 89.43, 86.08 (CIFAR-100); 77.6, 74.81 (SST-2)"),
    Claim(table="1, 2", first=HYDRA, other=ENSEMBLE, metric="fpr95 ood", is_higher=False, paper_numbers="47.62, 46.93 (ImageNet-1k); 36.44, 38.67 (CIFAR-100); 55.06, 62.69 (SST-2)"),
    Claim(table="1, 2", first=ENSEMBLE, other=HYDRA, metric=ACCURACY, paper_numbers="82.19, 80.88 (ImageNet-1k); 93.52, 92.11 (CIFAR-100); 93, 92.55 (SST-2)"),
    Claim(table="1, 2", first=HYDRA, other=SINGLE, metric=ACCURACY, equal=0.01, paper_numbers="80.88, 80.67 (ImageNet-1k); 92.11, 92.15 (CIFAR-100); 92.55, 92.55 (SST-2)"),
    Claim(table="1, 2", first=HYDRA, other=CIRCUIT, metric=OOD, paper_numbers="86.29, 85.71 (ImageNet-1k); 77.6, 75.04 (SST-2); but 89.43, 89.77 (CIFAR-100)"),
    Claim(table="1, 2", first=HYDRA, other=HYDRA_T, metric=OOD, paper_numbers="86.29, 85.36 (ImageNet-1k); 89.43, 88.89 (CIFAR-100); 77.6, 71.85 (SST-2)"),
    Claim(table="1, 2", first=HYDRA, other="lora-ensemble", metric=OOD, paper_numbers="86.29, 84.24 (ImageNet-1k); 89.43, 85.77 (CIFAR-100); 77.6, 70.83 (SST-2)"),
    Claim(table="1, 2", first=HYDRA, other=MC_DROPOUT, metric=OOD, paper_numbers="86.29, 83.7 (ImageNet-1k); 89.43, 84.74 (CIFAR-100); 77.6, 72.23 (SST-2)"),
    Claim(table="1", first=HYDRA, other="batch-ensemble", metric=OOD, paper_numbers="86.29, 84.34 (ImageNet-1k); 89.43, 86.27 (CIFAR-100)"),
    Claim(table="1", first=HYDRA, other=MIMO, metric=OOD, paper_numbers="86.29, 83.63 (ImageNet-1k); 89.43, 88.08 (CIFAR-100)"),
    Claim(table="1", first=HYDRA, other="oba", metric=OOD, paper_numbers="86.29, 82.61 (ImageNet-1k); 89.43, 85.85 (CIFAR-100)"),
    Claim(table="1", first=HYDRA, other=PACKED, metric=OOD, paper_numbers="86.29, 83.26 (ImageNet-1k); 89.43, 86.99 (CIFAR-100)"),
    Claim(table="4", first=UNTUNED.format(CIRCUIT), other=UNTUNED.format(TAYLOR), metric=ACCURACY, paper_numbers="73.61, 66.46 (ImageNet-1k); 91.15, 86.52 (CIFAR-100); 91.74, 90.6 (SST-2)"),
    Claim(table="4", first=UNTUNED.format(CIRCUIT), other=UNTUNED.format(TAYLOR), metric="auroc near", paper_numbers="73.81, 68.14 (ImageNet-1k); 87.39, 86.52 (CIFAR-100); 71.95, 58.05 (SST-2)"),
    Claim(table="4", first=UNTUNED.format(CIRCUIT), other=UNTUNED.format(TAYLOR), metric="auroc far", paper_numbers="89.90, 85.96 (ImageNet-1k); 79.07, 73.18 (SST-2); but 86.64, 86.93 (CIFAR-100)"),
    Claim(table="5", first=UNTUNED.format(CIRCUIT_OOD), other=SINGLE, metric="euclidean ood", paper_numbers="2.26, 1.75 (CIFAR-100)"),
    Claim(table="5", first=UNTUNED.format(CIRCUIT_OOD), other=SINGLE, metric="mahalanobis ood", paper_numbers="3.32, 3.03 (CIFAR-100)"),
    Claim(table="8", first=VARIED["heads"], other=VARIED["none"], metric=OOD, paper_numbers="86.02, 85.31 (ImageNet-1k)"),
    Claim(table="8", first=VARIED["heads"], other=VARIED["none"], metric=ACCURACY, paper_numbers="80.80, 80.12 (ImageNet-1k)"),
    Claim(table="9", first=VARIED["heads"], other=VARIED["order"], metric="disagreement ood", paper_numbers=".48, .13 (ImageNet-1k)"),
    Claim(table="9", first=VARIED["heads"], other=VARIED["dropout"], metric="disagreement ood", paper_numbers=".48, .02 (ImageNet-1k)"),
    Claim(table="9", first=ENSEMBLE, other=VARIED["heads"], metric="disagreement ood", paper_numbers=".58, .48 (ImageNet-1k)"),
    Claim(table="10", first=FIVE, other=HYDRA, metric=ACCURACY, paper_numbers="81.20, 80.88 (ImageNet-1k)"),
    Claim(table="10", first=FIVE, other=HYDRA, metric=OOD, paper_numbers="86.33, 86.29 (ImageNet-1k)"),
    Claim(table="11", first=HYDRA, other=APART, metric=ACCURACY, equal=0.005, paper_numbers="80.88, 81.00 (ImageNet-1k)"),
    Claim(table="11", first=HYDRA, other=APART, metric=OOD, equal=0.005, paper_numbers="86.29, 86.26 (ImageNet-1k)"),
    Claim(table="13", first=HYDRA_T, other=SINGLE, metric="accuracy under shift all", paper_numbers="56.50, 53.47 (ImageNet-C)"),
    Claim(table="13", first=ENSEMBLE, other=HYDRA_T, metric="accuracy under shift all", paper_numbers="57.12, 56.50 (ImageNet-C)"),
    Claim(table="13", first=HYDRA_T, other=ENSEMBLE, metric="accuracy under shift 5", paper_numbers="36.79, 35.97 (ImageNet-C)"),
    Claim(table="14", first=HYDRA_T, other=SINGLE, metric="brier under shift all", is_higher=False, paper_numbers=".56, .58 (ImageNet-C)"),
    *(Claim(table=table, first=first, other=other, metric=metric, is_higher=more, paper_numbers=theirs, equal=equal, tuned=False) for table, first, other, metric, more, theirs, equal in (
        ("3", HYDRA, SINGLE, ACCURACY, True, "74.00, 73.65", None),
        ("3", HYDRA, SINGLE, "ece", False, "3.49, 8.68", None),
        ("3", HYDRA, SCALED, "ece", False, "3.49, 4.03", None),
        ("3", HYDRA, BAYES, "ece", False, "3.49, 6.08", None),
        ("3", HYDRA, SINGLE, "nll", False, ".93, .98", None),
        ("3", SCALED, HYDRA, "nll", False, ".90, .93", None),
        ("E.3.1", HYDRA_SCALED, SCALED, "nll", False, ".90, .90", None),
        ("3", CIRCUIT, TAYLOR, ACCURACY, True, "71.91, 60.75", None),
        ("3", HYDRA, SINGLE, OOD, True, "76.82, 70.76", None),
        ("3", HYDRA, BAYES, OOD, True, "76.82, 71.84", None),
        ("3", HYDRA, VILU, OOD, True, "76.82, 75.38", None),
        ("3", HYDRA, VILU, "ece", False, "3.49, 9.50", None),
        ("3", HYDRA, TAYLOR, OOD, True, "76.82, 67.44", None),
        ("27", HYDRA, FEWER, ACCURACY, True, "74.00, 74.03", 0.01),
        ("27", HYDRA, VISION, ACCURACY, True, "74.00, 72.92", None),
    )),
)  # fmt: skip
"""Claims that can be tested with the data and devices available here."""
UNTESTED = {
    "1, 2 and 7 (batch 4, bf16): a hydra takes 1.07 times as long as a single model": "on an H200 the factor is 1.28 in eager mode and 1.67 with CUDA graphs (`benchmarks/results/runtime-h200.md`)",
    "3, 24 to 28: OpenCLIP ViT-B/32 on nine data sets": "weights and data were not available; a small CLIP on five sets of classes replaces both",
    "27, 28: fine-tuned CLIP": "the paper fine-tunes on a part of LAION-400M",
    "5, figure 4: the most and the least important heads in a plane": "`eval --analyse pca --scores` draws the plane for any model, but this page does not",
    "12: eight seeds": "this page uses fewer seeds",
}
"""Untested claims with the reason."""


@dataclass(frozen=True, slots=True)
class Found:
    """Result of a claim: means of both rows, difference with half of its 95 % interval, and verdict."""

    first: float
    other: float
    gap: float
    half: float
    verdict: str


def is_about(claim: Claim, task: str) -> bool:
    """Return whether a claim is about a task. Zero-shot and fine-tuned models use the same row names."""
    return claim.tuned == (task != zero_shot.NAME)


def judge(claim: Claim, seeds: Seeds) -> Found | None:
    """Return the result of a claim, or None if a row or metric was not measured."""
    if any(claim.metric not in rows.get(name, {}) for rows in seeds for name in (claim.first, claim.other)):
        return None
    pairs = [(rows[claim.first][claim.metric], rows[claim.other][claim.metric]) for rows in seeds]
    gaps = [mine - theirs for mine, theirs in pairs]
    gap, half = statistics.fmean(gaps), half_interval(gaps)
    first, other = (statistics.fmean(values) for values in zip(*pairs, strict=True))
    return Found(first, other, gap, half, _verdict(claim, gap, half))


def _verdict(claim: Claim, gap: float, half: float) -> str:
    if claim.equal is not None:
        if abs(gap) + half <= claim.equal:
            return "holds"
        return "fails" if abs(gap) - half > claim.equal else "open"
    gain = gap if claim.is_higher else -gap
    return "holds" if gain > half else "fails" if -gain > half else "open"
