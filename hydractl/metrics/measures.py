"""From members' predictions to the numbers of a report. Pure: tensors and names in, values out.

Axes: M members, N samples, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hydractl.manifest.report import ALL_SEVERITIES, Difference, Shift, Value
from hydractl.manifest.scopes import SHIFT, scopes
from hydractl.metrics.metric import Metric, Needs
from hydractl.metrics.resampling import Measured, Resampling, mean_of
from hydractl.metrics.samples import (
    Kept,
    Responses,
    Scored,
    answers,
    at_once,
    ensemble_log_probs,
    places,
)
from hydractl.metrics.scores import MSP, SCORES, Score, number_name
from hydractl.metrics.table import METRICS, needing


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shifted:
    """A row's numbers on the ID set under corruptions, all on the same resamples: what is drawn are clean samples.

    Attributes:
        cells: By corruption and severity.
    """

    cells: Mapping[tuple[str, str], Mapping[str, Measured]]

    def told(self) -> Shift:
        """Return what a report says of it."""
        means = self._means()
        told = {scope: _told(own) for scope, own in means.items()}
        values: dict[str, dict[str, dict[str, float]]] = {}
        for (name, severity), own in self.cells.items():
            values.setdefault(name, {})[severity] = {metric: each.value for metric, each in own.items()}
        severities = {scope: scope.removeprefix(f"{SHIFT}:") for scope in means if f"{SHIFT}:" in scope}
        return Shift(
            values=values,
            means={
                each: {metric: found.value for metric, found in means[scope].items()}
                for scope, each in (severities | {SHIFT: ALL_SEVERITIES}).items()
            },
            intervals=_intervals(told),
        )

    def less(self, other: Shifted) -> dict[str, dict[str, Value]]:
        """Return by how much the numbers are more than another row's, by what conditions call them."""
        others = other._means()
        found = {scope: _less(own, others[scope]) for scope, own in self._means().items() if scope in others}
        return {scope: own for scope, own in found.items() if own}

    def _means(self) -> dict[str, dict[str, Measured]]:
        return {
            scope: {
                metric: mean_of([self.cells[cell][metric] for cell in over]) for metric in self.cells[over[0]]
            }
            for scope, over in scopes(self.cells).items()
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Numbers:
    """A row's numbers, apart from its costs: on the ID set, on each OOD set, and the plain means over groups of these.

    `shift` are those under corruptions, if there are any.
    """

    found: dict[str, Measured]
    found_ood: dict[str, dict[str, Measured]]
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    shift: Shifted | None = None

    @property
    def values(self) -> dict[str, Value]:
        """As in `manifest.Row`."""
        return _told(self.found)

    @property
    def ood(self) -> dict[str, dict[str, Value]]:
        """As in `manifest.Row`."""
        return {name: _told(found) for name, found in self.found_ood.items()}

    @property
    def mean_intervals(self) -> dict[str, dict[str, tuple[float, float]]]:
        """As in `manifest.Row`: of the means of each group with a set."""
        return _intervals({group: _told(found) for group, found in self._means().items()})

    def less(self, other: Numbers) -> Difference | None:
        """Return by how much the numbers are more than another row's on the same samples; None without intervals."""
        values = _less(self.found, other.found)
        ood = {name: _less(found, other.found_ood[name]) for name, found in self.found_ood.items()}
        others = other._means()
        means = {group: _less(found, others[group]) for group, found in self._means().items()}
        shift = self.shift.less(other.shift) if self.shift and other.shift else {}
        there = values or any(ood.values())
        return Difference(values=values, ood=ood, means=means, shift=shift) if there else None

    def _means(self) -> dict[str, dict[str, Measured]]:
        return {
            group: {
                metric: mean_of([self.found_ood[n][metric] for n in names])
                for metric in self.found_ood[names[0]]
            }
            for group, names in self.groups.items()
            if names
        }


def _told(found: Mapping[str, Measured]) -> dict[str, Value]:
    return {name: each.told() for name, each in found.items()}


def _intervals(told: Mapping[str, Mapping[str, Value]]) -> dict[str, dict[str, tuple[float, float]]]:
    """Return the intervals of what has one."""
    found = {
        group: {name: (v.low, v.high) for name, v in own.items() if v.low is not None and v.high is not None}
        for group, own in told.items()
    }
    return {group: own for group, own in found.items() if own}


def _less(found: Mapping[str, Measured], other: Mapping[str, Measured]) -> dict[str, Value]:
    each = {name: own.less(other[name]) for name, own in found.items() if name in other}
    return {name: difference.told() for name, difference in each.items() if difference is not None}


def measure(
    tested: Kept,
    labels: Tensor | None,
    foreign: Mapping[str, Kept],
    *,
    metrics: Sequence[str],
    scores: Sequence[str],
    resampling: Resampling,
) -> Numbers:
    """Return every chosen number of one model or ensemble that follows from its predictions.

    These are gone through once, and memory holds some numbers a sample: what is kept on the disk need not fit.

    Args:
        tested: On the ID set.
        labels: Shape (N,), int64, in 0..C-1; None where no metric reads them.
        foreign: On each OOD set.
        metrics: Names from `table.METRICS`; those that do not follow from predictions are passed over.
        scores: Names from `scores.EVERY`: what metrics of OOD data rank samples by, called as `number_name` says. Those that
            are fitted come with the predictions.
        resampling: How intervals are made, on the same resamples for every score.
    """
    labelled, ranking, diverse = (
        [METRICS[name] for name in needing(metrics, needs)]
        for needs in (Needs.LABELS, Needs.OOD, Needs.MEMBERS)
    )
    named = scores if ranking and foreign else ()
    ranks = [SCORES[score] for score in named if score in SCORES]
    own = _summary(tested, ranks, diverse, labels)
    ood: dict[str, dict[str, Measured]] = {}
    for name, said in foreign.items():
        other = _summary(said, ranks, diverse)
        ood[name] = {}
        for score in named:
            by_score = places(own.scores[score], other.scores[score])
            sides = ({side: found} for side, found in by_score.items())
            ranked = resampling.values(ranking, *sides, name=name)
            ood[name] |= {number_name(metric, score, scores): value for metric, value in ranked.items()}
        ood[name] |= other.diversity
    values = resampling.values(labelled, own.answers) if labelled else {}
    return Numbers(found=values | own.diversity, found_ood=ood)


def means(
    ood: Mapping[str, Mapping[str, Value]], groups: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, float]]:
    """Return the plain mean over data sets of every number, for each group with a set."""
    return {
        group: {
            metric: math.fsum(ood[n][metric].value for n in names) / len(names) for metric in ood[names[0]]
        }
        for group, names in groups.items()
        if names
    }


