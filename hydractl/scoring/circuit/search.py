"""Exact search for the head whose removal maximizes the objective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hydractl.manifest.document import OptionValue
from hydractl.manifest.head_mask import HeadId, Removal
from hydractl.scoring.circuit.ablation import Circuit
from hydractl.scoring.circuit.outcomes import first_best
from hydractl.scoring.circuit.settings import CircuitSettings
from hydractl.scoring.job import NOTHING_LEARNT, Memory, ScoreJob


class Exact:
    """Algorithm 1: every candidate is evaluated on all data in each step."""

    keeps_streams = False

    def __init__(self, job: ScoreJob) -> None:
        self.circuit = Circuit(job, keeps_streams=self.keeps_streams)
        self.settings = job.set_for(CircuitSettings)
        self.budget = job.budget

    def restart(self, recorded: int) -> int:
        """Return after how many removals to go on, when so many of an interrupted run are known: all or fewer."""
        return recorded

    def best(self, step: int) -> tuple[HeadId, float]:
        """Return the head to remove after `step` removals, and the objective without it."""
        del step
        return best_of(self.circuit.candidate_values())

    def remove(self, head: HeadId) -> None:
        """Remove a head."""
        self.circuit.remove(head)

    def refine(self, removals: Sequence[Removal]) -> list[Removal]:
        """Return the removals after a last look at all of them."""
        return list(removals)

    def memory(self) -> Memory:
        """Return what an interrupted run needs to know besides its removals."""
        return NOTHING_LEARNT

    def recall(self, memory: Memory) -> None:
        """Go on from what an interrupted run remembered.

        Raises:
            ManifestError: If it is not what such a search remembers.
        """
        del memory

    def results(self) -> Mapping[str, OptionValue]:
        """Return what else a scores file says."""
        return {}


def best_of(values: Mapping[HeadId, float]) -> tuple[HeadId, float]:
    """Return the first of the heads of the highest value, and that value."""
    heads = list(values)
    best = heads[first_best(list(values.values()))]
    return best, values[best]
