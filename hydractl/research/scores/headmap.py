"""The locating step of HeadMap (Wang et al., ICLR 2025) as a pruning method.

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
    """Locate in each layer the `keep` heads whose masking increases the loss most.

    The method uses the `samples` samples with the lowest loss of the whole model (ties go to the first). It
    starts with an empty set C, and proceeds layer by layer and tower by tower. For each head h, loss_h is the
    mean cross-entropy with C and h masked. The `keep` heads of the layer with the largest loss_h join C. Ties
    go to higher heads, because lower heads are removed first in all methods.

    The importance is loss_h minus the loss with only C masked, so `prune --keep-heads n --per-layer` keeps exactly
    C. It can be compared within a layer but not between layers, since deeper layers are scored with more
    masked heads.

    Cost: a pass over all data, then for each head a pass over the samples from the head's layer on, with the
    head's term subtracted from the attention output. Memory holds the samples and the inputs of one layer.

    Raises:
        DataError: If a loss is not finite, or if there are no labels.
    """
    tables: dict[str, list[list[float]]] = {name: [] for name in job.scored}
    with torch.no_grad():
        chosen = lowest_loss_samples(job, job.set_for(HeadmapSettings).samples)
        layers = ((name, row) for name in job.scored for row in _located(job, name, chosen))
        for name, row in progress.track(
            layers, label="Scoring layers", total=sum(t.layers for t in job.scored.values())
        ):
            tables[name].append(row)
    return Ranking(scores=tables)


def lowest_loss_samples(job: ScoreJob, count: int) -> list[Samples | None]:
    """Select the `count` samples with the lowest loss of all ranks; of equal samples the first.

    The result does not depend on the number of ranks.

    Returns:
        The selected samples of each batch of this rank, in order; None for batches without selected samples.

    Raises:
        DataError: If a loss is not finite, or if there are no labels.
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
"""Labels (B,) of a batch, and the outputs (1, N, F) of the other towers."""


def _located(job: ScoreJob, name: str, chosen: Sequence[Samples | None]) -> Iterator[list[float]]:
    """Yield the importance of each layer of a tower. Located heads are removed from the tower."""
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
            if id(stream) not in outputs:  # A tower with fixed inputs has one stream for all batches.
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
    """Return the other towers' outputs for each batch, and the stream before the tower's first block."""
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
    """Return the tower's outputs (1 + K, N, F): unchanged first, then without each head of a layer."""
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
    """Return the streams after a layer. A shared stream of several batches is computed once."""
    block, advanced_by_id = tower.layers()[layer], {}
    for stream in streams:
        if stream is not None and id(stream) not in advanced_by_id:
            advanced_by_id[id(stream)] = block(stream, tower.queries(layer))
    return [None if stream is None else advanced_by_id[id(stream)] for stream in streams]
