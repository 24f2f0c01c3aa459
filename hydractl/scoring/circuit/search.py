"""Greedy circuit extraction (Hydra Ensembles, Algorithm 1): each step removes the head whose removal maximizes the objective.

The search is exact, or lazy with swaps at the end.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist, pstdev
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor
from typing_extensions import override

from hydractl import progress
from hydractl.errors import ManifestError
from hydractl.manifest.document import OptionValue
from hydractl.manifest.head_mask import HeadId, Removal
from hydractl.scoring.circuit.ablation import Circuit, lowest_of
from hydractl.scoring.circuit.outcomes import first_best
from hydractl.scoring.job import NOTHING_LEARNT, Memory, Ranking, ScoreJob
from hydractl.scoring.settings import CircuitSettings


def score_circuit(job: ScoreJob) -> Ranking:
    """Remove `budget` heads one by one; among equally good candidates the lowest (tower, layer, head) is removed.

    The score of a head is the step of its removal; all kept heads have a score one higher than the last step. A search
    that does not evaluate every candidate on all data records its work in the results. A resumed run has the same result
    as an uninterrupted one.
    """
    search = Lazy(job) if job.set_for(CircuitSettings).search == "lazy" else Exact(job)
    recorded = job.log.recorded
    with torch.inference_mode():
        start = search.restart(len(recorded))
        for removal in recorded[:start]:
            search.circuit.remove(removal.id)
        search.circuit.check_room()
        baseline = search.circuit.value() if job.log.baseline is None else job.log.baseline
        job.log.begin(baseline)
        removals = list(recorded)
        steps = range(start, job.budget)
        for step in progress.track(steps, label="Removing heads", total=len(steps)):
            if step == len(recorded) and recorded:
                search.recall(job.log.memory)
            best, value = search.best(step)
            if step < len(recorded):  # what the journal says counts, should rounding have changed since
                search.remove(recorded[step].id)
                continue
            search.remove(best)
            removal = Removal(**best._asdict(), objective=value)
            removals.append(removal)
            job.log.record(removal, search.memory())
        if recorded and len(recorded) >= job.budget:
            search.recall(job.log.memory)
        removals = search.refine(removals)
    return Ranking.of_removals(job, removals, baseline=baseline, results=search.results())


class Exact:
    """Algorithm 1: every candidate is evaluated on all data in each step."""

    keeps_streams = False

    def __init__(self, job: ScoreJob) -> None:
        self.circuit = Circuit(job, keeps_streams=self.keeps_streams)
        self.settings = job.set_for(CircuitSettings)
        self.budget = job.budget

    def restart(self, recorded: int) -> int:
        """Return after how many removals to go on, when so many of an interrupted run are known: all or fewer."""
        return recorded

    def best(self, step: int) -> tuple[HeadId, float]:  # noqa: ARG002 - a lazy search needs it
        """Return the head to remove after `step` removals, and the objective without it."""
        return best_of(self.circuit.candidate_values())

    def remove(self, head: HeadId) -> None:
        """Remove a head."""
        self.circuit.remove(head)

    def refine(self, removals: Sequence[Removal]) -> list[Removal]:
        """Return the removals after a last look at all of them."""
        return list(removals)

    def memory(self) -> Memory:
        """Return what an interrupted run needs to know besides its removals."""
        return NOTHING_LEARNT

    def recall(self, memory: Memory) -> None:
        """Go on from what an interrupted run remembered.

        Raises:
            ManifestError: If it is not what such a search remembers.
        """

    def results(self) -> Mapping[str, OptionValue]:
        """Return what else a scores file says."""
        return {}


def best_of(values: Mapping[HeadId, float]) -> tuple[HeadId, float]:
    """Return the first of the heads of the highest value, and that value."""
    return max(values.items(), key=lambda pair: pair[1])


Effects: TypeAlias = dict[HeadId, Tensor]
"""How the traits (1, S) of the samples move if a head is removed, or put back if it was removed."""
SPENT = "spent"
RECHECK = 24
"""Every head is evaluated at each `RECHECK`-th removal."""
DOUBT = 0.5
"""Minimum expected gain of an evaluation, as a fraction of the initial spread of the heads' values; 0 evaluates every head."""
AT_ONCE = 4
"""How many heads are valued before the next look."""
LAST = 0.05
"""What a candidate in a tower's last layer costs, in layers: one of few tokens."""
CHEAP = 1 / 3
"""Up to this share of the exact search's work the search was cheap: what it has saved is spent on more swaps."""
GROWTH = 1.5
"""The squared error grows with this power of the steps since a head was seen."""
FIRST_GUESS = 1 / 3
"""The error after one step before any was seen, of how much heads differ."""
WEIGHT_OF_GUESS, WEIGHT_OF_OTHERS = 4, 6
"""How many errors the first guess, and those of other layers, count for."""
_NORMAL = NormalDist()


