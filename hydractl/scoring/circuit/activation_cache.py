"""What enters each block, kept from one evaluation of candidates to the next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

import torch

from hydractl.families.tower import Tower
from hydractl.model_inputs import Inputs
from hydractl.scoring.circuit.memory_budget import MemoryBudget
from hydractl.scoring.circuit.tower import Ablation, LayerInput, entering, iterate_ablations

if TYPE_CHECKING:
    from hydractl.manifest.head_mask import HeadId

Key: TypeAlias = tuple[str, str, int]
"""A tower, and a batch: its set and its number."""


class Streams:
    """Of each batch what enters the first blocks, as many as there is room for; and the same without each of some heads.

    When one of these heads goes, what is known without it is what is known of the circuit. Each batch has an equal share of
    the room, whoever has it: so what is kept, and with it the rounding, does not depend on the number of processes.

    Attributes:
        trails: Whether it is kept without each head that is valued.
    """

    def __init__(self, room: int) -> None:
        """Keep nothing yet.

        Args:
            room: How many bytes may be kept of each batch.
        """
        self.room = room
        self.trails = False
        self._known: dict[Key, list[LayerInput]] = {}
        self._without: dict[HeadId, dict[Key, tuple[Ablation, int]]] = {}
        self._kept: Counter[tuple[str, int]] = Counter()

    def clear(self) -> None:
        """Keep nothing any more."""
        self._known.clear()
        self._without.clear()
        self._kept.clear()

    def entering(self, key: Key | None, tower: Tower, inputs: Inputs) -> Iterator[LayerInput]:
        """Yield each block with what enters it, and keep it; without a key keep nothing."""
        if key is None or not self.room:
            yield from entering(tower, inputs)
            return
        cached = self._known.setdefault(key, [])
        for layer, entered in enumerate(entering(tower, inputs, tuple(cached))):
            if layer == len(cached) and self._fits(key, entered.size):
                cached.append(entered)
            yield entered

    def without(
        self,
        key: Key | None,
        at: tuple[Tower, int, LayerInput],
        heads: Sequence[HeadId],
        positions: Sequence[int],
        room: MemoryBudget,
    ) -> Iterator[torch.Tensor]:
        """Yield a tower's outputs (k, N, F) without each of a layer's heads, and keep what enters later blocks then."""
        cache_key = key if self.trails and self.room > 0 else None
        begin = 0
        for ablation in iterate_ablations(*at, positions, room, trails=cache_key is not None):
            if cache_key is not None and self._fits(cache_key, ablation.size):
                for number, head in enumerate(heads[begin : begin + len(ablation.outputs)]):
                    self._without.setdefault(head, {})[cache_key] = (ablation, number)
            begin += len(ablation.outputs)
            outputs = ablation.outputs
            del ablation  # or the next is made while this is still there
            yield outputs

    def remove_head(self, head: HeadId) -> None:
        """Take note that a head has been removed."""
        known_without = self._without.pop(head, {})
        self._without.clear()
        for key, cached in self._known.items():
            if key[0] == head.tower:
                full = len(cached) >= head.layer
                del cached[head.layer :]
                if full and key in known_without:
                    ablation, number = known_without[key]
                    cached.extend(ablation.trail(number))
        self._count()

    def cut(self, tower: str, layer: int) -> None:
        """Take note that a tower has changed from a layer on."""
        self._without.clear()
        for key, cached in self._known.items():
            if key[0] == tower:
                del cached[layer:]
        self._count()

    def _count(self) -> None:
        self._kept.clear()
        for key, cached in self._known.items():
            self._kept[key[1:]] += sum(entered.size for entered in cached)

    def _fits(self, key: Key, size: int) -> bool:
        """Whether so many bytes more fit into a batch's room, which they then take."""
        batch = key[1:]
        fits = self._kept[batch] + size <= self.room
        self._kept[batch] += size * fits
        return fits
