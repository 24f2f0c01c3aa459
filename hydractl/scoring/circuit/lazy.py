"""Lazy greedy search: what each head's removal did to each sample is remembered, and heads are valued anew where that leaves doubt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from typing_extensions import override

from hydractl.errors import ManifestError
from hydractl.manifest.document import Option
from hydractl.manifest.heads import HeadId
from hydractl.scoring.circuit.outcomes import Outcomes, guessed, values_of
from hydractl.scoring.circuit.search import Exact, best_of
from hydractl.scoring.job import Memory, ScoreJob

SPENT = "spent"
PROMISING, LONG_AGO = 3, 2
"""How many heads are valued before the next look, and how many of those that are known the least."""


class Lazy(Exact):
    """Lazy greedy search (Minoux 1978) by expected values.

    Of each head it is remembered how its removal moved each sample's traits (see `traits_of`) when that was last seen. Without
    the head, samples are expected to move likewise from where they are now. Heads are valued anew from the most promising on,
    and with them those that were not for the longest time, until the best of the new values is no lower than what is
    expected of any other. Minoux's values only fall, as the objective is submodular, so his search is exact; these rise
    and fall, so this one is a heuristic. The first removal, and then each `recheck`-th, values every head, from nothing
    remembered; there an interrupted run begins again.

    The memory takes up to sixteen bytes a head and sample, beside what `--max-memory` bounds.

    Work is counted in layers times samples. What enters a layer is computed once for all candidates of a step, and a
    candidate in layer l of L takes L - l: so an exact search is counted, too.
    """

    keeps = True

    def __init__(self, job: ScoreJob) -> None:
        super().__init__(job)
        self.evaluations = self.work = self.exact_evaluations = self.exact_work = 0.0
        self.effects: dict[HeadId, Outcomes] = {}
        self.since: dict[HeadId, int] = {}
        self.now: Outcomes | None = None
        self._next: dict[HeadId, Outcomes] = {}
        self.sizes = self.circuit.passes()

    @override
    def restart(self, done: int) -> int:
        return done - done % self._recheck

    @property
    def _recheck(self) -> int:
        return self.settings.recheck or 1

    @override
    def best(self, step: int) -> tuple[HeadId, float]:
        heads = self.circuit.candidates()
        self.exact_evaluations += len(heads)
        self.exact_work += self._base() + self._after(heads)
        self.work += self._base()
        if step % self._recheck == 0:
            self.effects, self.now = {}, None
            self.circuit.forget()
        now = self.now = self.circuit.whole()[1] if self.now is None else self.now
        seen = self._search(now, heads) if self.effects else self._seen(heads)
        self.since |= dict.fromkeys(seen, step)
        self.effects |= {head: traits.less(now) for head, (_, traits) in seen.items()}
        best, value = best_of({head: seen[head][0] for head in heads if head in seen})
        self._next = {best: seen[best][1]}
        return best, value

    def _search(self, now: Outcomes, heads: Sequence[HeadId]) -> dict[HeadId, tuple[float, Outcomes]]:
        """Return value and traits of some heads, the best among them."""
        traits = Outcomes.stacked([self.effects[head].plus(now) for head in heads])
        values = values_of(self.circuit.objective, guessed(traits, self.circuit.ood_score)).tolist()
        hopes = dict(zip(heads, values, strict=True))
        ranked = sorted(heads, key=lambda head: -hopes[head])
        chosen = ranked[:PROMISING]
        chosen += sorted((h for h in heads if h not in chosen), key=lambda head: self.since[head])[:LONG_AGO]
        found: dict[HeadId, tuple[float, Outcomes]] = {}
        while chosen:
            found |= self._seen([head for head in heads if head in chosen], trails=True)
            bar = max(value for value, _ in found.values())
            chosen = [head for head in ranked if head not in found and hopes[head] > bar][:PROMISING]
        return found

    def _seen(self, heads: Sequence[HeadId], *, trails: bool = False) -> dict[HeadId, tuple[float, Outcomes]]:
        """Return value and traits without each of some heads in turn; for `trails` see `Circuit.outcomes`."""
        self.evaluations += len(heads)
        self.work += self._after(heads)
        outcomes, traits = self.circuit.outcomes(heads, trails=trails)
        values = values_of(self.circuit.objective, outcomes).tolist()
        return {head: (values[i], traits.candidate(i)) for i, head in enumerate(heads)}

    @override
    def gone(self, head: HeadId) -> None:
        super().gone(head)
        self.effects.pop(head, None)
        self.now = self._next.get(head)

    def _base(self) -> float:
        return sum(float(len(left) * self.sizes[name]) for name, left in self.circuit.left.items())

    def _after(self, heads: Sequence[HeadId]) -> float:
        layers = {name: len(left) for name, left in self.circuit.left.items()}
        return sum(float((layers[h.tower] - h.layer) * self.sizes[h.tower]) for h in heads)

    @override
    def memory(self) -> Memory:
        return {SPENT: (self.evaluations, self.work, self.exact_evaluations, self.exact_work)}

    @override
    def recall(self, memory: Memory) -> None:
        spent = memory.get(SPENT, ())
        if len(spent) != 4:
            raise ManifestError(
                f"the journal of the interrupted run has {len(spent)} numbers of `{SPENT}`, not 4",
                hint="add `--force` to drop it and start anew",
            )
        self.evaluations, self.work, self.exact_evaluations, self.exact_work = spent

    @override
    def results(self) -> Mapping[str, Option]:
        return {
            "evaluations": round(self.evaluations, 2),
            "exact_evaluations": round(self.exact_evaluations),
            "work": round(self.work / self.exact_work, 4) if self.exact_work else 0.0,
        }
