"""Differentiable subset pruning: gates of which exactly K remain open (Li, Cotterell and Sachan 2021, section 4).

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
"""Where the temperature ends."""


def score_dsp(job: ScoreJob) -> Ranking:
    """Learn which K heads to keep, where the budget determines K; the score of a head is its w.

    `results` has K as `kept`, and the accuracy and NLL of the model with only the K heads with the highest w, on the
    training data.
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
    """A relaxed selection of K gates in training, which hardens as the temperature decreases; the K highest w in evaluation."""

    def __init__(self, w: torch.Tensor, *, keep: int, temperature: float, cooldown: int) -> None:
        """Initialize with w (N,) and `keep` = K; `temperature` decreases to its final value within `cooldown` steps."""
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
    """Return 1 for the k highest of w (N,) and 0 for the others, without gradient; ties go to the first."""
    chosen = w.detach().sort(descending=True, stable=True).indices[:k]
    return torch.zeros_like(w, requires_grad=False).index_fill(0, chosen, 1.0)


def soft_top_k(r: torch.Tensor, k: int, *, temperature: float) -> torch.Tensor:
    """Return the relaxed selection (N,) of the k highest of r, which sums to k (Xie and Ermon 2019; Li et al. 2021, eq. 11).

    p_1 = softmax(r / t); for j = 2..k: r += ln(max(1 - p_{j-1}, ε)), p_j = softmax(r / t); their sum. It tends to the
    hard selection as t goes to 0, and to k / N for each element as t increases. In between an element may exceed 1,
    because a selection in one round is only weakened in the next; as in the source, it is not clipped.

    Args:
        r: Shape (N,), float64 for small temperatures.
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
    """Return the temperature of a step: exponential decay from `begin` at step 0 to `COLDEST` at step `cooldown`."""
    share = min(1.0, step / cooldown)
    return float(begin ** (1 - share) * COLDEST**share)
