"""What candidates make of all data, gathered over the batches of all processes.

Axes: k candidates, B batch, C classes, D features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

import torch

from hydractl.errors import DataError
from hydractl.model_inputs import Inputs, without_absent
from hydractl.scoring.circuit.memory_budget import MemoryBudget
from hydractl.scoring.circuit.objective import parse_objective
from hydractl.scoring.circuit.outcomes import SCORE, Outcomes, outcomes_read
from hydractl.scoring.circuit.settings import CircuitSettings
from hydractl.scoring.circuit.yardstick import Yardstick
from hydractl.scoring.job import ScoreJob


class CircuitBatch(NamedTuple):
    """One batch of a set of data.

    Attributes:
        role: `id` or `ood`.
        number: Its own among all batches of the set, whichever process has it.
        inputs: What the model is asked.
        labels: Of its samples, None for OOD data.
    """

    role: str
    number: int
    inputs: Inputs
    labels: torch.Tensor | None


AnswersOf: TypeAlias = "Callable[[CircuitBatch], Iterable[torch.Tensor]]"
"""Gives candidates' logits (k, B, C) on a batch, or (k, B, C + D) with their features."""


class Gatherer:
    """The data of a job, and what its objective reads of answers to them."""

    def __init__(self, job: ScoreJob, room: MemoryBudget) -> None:
        """Take over a job's data; traits are gathered too if the room keeps streams."""
        settings = job.set_for(CircuitSettings)
        self.yardstick = Yardstick(parse_objective(settings.objective), settings.ood_score, job.features)
        self.team, self.room = job.team, room
        self.data = {"id": job.id_data, "ood": job.ood_data if settings.needs_ood else ()}
        self.kinds = (self.yardstick.outcomes, self.yardstick.traits)[: 2 if room.keeps else 1]

    def gather(self, answers_of: AnswersOf) -> tuple[Outcomes, Outcomes]:
        """Return outcomes; and traits, where those are gathered."""
        gathered_kinds: list[dict[str, dict[str, torch.Tensor]]] = [{} for _ in self.kinds]
        for role, data in self.data.items():
            names = (
                self.yardstick.names(labelled=role == "id"),
                outcomes_read(self.yardstick.objective, labelled=role == "id"),
            )
            local_kinds: list[dict[str, list[torch.Tensor]]] = [
                {name: [] for name in names[kind]} for kind in range(len(self.kinds))
            ]
            for i, samples in enumerate(data):
                batch = CircuitBatch(role, i * self.team.world + self.team.rank, *samples)
                parts = [
                    [kind(answers, batch.labels) for kind in self.kinds]
                    for answers in (
                        without_absent(_finite(answers), batch.inputs)
                        for answers in self.room.grouped(answers_of(batch))
                    )
                ]
                for local, shares in zip(local_kinds, zip(*parts, strict=True), strict=True):
                    for name, batches in local.items():
                        batches.append(torch.cat([share[name] for share in shares]))
            for by_role, local in zip(gathered_kinds, local_kinds, strict=True):
                gathered = {name: self.team.in_order(batches) for name, batches in local.items()}
                by_role[role] = {name: torch.cat(every, dim=-1) for name, every in gathered.items() if every}
        outcomes, traits = (
            Outcomes(kind["id"], kind["ood"]) for kind in (gathered_kinds[0], gathered_kinds[-1])
        )
        outcomes = self.yardstick.fitted(outcomes)
        if self.yardstick.features is not None:
            # the trait of a fitted score is the score itself
            traits = Outcomes(
                *(
                    {**of_role, SCORE: scored[SCORE].float()}
                    for of_role, scored in zip(traits, outcomes, strict=True)
                )
            )
        return outcomes, traits


def _finite(answers: torch.Tensor) -> torch.Tensor:
    if not answers.isfinite().all():
        raise DataError("the outputs of the model are not finite on these data")
    return answers
