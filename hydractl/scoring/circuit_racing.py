"""Racing: candidates are dropped on growing parts of the data as soon as the leader is surely better.

The value of a candidate on all data is estimated by the difference estimator of survey sampling (Särndal, Swensson and
Wretman 1992, section 6.3): what is expected on all data from remembered effects, corrected by what that expectation has missed
on the samples seen. Of two candidates the difference counts, on the same samples. Its error is the delete-a-group jackknife's
(Kott 2001), so an AUROC, a calibration error or any sum of metrics needs no formula of its own; deleting one sample at a
time gives nearly DeLong's variance of an AUROC (1988).
"""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING

import torch

from hydractl.scoring.circuit_effects import Remembering
from hydractl.scoring.circuit_outcomes import Outcomes, first_best, values_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hydractl.heads.masks import HeadId
    from hydractl.scoring.circuit_model import Batch
    from hydractl.scoring.job import ScoreJob

GROUPS = 10
"""Of the jackknife."""
ERRORS = 3.0
"""How many standard errors a candidate may lie behind the leader and stay."""


class Racing(Remembering):
    """Rounds on nested parts of the data, twice as large each time, drawn with the seed and anew for each removal."""

    def __init__(self, job: ScoreJob) -> None:
        super().__init__(job)
        self.labels = self.circuit.labels()

    def search(self, step: int, heads: Sequence[HeadId]) -> Mapping[HeadId, tuple[float, Outcomes]]:
        """See `Remembering.search`."""
        race = Race(self, step, heads)
        for begin, end in self._rounds():
            race.see(begin, end)
            if end < 1:
                race.drop(end)
        return race.finished()

    def _rounds(self) -> Iterator[tuple[float, float]]:
        """Yield the shares of the data between which each round's samples lie."""
        begin, end = 0.0, self.settings.first_share or 1.0
        while begin < 1:
            yield begin, min(end, 1.0)
            begin, end = min(end, 1.0), 2 * end


class Race:
    """The candidates of one removal."""

    def __init__(self, search: Racing, step: int, heads: Sequence[HeadId]) -> None:
        self.search, self.heads = search, heads
        self.running = torch.arange(len(heads))
        self.expected, self.traits = search.expected(heads)
        self.outcomes = self.expected.copy()
        self.orders = {
            role: [drawn(each, f"{search.seed}/{step}/{role}/{i}") for i, each in enumerate(labels)]
            for role, labels in search.labels.items()
        }
        self.hoped = values_of(search.circuit.objective, self.expected)
        self.places = {role: torch.zeros(0, dtype=torch.long) for role in self.orders}

    def see(self, begin: float, end: float) -> None:
        """Value the candidates that are still running on the samples between two shares of the data."""
        rows = {
            role: [order[_upto(begin, order) : _upto(end, order)] for order in orders]
            for role, orders in self.orders.items()
        }

        def own(batch: Batch) -> torch.Tensor:
            return rows[batch.role][batch.number]

        heads = [self.heads[i] for i in self.running.tolist()]
        whole = begin == 0 and end == 1
        outcomes, traits = self.search.seen_part(heads, None if whole else own, end - begin)
        places = {}
        for role, parts in rows.items():
            starts = [0]
            for order in self.orders[role]:
                starts.append(starts[-1] + len(order))
            places[role] = torch.cat(
                [start + part for start, part in zip(starts, parts, strict=False)] or [self.places[role]]
            )
            if whole:
                places[role] = places[role].sort().values
        at = (places["id"], places["ood"])
        self.outcomes.fill(self.running, at, outcomes)
        self.traits.fill(self.running, at, traits)
        self.places = {role: torch.cat([seen, places[role]]) for role, seen in self.places.items()}

    def drop(self, share: float) -> None:
        """Drop those that are surely worse than the leader."""
        if len(self.running) == 1 or any(0 < len(x) < GROUPS for x in self.places.values()):
            return
        objective, at = self.search.circuit.objective, (self.places["id"], self.places["ood"])
        seen = self.outcomes.part(self.running, at)
        guess = self.expected.part(self.running, at)
        missed = _missed(values_of(objective, Outcomes.stacked([seen, guess])))
        without = []
        for group in range(GROUPS):
            left = tuple(torch.arange(len(x)) % GROUPS != group for x in at)
            some = Outcomes.stacked([seen.samples_at(left), guess.samples_at(left)])
            without.append(_missed(values_of(objective, some)))
        values = self.hoped[self.running] + missed
        leader = first_best(values.tolist())
        each = torch.stack(without)
        apart = each[:, leader : leader + 1] - each
        variance = (GROUPS - 1) / GROUPS * (apart - apart.mean(dim=0)).square().sum(dim=0)
        error = (variance * (1 - share)).sqrt()  # what has been seen of a finite set is no longer in doubt
        self.running = self.running[values[leader] - values <= ERRORS * error]

    def finished(self) -> dict[HeadId, tuple[float, Outcomes]]:
        """Return value and traits of those that ran to the end; what was seen of the others is remembered."""
        everything = tuple(torch.arange(n) for n in self.outcomes.samples)
        outcomes = self.outcomes.part(self.running, everything)
        values = values_of(self.search.circuit.objective, outcomes).tolist()
        for i, head in enumerate(self.heads):
            self.search.remember(head, self.traits.candidate(i))
        return {
            self.heads[k]: (values[i], self.traits.candidate(k)) for i, k in enumerate(self.running.tolist())
        }


def drawn(labels: torch.Tensor, key: str) -> torch.Tensor:
    """Return the numbers of a batch's samples in a random order any beginning of which holds each label in proportion.

    Args:
        labels: Shape (B,).
        key: What the order depends on besides.
    """
    seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:7], "big")
    generator = torch.Generator().manual_seed(seed)
    shuffled = torch.randperm(len(labels), generator=generator)
    ranks = torch.zeros(len(labels), dtype=torch.float64)
    for label in labels.unique().tolist():
        own = shuffled[labels[shuffled] == label]
        first = torch.rand((), dtype=torch.float64, generator=generator)
        ranks[own] = (torch.arange(len(own), dtype=torch.float64) + first) / len(own)
    return ranks.argsort(stable=True)


def _upto(share: float, order: torch.Tensor) -> int:
    return math.ceil(share * len(order))


def _missed(values: torch.Tensor) -> torch.Tensor:
    """Return by how much values seen exceed those expected, of both in turn."""
    seen, guess = values.chunk(2)
    return seen - guess
