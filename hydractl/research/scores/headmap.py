"""The locating step of HeadMap as a pruning method (Wang et al., ICLR 2025): keeps the heads whose masking hurts most.

Axes: K heads of a layer, B samples of a batch, C classes, N inputs of a tower, F features.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import torch

from hydractl import progress
from hydractl.families.stream import Stream
from hydractl.families.tower import Tower
from hydractl.model_inputs import map_inputs
from hydractl.research.scores.options import HeadmapSettings
from hydractl.scoring.attention_hooks import heads_left, keep_heads
from hydractl.scoring.circuit.tower import LayerInput, MemoryBudget, iterate_ablations
from hydractl.scoring.gradients import losses_of, not_finite, sample_losses
from hydractl.scoring.job import Ranking, Samples, ScoreJob


def score_headmap(job: ScoreJob) -> Ranking:
    """Locate in each layer the `keep` heads whose masking increases the loss most, while all heads located before are masked too.

    Uses the `samples` samples with the lowest loss under the whole model (ties go to the first). Starting with C = {},
    layer by layer and tower by tower, for each head h: loss_h is the mean cross-entropy with C and h masked; the `keep`
    heads with the largest loss are added to C, among equals the higher ones, because lower heads are removed first
    everywhere.

    The score is loss_h − loss with only C masked, so the `keep` highest of each layer are the located ones, and `prune
    --keep n --per-layer` keeps exactly C. Scores are comparable within a layer, but not between layers, because more of
    the model is masked in deeper ones.

    Cost: one pass over all data, then for each head a pass over the samples from its layer on, in which the head's term
    is subtracted from the attention output. Memory holds the samples and the input of the layer.

    Raises:
        DataError: If a loss is not finite, or there are no labels.
    """
    tables: dict[str, list[list[float]]] = {name: [] for name in job.scored}
    with torch.no_grad():
        chosen = easiest(job, job.set_for(HeadmapSettings).samples)
        layers = ((name, row) for name in job.scored for row in _located(job, name, chosen))
        for name, row in progress.track(
            layers, label="Scoring layers", total=sum(t.layers for t in job.scored.values())
        ):
            tables[name].append(row)
    return Ranking(scores=tables)


def easiest(job: ScoreJob, count: int) -> list[Samples | None]:
    """Return of each of this process's batches the samples that are among the `count` of the lowest loss of all data.

    A batch is cut, not mixed with others, so the number of processes changes nothing. None where no sample was chosen; all
    samples if there are no more than `count`. Of equal losses the first in the order of the data.
    """
    losses = job.team.in_order([sample_losses(job.model, samples).double() for samples in job.id_data])
    every = torch.cat(losses)
    if not every.isfinite().all():
        raise not_finite("losses")
    chosen = torch.zeros(len(every), dtype=torch.bool)
    chosen[every.sort(stable=True).indices[:count]] = True
    masks = chosen.split([len(x) for x in losses])[job.team.rank :: job.team.world]
    return [_cut(samples, mask) for samples, mask in zip(job.id_data, masks, strict=True)]


def _cut(samples: Samples, mask: torch.Tensor) -> Samples | None:
    if samples.labels is None or not mask.any():
        return None
    rows = mask.nonzero().squeeze(1).to(samples.labels.device)
    return Samples(map_inputs(lambda x: x[rows], samples.inputs), samples.labels[rows])


_BatchInTower: TypeAlias = "tuple[torch.Tensor, dict[str, torch.Tensor]]"
"""A batch on its way through a tower: its labels (B,), and the other towers' outputs (1, N, F)."""


def _located(job: ScoreJob, name: str, chosen: Sequence[Samples | None]) -> Iterator[list[float]]:
    """Yield the scores of each layer of a tower, and leave the tower without the heads located."""
    tower, heads = job.model.tower(name), job.scored[name].num_heads
    room = MemoryBudget(job.model.device, job.max_memory, keeps_streams=False)
    batches, streams = _entering(job, name, chosen)
    for layer in range(job.scored[name].layers):
        outputs: dict[int, torch.Tensor] = {}
        losses = []
        for located, stream in zip(batches, streams, strict=True):
            if located is None or stream is None:
                losses.append(torch.zeros(1 + heads, 0, dtype=torch.float64))
                continue
            if id(stream) not in outputs:  # of a tower that is always asked the same there is one stream
                outputs = {id(stream): _without_each(tower, layer, stream, room)}
            labels, others = located
            logits = job.model.answer(others | {name: outputs[id(stream)]})
            losses.append(losses_of(logits, labels).double())
        means = torch.cat(job.team.in_order(losses), dim=1).mean(dim=1)
        if not means.isfinite().all():
            raise not_finite("losses")
        scores = (means[1:] - means[0]).tolist()
        yield scores
        order = sorted(heads_left(tower, layer), key=lambda head: (scores[head], head))
        keep_heads(tower, layer, order[: max(0, heads - job.keep)])
        streams = _advanced(tower, layer, streams)


def _entering(
    job: ScoreJob, name: str, chosen: Sequence[Samples | None]
) -> tuple[list[_BatchInTower | None], list[Stream | None]]:
    """Return each batch's other towers' outputs and the stream that enters the tower's first block."""
    fixed: dict[str, torch.Tensor] = {}
    shared: Stream | None = None
    batches: list[_BatchInTower | None] = []
    streams: list[Stream | None] = []
    for samples in chosen:
        if samples is None or samples.labels is None:
            batches.append(None)
            streams.append(None)
            continue
        routed = job.model.routed(samples.inputs)
        others = {}
        for other_tower, tower_inputs in routed.items():
            if other_tower == name:
                continue
            others[other_tower] = (
                fixed[other_tower]
                if other_tower in fixed
                else job.model.tower(other_tower)(tower_inputs).unsqueeze(0)
            )
            if other_tower in job.model.answer.fixed:
                fixed[other_tower] = others[other_tower]
        if shared is None or name not in job.model.answer.fixed:
            shared = job.model.tower(name).embed(routed[name])
        batches.append((samples.labels, others))
        streams.append(shared)
    return batches, streams


def _without_each(tower: Tower, layer: int, stream: Stream, room: MemoryBudget) -> torch.Tensor:
    """Return the tower's outputs (1 + K, N, F): as it is, and without each head of a layer."""
    block, queries = tower.layers()[layer], tower.queries(layer)
    z = block.heads(stream, queries)
    y = block.project(z)
    if queries is not None:
        stream = stream.with_tokens(stream.tokens[:, queries])
    full_outputs = tower.resume(block.join(stream, y), layer + 1).unsqueeze(0)
    heads = range(block.attn.groups()[0].heads)
    ablations = iterate_ablations(tower, layer, LayerInput(block, stream, z, y), heads, room)
    return torch.cat([full_outputs, *(ablation.outputs for ablation in ablations)])


def _advanced(tower: Tower, layer: int, streams: Sequence[Stream | None]) -> list[Stream | None]:
    """Return the streams that leave a layer; equal ones stay one."""
    block, advanced_by_id = tower.layers()[layer], {}
    for stream in streams:
        if stream is not None and id(stream) not in advanced_by_id:
            advanced_by_id[id(stream)] = block(stream, tower.queries(layer))
    return [None if stream is None else advanced_by_id[id(stream)] for stream in streams]
