"""Searches that remember what each head's removal did to each sample, and value again only where that leaves doubt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hydractl.errors import ManifestError
from hydractl.scoring.circuit_outcomes import Outcomes, guessed, values_of
from hydractl.scoring.circuit_search import Exact, best_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hydractl.heads.masks import HeadId
    from hydractl.manifest import Option
    from hydractl.scoring.circuit_model import Rows
    from hydractl.scoring.job import Memory, ScoreJob

SPENT = "spent"


class Remembering(Exact):
    """A search with a memory, and a count of what it takes.

    Of each head it is remembered how its removal moved each sample's traits (see `traits_of`) when that was last seen. Without
    the head, samples are expected to move likewise from where they are now. The first removal, and then each
    `recheck`-th, values every head on all data, from nothing remembered; there an interrupted run begins again.

    The memory takes up to twelve bytes a head and sample, beside what `--max-memory` bounds.

    Work is counted in layers times samples. What enters a layer is computed once for all candidates of a step, and a
    candidate in layer l of L takes L - l: so an exact search is counted, too.
    """

    keeps = True

    def __init__(self, job: ScoreJob) -> None:
        super().__init__(job)
        self.evaluations = self.work = self.exact_evaluations = self.exact_work = 0.0
        self.effects: dict[HeadId, Outcomes] = {}
        self.now: Outcomes | None = None
        self._next: dict[HeadId, Outcomes] = {}
        self.sizes = self.circuit.passes()

    def restart(self, done: int) -> int:
        """See `Exact.restart`."""
        return done - done % self._recheck

    @property
    def _recheck(self) -> int:
        return self.settings.recheck or 1

    def best(self, step: int) -> tuple[HeadId, float]:
        """See `Exact.best`."""
        heads = self.circuit.candidates()
        self.exact_evaluations += len(heads)
        self.exact_work += self._base() + self._after(heads)
        self.work += self._base()
        if step % self._recheck == 0:
            self.effects, self.now = {}, None
            self.circuit.forget()
        if self.now is None:
            self.now = self.circuit.whole()[1]
        seen = self.seen(heads) if not self.effects else self.search(step, heads)
        for head, (_, traits) in seen.items():
            self.remember(head, traits)
        best, value = best_of({head: seen[head][0] for head in heads if head in seen})
        self._next = {best: seen[best][1]}
        return best, value

    def search(self, step: int, heads: Sequence[HeadId]) -> Mapping[HeadId, tuple[float, Outcomes]]:
        """Return value and traits on all data of some heads, the best among them."""
        raise NotImplementedError

    def gone(self, head: HeadId) -> None:
        """See `Exact.gone`."""
        super().gone(head)
        self.effects.pop(head, None)
        self.now = self._next.get(head)

    def expected(self, heads: Sequence[HeadId]) -> tuple[Outcomes, Outcomes]:
        """Return the outcomes and traits that are expected without each of some heads."""
        if self.now is None:
            raise ValueError("nothing is known of the circuit as it is")
        traits = Outcomes.stacked([self.effects[head].plus(self.now) for head in heads])
        return guessed(traits, self.circuit.ood_score), traits

    def seen(self, heads: Sequence[HeadId], *, trails: bool = False) -> dict[HeadId, tuple[float, Outcomes]]:
        """Return value and traits without each of some heads in turn, on all data; for `trails` see `Circuit.outcomes`."""
        self.evaluations += len(heads)
        self.work += self._after(heads)
        outcomes, traits = self.circuit.outcomes(heads, trails=trails)
        values = values_of(self.circuit.objective, outcomes).tolist()
        return {head: (values[i], traits.candidate(i)) for i, head in enumerate(heads)}

    def seen_part(
        self, heads: Sequence[HeadId], rows: Rows | None, share: float
    ) -> tuple[Outcomes, Outcomes]:
        """Return outcomes and traits without each of some heads in turn, on a share of the data."""
        self.evaluations += share * len(heads)
        self.work += share * self._after(heads)
        return self.circuit.outcomes(heads, rows)

    def remember(self, head: HeadId, traits: Outcomes) -> None:
        """Take note of traits without a head, seen or still expected."""
        if self.now is not None:
            self.effects[head] = traits.less(self.now)

    def _base(self) -> float:
        return sum(float(len(left) * self.sizes[name]) for name, left in self.circuit.left.items())

    def _after(self, heads: Sequence[HeadId]) -> float:
        layers = {name: len(left) for name, left in self.circuit.left.items()}
        return sum(float((layers[h.tower] - h.layer) * self.sizes[h.tower]) for h in heads)

    def memory(self) -> Memory:
        """See `Exact.memory`."""
        return {SPENT: (self.evaluations, self.work, self.exact_evaluations, self.exact_work)}

    def recall(self, memory: Memory) -> None:
        """See `Exact.recall`."""
        spent = memory.get(SPENT, ())
        if len(spent) != 4:
            raise ManifestError(
                f"the journal of the interrupted run has {len(spent)} numbers of `{SPENT}`, not 4",
                hint="add `--force` to drop it and start anew",
            )
        self.evaluations, self.work, self.exact_evaluations, self.exact_work = spent

    def results(self) -> Mapping[str, Option]:
        """See `Exact.results`."""
        return {
            "evaluations": round(self.evaluations, 2),
            "exact_evaluations": round(self.exact_evaluations),
            "work": round(self.work / self.exact_work, 4) if self.exact_work else 0.0,
        }


class Lazy(Remembering):
    """Lazy greedy search (Minoux 1978) by expected values.

    Heads are valued anew from the most promising on, and with them those that were not for the longest time, until the
    best of the new values is no lower than what is expected of any other. Minoux's values only fall, as the objective is
    submodular, so his search is exact; these rise and fall, so this one is a heuristic.
    """

    def __init__(self, job: ScoreJob) -> None:
        super().__init__(job)
        self.since: dict[HeadId, int] = {}

    def search(self, step: int, heads: Sequence[HeadId]) -> Mapping[HeadId, tuple[float, Outcomes]]:
        """See `Remembering.search`."""
        if step % self._recheck == 1:
            self.since = dict.fromkeys(heads, step - 1)
        values = values_of(self.circuit.objective, self.expected(heads)[0]).tolist()
        hopes = dict(zip(heads, values, strict=True))
        ranked = sorted(heads, key=lambda head: -hopes[head])
        chosen = ranked[:PROMISING]
        chosen += sorted((h for h in heads if h not in chosen), key=lambda head: self.since[head])[:LONG_AGO]
        found: dict[HeadId, tuple[float, Outcomes]] = {}
        while chosen:
            found |= self.seen([head for head in heads if head in chosen], trails=True)
            bar = max(value for value, _ in found.values())
            chosen = [head for head in ranked if head not in found and hopes[head] > bar][:PROMISING]
        self.since |= dict.fromkeys(found, step)
        return found


PROMISING, LONG_AGO = 3, 2
"""How many heads `lazy` values before it looks again, and how many of those that it knows the least of."""
