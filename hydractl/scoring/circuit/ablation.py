"""Objective of a model with removed heads, and without each further head.

Algorithm 1 runs the whole model for each candidate, a head that may be removed next. Here a candidate in
layer l needs a forward pass from layer l only:

- The stream that enters each layer is computed once per batch for all candidates, and may be stored until the
  next evaluation.
- The output of a head is subtracted from the attention output of its layer.
- The last block computes only the tokens that the readout uses.
- Removed heads are sliced from the weights, not masked.

Candidates of the same layer run in a common batch. Traits are predictions of all samples on scales on which
the effects of heads nearly add up, see `traits_of`.

Axes: k candidates in one pass, K candidates, B batch, N rows of a tower, C classes, D features, F outputs of
a tower, S traits of a candidate.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor
from typing_extensions import override

from hydractl.errors import DataError
from hydractl.families.attention import HeadGroup
from hydractl.families.tower import Model
from hydractl.manifest.head_mask import HeadId
from hydractl.model_inputs import Inputs, batch_of, mask_absent_words
from hydractl.scoring.circuit.outcomes import (
    SCORE,
    ObjectiveEvaluator,
    Outcomes,
    outcomes_from_traits,
    outcomes_read,
)
from hydractl.scoring.circuit.tower import MemoryBudget, Streams, compile_joins, heads_of, with_all_heads
from hydractl.scoring.job import ScoreJob
from hydractl.scoring.objective import parse_objective
from hydractl.scoring.settings import CircuitSettings


class CircuitBatch(NamedTuple):
    """Batch of one data set.

    Attributes:
        role: `id` or `ood`.
        number: Number of the batch in the data set, over all processes.
        inputs: Inputs of the model.
        labels: Labels of the samples; None for OOD data.
    """

    role: str
    number: int
    inputs: Inputs
    labels: Tensor | None


Answer: TypeAlias = "Callable[[Mapping[str, Tensor]], Tensor]"
"""Function from outputs of towers (k or 1, N, F) to logits (k, B, C), or (k, B, C + D) with features."""
Picks: TypeAlias = "Mapping[str, tuple[tuple[int, ...], ...]]"
"""Heads of each layer by tower, increasing."""
FEATURE_BYTES = 16
"""Bytes per feature of a sample: float32 before and after concatenation of all batches, and float64 for the
fit."""


def lowest_of(heads: Iterable[HeadId]) -> dict[str, HeadId]:
    """Return for each tower one of the given heads in the lowest layer; towers without heads are left out."""
    return {head.tower: head for head in sorted(heads, key=lambda head: -head.layer)}


class ResumedPasses:
    """Forward passes of a model with removed heads, resumed at the layer of a change.

    Attributes:
        model: The model.
        left: Remaining heads of each layer, by tower.
        room: Memory budget for streams and candidates.
    """

    def __init__(self, model: Model, room: MemoryBudget, answer: Answer) -> None:
        """Store a model. No head is removed yet.

        Args:
            model: The model with all heads. The other methods remove and restore heads of the model in place.
            room: Memory budget for streams and candidates.
            answer: Function from outputs of towers to logits, see `Answer`.
        """
        self.model, self.room, self._answer = model, room, answer
        self._groups = {
            name: [block.attn.groups()[0] for block in model.tower(name).layers()] for name in model.towers
        }
        self.left = {name: [list(range(g.heads)) for g in groups] for name, groups in self._groups.items()}
        self._held: dict[Hashable, list[Tensor]] = {}
        """Outputs of towers with the same inputs in each batch, until the next change."""
        self._streams = Streams(0)

    def remove(self, head: HeadId) -> None:
        """Remove a head from the model."""
        self._toggle([head])
        self._held.clear()
        self._streams.remove_head(head)

    def change(self, heads: Sequence[HeadId]) -> None:
        """Remove remaining heads from the model, and restore removed heads."""
        self._toggle(heads)
        self._held.clear()
        for tower, head in lowest_of(heads).items():
            self._streams.cut(tower, head.layer)

    def forget(self) -> None:
        """Delete all stored streams and outputs."""
        self._streams.clear()
        self._held.clear()

    def _toggle(self, heads: Iterable[HeadId]) -> None:
        """Remove or restore heads, without an update of stored streams."""
        for head in heads:
            remaining = self.left[head.tower][head.layer]
            remaining[:] = sorted({*remaining} ^ {head.head})
            attention = self.model.tower(head.tower).layers()[head.layer].attn
            attention.members[0] = self._groups[head.tower][head.layer].select(remaining)

    def _picks(self, heads: Iterable[HeadId]) -> Picks:
        """Return heads by tower and layer."""
        chosen = set(heads)
        return {
            name: tuple(
                tuple(h for h in range(group.heads) if HeadId(name, layer, h) in chosen)
                for layer, group in enumerate(groups)
            )
            for name, groups in self._groups.items()
        }

    def answers(self, batch: CircuitBatch, picks: Picks, *, around: bool = False) -> Iterator[Tensor]:
        """Yield the logits (k, B, C) for a batch after a change of each given head alone, in order.

        Args:
            batch: The batch.
            picks: Heads to change. Without `around`, each is removed alone and must be in the model.
            around: Whether `picks` may also contain removed heads, which are restored alone. The logits (1,
                B, C) of the unchanged model then follow at the end.
        """
        tower_inputs = self.model.routed(batch.inputs)
        if len(tower_inputs) == 1:
            ((name, inputs),) = tower_inputs.items()
            for outputs in self._outputs(batch, name, inputs, picks, around=around, whole=around):
                yield self._answer({name: outputs})
            return
        ablated: dict[str, list[Tensor]] = {}
        full_outputs: dict[str, Tensor] = {}
        for name in picks:
            outputs_of_tower = self._cached_tower_outputs(
                batch, name, tower_inputs[name], picks, around=around
            )
            *ablated[name], full_outputs[name] = outputs_of_tower
        last = self._answer(full_outputs)
        at_once = self.room.answers(last.numel())
        for name, several in ablated.items():
            for chunk in torch.cat(several).split(at_once) if several else ():
                yield self._answer({**full_outputs, name: chunk})
        if around:
            yield last

    def answers_after(
        self, batch: CircuitBatch, heads: Mapping[HeadId, HeadGroup], fixed: dict[str, Tensor]
    ) -> Tensor:
        """Return the logits (1, B, C) for one batch after a change of several heads together.

        Heads of the model are removed, and removed heads are restored. The model itself stays the same. The
        stream that enters the layer of the change is stored.

        Args:
            batch: The batch.
            heads: Changed heads, each with a group of that head only; empty for no change. The heads of a
                tower are in the same layer.
            fixed: Cache of the outputs of towers with the same inputs in each batch; changed in place.
        """
        outputs: dict[str, Tensor] = {}
        for name, inputs in self.model.routed(batch.inputs).items():
            changed = {head: group for head, group in heads.items() if head.tower == name}
            if not changed:
                (outputs[name],) = self._cached_tower_outputs(batch, name, inputs, self._picks(()))
            elif name in fixed:
                outputs[name] = fixed[name]
            else:
                outputs[name] = self._outputs_after(batch, inputs, changed).unsqueeze(0)
                if name in self.model.answer.fixed:
                    fixed[name] = outputs[name]
        return self._answer(outputs)

    def _outputs_after(
        self, batch: CircuitBatch, inputs: Inputs, heads: Mapping[HeadId, HeadGroup]
    ) -> Tensor:
        """Return the outputs (N, F) of a tower after a change of heads of a layer."""
        name, layer, _ = next(iter(heads))
        tower, remaining = self.model.tower(name), self.left[name][layer]
        *below, (block, stream, z, y, _) = deque(
            islice(self._streams.entering(self._key(batch, name), tower, inputs), layer + 1), maxlen=2
        )
        for head, group in heads.items():
            if head.head in remaining:
                at = remaining.index(head.head)
                y = y - group.head_term(z[..., at : at + 1, :], 0)
            else:
                queries = tower.queries(layer)
                # The last block's stream contains only tokens that the readout uses, but keys need all
                # tokens.
                entering = stream if queries is None else below[0].leaving if below else tower.embed(inputs)
                y = y + group.head_term(heads_of(block, group, entering, queries), 0)
        return tower.resume(block.join(stream, y), layer + 1)

    def _cached_tower_outputs(
        self, batch: CircuitBatch, name: str, inputs: Inputs, picks: Picks, *, around: bool = False
    ) -> list[Tensor]:
        """Return the outputs (k, N, F) of a tower after a change of each head in `picks`; see `answers`.

        The outputs (1, N, F) of the unchanged tower are the last. Outputs of towers with the same inputs in
        each batch are stored until the next change.
        """
        key = name, picks[name], around
        if key in self._held:
            return self._held[key]
        outputs = list(self._outputs(batch, name, inputs, picks, around=around, whole=True))
        if name in self.model.answer.fixed:
            self._held[key] = outputs
        return outputs

    def _outputs(
        self, batch: CircuitBatch, name: str, inputs: Inputs, picks: Picks, *, around: bool, whole: bool
    ) -> Iterator[Tensor]:
        """Yield the outputs (k, N, F) of a tower after a change of each head in `picks` alone; see `answers`.

        With `whole`, the outputs (1, N, F) of the unchanged tower follow at the end.
        """
        tower, groups, left = self.model.tower(name), self._groups[name], self.left[name]
        key = None if around else self._key(batch, name)
        entering = (
            with_all_heads(tower, inputs, groups, left)
            if around
            else self._streams.entering(key, tower, inputs)
        )
        for layer, entered in enumerate(entering):
            chosen = picks[name][layer]
            positions = chosen if around else [left[layer].index(head) for head in chosen]
            heads = [HeadId(name, layer, head) for head in chosen]
            yield from self._streams.without(key, (tower, layer, entered), heads, positions, self.room)
        if whole:
            yield tower.finish(entered.leaving).unsqueeze(0)

    def _key(self, batch: CircuitBatch, name: str) -> tuple[str, str, int] | None:
        """Return the key of a tower's streams, or None if the tower has the same inputs in each batch."""
        return None if name in self.model.answer.fixed else (name, batch.role, batch.number)


