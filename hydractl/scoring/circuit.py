"""Greedy circuit extraction (Hydra Ensembles, Algorithm 1), exact and without naive forward passes.

Each step removes the head without which the objective is highest. Algorithm 1 runs the whole model for every
candidate; here a candidate in layer l costs the part of a pass from layer l on:

- the stream that enters each layer is computed once a batch, for all candidates;
- a head's own term is subtracted from the layer's attention output, which is not computed again;
- the last block computes only the tokens that the readout reads;
- heads that are gone are cut out, not masked.

Candidates of one layer run side by side on the batch axis.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import torch

from hydractl.errors import DataError
from hydractl.heads.masks import HeadId
from hydractl.manifest import Removal
from hydractl.scoring.job import Ranking, ScoreJob
from hydractl.scoring.objective import OBJECTIVES, Outcomes, first_best, outcomes_of
from hydractl.scoring.settings import CircuitSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from hydractl.families.inputs import Inputs
    from hydractl.families.tower import Block, Stream, Tower
    from hydractl.progress import Progress
    from hydractl.scoring.job import Samples

_Logits: TypeAlias = "Callable[[Inputs], torch.Tensor]"

STREAM_ELEMENTS = 1 << 18
"""How many elements of a stream run side by side: enough to fill a matrix product, small enough to stay in cache."""


def score_circuit(job: ScoreJob, progress: Progress) -> Ranking:
    """Remove `budget` heads one by one; of equally good candidates the lowest (tower, layer, head) goes.

    A head's score is the step at which it went, so the order of scores is the order of removal; heads that stayed
    all score one more than the last step.
    """
    circuit = Circuit(job)
    with torch.inference_mode():
        for removal in job.log.done:
            circuit.remove(HeadId(removal.tower, removal.layer, removal.head))
        baseline = circuit.value() if job.log.baseline is None else job.log.baseline
        job.log.begin(baseline)
        removals = list(job.log.done)
        steps = range(len(removals), job.budget)
        for _ in progress.track(steps, label="Removing heads", total=len(steps)):
            values = circuit.candidate_values()
            heads = list(values)
            best = heads[first_best(list(values.values()))]
            circuit.remove(best)
            removal = Removal(tower=best.tower, layer=best.layer, head=best.head, objective=values[best])
            removals.append(removal)
            job.log.record(removal)
    tables = {n: [[float(job.budget)] * t.num_heads for _ in range(t.layers)] for n, t in job.scored.items()}
    for step, removal in enumerate(removals):
        tables[removal.tower][removal.layer][removal.head] = float(step)
    return Ranking(scores=tables, removals=tuple(removals), baseline=baseline)


class Circuit:
    """A model that loses heads, and the value of the objective without each further one."""

    def __init__(self, job: ScoreJob) -> None:
        self.model = job.model
        self.objective = OBJECTIVES[job.set_for(CircuitSettings).objective]
        self.team = job.team
        self.id_data = job.id_data
        self.ood_data = job.ood_data if self.objective.needs_ood else ()
        self.towers = tuple(job.scored)
        self.left = {
            name: [list(range(t.num_heads)) for _ in range(t.layers)]
            for name, t in job.architecture.towers.items()
        }
        self._held: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}

    def candidates(self) -> list[HeadId]:
        """Return the heads that are still there, in order."""
        return [
            HeadId(tower, i, h)
            for tower, layers in self.left.items()
            if tower in self.towers
            for i, heads in enumerate(layers)
            for h in heads
        ]

    def remove(self, head: HeadId) -> None:
        """Cut a head out of the model."""
        heads = self.left[head.tower][head.layer]
        attention = self.model.tower(head.tower).layers()[head.layer].attn
        attention.members[0] = attention.groups()[0].select(
            [i for i, h in enumerate(heads) if h != head.head]
        )
        heads.remove(head.head)
        self._held.clear()

    def value(self) -> float:
        """Return the objective of the circuit as it is."""
        return float(self.objective.values(self._outcomes(lambda inputs: self.model(inputs).unsqueeze(0)))[0])

    def candidate_values(self) -> dict[HeadId, float]:
        """Return the objective without each remaining head in turn."""
        values = self.objective.values(self._outcomes(self._without_each))
        return dict(zip(self.candidates(), values.tolist(), strict=True))

    def _outcomes(self, logits_of: _Logits) -> Outcomes:
        hits, id_scores = self._gather(self.id_data, logits_of)
        _, ood_scores = self._gather(self.ood_data, logits_of)
        return Outcomes(hits, id_scores, ood_scores)

    def _without_each(self, inputs: Inputs) -> torch.Tensor:
        """Return logits (K, B, C) of one batch: candidate k's are those of the circuit without its head."""
        whole: dict[str, torch.Tensor] = {}
        without: dict[str, torch.Tensor] = {}
        for name, asked in self.model.routed(inputs).items():
            found = self._held.get(name)
            if found is None:
                tower = self.model.tower(name)
                whole_only = name not in self.towers
                found = (tower(asked).unsqueeze(0),) * 2 if whole_only else tower_without_each(tower, asked)
            if name in self.model.answer.fixed:
                self._held[name] = found
            whole[name], without[name] = found
        return torch.cat(
            [self.model.answer(whole | {name: without[name]}) for name in self.left if name in self.towers]
        )

    def _gather(self, data: Iterable[Samples], logits_of: _Logits) -> tuple[torch.Tensor, torch.Tensor]:
        hits, scores = [], []
        for inputs, labels in data:
            logits = logits_of(inputs)
            if not logits.isfinite().all():
                raise DataError("the model answers with numbers that are not finite on this data")
            batch_hits, batch_scores = outcomes_of(logits, labels)
            hits.append(batch_hits)
            scores.append(batch_scores)
        hits, scores = self.team.in_order(hits), self.team.in_order(scores)
        if not scores:
            return torch.zeros(0), torch.zeros(0)
        return torch.cat(hits, dim=-1), torch.cat(scores, dim=-1)


def tower_without_each(tower: Tower, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a tower's outputs (1, N, F), and those (K, N, F) without each of its K heads in turn."""
    stream = tower.embed(inputs)
    outputs: list[torch.Tensor] = []
    for layer, block in enumerate(tower.layers()):
        queries = tower.queries(layer)
        z = block.heads(stream, queries)
        y = block.project(z)
        if queries is not None:
            stream = stream.with_tokens(stream.tokens[:, queries])
        outputs.extend(without_heads(tower, layer, Entered(block, stream, z, y)))
        stream = block.join(stream, y)
    whole = tower.finish(stream).unsqueeze(0)
    return whole, torch.cat(outputs) if outputs else whole[:0]


class Entered(NamedTuple):
    """A block with the stream that enters it, its heads' outputs z (B, T, H, K) and their projection y (B, T, D)."""

    block: Block
    stream: Stream
    z: torch.Tensor
    y: torch.Tensor


def without_heads(tower: Tower, layer: int, entered: Entered) -> Iterator[torch.Tensor]:
    """Yield the tower's outputs (k, N, F) without each head of a layer in turn, several heads side by side."""
    block, stream, z, y = entered
    group = block.attn.groups()[0]
    side_by_side = max(1, STREAM_ELEMENTS // y.numel())
    for begin in range(0, group.heads, side_by_side):
        heads = range(begin, min(begin + side_by_side, group.heads))
        rest = torch.cat([y - group.head_term(z, head) for head in heads])
        joined = block.join(stream.tile(len(heads)), rest)
        outputs = tower.resume(joined, layer + 1)
        yield outputs.reshape(len(heads), -1, outputs.shape[-1])
