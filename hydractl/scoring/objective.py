"""What a greedy search maximises (Hydra Ensembles, section 4.1): accuracy, OOD separation, or their mean."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import torch

from hydractl.metrics.ood import auroc_many

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


class Outcomes(NamedTuple):
    """What K candidate models made of the data: hits (K, N) on ID data, OOD scores -MSP (K, N) and (K, N')."""

    hits: torch.Tensor
    id_scores: torch.Tensor
    ood_scores: torch.Tensor


class Objective(NamedTuple):
    """One objective: its values for K candidates, shape (K,), float64, in [0, 1]; higher is better."""

    name: str
    summary: str
    values: Callable[[Outcomes], torch.Tensor]
    needs_ood: bool


def _accuracy(outcomes: Outcomes) -> torch.Tensor:
    return outcomes.hits.double().mean(dim=1)


def _ood(outcomes: Outcomes) -> torch.Tensor:
    return auroc_many(outcomes.id_scores, outcomes.ood_scores)


def _average(outcomes: Outcomes) -> torch.Tensor:
    return (_accuracy(outcomes) + _ood(outcomes)) / 2


OBJECTIVES: Mapping[str, Objective] = MappingProxyType(
    {
        o.name: o
        for o in (
            Objective("acc", "accuracy on ID data", _accuracy, needs_ood=False),
            Objective(
                "ood", "AUROC of the maximum softmax probability, ID against OOD data", _ood, needs_ood=True
            ),
            Objective("avg", "mean of acc and ood", _average, needs_ood=True),
        )
    }
)


def outcomes_of(logits: torch.Tensor, labels: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return hits (K, B) and OOD scores -MSP (K, B) of logits (K, B, C); no hits without labels.

    Probabilities are float64: a trained model's lie so close to 1 that float32 would tie them.
    """
    probs, classes = logits.double().softmax(dim=-1).max(dim=-1)
    hits = torch.zeros(0) if labels is None else classes == labels
    return hits, -probs


def first_best(values: Sequence[float]) -> int:
    """Return the index of the first maximum: Algorithm 1 replaces its best only by a strictly better one."""
    return max(range(len(values)), key=lambda i: (values[i], -i))