class Lazy(Exact):
    """Lazy greedy search (Minoux 1978) by expected improvement (Jones 1998), then swaps.

    Of each head it is remembered how its removal moved each sample's traits (see `traits_of`) when that was last seen. Without
    the head, samples are expected to move likewise from where they are now. How far such values are off is learned as the
    search goes on, by layer and by how long ago a head was seen. A head is valued anew as long as the improvement that
    is expected of it, over the best of the new values, is worth its cost: above `DOUBT` times how much heads differ at
    first. Minoux's values only fall, as the objective is submodular, so his search is exact; these rise and fall, so this
    one is a heuristic, and exact where `DOUBT` is 0. The first removal, and then each `RECHECK`-th, values every head, from
    nothing remembered; there an interrupted run begins again. At the end heads are swapped (see `Swaps`).

    The memory takes up to sixteen bytes a head and sample, beside what `--max-memory` bounds.

    Work is counted in layers times samples. What enters a layer is computed once for all candidates of a step, and a
    candidate in layer l of L takes L - l: so an exact search is counted, too.
    """

    keeps_streams = True

    def __init__(self, job: ScoreJob) -> None:
        super().__init__(job)
        self.evaluations = self.work = self.exact_evaluations = self.exact_work = 0.0
        self.effects: Effects = {}
        self.since: dict[HeadId, int] = {}
        self.swapped = 0
        self.doubt = DeviationBound(0.0)
        self.now: Tensor | None = None
        self._next: Effects = {}
        self.sizes = self.circuit.passes()
        self.depths = {name: len(layers) for name, layers in self.circuit.left.items()}
        self.full_pass = float(sum(depth * self.sizes[name] for name, depth in self.depths.items()))

    @override
    def restart(self, recorded: int) -> int:
        # swaps are tried from the streams that the last removal left
        last = recorded - 1 if recorded == self.budget else recorded
        return last - last % RECHECK

    @override
    def best(self, step: int) -> tuple[HeadId, float]:
        heads = self.circuit.candidates()
        self.exact_evaluations += len(heads)
        self.exact_work += self.full_pass + self._after(heads)
        self.work += self.full_pass
        if step % RECHECK == 0:
            self.effects, self.now = {}, None
            if step:
                self.circuit.forget()
        circuit_traits = self.now = self.circuit.evaluate()[1] if self.now is None else self.now
        if self.effects:
            evaluated = self._search(circuit_traits, heads, step)
        else:
            evaluated = self._evaluate(heads)
            self.doubt = DeviationBound(pstdev(value for value, _ in evaluated.values()))
        self.since |= dict.fromkeys(evaluated, step)
        self.effects |= {head: traits - circuit_traits for head, (_, traits) in evaluated.items()}
        best, value = best_of({head: evaluated[head][0] for head in heads if head in evaluated})
        self._next = {best: evaluated[best][1]}
        return best, value

    def _search(
        self, circuit_traits: Tensor, heads: Sequence[HeadId], step: int
    ) -> dict[HeadId, tuple[float, Tensor]]:
        """Return value and traits of some heads, the best among them."""
        hopes = self.circuit.expected(torch.cat([self.effects[head] for head in heads]) + circuit_traits)
        expected = dict(zip(heads, hopes, strict=True))
        costs = {head: self._cost(head) for head in heads}
        # those that cost next to nothing give the first bar, and the one that promises most
        chosen = {head for head in heads if head.layer + 1 == len(self.circuit.left[head.tower])} | {
            max(heads, key=lambda h: expected[h])
        }
        evaluated: dict[HeadId, tuple[float, Tensor]] = {}
        while chosen:
            evaluated |= self._evaluate([head for head in heads if head in chosen], trails=True)
            bar = max(value for value, _ in evaluated.values())
            worth = {
                head: promise(expected[head], self.doubt.deviation(head, step - self.since[head]), bar)
                / costs[head]
                for head in heads
                if head not in evaluated
            }
            least = DOUBT * self.doubt.spread
            chosen = {
                head
                for head in sorted(worth, key=lambda h: -worth[h])[:AT_ONCE]
                if worth[head] > least or not least
            }
        for head, (value, _) in evaluated.items():
            self.doubt.learn(head, step - self.since[head], value - expected[head])
        return evaluated

    def _cost(self, head: HeadId) -> float:
        """Return what a candidate costs, of a pass over all data."""
        layers = self.depths[head.tower] - 1 - head.layer + LAST
        return layers * self.sizes[head.tower] / self.full_pass

    def _evaluate(
        self, heads: Sequence[HeadId], *, trails: bool = False
    ) -> dict[HeadId, tuple[float, Tensor]]:
        """Return value and traits without each of some heads in turn; for `trails` see `Circuit.without`."""
        self._count(heads)
        values, traits = self.circuit.without(heads, trails=trails)
        return dict(zip(heads, zip(values.tolist(), traits.split(1), strict=True), strict=True))

    @override
    def remove(self, head: HeadId) -> None:
        super().remove(head)
        self.effects.pop(head, None)
        self.now = self._next.get(head)

    def value_after(self, heads: Sequence[HeadId]) -> tuple[float, Tensor]:
        """Return value and traits of the circuit with some heads cut out and others put back."""
        self.evaluations += 1
        self.work += self._after(lowest_of(heads).values())
        value, traits = self.circuit.changed(heads)
        return float(value), traits

    def look_around(self, heads: Sequence[HeadId]) -> tuple[Tensor, Effects]:
        """Return the circuit's traits, and how they move with a change of each of some heads."""
        circuit_traits, after = self.circuit.around(heads)
        self.work += self.full_pass
        self._count(heads)
        return circuit_traits, {head: traits - circuit_traits for head, traits in after.items()}

    @override
    def refine(self, removals: Sequence[Removal]) -> list[Removal]:
        if not removals:
            return []
        self.effects.clear()  # a look gives them anew; both would take twice the memory
        swaps = Swaps(self, removals)
        swaps.run(self.budget)
        self.swapped = swaps.made
        return self._in_order(swaps.removals, swaps.first)

    @property
    def is_cheap(self) -> bool:
        """Whether the search has done a small part of the exact search's work."""
        return self.work < CHEAP * self.exact_work

    def _in_order(self, removals: Sequence[Removal], first: int) -> list[Removal]:
        """Return removals with the objective after each, which from the number `first` on is known of the last alone."""
        later = removals[first:]
        self.circuit.change([removal.id for removal in later])
        valued = list(removals[:first])
        for removal in later[:-1]:
            value, _ = self._evaluate([removal.id], trails=True)[removal.id]
            valued.append(removal.model_copy(update={"objective": value}))
            self.circuit.remove(removal.id)
        return [*valued, *later[-1:]]

    def _count(self, heads: Sequence[HeadId]) -> None:
        """Take note that candidates are valued."""
        self.evaluations += len(heads)
        self.work += self._after(heads)

    def _after(self, heads: Iterable[HeadId]) -> float:
        return sum(float((self.depths[h.tower] - h.layer) * self.sizes[h.tower]) for h in heads)

    @override
    def memory(self) -> Memory:
        return {SPENT: (self.evaluations, self.work, self.exact_evaluations, self.exact_work)}

    @override
    def recall(self, memory: Memory) -> None:
        spent = memory.get(SPENT, ())
        if len(spent) != 4:
            raise ManifestError(
                f"the journal of the interrupted run has {len(spent)} values of `{SPENT}`, not 4",
                hint="add `--force` to discard it and start again",
            )
        self.evaluations, self.work, self.exact_evaluations, self.exact_work = spent

    @override
    def results(self) -> Mapping[str, OptionValue]:
        return {
            "evaluations": round(self.evaluations, 2),
            "exact_evaluations": round(self.exact_evaluations),
            "work": round(self.work / self.exact_work, 4) if self.exact_work else 0.0,
            "swapped": self.swapped,
        }


