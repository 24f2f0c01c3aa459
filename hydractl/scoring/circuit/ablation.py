"""The objective of a model with some heads removed, and without each further head.

Algorithm 1 runs the whole model for every candidate. Here a candidate in layer l costs the part of a pass from layer l on:

- The stream that enters each layer is computed once per batch for all candidates, and may be stored from one evaluation
  to the next.
- The term of a head is subtracted from the attention output of its layer, which is not computed again.
- The last block computes only the tokens that the readout reads.
- Removed heads are cut out, not masked.

Candidates of one layer run in one batch.

Axes: k candidates, B batch, C classes, D features.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple, TypeAlias

import torch

from hydractl.errors import DataError
from hydractl.families.attention import HeadGroup
from hydractl.manifest.head_mask import HeadId
from hydractl.model_inputs import Inputs, batch_of, without_absent
from hydractl.scoring.circuit.outcomes import SCORE, Outcomes, Yardstick, guessed, outcomes_read
from hydractl.scoring.circuit.tower import (
    CandidateHeads,
    LayerInput,
    MemoryBudget,
    Streams,
    compile_joins,
    heads_of,
    iterate_ablations,
    with_all_heads,
)
from hydractl.scoring.job import ScoreJob
from hydractl.scoring.objective import parse_objective
from hydractl.scoring.settings import CircuitSettings


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


def _finite(answers: torch.Tensor) -> torch.Tensor:
    if not answers.isfinite().all():
        raise DataError("the outputs of the model are not finite on these data")
    return answers


FEATURE_BYTES = 16
"""For one feature of a sample: float32, before and after those of all batches are put together, and float64 to fit on."""


def lowest_of(heads: Iterable[HeadId]) -> dict[str, HeadId]:
    """Return of some heads one of each tower that lies lowest in it."""
    return {head.tower: head for head in sorted(heads, key=lambda head: -head.layer)}


class Circuit:
    """A model that loses heads, and the value of the objective without each further one."""

    def __init__(self, job: ScoreJob, *, keeps_streams: bool = False) -> None:
        """Take over a job's model.

        Args:
            job: Whose.
            keeps_streams: Whether streams are kept between evaluations, as far as memory allows.

        Raises:
            UsageError: If the features of a single candidate, where the OOD score reads them, exceed a bound on memory.
        """
        self.model = job.model
        self.compiles = job.compiles is not None
        if job.compiles is not None:
            compile_joins(job.model, name=job.compiles)
        self.towers = tuple(job.scored)
        self.left = {
            name: [list(range(t.num_heads)) for _ in range(t.layers)]
            for name, t in job.architecture.towers.items()
        }
        self.room = MemoryBudget(
            job.model.device,
            job.max_memory,
            keeps_streams=keeps_streams,
            holds_features=job.features is not None,
        )
        settings = job.set_for(CircuitSettings)
        self.yardstick = Yardstick(parse_objective(settings.objective), settings.ood_score, job.features)
        self.team = job.team
        self.data = {"id": job.id_data, "ood": job.ood_data if settings.needs_ood else ()}
        self._kinds = (self.yardstick.outcomes, self.yardstick.traits)[: 2 if keeps_streams else 1]
        self._groups = {
            name: [block.attn.groups()[0] for block in job.model.tower(name).layers()] for name in self.left
        }
        self._held: dict[Hashable, tuple[torch.Tensor, list[torch.Tensor]]] = {}
        in_all = (self.team.in_order([torch.empty(0) for _ in data]) for data in self.data.values())
        # counting reads all data once
        self._streams = Streams(self.room.kept // max(1, sum(map(len, in_all))) if keeps_streams else 0)
        self._whole: tuple[Outcomes, Outcomes] | None = None
        self._at_once: int | None = None
        if job.features is not None:
            samples = max(self.passes().values())
            self._at_once = self.room.candidates_held(FEATURE_BYTES * job.features.width * samples)

    def check_room(self) -> None:
        """Refuse a bound on memory that is too low for the first batches, before anything is done.

        Raises:
            UsageError: With what they need.
        """
        if self.room.bound is None:
            return
        heads = [head for head in self.candidates() if self.left[head.tower][head.layer][0] == head.head]
        for role, data in self.data.items():
            for samples in islice(data, 1):
                deque(self._without(CircuitBatch(role, 0, *samples), self._picks(heads)), maxlen=0)

    def heads(self) -> list[HeadId]:
        """Return all heads that may go or have gone, in order."""
        return [
            HeadId(tower, i, h)
            for tower, groups in self._groups.items()
            if tower in self.towers
            for i, group in enumerate(groups)
            for h in range(group.heads)
        ]

    def candidates(self) -> list[HeadId]:
        """Return the heads that are still there, in order."""
        return [head for head in self.heads() if head.head in self.left[head.tower][head.layer]]

    def remove(self, head: HeadId) -> None:
        """Cut a head out of the model."""
        self._toggle([head])
        self._held.clear()
        self._whole = None
        self._streams.remove_head(head)

    def change(self, heads: Sequence[HeadId]) -> None:
        """Cut heads out of the model that are in it, and put back those that are not."""
        self._toggle(heads)
        for tower, head in lowest_of(heads).items():
            self._streams.cut(tower, head.layer)
        self._held.clear()
        self._whole = None

    def changed(self, heads: Sequence[HeadId]) -> tuple[Outcomes, Outcomes]:
        """Return what the circuit would make of the data after `change`: outcomes and traits of one candidate."""
        lowest = lowest_of(heads)
        first = {
            head: self._groups[head.tower][head.layer].select([head.head])
            for head in heads
            if head.layer == lowest[head.tower].layer
        }
        later = [head for head in heads if head not in first]
        fixed_outputs: dict[str, torch.Tensor] = {}
        self._toggle(later)
        try:
            return self._gather(lambda batch: [self._answered(batch, first, fixed_outputs)])
        finally:
            self._toggle(later)

    def _gather(self, answers_of: AnswersOf) -> tuple[Outcomes, Outcomes]:
        """Return outcomes, and traits if streams are kept, over the batches of all processes."""
        gathered_kinds: list[dict[str, dict[str, torch.Tensor]]] = [{} for _ in self._kinds]
        for role, data in self.data.items():
            names = (
                self.yardstick.names(labelled=role == "id"),
                outcomes_read(self.yardstick.objective, labelled=role == "id"),
            )
            local_kinds: list[dict[str, list[torch.Tensor]]] = [
                {name: [] for name in names[kind]} for kind in range(len(self._kinds))
            ]
            for i, samples in enumerate(data):
                batch = CircuitBatch(role, i * self.team.world + self.team.rank, *samples)
                parts = [
                    [kind(answers, batch.labels) for kind in self._kinds]
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

    def _toggle(self, heads: Iterable[HeadId]) -> None:
        """Cut heads out or put them back."""
        for head in heads:
            remaining = self.left[head.tower][head.layer]
            remaining[:] = sorted({*remaining} ^ {head.head})
            attention = self.model.tower(head.tower).layers()[head.layer].attn
            attention.members[0] = self._groups[head.tower][head.layer].select(remaining)

    def value(self) -> float:
        """Return the objective of the circuit as it is."""
        return float(self.yardstick.values(self.evaluate()[0])[0])

    def evaluate(self) -> tuple[Outcomes, Outcomes]:
        """Return what the circuit as it is makes of the data: outcomes and traits of one candidate."""
        if self._whole is None:
            self._whole = self._gather(lambda batch: [self._answered(batch, {}, {})])
        return self._whole

    def candidate_values(self) -> dict[HeadId, float]:
        """Return the objective without each remaining head in turn."""
        heads = self.candidates()
        return dict(zip(heads, self.yardstick.values(self.outcomes(heads)[0]).tolist(), strict=True))

    def outcomes(self, heads: Sequence[HeadId], *, trails: bool = False) -> tuple[Outcomes, Outcomes]:
        """Return what the model makes of the data without each of some heads in turn: outcomes, and traits if kept.

        Args:
            heads: Candidates, in order.
            trails: Whether to keep what enters the blocks without each head, as far as there is room: one of them goes next.
        """
        self._streams.trails = trails
        gathered = [self._candidates(self._picks(share)) for share in self._shares(heads)]
        outcomes, traits = (Outcomes.stacked(parts) for parts in zip(*gathered, strict=True))
        return outcomes, traits

    def around(self, heads: Iterable[HeadId]) -> tuple[Outcomes, dict[HeadId, Outcomes]]:
        """Return the circuit's traits, and those after a change of each of some heads, by itself."""
        circuit_traits, after = Outcomes({}, {}), dict[HeadId, Outcomes]()
        for share in self._shares(list(heads)):
            picks = self._picks(share, around=True)
            ordered = [
                HeadId(candidates.tower, i, h)
                for candidates in picks
                for i, positions in enumerate(candidates.heads)
                for h in positions
            ]
            _, traits = self._candidates(picks)
            after |= {head: traits.candidate(i) for i, head in enumerate(ordered)}
            circuit_traits = traits.candidate(len(ordered))
        return circuit_traits, after

    def _candidates(self, picks: Sequence[CandidateHeads]) -> tuple[Outcomes, Outcomes]:
        """Return outcomes and traits of candidates at once."""
        return self._gather(lambda batch: self._without(batch, picks))

    def _shares(self, heads: Sequence[HeadId]) -> list[Sequence[HeadId]]:
        """Return heads in order, together as many as there is room for."""
        count = self._at_once or max(1, len(heads))
        return [heads[begin : begin + count] for begin in range(0, max(1, len(heads)), count)]

    def expected(self, traits: Outcomes) -> list[float]:
        """Return the objective's values that follow from the traits of some candidates."""
        return self.yardstick.values(guessed(traits, self.yardstick.ood_score)).tolist()

    def _picks(self, heads: Iterable[HeadId], *, around: bool = False) -> list[CandidateHeads]:
        """Return where some heads are among those that are left in their layers, or `around` the circuit among all."""
        chosen = set(heads)

        def places(name: str, layer: int, remaining: Sequence[int]) -> tuple[int, ...]:
            among = range(self._groups[name][layer].heads) if around else remaining
            return tuple(place for place, head in enumerate(among) if HeadId(name, layer, head) in chosen)

        return [
            CandidateHeads(
                name, tuple(places(name, i, remaining) for i, remaining in enumerate(layers)), around
            )
            for name, layers in self.left.items()
        ]

    def passes(self) -> dict[str, int]:
        """Return how many inputs each tower sees in a pass over all data of all processes."""
        counts = dict.fromkeys(self.left, 0)
        for data in self.data.values():
            routed = (self.model.routed(inputs) for inputs, _ in data)
            sizes_here = [torch.tensor([batch_of(towers[name]) for name in self.left]) for towers in routed]
            for sizes in self.team.in_order(sizes_here):
                for name, size in zip(self.left, sizes.tolist(), strict=True):
                    counts[name] = size if name in self.model.answer.fixed else counts[name] + size
        return counts

    def forget(self) -> None:
        """Drop what is kept from one evaluation to the next."""
        self._streams.clear()
        self._held.clear()
        self._whole = None

    def _without(self, batch: CircuitBatch, picks: Sequence[CandidateHeads]) -> Iterator[torch.Tensor]:
        """Yield logits (k, B, C) of one batch: candidates' in order, each without its head; around the circuit its own are the last."""
        tower_inputs = self.model.routed(batch.inputs)
        if len(tower_inputs) == 1:
            (candidates,) = (p for p in picks if p.tower in tower_inputs)
            for layer, (entered, ablated_outputs) in enumerate(
                self._outputs(batch, tower_inputs[candidates.tower], candidates), start=1
            ):
                yield from (
                    self.yardstick.answers(self.model, {candidates.tower: outputs})
                    for outputs in ablated_outputs
                )
                if candidates.around and layer == len(self.left[candidates.tower]):
                    outputs = self.model.tower(candidates.tower).finish(entered.leaving).unsqueeze(0)
                    yield self.yardstick.answers(self.model, {candidates.tower: outputs})
            return
        full_outputs: dict[str, torch.Tensor] = {}
        ablated: dict[str, list[torch.Tensor]] = {}
        for candidates in picks:
            full_outputs[candidates.tower], ablated[candidates.tower] = self._whole_and_without(
                batch, tower_inputs[candidates.tower], candidates
            )
        last = self.yardstick.answers(self.model, full_outputs)
        at_once = self.room.answers(last.numel())
        for name, several in ablated.items():
            if several:
                for chunk in torch.cat(several).split(at_once):
                    yield self.yardstick.answers(self.model, {**full_outputs, name: chunk})
        if picks[0].around:
            yield last

    def _answered(
        self, batch: CircuitBatch, first: Mapping[HeadId, HeadGroup], fixed_outputs: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        """Return logits (1, B, C) of one batch after a change of the heads `first`, each a group; of a tower they are of one layer.

        What enters that layer is kept, and counts; what follows runs as it is. `fixed_outputs` holds outputs of towers that are always
        asked the same.
        """
        nothing = {groups.tower: groups for groups in self._picks(())}
        outputs: dict[str, torch.Tensor] = {}
        for name, tower_inputs in self.model.routed(batch.inputs).items():
            groups = {head: group for head, group in first.items() if head.tower == name}
            if not groups:
                outputs[name] = self._whole_and_without(batch, tower_inputs, nothing[name])[0]
            elif name in fixed_outputs:
                outputs[name] = fixed_outputs[name]
            else:
                outputs[name] = self._after_change(batch, tower_inputs, groups).unsqueeze(0)
                if name in self.model.answer.fixed:
                    fixed_outputs[name] = outputs[name]
        return self.yardstick.answers(self.model, outputs)

    def _after_change(
        self, batch: CircuitBatch, tower_inputs: Inputs, heads: Mapping[HeadId, HeadGroup]
    ) -> torch.Tensor:
        """Return a tower's outputs (N, F) after a change of some heads of a layer."""
        name, layer, _ = next(iter(heads))
        tower, remaining = self.model.tower(name), self.left[name][layer]
        key = None if name in self.model.answer.fixed else (name, batch.role, batch.number)
        *below, (block, stream, z, y, _) = deque(
            islice(self._streams.entering(key, tower, tower_inputs), layer + 1), maxlen=2
        )
        for head, group in heads.items():
            if head.head in remaining:
                at = remaining.index(head.head)
                y = y - group.head_term(z[..., at : at + 1, :], 0)
            else:
                queries = tower.queries(layer)
                # of the last block's stream only the tokens that are read are kept
                entering = (
                    stream if queries is None else below[0].leaving if below else tower.embed(tower_inputs)
                )
                y = y + group.head_term(heads_of(block, group, entering, queries), 0)
        return tower.resume(block.join(stream, y), layer + 1)

    def _whole_and_without(
        self, batch: CircuitBatch, tower_inputs: Inputs, candidates: CandidateHeads
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Return a tower's outputs (1, N, F), and those (k, N, F) without its picks; held where they are always the same."""
        if candidates in self._held:
            return self._held[candidates]
        ablated: list[torch.Tensor] = []
        full_output = torch.empty(0)
        for layer, (entered, outputs) in enumerate(self._outputs(batch, tower_inputs, candidates)):
            ablated.extend(outputs)
            if layer + 1 == len(self.left[candidates.tower]):
                full_output = self.model.tower(candidates.tower).finish(entered.leaving).unsqueeze(0)
        if candidates.tower in self.model.answer.fixed:
            self._held[candidates] = full_output, ablated
        return full_output, ablated

    def _outputs(
        self, batch: CircuitBatch, tower_inputs: Inputs, candidates: CandidateHeads
    ) -> Iterator[tuple[LayerInput, Iterator[torch.Tensor]]]:
        """Yield what enters each layer of a tower, and its outputs (k, N, F) without the picks of that layer."""
        tower, streams, remaining = (
            self.model.tower(candidates.tower),
            self._streams,
            self.left[candidates.tower],
        )
        if candidates.around:
            for layer, entered in enumerate(
                with_all_heads(tower, tower_inputs, self._groups[candidates.tower], remaining)
            ):
                ablations = iterate_ablations(tower, layer, entered, candidates.heads[layer], self.room)
                yield entered, (ablation.outputs for ablation in ablations)
            return
        is_fixed = candidates.tower in self.model.answer.fixed
        key = None if is_fixed else (candidates.tower, batch.role, batch.number)
        for layer, entered in enumerate(streams.entering(key, tower, tower_inputs)):
            heads = [HeadId(candidates.tower, layer, remaining[layer][i]) for i in candidates.heads[layer]]
            yield (
                entered,
                streams.without(key, (tower, layer, entered), heads, candidates.heads[layer], self.room),
            )
