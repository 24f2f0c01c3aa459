"""Learned gates: a trainable factor of the output of each head.

Axes: N heads of all scored towers (tower after tower, layer after layer), H heads of a layer, B batch, C classes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

from hydractl.data.preprocess import sample_seed
from hydractl.families.tower import Model
from hydractl.model_inputs import Inputs
from hydractl.scoring.attention_hooks import Gated

if TYPE_CHECKING:
    from hydractl.manifest.head_mask import TowerHeads

_INITIAL, _NOISE = -3, -4
"""Keep the seeds of gates apart from those of data and dropout."""


class Gates(nn.Module, ABC):
    """One gate for each of N heads, with noise only in training."""

    @property
    @abstractmethod
    def scores(self) -> torch.Tensor:
        """Parameters of the gates, shape (N,); higher is more important."""

    @abstractmethod
    def forward(self) -> torch.Tensor:
        """Return the gates (N,), differentiable with respect to the parameters."""

    def begin(self, step: int, *, seed: int) -> None:
        """Draw the noise of a step, counted from 0, and update schedules; depends only on seed and step."""


class GatedModel(nn.Module):
    """A model with learned gates on head outputs before the output projection."""

    def __init__(self, model: Model, gates: Gates, towers: Mapping[str, TowerHeads]) -> None:
        """Add the gates to a model.

        Args:
            model: A base; its attention modules are replaced by `Gated` ones.
            gates: One gate per head of the towers.
            towers: Towers with gates.
        """
        super().__init__()
        self.model = model
        self.gates = gates
        self._taps: list[Gated] = []
        for name in towers:
            for block in model.tower(name).layers():
                tap = Gated(block.attn, torch.ones(block.attn.groups()[0].heads))
                block.attn = tap
                self._taps.append(tap)

    def forward(self, inputs: Inputs) -> torch.Tensor:
        """Return logits (B, C)."""
        for tap, gate in zip(self._taps, self._by_layer(self.gates()), strict=True):
            tap.gate = gate
        logits: torch.Tensor = self.model(inputs)
        return logits

    @torch.no_grad()
    def absorb(self, gates: torch.Tensor) -> None:
        """Multiply the output projections by gates (N,), so that the model without gates equals the gated one.

        Gates of zero are skipped, so that closed heads do not change.
        """
        for tap, gate in zip(self._taps, self._by_layer(gates), strict=True):
            group = tap.groups()[0]
            factors = torch.where(gate > 0, gate, torch.ones_like(gate)).repeat_interleave(group.head_dim)
            group.proj.weight *= factors.to(group.proj.weight)

    def _by_layer(self, gates: torch.Tensor) -> Sequence[torch.Tensor]:
        shares: tuple[torch.Tensor, ...] = gates.split([tap.groups()[0].heads for tap in self._taps])
        return shares


def initial_draws(sizes: Sequence[int], *, seed: int) -> torch.Tensor:
    """Return uniform starting values, float64, in Glorot and Bengio's (2010, eq. 16) bounds for a 1 x n matrix.

    They lie in ±sqrt(6 / (1 + n)), for n of `sizes` in turn.

    Args:
        sizes: How many values share a bound.
        seed: Of the run.
    """
    generator = torch.Generator().manual_seed(sample_seed(_INITIAL, seed))
    draws = torch.rand(sum(sizes), generator=generator, dtype=torch.float64) * 2 - 1
    return draws * torch.tensor([(6 / (1 + n)) ** 0.5 for n in sizes for _ in range(n)], dtype=torch.float64)


def step_uniform(count: int, *, seed: int, step: int) -> torch.Tensor:
    """Return uniform draws (count,) in [0, 1), float64, a function of seed and step: the same in every process."""
    generator = torch.Generator().manual_seed(sample_seed(_NOISE, seed, step))
    return torch.rand(count, generator=generator, dtype=torch.float64)


def tables(values: torch.Tensor, towers: Mapping[str, TowerHeads]) -> dict[str, list[list[float]]]:
    """Return values (N,) as a table of L rows and H columns for each tower."""
    parts = values.detach().cpu().split([t.layers * t.num_heads for t in towers.values()])
    return {
        name: part.reshape(t.layers, t.num_heads).tolist()
        for (name, t), part in zip(towers.items(), parts, strict=True)
    }