@dataclass
class DeviationBound:
    """The errors of expected values so far.

    Attributes:
        spread: How much heads differ in value, the scale of all of it: the standard deviation of new values.
    """

    spread: float
    _error_counts: dict[tuple[str, int], tuple[float, int]] = field(default_factory=dict)
    """By tower and layer: the sum of squared errors a step, and how many there are."""

    def learn(self, head: HeadId, steps: int, error: float) -> None:
        """Take note of how far off a head's expected value was, so many steps after the head was seen last."""
        layer = head.tower, head.layer
        total, count = self._error_counts.get(layer, (0.0, 0))
        self._error_counts[layer] = (total + error**2 / steps**GROWTH, count + 1)

    def deviation(self, head: HeadId, steps: int) -> float:
        """Return the standard deviation of a head's value from what is expected."""
        total = sum(per_step for per_step, _ in self._error_counts.values())
        count = sum(count_of_errors for _, count_of_errors in self._error_counts.values())
        guess = (FIRST_GUESS * self.spread) ** 2
        common = (total + WEIGHT_OF_GUESS * guess) / (count + WEIGHT_OF_GUESS)
        head_errors, times = self._error_counts.get((head.tower, head.layer), (0.0, 0))
        variance = (head_errors + WEIGHT_OF_OTHERS * common) / (times + WEIGHT_OF_OTHERS)
        return math.sqrt(variance * steps**GROWTH)


