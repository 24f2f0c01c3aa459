"""Whether the first row of a report is better than the others, in sentences that say where it is not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hydractl.manifest.shift_groups import SHIFT
from hydractl.messages import listed
from hydractl.metrics.classification import CALIBRATED
from hydractl.metrics.metric_spec import MetricNeeds
from hydractl.reporting.comparison import Compared
from hydractl.reporting.report_values import GROUPS, Number, Quantity, number_text

JUDGED_METRICS = ("accuracy", "nll", "ece", "auroc")
"""What sentences speak of; tables have the rest."""
MOST_SETS = 3
"""More OOD sets are spoken of by their mean."""
COSTS = {"macs": "multiply-accumulates", "parameters": "parameters"}


@dataclass(frozen=True, slots=True)
class _Judgement:
    """What sentences say of one other row: how much better the first one is by each quantity, with the sign that it then has."""

    better: list[str] = field(default_factory=list)
    worse: list[str] = field(default_factory=list)
    open: list[str] = field(default_factory=list)
    unsure: list[str] = field(default_factory=list)


def verdict(compared: Compared) -> tuple[str, ...]:
    """Return one sentence for each row that the first one is compared with, or what it measures where there is none."""
    first = compared.names[0]
    if not compared.differences:
        numbers_of = compared.rows[first]
        numbers = ", ".join(
            f"{q.label} {number_text(q.metric, numbers_of[q])}"
            for q in judged_quantities(compared)
            if q in numbers_of
        )
        no_comparison = "nothing stands beside it, so this does not say whether it is better than anything"
        return (f"{first}: {numbers or 'nothing to judge it by'}; {no_comparison}.",)
    return tuple(_sentence(compared, row) for row in compared.differences)


def judged_quantities(compared: Compared) -> list[Quantity]:
    """Return what sentences speak of, as far as it was measured."""
    sets = {q.scope for q in compared.quantities if q.metric.needs is MetricNeeds.OOD} - {*GROUPS}
    hidden = sets if len(sets) > MOST_SETS else {*GROUPS}
    candidates = [
        q for q in compared.quantities if q.scope not in hidden and (not q.under_shift or q.scope == SHIFT)
    ]
    return [q for name in JUDGED_METRICS for q in candidates if q.name == name]


def _sentence(compared: Compared, row: str) -> str:
    first, differences = compared.names[0], compared.differences[row]
    unfair = () if compared.scaled_alike(row) else CALIBRATED
    quantities = judged_quantities(compared)
    judgement = _judge(differences, [q for q in quantities if q.name not in unfair])
    parts = []
    if judgement.better:
        parts.append(f"is better than {row} in {listed(judgement.better)}")
    if judgement.worse:
        parts.append(f"is worse {'' if judgement.better else f'than {row} '}in {listed(judgement.worse)}")
    if judgement.open:
        parts.append(
            f"is not told apart from {'it' if parts else row} in {listed(judgement.open)}, where the interval of the difference includes 0"
        )
    if judgement.unsure:
        parts.append(
            f"differs {'' if parts else f'from {row} '}by {listed(judgement.unsure)}, without an interval"
        )
    if not parts:
        parts.append(f"has no number of {', '.join(JUDGED_METRICS)} to compare with {row}")
    parts += _costs(compared.rows[first], compared.rows[row], row)
    withheld = [q.label for q in quantities if q.name in unfair and q in differences]
    if withheld:
        parts[-1] += (
            f"; {listed(withheld)} {'are' if len(withheld) > 1 else 'is'} not compared, as only one of the two stores a temperature "
            "(`hydractl eval --temperature DATA` fits one for every row)"
        )
    return f"{first} {'; it '.join(parts)}."


def _judge(differences: Mapping[Quantity, Number], quantities: Sequence[Quantity]) -> _Judgement:
    judgement = _Judgement()
    for quantity in quantities:
        if quantity not in differences:
            continue
        lead = replace(differences[quantity], deviation=None)  # which is in the tables
        gain = lead if quantity.metric.higher_is_better else negated(lead)
        if gain.interval is None:
            judgement.unsure.append(f"{number_text(quantity.metric, lead)} in {quantity.label}")
        elif gain.interval[0] > 0:
            judgement.better.append(f"{quantity.label} by {number_text(quantity.metric, gain)}")
        elif gain.interval[1] < 0:
            judgement.worse.append(f"{quantity.label} by {number_text(quantity.metric, negated(gain))}")
        else:
            judgement.open.append(f"{quantity.label} ({number_text(quantity.metric, lead)})")
    return judgement


def negated(number: Number) -> Number:
    """Return a number with the other sign."""
    low, high = (None if end is None else 0.0 - end for end in (number.high, number.low))
    return replace(number, value=0.0 - number.value, low=low, high=high)


def _costs(numbers: Mapping[Quantity, Number], others: Mapping[Quantity, Number], name: str) -> Iterator[str]:
    ratios = [
        f"{numbers[q].value / others[q].value:.3g} times the {word}"
        for q, word in ((Quantity(metric), word) for metric, word in COSTS.items())
        if q in numbers and q in others and others[q].value
    ]
    if ratios:
        yield f"takes {listed(ratios)} of {name}"
