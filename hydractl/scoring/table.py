"""The table of scoring methods and objectives by name. Importing it loads no torch."""

from __future__ import annotations

from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING

from hydractl.scoring.job import Method, Ranking, ScoreJob

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hydractl.progress import Progress


def _lazily(module: str, name: str) -> Callable[[ScoreJob, Progress], Ranking]:
    """Return a function that imports its method when it is first called."""

    def run(job: ScoreJob, progress: Progress) -> Ranking:
        ranking: Ranking = getattr(import_module(f"hydractl.scoring.{module}"), name)(job, progress)
        return ranking

    return run


METHODS: Mapping[str, Method] = MappingProxyType(
    {
        method.name: method
        for method in (
            Method(
                name="circuit",
                summary="greedy removal by an objective on validation data (Algorithm 1)",
                run=_lazily("circuit", "score_circuit"),
                needs_data=True,
                greedy=True,
            ),
            Method(
                name="taylor",
                summary="|weight × gradient| of q, k and v (appendix D.1.1)",
                run=_lazily("taylor", "score_taylor"),
                needs_data=True,
                uses=frozenset({"keep", "scope", "seed"}),
            ),
            Method(
                name="magnitude",
                summary="mean |weight|: a control",
                run=_lazily("weights", "score_magnitude"),
                needs_data=False,
            ),
            Method(
                name="random",
                summary="uniform random scores: a control",
                run=_lazily("weights", "score_random"),
                needs_data=False,
                uses=frozenset({"seed"}),
            ),
        )
    }
)
