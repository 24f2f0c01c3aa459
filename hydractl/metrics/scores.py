"""How strange is a sample? OOD scores of its logits: the higher, the more OOD. Importing this module loads no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def msp_score(probs: Tensor) -> Tensor:
    """Return the negated maximum softmax probability (...) of (..., C), in [-1, 0] (Hendrycks and Gimpel 2017, section 2)."""
    return -probs.amax(-1)


def energy_score(logits: Tensor) -> Tensor:
    """Return the energy -log Σ_c exp z_c at temperature 1 (Liu et al. 2020, eq. 3)."""
    return -logits.logsumexp(-1)


def entropy_score(logits: Tensor) -> Tensor:
    """Return the entropy of the softmax in nats, in [0, log C]; logits must be finite."""
    log_probs = logits.log_softmax(-1)
    return -(log_probs.exp() * log_probs).sum(-1)


def max_logit_score(logits: Tensor) -> Tensor:
    """Return the negated largest logit (Hendrycks et al. 2022, section 3.2)."""
    return -logits.amax(-1)


LOGIT_SCORES: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "msp": lambda logits: msp_score(logits.softmax(-1)),
        "energy": energy_score,
        "entropy": entropy_score,
        "max-logit": max_logit_score,
    }
)
"""OOD scores (...) of logits (..., C) by name, as OpenOOD's postprocessors define them but for the sign."""
