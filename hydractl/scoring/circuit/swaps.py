"""Swaps: the end of a lazy search, where heads that went come back for others if the objective is higher then."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from hydractl.manifest.heads import HeadId, Removal
from hydractl.scoring.circuit.model import Circuit
from hydractl.scoring.circuit.outcomes import Outcomes

Effects: TypeAlias = dict[HeadId, Outcomes]
"""How each sample's traits move if a head goes or comes back."""
Valued: TypeAlias = Callable[[Sequence[HeadId]], tuple[float, Outcomes]]
"""Gives value and traits of the circuit with some heads cut out and others put back."""

WIDTH = 8
"""Of the heads that may come back, and of those that may go, so many that promise most are paired."""
PATIENCE = 1 / 2
"""The search ends after so many swaps in vain, one after another, of the number of removals."""


class Swap(NamedTuple):
    """One head that comes back, and one that goes."""

    back: HeadId
    out: HeadId


class Known(NamedTuple):
    """What a search remembers: the circuit's traits, and the effects of heads that may go and of those that went."""

    now: Outcomes
    outs: Effects
    backs: Effects


class Swaps:
    """Local search around the circuit that a lazy search ends with.

    A swap's value is expected as a head's is: from the effects of both, as they were last seen. Those that promise most
    are tried on all data, and made if the objective rises; so it never falls. What a swap did is shared out among both
    effects. In the order the head that comes back is left out, and the one that goes is the last.

    Attributes:
        removals: In order; from the number `first` on, all but the last say an objective that is no longer true.
        made: How many swaps were made.
    """

    def __init__(self, circuit: Circuit, valued: Valued, known: Known, removals: Sequence[Removal]) -> None:
        """Begin where a search ended.

        Args:
            circuit: After the removals.
            valued: Tries a change of it.
            known: What it remembers; of some that went it may not know the effect.
            removals: In order.
        """
        self.circuit, self.valued, self.removals = circuit, valued, list(removals)
        self.now, self.outs, self.backs = known
        self.value = removals[-1].objective
        self.first = len(removals)
        self.tried: set[frozenset[HeadId]] = set()
        self.made = 0

    def run(self, trials: int) -> None:
        """Try so many swaps at most, and no more after many in a row that were not worth making."""
        for removal in self.removals:
            if removal.id not in self.backs:  # it went before the last time that every head was valued
                self.backs[removal.id] = self.valued([removal.id])[1].less(self.now)
        in_vain = 0
        for _ in range(trials):
            swap = next(self._promising(), None) if in_vain < PATIENCE * len(self.removals) else None
            if swap is None:
                break
            in_vain = 0 if self._try(swap) else in_vain + 1

    def _promising(self) -> Iterator[Swap]:
        """Yield swaps that were not tried yet, those that promise most first."""
        backs, outs = (self._best(effects) for effects in (self.backs, self.outs))
        pairs = [Swap(a, b) for a in backs for b in outs]
        if not pairs:
            return
        values = self.circuit.expected([self.now.plus(self.backs[a]).plus(self.outs[b]) for a, b in pairs])
        gone = frozenset(r.id for r in self.removals)
        for i in sorted(range(len(pairs)), key=lambda i: -values[i]):
            if gone ^ {*pairs[i]} not in self.tried:
                yield pairs[i]

    def _best(self, effects: dict[HeadId, Outcomes]) -> list[HeadId]:
        heads = sorted(effects, key=lambda head: (head.tower, head.layer, head.head))
        values = self.circuit.expected([self.now.plus(effects[head]) for head in heads]) if heads else []
        return [heads[i] for i in sorted(range(len(heads)), key=lambda i: -values[i])[:WIDTH]]

    def _try(self, swap: Swap) -> bool:
        """Try a swap, and make it if the objective is higher then; return whether it is."""
        backs, outs = self.backs, self.outs
        value, traits = self.valued(swap)
        self.tried.add(frozenset(r.id for r in self.removals) ^ {*swap})
        off = traits.less(self.now).less(backs[swap.back]).less(outs[swap.out]).times(0.5)
        backs[swap.back], outs[swap.out] = backs[swap.back].plus(off), outs[swap.out].plus(off)
        if value <= self.value:
            return False
        self.circuit.change(swap)
        outs[swap.back], backs[swap.out] = (
            backs.pop(swap.back).times(-1),
            outs.pop(swap.out).times(-1),
        )
        at = next(i for i, r in enumerate(self.removals) if r.id == swap.back)
        del self.removals[at]
        head = swap.out
        self.removals.append(Removal(tower=head.tower, layer=head.layer, head=head.head, objective=value))
        self.first = min(self.first, at)
        self.value, self.now = value, traits
        self.made += 1
        return True
