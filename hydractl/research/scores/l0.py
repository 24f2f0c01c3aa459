"""Gates that are closed by a penalty on their number (Voita et al. 2019, section 5; hard concrete of Louizos et al. 2018).

Axes: N heads of all scored towers.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import nn
from typing_extensions import override

from hydractl.research.scores.gates import Gates, initial_draws, step_uniform, train_gates
from hydractl.research.scores.options import L0Settings
from hydractl.runtime import on_device
from hydractl.scoring.job import Ranking, ScoreJob

BETA = 0.33
LOW, HIGH = -0.1, 1.1
"""γ and ζ: a gate is stretched to them, then cut to 0..1."""
EDGE = 1e-6
"""Noise lies so far within 0..1."""
CLOSED = math.log(-LOW / HIGH)
"""In evaluation a gate is zero where log α is at most this: sigmoid(log α) (ζ - γ) + γ = 0."""


def score_l0(job: ScoreJob) -> Ranking:
    """Learn gates with a penalty on the number of open gates; the score of a head is log α of its gate.

    The loss of a batch is its mean cross-entropy + λ Σ_h P(g_h ≠ 0). The number of open heads depends only on λ, not on
    the budget. A head is open if its gate without noise is not zero, that is log α > ln(-γ/ζ) ≈ -2.4; the
    `results["open"]` highest scores are those of the open heads. `results` also has the accuracy and NLL of the gated
    model on the training data.

    A gate between 0 and 1 scales its head, but pruning keeps a head unscaled or removes it. With `joint` training the
    open gates are therefore multiplied into the output projections of the returned weights, which equal the trained model
    when pruned to the open heads. With `pipelined` training they are not, and the pruned model differs from the gated
    one.
    """
    settings = job.set_for(L0Settings)
    sizes = [t.num_heads for t in job.scored.values() for _ in range(t.layers)]
    first = initial_draws(sizes, seed=job.seed)
    model, ranking = train_gates(
        job,
        settings,
        lambda _total: HardConcrete(first),
        penalty=lambda gates: settings.penalty * openness(gates.scores).sum(),
    )
    log_alpha = model.gates.scores.detach()
    if settings.trains_weights:
        model.absorb(hard_concrete(log_alpha))
    return replace(
        ranking,
        results={"open": int((log_alpha > CLOSED).sum()), **ranking.results},
        weights=model.weights() if settings.trains_weights else None,
    )


class HardConcrete(Gates):
    """Hard concrete gates: with noise in training, the same for a whole batch; without noise in evaluation."""

    def __init__(self, log_alpha: torch.Tensor) -> None:
        """Initialize with log α (N,)."""
        super().__init__()
        self.log_alpha = nn.Parameter(log_alpha.clone())
        self._noise = torch.full_like(log_alpha, 0.5)

    @property
    @override
    def scores(self) -> torch.Tensor:
        """Return log α."""
        return self.log_alpha

    @override
    def begin(self, step: int, *, seed: int) -> None:
        uniform = step_uniform(len(self.log_alpha), seed=seed, step=step)
        self._noise = on_device(EDGE + (1 - 2 * EDGE) * uniform, self.log_alpha.device, self.log_alpha.dtype)

    @override
    def forward(self) -> torch.Tensor:
        """Return gates (N,) in [0, 1]."""
        return hard_concrete(self.log_alpha, noise=self._noise if self.training else None)


def hard_concrete(log_alpha: torch.Tensor, *, noise: torch.Tensor | None = None) -> torch.Tensor:
    """Return gates (N,) in [0, 1]: clip(s (ζ - γ) + γ, 0, 1), with positive probabilities of 0 and 1.

    s = sigmoid((ln u - ln(1 - u) + log α) / β) with noise u (Louizos et al. 2018, eq. 10 and 11), and sigmoid(log α)
    without noise, as in the code of Voita et al. (2019), which has neither noise nor temperature in evaluation.

    Args:
        log_alpha: Shape (N,).
        noise: u, shape (N,), within 0..1; None for evaluation.
    """
    inner = log_alpha if noise is None else (noise.log() - (1 - noise).log() + log_alpha) / BETA
    return (inner.sigmoid() * (HIGH - LOW) + LOW).clamp(0.0, 1.0)


def openness(log_alpha: torch.Tensor) -> torch.Tensor:
    """Return the probability (N,) that a noisy gate is not zero: sigmoid(log α - β ln(-γ/ζ)) (Louizos et al. 2018, eq. 12)."""
    return (log_alpha - BETA * CLOSED).sigmoid()
