"""Swaps: the end of a lazy search, where heads that went come back for others if the objective is higher then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from hydractl.manifest.heads import HeadId, Removal
from hydractl.scoring.circuit.model import Circuit
from hydractl.scoring.circuit.outcomes import Outcomes, first_best

Effects: TypeAlias = dict[HeadId, Outcomes]
"""How each sample's traits move if a head goes, or comes back if it went."""
Valued: TypeAlias = Callable[[Sequence[HeadId]], tuple[float, Outcomes]]
"""Gives value and traits of the circuit with some heads cut out and others put back."""
Around: TypeAlias = Callable[[], tuple[Outcomes, Effects]]
"""Looks at every change of a head: gives the circuit's traits, and how they move then."""

WIDTH = 12
"""Of the heads that may come back, and of those that may go, so many that promise most are paired."""
PATIENCE = 1 / 4
"""After so many swaps in vain, one after another, of the number of removals, the search ends; or it looks around again, if as many
were made since it looked last: then it is far from there, and began poorly."""


class Swap(NamedTuple):
    """One head that comes back, and one that goes."""

    back: HeadId
    out: HeadId


class Swaps:
    """Local search around the circuit that a lazy search ends with.

    It looks at what happens if each head that is there goes, and if each that went comes back, by itself and on a share of
    the samples. Swaps are expected to do what both of their heads do. Those that promise most are tried on all data, and made
    if the objective rises; so it never falls. What a swap did is shared out among both effects. Once several were in vain it
    looks again if it has gone some way since it looked last, else it ends. In the order the head that comes back is left out, and the
    one that goes is the last.

    Attributes:
        removals: In order; from the number `first` on, all but the last say an objective that is no longer true.
        made: How many swaps were made.
    """

    def __init__(self, circuit: Circuit, valued: Valued, around: Around, removals: Sequence[Removal]) -> None:
        """Begin where a search ended.

        Args:
            circuit: After the removals.
            valued: Tries a change of it.
            around: Looks around it.
            removals: In order.
        """
        self.circuit, self.valued, self.around, self.removals = circuit, valued, around, list(removals)
        self.value = removals[-1].objective
        self.first = len(removals)
        self.tried: set[frozenset[HeadId]] = set()
        self.made = 0

    @property
    def gone(self) -> frozenset[HeadId]:
        """The heads that went."""
        return frozenset(removal.id for removal in self.removals)

    def run(self, trials: int) -> None:
        """Try so many swaps at most."""
        several = PATIENCE * len(self.removals)
        looked = -several
        while self.made - looked >= several and len(self.tried) < trials:
            looked, in_vain = self.made, 0
            self.now, self.effects = self.around()
            while in_vain < several and len(self.tried) < trials:
                swap = self._promising()
                if swap is None:
                    return
                in_vain = 0 if self._try(swap) else in_vain + 1

    def _promising(self) -> Swap | None:
        """Return the swap that promises most of those that were not tried yet."""
        gone = self.gone
        backs, outs = (self._best([h for h in self.effects if (h in gone) == went]) for went in (True, False))
        swaps = [Swap(a, b) for a in backs for b in outs if gone ^ {a, b} not in self.tried]
        if not swaps:
            return None
        after = [self.now.plus(self.effects[a]).plus(self.effects[b]) for a, b in swaps]
        return swaps[first_best(self.circuit.expected(after))]

    def _best(self, heads: Sequence[HeadId]) -> list[HeadId]:
        """Return the heads whose changes promise most, by themselves."""
        values = self.circuit.expected([self.now.plus(self.effects[head]) for head in heads]) if heads else []
        return [heads[i] for i in sorted(range(len(heads)), key=lambda i: -values[i])[:WIDTH]]

    def _try(self, swap: Swap) -> bool:
        """Try a swap, and make it if the objective is higher then; return whether it is."""
        effects = self.effects
        value, traits = self.valued(swap)
        self.tried.add(self.gone ^ {*swap})
        off = traits.less(self.now)
        for head in swap:
            off = off.less(effects[head])
        for head in swap:
            effects[head] = effects[head].plus(off.times(0.5))
        if value <= self.value:
            return False
        self.circuit.change(swap)
        for head in swap:
            effects[head] = effects[head].times(-1)
        at = next(i for i, r in enumerate(self.removals) if r.id == swap.back)
        del self.removals[at]
        head = swap.out
        self.removals.append(Removal(tower=head.tower, layer=head.layer, head=head.head, objective=value))
        self.first = min(self.first, at)
        self.value, self.now = value, traits
        self.made += 1
        return True
