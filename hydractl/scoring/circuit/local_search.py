"""Swaps: the end of a lazy search, where heads that went come back for others if the objective is higher then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import torch

from hydractl.manifest.head_mask import HeadId, Removal
from hydractl.scoring.circuit.ablation import Circuit
from hydractl.scoring.circuit.outcomes import Outcomes, first_best

Effects: TypeAlias = dict[HeadId, Outcomes]
"""How each sample's traits move if a head goes, or comes back if it went."""
Valued: TypeAlias = Callable[[Sequence[HeadId]], tuple[float, Outcomes]]
"""Gives value and traits of the circuit with some heads cut out and others put back."""
Around: TypeAlias = Callable[[Sequence[HeadId]], tuple[Outcomes, Effects]]
"""Looks at changes of some heads, each by itself: gives the circuit's traits, and how they move then."""

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

    def __init__(
        self,
        circuit: Circuit,
        valued: Valued,
        around: Around,
        cheap: Callable[[], bool],
        removals: Sequence[Removal],
    ) -> None:
        """Begin where a search ended.

        Args:
            circuit: After the removals.
            valued: Tries a change of it.
            around: Looks around it.
            cheap: Says whether the search has cost little so far.
            removals: In order.
        """
        self.circuit, self.valued, self.around, self.cheap = circuit, valued, around, cheap
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
            self.now, self.effects = self.around(heads)
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
        return swaps[best] if expected[best] > self.value or self.cheap() else None

    def _expected(self, changes: Sequence[Sequence[HeadId]]) -> list[float]:
        """Return the objective that is expected after each of some changes, whose effects add up."""
        heads = list(dict.fromkeys(head for change in changes for head in change))
        moves = torch.tensor([[float(head in change) for head in heads] for change in changes])
        effects = Outcomes.stacked([self.effects[head] for head in heads])
        return self.circuit.expected(effects.mixed(moves).plus(self.now))

    def _try(self, swap: Swap) -> bool:
        """Try a swap, and make it if the objective is higher then; return whether it is."""
        value, traits = self.valued(swap)
        self.tried.add(self.removed ^ {*swap})
        improves = value > self.value
        missed = traits.difference(self.now)
        for head in swap:
            missed = missed.difference(self.effects[head])
        for head in swap:
            self.effects[head] = self.effects[head].plus(missed.times(0.5)).times(-1 if improves else 1)
        if improves:
            self._make(swap, value, traits)
        return improves

    def _make(self, swap: Swap, value: float, traits: Outcomes) -> None:
        self.circuit.change(swap)
        at = next(i for i, r in enumerate(self.removals) if r.id == swap.back)
        del self.removals[at]
        head = swap.out
        self.removals.append(Removal(tower=head.tower, layer=head.layer, head=head.head, objective=value))
        self.first = min(self.first, at)
        self.value, self.now = value, traits
        self.made += 1