class Circuit(ResumedPasses):
    """Model with removed heads, and the objective without each further head, on the data of all processes."""

    def __init__(self, job: ScoreJob, *, keeps_streams: bool = False) -> None:
        """Wrap the model of a job.

        Args:
            job: The job.
            keeps_streams: Whether streams are stored between evaluations within the memory budget, and traits
                are measured.

        Raises:
            UsageError: If the memory budget is too small for the features of one candidate.
        """
        if job.compiles is not None:
            compile_joins(job.model, name=job.compiles)
        settings = job.set_for(CircuitSettings)
        self.evaluator = ObjectiveEvaluator(
            parse_objective(settings.objective), settings.ood_score, job.features
        )
        room = MemoryBudget(
            job.model.device,
            job.max_memory,
            keeps_streams=keeps_streams,
            holds_features=job.features is not None,
        )
        super().__init__(job.model, room, lambda outputs: self.evaluator.answers(job.model, outputs))
        self.team, self._scored = job.team, tuple(job.scored)
        self.data = {"id": job.id_data, "ood": job.ood_data if settings.needs_ood else ()}
        self._measures = (self.evaluator.outcomes, self.evaluator.traits)[: 1 + keeps_streams]
        self._layout: list[tuple[str, str, int]] = []
        """Role, name and number of samples of the traits, in order."""
        self._whole: tuple[Tensor, Tensor] | None = None
        # Counting the batches reads all data once.
        in_all = (self.team.in_order([torch.empty(0) for _ in data]) for data in self.data.values())
        self._streams = Streams(room.kept // max(1, sum(map(len, in_all))) if keeps_streams else 0)
        self._at_once: int | None = None
        if job.features is not None:
            samples = max(self.passes().values())
            self._at_once = room.candidates_held(FEATURE_BYTES * job.features.width * samples)

    def check_memory(self) -> None:
        """Raise if the memory budget is too small for the first batches, before the search starts.

        Raises:
            UsageError: If the budget is too small; the message has the required memory.
        """
        if self.room.bound is None:
            return
        picks = self._picks(h for h in self.candidates() if self.left[h.tower][h.layer][0] == h.head)
        for role, data in self.data.items():
            for samples in islice(data, 1):
                deque(self.answers(CircuitBatch(role, 0, *samples), picks), maxlen=0)

    def heads(self) -> list[HeadId]:
        """Return all heads of the scored towers, removed or not, in order."""
        return [
            HeadId(tower, i, h)
            for tower, groups in self._groups.items()
            if tower in self._scored
            for i, group in enumerate(groups)
            for h in range(group.heads)
        ]

    def candidates(self) -> list[HeadId]:
        """Return the remaining heads of the scored towers in order."""
        return [head for head in self.heads() if head.head in self.left[head.tower][head.layer]]

    @override
    def _toggle(self, heads: Iterable[HeadId]) -> None:
        super()._toggle(heads)
        self._whole = None

    @override
    def forget(self) -> None:
        super().forget()
        self._whole = None

    def value(self) -> float:
        """Return the objective of the current circuit."""
        return float(self.evaluate()[0])

    def evaluate(self) -> tuple[Tensor, Tensor]:
        """Return the objective (1,) and the traits (1, S) of the current circuit.

        S is 0 if traits are not measured.
        """
        if self._whole is None:
            self._whole = self._measured(lambda batch: [self.answers_after(batch, {}, {})])
        return self._whole

    def changed(self, heads: Sequence[HeadId]) -> tuple[Tensor, Tensor]:
        """Return the objective (1,) and the traits (1, S) that the circuit would have after `change(heads)`.

        The circuit itself stays the same.
        """
        lowest = lowest_of(heads)
        later = [head for head in heads if head.layer > lowest[head.tower].layer]
        first = {h: self._groups[h.tower][h.layer].select([h.head]) for h in heads if h not in later}
        fixed: dict[str, Tensor] = {}
        self._toggle(later)
        try:
            return self._measured(lambda batch: [self.answers_after(batch, first, fixed)])
        finally:
            self._toggle(later)

    def candidate_values(self) -> dict[HeadId, float]:
        """Return the objective without each remaining head, by head."""
        heads = self.candidates()
        return dict(zip(heads, self.without(heads)[0].tolist(), strict=True))

    def without(self, heads: Sequence[HeadId], *, trails: bool = False) -> tuple[Tensor, Tensor]:
        """Return the objective (K,) and the traits (K, S) without each of the given heads.

        Args:
            heads: Candidates, in order.
            trails: Whether to store the streams without each head within the memory budget, because one of
                the heads is removed next.
        """
        self._streams.trails = trails
        measured = [self._without(self._picks(share)) for share in self._shares(heads)]
        values, traits = map(torch.cat, zip(*measured, strict=True))
        return values, traits

    def traits_around(self, heads: Sequence[HeadId]) -> tuple[Tensor, dict[HeadId, Tensor]]:
        """Return the traits (1, S) of the circuit, and those after a change of each head alone, by head.

        Heads of the circuit are removed, and removed heads are restored. The circuit itself stays the same.
        """
        circuit_traits, after = torch.empty(0), dict[HeadId, Tensor]()
        for share in self._shares(heads):
            picks = self._picks(share)
            *changed, circuit_traits = self._without(picks, around=True)[1].split(1)
            ordered = (
                HeadId(name, i, h)
                for name, layers in picks.items()
                for i, hs in enumerate(layers)
                for h in hs
            )
            after |= zip(ordered, changed, strict=True)
        return circuit_traits, after

    def expected(self, traits: Tensor) -> list[float]:
        """Return the objective of each candidate, computed from its predicted traits.

        Args:
            traits: Predicted traits, shape (K, S).
        """
        roles: dict[str, dict[str, Tensor]] = {role: {} for role in self.data}
        sizes = [size for *_, size in self._layout]
        for (role, name, _), part in zip(self._layout, traits.split(sizes, dim=-1), strict=True):
            roles[role][name] = part
        return self.evaluator.values(
            outcomes_from_traits(Outcomes(**roles), self.evaluator.ood_score)
        ).tolist()

    def passes(self) -> dict[str, int]:
        """Return the number of inputs of each tower in a pass over the data of all processes.

        For a tower with the same inputs in each batch, the number is the size of these inputs.
        """
        counts = dict.fromkeys(self.left, 0)
        for data in self.data.values():
            routed = (self.model.routed(inputs) for inputs, _ in data)
            sizes_here = [torch.tensor([batch_of(towers[name]) for name in self.left]) for towers in routed]
            for sizes in self.team.in_order(sizes_here):
                for name, size in zip(self.left, sizes.tolist(), strict=True):
                    counts[name] = size if name in self.model.answer.fixed else counts[name] + size
        return counts

    def _without(self, picks: Picks, *, around: bool = False) -> tuple[Tensor, Tensor]:
        """Return objective (K,) and traits (K, S) after a change of each head in `picks`; see `answers`."""
        return self._measured(lambda batch: self.answers(batch, picks, around=around))

    def _shares(self, heads: Sequence[HeadId]) -> list[Sequence[HeadId]]:
        """Return heads in order, in groups whose features fit in memory."""
        count = self._at_once or max(1, len(heads))
        return [heads[begin : begin + count] for begin in range(0, max(1, len(heads)), count)]

    def _measured(self, answers_of: Callable[[CircuitBatch], Iterable[Tensor]]) -> tuple[Tensor, Tensor]:
        """Return the objective (K,) and traits (K, S) of candidates on the data of all processes.

        S is 0 if traits are not measured.
        """
        outcomes: dict[str, dict[str, Tensor]] = {}
        traits: dict[tuple[str, str], Tensor] = {}
        for role, data in self.data.items():
            read = outcomes_read(self.evaluator.objective, labelled=role == "id")
            names = (self.evaluator.names(labelled=role == "id"), read)[: len(self._measures)]
            local: dict[tuple[int, str], list[Tensor]] = {
                (i, n): [] for i, ns in enumerate(names) for n in ns
            }
            for i, samples in enumerate(data):
                batch = CircuitBatch(role, i * self.team.world + self.team.rank, *samples)
                parts = [
                    [measure(answers, batch.labels) for measure in self._measures]
                    for answers in (
                        mask_absent_words(_finite(answers), batch.inputs)
                        for answers in self.room.grouped(answers_of(batch))
                    )
                ]
                for (kind, name), batches in local.items():
                    batches.append(torch.cat([part[kind][name] for part in parts]))
            gathered = {key: self.team.in_order(batches) for key, batches in local.items()}
            every = {key: torch.cat(batches, dim=-1) for key, batches in gathered.items() if batches}
            outcomes[role] = {name: x for (kind, name), x in every.items() if kind == 0}
            traits |= {(role, name): x for (kind, name), x in every.items() if kind == 1}
        fitted = self.evaluator.fitted(Outcomes(**outcomes))
        if self.evaluator.features is not None:
            # A fitted score is its own trait.
            traits |= {(role, SCORE): of_role[SCORE].float() for role, of_role in fitted._asdict().items()}
        self._layout = [(*key, x.shape[-1]) for key, x in traits.items()]
        values = self.evaluator.values(fitted)
        return values, torch.cat([*traits.values()], dim=-1) if traits else values.new_empty(len(values), 0)


def _finite(answers: Tensor) -> Tensor:
    if not answers.isfinite().all():
        raise DataError("the outputs of the model are not finite on these data")
    return answers
