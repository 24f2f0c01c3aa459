"""Greedy circuit extraction (Hydra Ensembles, Algorithm 1).

Each step removes the head without which the objective is highest. The search is exact, or lazy with swaps at
the end.
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
    """Remove `budget` heads in sequence; among equal candidates the lowest (tower, layer, head).

    The importance of a removed head is the step of the removal, from 0, and of a kept head the number of
    removals. A lazy search adds the search cost to the results. A resumed run and an uninterrupted run have
    the same result.
    """
    search = Lazy(job) if job.set_for(CircuitSettings).search == "lazy" else Exact(job)
    recorded = job.log.recorded
    with torch.inference_mode():
        start = search.restart(len(recorded))
        for removal in recorded[:start]:
            search.circuit.remove(removal.id)
        search.circuit.check_memory()
        baseline = search.circuit.value() if job.log.baseline is None else job.log.baseline
        job.log.begin(baseline)
        removals = list(recorded)
        steps = range(start, job.budget)
        for step in progress.track(steps, label="Removing heads", total=len(steps)):
            if step == len(recorded) and recorded:
                search.recall(job.log.memory)
            best, value = search.best(step)
            # The journal determines the removal, because rounding may have changed since.
            if step < len(recorded):
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
    """Algorithm 1: each step evaluates all candidates on all data."""

    keeps_streams = False

    def __init__(self, job: ScoreJob) -> None:
        self.circuit = Circuit(job, keeps_streams=self.keeps_streams)
        self.settings = job.set_for(CircuitSettings)
        self.budget = job.budget

    def restart(self, recorded: int) -> int:
        """Return the number of removals after which an interrupted run continues.

        Args:
            recorded: Number of removals in the journal.
        """
        return recorded

    def best(self, step: int) -> tuple[HeadId, float]:  # noqa: ARG002 - a lazy search needs it
        """Return the head to remove after `step` removals, and the objective without it."""
        return best_of(self.circuit.candidate_values())

    def remove(self, head: HeadId) -> None:
        """Remove a head."""
        self.circuit.remove(head)

    def refine(self, removals: Sequence[Removal]) -> list[Removal]:
        """Return the final removals, possibly improved."""
        return list(removals)

    def memory(self) -> Memory:
        """Return the state for a resumed run, in addition to removals."""
        return NOTHING_LEARNT

    def recall(self, memory: Memory) -> None:
        """Restore the state from `memory`.

        Raises:
            ManifestError: If the state does not belong to this search.
        """

    def results(self) -> Mapping[str, OptionValue]:
        """Return further results for the scores file by name; empty in an exact search."""
        return {}


def best_of(values: Mapping[HeadId, float]) -> tuple[HeadId, float]:
    """Return the first head with the highest value, and the value.

    `values` must have at least one head.
    """
    return max(values.items(), key=lambda pair: pair[1])


Effects: TypeAlias = dict[HeadId, Tensor]
"""Change of the traits (1, S) by the removal of each head, or by the restoration of a removed head."""
WORK_KEY = "spent"
"""Key of the counts of evaluations and work in the journal."""
FULL_EVALUATION_INTERVAL = 24
"""Number of removals between evaluations of all heads; an interrupted run resumes from the last one. Chosen
by hand; 48 halves their cost and lets predictions become older."""
MIN_EXPECTED_GAIN = 0.5
"""Minimum expected gain of an evaluation per unit of cost, relative to the initial spread of the heads'
objectives. Chosen on digits and texts; at 1 the search is up to 1.2 times as fast and about as good
(`benchmarks/results/search.md`). At 0 every head is evaluated."""
EVALUATION_BATCH = 4
"""Number of heads that are evaluated together before expected gains are computed again. Chosen by hand; 8
evaluates more heads than necessary in fewer passes."""
LAST_LAYER_COST = 0.05
"""Cost of a candidate in the last layer of a tower, in layers. The last layer computes few tokens. Chosen by
hand; doubling it makes other layers relatively cheaper."""
CHEAP_WORK_FRACTION = 1 / 3
"""Fraction of the exact search's work below which swaps without expected gain are tried too. Chosen on digits
and texts; 2/3 would include searches on texts, which cost about half of an exact search."""
ERROR_GROWTH_EXPONENT = 1.5
"""Exponent of the growth of the squared prediction error with the steps since an evaluation. Chosen by hand;
at 3, heads without a recent evaluation are evaluated again sooner."""
FIRST_GUESS = 1 / 3
"""Initial prediction error after one step, relative to the spread of the heads' objectives. Chosen by hand;
doubling it evaluates more heads at the first steps."""
WEIGHT_OF_GUESS, WEIGHT_OF_OTHERS = 4, 6
"""Number of observed errors that the initial error counts as, and number that the errors of all layers count
as in the estimate of one layer. Chosen by hand; doubling them adapts the estimate half as fast."""
_NORMAL = NormalDist()


class Lazy(Exact):
    """Lazy greedy search (Minoux 1978) by expected improvement (Jones 1998), with swaps at the end.

    The search stores how the last evaluation of each head changed the traits of all samples (see
    `traits_of`), and predicts the objective without a head by the same change from the current traits. The
    errors of these predictions are learned by layer and by the number of steps since the evaluation. A head
    is evaluated while the expected improvement over the best new value, divided by the cost, exceeds `MIN_EXPECTED_GAIN`
    times the initial spread of the heads' objectives.

    Minoux's search is exact because the values of a submodular objective only decrease. The values here can
    also increase: this search is a heuristic, except with `MIN_EXPECTED_GAIN` 0. The first removal and each `FULL_EVALUATION_INTERVAL`-th
    one evaluate all heads without stored changes; an interrupted run resumes there. Finally the search tries
    swaps of heads (see `Swaps`).

    Stored changes need up to 16 bytes per head and sample, in addition to `--max-memory`.

    Work is measured in layers times samples. The stream that enters a layer is computed once for all
    candidates of a step, and a candidate in layer l of L costs L - l. The work of an exact search is counted
    in the same way.
    """

    keeps_streams = True

    def __init__(self, job: ScoreJob) -> None:
        super().__init__(job)
        self.evaluations = self.work = self.exact_evaluations = self.exact_work = 0.0
        self.effects: Effects = {}
        self.since: dict[HeadId, int] = {}
        self.swapped = 0
        self.error_statistics = DeviationBound(0.0)
        self.now: Tensor | None = None
        self._next: Effects = {}
        self.sizes = self.circuit.passes()
        self.depths = {name: len(layers) for name, layers in self.circuit.left.items()}
        self.full_pass = float(sum(depth * self.sizes[name] for name, depth in self.depths.items()))

    @override
    def restart(self, recorded: int) -> int:
        # Swaps need the stored streams of the last removal.
        last = recorded - 1 if recorded == self.budget else recorded
        return last - last % FULL_EVALUATION_INTERVAL

    @override
    def best(self, step: int) -> tuple[HeadId, float]:
        heads = self.circuit.candidates()
        self.exact_evaluations += len(heads)
        self.exact_work += self.full_pass + self._after(heads)
        self.work += self.full_pass
        if step % FULL_EVALUATION_INTERVAL == 0:
            self.effects, self.now = {}, None
            if step:
                self.circuit.forget()
        circuit_traits = self.now = self.circuit.evaluate()[1] if self.now is None else self.now
        if self.effects:
            evaluated = self._search(circuit_traits, heads, step)
        else:
            evaluated = self._evaluate(heads)
            self.error_statistics = DeviationBound(pstdev(value for value, _ in evaluated.values()))
        self.since |= dict.fromkeys(evaluated, step)
        self.effects |= {head: traits - circuit_traits for head, (_, traits) in evaluated.items()}
        best, value = best_of({head: evaluated[head][0] for head in heads if head in evaluated})
        self._next = {best: evaluated[best][1]}
        return best, value

    def _search(
        self, circuit_traits: Tensor, heads: Sequence[HeadId], step: int
    ) -> dict[HeadId, tuple[float, Tensor]]:
        """Evaluate promising heads. Return objective and traits without each evaluated head."""
        hopes = self.circuit.expected(torch.cat([self.effects[head] for head in heads]) + circuit_traits)
        expected = dict(zip(heads, hopes, strict=True))
        costs = {head: self._cost(head) for head in heads}
        # Heads of the last layer are nearly free. They and the most promising head give the first value to
        # improve on.
        chosen = {head for head in heads if head.layer + 1 == len(self.circuit.left[head.tower])} | {
            max(heads, key=lambda h: expected[h])
        }
        evaluated: dict[HeadId, tuple[float, Tensor]] = {}
        while chosen:
            evaluated |= self._evaluate([head for head in heads if head in chosen], trails=True)
            bar = max(value for value, _ in evaluated.values())
            worth = {
                head: expected_improvement(
                    expected[head], self.error_statistics.deviation(head, step - self.since[head]), bar
                )
                / costs[head]
                for head in heads
                if head not in evaluated
            }
            least = MIN_EXPECTED_GAIN * self.error_statistics.spread
            chosen = {
                head
                for head in sorted(worth, key=lambda h: -worth[h])[:EVALUATION_BATCH]
                if worth[head] > least or not least
            }
        for head, (value, _) in evaluated.items():
            self.error_statistics.learn(head, step - self.since[head], value - expected[head])
        return evaluated

    def _cost(self, head: HeadId) -> float:
        """Return the cost of a candidate relative to a pass over all data."""
        layers = self.depths[head.tower] - 1 - head.layer + LAST_LAYER_COST
        return layers * self.sizes[head.tower] / self.full_pass

    def _evaluate(
        self, heads: Sequence[HeadId], *, trails: bool = False
    ) -> dict[HeadId, tuple[float, Tensor]]:
        """Return objective and traits without each head. For `trails` see `Circuit.without`."""
        self._count(heads)
        values, traits = self.circuit.without(heads, trails=trails)
        return dict(zip(heads, zip(values.tolist(), traits.split(1), strict=True), strict=True))

    @override
    def remove(self, head: HeadId) -> None:
        super().remove(head)
        self.effects.pop(head, None)
        self.now = self._next.get(head)

    def value_after(self, heads: Sequence[HeadId]) -> tuple[float, Tensor]:
        """Return the objective and the traits (1, S) that the circuit would have after `change(heads)`."""
        self.evaluations += 1
        self.work += self._after(lowest_of(heads).values())
        value, traits = self.circuit.changed(heads)
        return float(value), traits

    def measure_effects(self, heads: Sequence[HeadId]) -> tuple[Tensor, Effects]:
        """Return the traits (1, S) of the circuit, and the change of the traits by each head alone."""
        circuit_traits, after = self.circuit.traits_around(heads)
        self.work += self.full_pass
        self._count(heads)
        return circuit_traits, {head: traits - circuit_traits for head, traits in after.items()}

    @override
    def refine(self, removals: Sequence[Removal]) -> list[Removal]:
        if not removals:
            return []
        self.effects.clear()  # `Swaps.run` computes the effects again; both would need twice the memory.
        swaps = Swaps(self, removals)
        swaps.run(self.budget)
        self.swapped = swaps.made
        return self._in_order(swaps.removals, swaps.first)

    @property
    def is_cheap(self) -> bool:
        """Whether the search has done less than `CHEAP_WORK_FRACTION` of the exact search's work."""
        return self.work < CHEAP_WORK_FRACTION * self.exact_work

    def _in_order(self, removals: Sequence[Removal], first: int) -> list[Removal]:
        """Return the removals with the objective after each removal.

        The circuit has the same heads before and after the call, but heads are restored and removed in
        between.

        Args:
            removals: Removals in order.
            first: Index of the first removal with an outdated objective. The last removal has the current
                objective.
        """
        later = removals[first:]
        self.circuit.change([removal.id for removal in later])
        valued = list(removals[:first])
        for removal in later[:-1]:
            value, _ = self._evaluate([removal.id], trails=True)[removal.id]
            valued.append(removal.model_copy(update={"objective": value}))
            self.circuit.remove(removal.id)
        return [*valued, *later[-1:]]

    def _count(self, heads: Sequence[HeadId]) -> None:
        """Count the evaluation of candidates."""
        self.evaluations += len(heads)
        self.work += self._after(heads)

    def _after(self, heads: Iterable[HeadId]) -> float:
        return sum(float((self.depths[h.tower] - h.layer) * self.sizes[h.tower]) for h in heads)

    @override
    def memory(self) -> Memory:
        return {WORK_KEY: (self.evaluations, self.work, self.exact_evaluations, self.exact_work)}

    @override
    def recall(self, memory: Memory) -> None:
        spent = memory.get(WORK_KEY, ())
        if len(spent) != 4:
            raise ManifestError(
                f"the journal of the interrupted run has {len(spent)} values of `{WORK_KEY}`, not 4",
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
    """Statistics of the errors of predicted objectives.

    Attributes:
        spread: Standard deviation of the heads' objectives at the last evaluation of all heads.
    """

    spread: float
    _error_counts: dict[tuple[str, int], tuple[float, int]] = field(default_factory=dict)
    """Sum of squared errors per step and number of errors, by tower and layer."""

    def learn(self, head: HeadId, steps: int, error: float) -> None:
        """Add the error of a prediction made `steps` removals after the evaluation of a head."""
        layer = head.tower, head.layer
        total, count = self._error_counts.get(layer, (0.0, 0))
        self._error_counts[layer] = (total + error**2 / steps**ERROR_GROWTH_EXPONENT, count + 1)

    def deviation(self, head: HeadId, steps: int) -> float:
        """Return the standard deviation of the prediction error of a head after `steps` removals."""
        total = sum(per_step for per_step, _ in self._error_counts.values())
        count = sum(count_of_errors for _, count_of_errors in self._error_counts.values())
        guess = (FIRST_GUESS * self.spread) ** 2
        common = (total + WEIGHT_OF_GUESS * guess) / (count + WEIGHT_OF_GUESS)
        head_errors, times = self._error_counts.get((head.tower, head.layer), (0.0, 0))
        variance = (head_errors + WEIGHT_OF_OTHERS * common) / (times + WEIGHT_OF_OTHERS)
        return math.sqrt(variance * steps**ERROR_GROWTH_EXPONENT)


def expected_improvement(expected: float, deviation: float, bar: float) -> float:
    """Return the expected improvement E[max(0, v - bar)] of a normally distributed value v.

    Args:
        expected: Mean of v.
        deviation: Standard deviation of v.
        bar: Value to improve on.
    """
    if deviation == 0:
        return max(0.0, expected - bar)
    z = (expected - bar) / deviation
    return (expected - bar) * _NORMAL.cdf(z) + deviation * _NORMAL.pdf(z)


SWAP_CANDIDATES = 12
"""Number of removed heads, and of kept heads, that are paired for swaps. Chosen by hand; 24 gives four times
the number of pairs, with lower expected gain."""
SWAP_PATIENCE = 1 / 2
"""Number of successive failed swaps after which trials end, relative to the number of removals. Chosen on
digits and texts; 1 evaluates up to twice the number of failing swaps."""
REMEASURE_AFTER_SWAPS = 1 / 4
"""Number of swaps after which effects are measured again, relative to the number of removals. Chosen by hand;
at 1/2 predictions rest on older effects."""


class Swap(NamedTuple):
    """Restoration of one head and removal of another.

    Attributes:
        back: Head to restore.
        out: Head to remove.
    """

    back: HeadId
    out: HeadId


class Swaps:
    """Local search around the circuit of a lazy search.

    First the effect of each change is measured: the removal of each kept head, and the restoration of each
    removed head, by itself. The predicted effect of a swap is the sum of both effects. The most promising
    swap is evaluated, and made if the objective increases; so the objective never falls. The prediction error
    is divided between both effects.

    Swaps without expected gain are evaluated only while the search is cheap. If no swap is left, or
    `SWAP_PATIENCE` is exhausted, the effects of the most promising heads are measured again, provided that `REMEASURE_AFTER_SWAPS`
    swaps were made since the last measurement; otherwise the search ends.

    In the order of removals, the restored head is deleted and the removed head is last.

    Attributes:
        removals: Removals in order. From index `first` on, only the last one has the current objective.
        made: Number of swaps made.
    """

    def __init__(self, search: Lazy, removals: Sequence[Removal]) -> None:
        """Start from the end of a search.

        Args:
            search: Search after all removals.
            removals: Removals in order, at least one.
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
        """The removed heads."""
        return frozenset(removal.id for removal in self.removals)

    def run(self, trials: int) -> None:
        """Evaluate at most `trials` swaps, and make those with a higher objective."""
        several, far = (share * len(self.removals) for share in (SWAP_PATIENCE, REMEASURE_AFTER_SWAPS))
        swaps_before = -far
        while self.made - swaps_before >= far and len(self.tried) < trials:
            swaps_before, in_vain = self.made, 0
            heads = (
                [head for candidates in self._best() for head in candidates]
                if self.effects
                else self.circuit.heads()
            )
            self.now, self.effects = self.search.measure_effects(heads)
            while in_vain < several and len(self.tried) < trials and (swap := self._promising()):
                in_vain = 0 if self._try(swap) else in_vain + 1

    def _best(self) -> list[list[HeadId]]:
        """Return the `SWAP_CANDIDATES` most promising removed heads, and the `SWAP_CANDIDATES` most promising kept heads."""
        removed, heads = self.removed, list(self.effects)
        values = dict(zip(heads, self._expected([[head] for head in heads]), strict=True))
        groups = ([head for head in heads if (head in removed) == went] for went in (True, False))
        return [sorted(group, key=lambda head: -values[head])[:SWAP_CANDIDATES] for group in groups]

    def _promising(self) -> Swap | None:
        """Return the most promising untried swap, or None.

        A swap without expected gain is returned only while the search is cheap.
        """
        removed = self.removed
        backs, outs = self._best()
        swaps = [Swap(a, b) for a in backs for b in outs if removed ^ {a, b} not in self.tried]
        if not swaps:
            return None
        expected = self._expected(swaps)
        best = first_best(expected)
        return swaps[best] if expected[best] > self.value or self.search.is_cheap else None

    def _expected(self, changes: Sequence[Sequence[HeadId]]) -> list[float]:
        """Return the predicted objective after each change, from the summed effects of the heads."""
        heads = list(dict.fromkeys(head for change in changes for head in change))
        moves = torch.tensor([[float(head in change) for head in heads] for change in changes])
        effects = torch.cat([self.effects[head] for head in heads])
        return self.circuit.expected(moves.to(effects) @ effects + self.now)

    def _try(self, swap: Swap) -> bool:
        """Evaluate a swap, and make the swap if the objective increases. Return whether the swap was made."""
        value, traits = self.search.value_after(swap)
        self.tried.add(self.removed ^ {*swap})
        improves = value > self.value
        missed = traits - self.now - self.effects[swap.back] - self.effects[swap.out]
        for head in swap:
            # After a swap each head can only change in the other direction, so effects of a made swap are
            # negated.
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
