"""Gates closed by a penalty on the number of open gates (Voita et al. 2019, section 5).

The gates have the hard concrete distribution of Louizos et al. (2018).

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
"""Temperature β of the code of Voita et al. Doubling makes gates between 0 and 1 more frequent."""
LOW, HIGH = -0.1, 1.1
"""Bounds γ and ζ of the code of Voita et al. A gate is stretched to this interval, then clipped to [0, 1]."""
EDGE = 1e-6
"""Distance of the noise from 0 and 1 in the code of Voita et al., for finite logarithms."""
CLOSED = math.log(-LOW / HIGH)
"""Largest log α of a closed gate in evaluation, where sigmoid(log α) (ζ - γ) + γ = 0."""


def score_l0(job: ScoreJob) -> Ranking:
    """Learn gates with a penalty on the number of open gates. The importance of a head is log α of its gate.

    The loss of a batch is its mean cross-entropy + λ Σ_h P(g_h ≠ 0). The number of open heads depends on λ
    only, and not on the budget. A head is open if the gate without noise is above 0: log α > ln(-γ/ζ) ≈ -2.4.
    `results` has the number of open heads as `open`, and open heads have the highest importance. `results`
    also has accuracy and NLL of the gated model on the training data.

    A gate between 0 and 1 scales its head, but pruning keeps a head unscaled or removes the head. With
    `joint` training, open gates are therefore multiplied into the output projections of the returned weights.
    These weights equal the trained model once pruned to the open heads. With `pipelined` training gates are
    not multiplied, so the pruned model differs from the gated model.
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
    """Hard concrete gates. In training, the same noise applies to a whole batch; evaluation has no noise."""

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

    s = sigmoid((ln u - ln(1 - u) + log α) / β) with noise u (Louizos et al. 2018, eq. 10 and 11). Without
    noise s = sigmoid(log α), as in the code of Voita et al. (2019), without noise and temperature in
    evaluation.

    Args:
        log_alpha: Shape (N,).
        noise: u, shape (N,), within 0..1; None for evaluation.
    """
    inner = log_alpha if noise is None else (noise.log() - (1 - noise).log() + log_alpha) / BETA
    return (inner.sigmoid() * (HIGH - LOW) + LOW).clamp(0.0, 1.0)


def openness(log_alpha: torch.Tensor) -> torch.Tensor:
    """Return the probability (N,) that a noisy gate is above 0: sigmoid(log α - β ln(-γ/ζ)).

    This is eq. 12 of Louizos et al. (2018).
    """
    return (log_alpha - BETA * CLOSED).sigmoid()
