"""Differentiable subset pruning: exactly K gates remain open (Li, Cotterell and Sachan 2021, section 4).

Axes: N heads of all scored towers, of which K are kept.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn
from typing_extensions import override

from hydractl.heads.budget import total_heads
from hydractl.research.scores.gates import Gates, initial_draws, step_uniform, train_gates
from hydractl.research.scores.options import DspSettings
from hydractl.runtime import on_device
from hydractl.scoring.job import Ranking, ScoreJob

COLDEST = 1e-8
"""Final temperature of the authors' code."""


def score_dsp(job: ScoreJob) -> Ranking:
    """Train a gate weight w for each head to choose K heads to keep. The importance of a head is its w.

    K is the number of scored heads minus the budget, the number of heads to remove. `results` has K as
    `kept`, and accuracy and NLL on the training data of the model with only the K heads of highest w.
    """
    settings = job.set_for(DspSettings)
    total = total_heads(job.scored)
    keep = total - job.budget
    first = initial_draws([total], seed=job.seed)

    def make(steps: int) -> Gates:
        if settings.temperature is None or settings.cooldown is None:
            return StraightThrough(first, keep=keep)
        return SoftSubset(
            first,
            keep=keep,
            temperature=settings.temperature,
            cooldown=max(1, round(settings.cooldown * steps)),
        )

    model, ranking = train_gates(job, settings, make)
    return replace(
        ranking,
        results={"kept": keep, **ranking.results},
        weights=model.weights() if settings.trains_weights else None,
    )


class StraightThrough(Gates):
    """Gates that are 1 for the K highest w and 0 for the others, with a straight-through gradient to w."""

    def __init__(self, w: torch.Tensor, *, keep: int) -> None:
        """Initialize with w (N,) and `keep` = K, 0 < K < N."""
        super().__init__()
        self.w, self.keep = nn.Parameter(w.clone()), keep

    @property
    @override
    def scores(self) -> torch.Tensor:
        """Return w."""
        return self.w

    @override
    def forward(self) -> torch.Tensor:
        """Return gates (N,), 0 or 1."""
        return hard_top_k(self.w, self.keep) + (self.w - self.w.detach())


class SoftSubset(StraightThrough):
    """Relaxed selection of K gates in training, which hardens with falling temperature; hard in evaluation."""

    def __init__(self, w: torch.Tensor, *, keep: int, temperature: float, cooldown: int) -> None:
        """Initialize with w (N,) and `keep` = K; `temperature` falls to `COLDEST` within `cooldown` steps."""
        super().__init__(w, keep=keep)
        self._begin, self._cooldown = temperature, cooldown
        self._temperature = temperature
        self._noise = torch.zeros_like(w)

    @override
    def begin(self, step: int, *, seed: int) -> None:
        self._temperature = temperature_at(step, begin=self._begin, cooldown=self._cooldown)
        uniform = step_uniform(len(self.w), seed=seed, step=step)
        tiny = torch.finfo(uniform.dtype).tiny
        self._noise = on_device(
            -(-(uniform.clamp(min=tiny).log())).clamp(min=tiny).log(), self.w.device, self.w.dtype
        )

    @override
    def forward(self) -> torch.Tensor:
        return (
            super().forward()
            if not self.training
            else soft_top_k(self.w + self._noise, self.keep, temperature=self._temperature)
        )


def hard_top_k(w: torch.Tensor, k: int) -> torch.Tensor:
    """Return 1 for the k highest entries of w (N,) and 0 for the rest, without gradient.

    Ties go to the first entry.
    """
    chosen = w.detach().sort(descending=True, stable=True).indices[:k]
    return torch.zeros_like(w, requires_grad=False).index_fill(0, chosen, 1.0)


def soft_top_k(r: torch.Tensor, k: int, *, temperature: float) -> torch.Tensor:
    """Return the relaxed selection (N,) of the k highest entries of r (Li et al. 2021, eq. 11).

    p_1 = softmax(r / t). For j = 2..k: r += ln(max(1 - p_{j-1}, ε)) and p_j = softmax(r / t). The result is
    the sum of all p_j, which sums to k (Xie and Ermon 2019). For t to 0 the result tends to the hard
    selection, for large t each entry tends to k / N. An entry may exceed 1 in between, because a round only
    weakens previously selected entries. The authors do not clip entries either.

    Args:
        r: Shape (N,), float64 for low temperatures.
        k: 0 < k <= N.
        temperature: t, above 0.
    """
    tiny = torch.finfo(r.dtype).tiny
    p = (r / temperature).softmax(dim=0)
    total = p
    for _ in range(k - 1):
        r = r + (1 - p).clamp(min=tiny).log()
        p = (r / temperature).softmax(dim=0)
        total = total + p
    return total


def temperature_at(step: int, *, begin: float, cooldown: int) -> float:
    """Return the temperature of a step: exponential decay from `begin` to `COLDEST` at step `cooldown`."""
    share = min(1.0, step / cooldown)
    return float(begin ** (1 - share) * COLDEST**share)