def answered(said: Kept, labels: Tensor) -> dict[str, Tensor]:
    """Return `samples.answers` of what members say together, of labels (N,)."""
    return _summary(said, (), (), labels).answers


def scored(said: Kept, name: str) -> Tensor:
    """Return a score of every sample, (N,), float64."""
    if isinstance(said, Scored) and name in said.scores:
        return said.scores[name]
    score = SCORES[name]
    return torch.cat([_score(part, score) for part in said.split(at_once(said))])


def _score(part: Responses, score: Score) -> Tensor:
    return score.compute(part.logits() if score.raw else part.log_probs.double())


@dataclass(frozen=True, slots=True)
class _Summary:
    """What is left of predictions when they have been gone through.

    Attributes:
        answers: As `samples.answers`; empty where there are no labels.
        scores: Each score of every sample, (N,), float64.
        diversity: The metrics of members.
    """

    answers: dict[str, Tensor]
    scores: dict[str, Tensor]
    diversity: dict[str, Measured]


def _summary(
    said: Kept, scores: Sequence[Score], diverse: Sequence[Metric], labels: Tensor | None = None
) -> _Summary:
    _, count, _ = said.shape
    # vectors for all samples, made at once: small ones between what comes and goes would keep memory in pieces
    right: dict[str, Tensor] = {}
    ranks: dict[str, Tensor] = dict(said.scores) if isinstance(said, Scored) else {}
    confidence = -ranks[MSP] if MSP in ranks else None
    scores = [score for score in scores if score.name not in ranks]
    found = dict.fromkeys((m.name for m in diverse), 0.0)
    begin = 0
    for part in said.split(at_once(said)):
        end = begin + part.shape[1]
        log_probs = part.log_probs.double()
        if labels is not None:
            ensemble = ensemble_log_probs(log_probs)
            for name, own in answers(ensemble.exp(), labels[begin:end], log_probs=ensemble).items():
                right.setdefault(name, own.new_empty(count))[begin:end] = own
        for score in scores:
            own = _score(part, score)
            ranks.setdefault(score.name, own.new_empty(count))[begin:end] = own
        sample = {"member_probs": log_probs.exp()} if diverse else {}
        for metric in diverse:
            found[metric.name] += float(metric.of(sample)) * (end - begin) / count
        begin = end
    if right and confidence is not None:
        right["confidence"] = confidence
    return _Summary(
        answers=right,
        scores=ranks,
        diversity={name: Measured(value=value, count=count) for name, value in found.items()},
    )