def promise(expected: float, deviation: float, bar: float) -> float:
    """Return by how much a value is expected to exceed a bar, counted as nothing where it does not (expected improvement)."""
    if deviation == 0:
        return max(0.0, expected - bar)
    z = (expected - bar) / deviation
    return (expected - bar) * _NORMAL.cdf(z) + deviation * _NORMAL.pdf(z)


WIDTH = 12
"""Of the heads that may come back, and of those that may go, so many that promise most are paired."""
PATIENCE = 1 / 2
"""After so many swaps in vain, one after another, of the number of removals, no more are tried."""
FAR = 1 / 4
"""Once so many swaps were made since the last look, of the number of removals, it is worth another: the circuit is far from there."""


class Swap(NamedTuple):
    """One head that comes back, and one that goes."""

    back: HeadId
    out: HeadId


class Swaps:
    """Local search around the circuit that a lazy search ends with.

    It looks at what happens if each head that is there goes, and if each that went comes back, by itself. A swap is expected to do
    what both of its heads do. The one that promises most is tried, and made if the objective rises; so it never falls. What it did
    is shared out among both effects. While the search was cheap, one that promises nothing is tried, too: it costs a fraction of a
    look. Else, and once several were in vain, it looks again, at the heads that promise most, if it has gone far since it looked
    last, or it ends. In the order the head that comes back is left out, and the one
    that goes is the last.

    Attributes:
        removals: In order; from the number `first` on, all but the last say an objective that is no longer true.
        made: How many swaps were made.
    """

    def __init__(self, search: Lazy, removals: Sequence[Removal]) -> None:
        """Begin where a search ended.

        Args:
            search: A search after the removals.
            removals: The removals in order.
        """
        self.search, self.circuit = search, search.circuit
        self.removals = list(removals)
        self.effects: Effects = {}
        self.value = removals[-1].objective
        self.first = len(removals)
        self.tried: set[frozenset[HeadId]] = set()
        self.made = 0

    @property
    def removed(self) -> frozenset[HeadId]:
        """The heads that went."""
        return frozenset(removal.id for removal in self.removals)

    def run(self, trials: int) -> None:
        """Try so many swaps at most."""
        several, far = (share * len(self.removals) for share in (PATIENCE, FAR))
        swaps_before = -far
        while self.made - swaps_before >= far and len(self.tried) < trials:
            swaps_before, in_vain = self.made, 0
            heads = (
                [head for candidates in self._best() for head in candidates]
                if self.effects
                else self.circuit.heads()
            )
            self.now, self.effects = self.search.look_around(heads)
            while in_vain < several and len(self.tried) < trials and (swap := self._promising()):
                in_vain = 0 if self._try(swap) else in_vain + 1

    def _best(self) -> list[list[HeadId]]:
        """Return of the heads that went, and of those that are there, those whose changes promise most by themselves."""
        removed, heads = self.removed, list(self.effects)
        values = dict(zip(heads, self._expected([[head] for head in heads]), strict=True))
        groups = ([head for head in heads if (head in removed) == went] for went in (True, False))
        return [sorted(group, key=lambda head: -values[head])[:WIDTH] for group in groups]

    def _promising(self) -> Swap | None:
        """Return the swap that promises most of those that were not tried yet, if it promises anything or the search was cheap."""
        removed = self.removed
        backs, outs = self._best()
        swaps = [Swap(a, b) for a in backs for b in outs if removed ^ {a, b} not in self.tried]
        if not swaps:
            return None
        expected = self._expected(swaps)
        best = first_best(expected)
        return swaps[best] if expected[best] > self.value or self.search.is_cheap else None

    def _expected(self, changes: Sequence[Sequence[HeadId]]) -> list[float]:
        """Return the objective that is expected after each of some changes, whose effects add up."""
        heads = list(dict.fromkeys(head for change in changes for head in change))
        moves = torch.tensor([[float(head in change) for head in heads] for change in changes])
        effects = torch.cat([self.effects[head] for head in heads])
        return self.circuit.expected(moves.to(effects) @ effects + self.now)

    def _try(self, swap: Swap) -> bool:
        """Try a swap, and make it if the objective is higher then; return whether it is."""
        value, traits = self.search.value_after(swap)
        self.tried.add(self.removed ^ {*swap})
        improves = value > self.value
        missed = traits - self.now - self.effects[swap.back] - self.effects[swap.out]
        for head in swap:
            self.effects[head] = (self.effects[head] + 0.5 * missed) * (-1 if improves else 1)
        if improves:
            self._make(swap, value, traits)
        return improves

    def _make(self, swap: Swap, value: float, traits: Tensor) -> None:
        self.circuit.change(swap)
        at = next(i for i, r in enumerate(self.removals) if r.id == swap.back)
        del self.removals[at]
        self.removals.append(Removal(**swap.out._asdict(), objective=value))
        self.first = min(self.first, at)
        self.value, self.now = value, traits
        self.made += 1
