"""Metrics of ensembles with fewer members, unmerged weights or fewer heads (Hydra Ensembles, B.3, B.6, B.7).

The analyses extend Figure 5 and Tables 10 and 11 of the paper.

Axes: N samples, B samples of a chunk, C classes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations

import torch

from hydractl.families.attention import Attention
from hydractl.families.base import position_of
from hydractl.families.open_model import OpenModel, load_model
from hydractl.families.tower import Towers
from hydractl.heads.masks import best_mask, best_mask_per_layer, removal_order, total_kept
from hydractl.manifest.head_mask import HeadImportance, Mask, Shape
from hydractl.manifest.header import Fate, Kind
from hydractl.manifest.terms import ID_NAME
from hydractl.metrics.per_sample import Joined, StoredPredictions, at_once, ensemble_log_probs
from hydractl.prediction.class_names import set_classes
from hydractl.research.analyses.context import (
    AnalysisContext,
    ModelOfRow,
    load_single,
    measure_ensemble,
    predict_sets,
)
from hydractl.research.schema import BaseWithFewerHeads, EnsembleSize, MergedAndSeparate, Merging, Spread
from hydractl.scoring.attention_hooks import Gated, tapped

MAX_ENSEMBLES = 20
"""Largest number of measured ensembles of a size; larger sets of ensembles are sampled.

Chosen by hand: all ensembles of a row with up to 6 members are measured, since 6 members have at most 20
subsets of one size. Doubling covers 7 members (35 subsets), and at most doubles the time.
"""


def analyse_members(context: AnalysisContext) -> tuple[EnsembleSize, ...]:
    """Measure ensembles of 1, 2, ... members, up to all members.

    Each entry has the mean, minimum and maximum over ensembles of a size. An ensemble averages the
    probabilities of the members. Entries have no intervals, because ensembles of a size share members and
    samples.

    Returns:
        An entry per size. Empty for a row with a single member, and on all ranks except the leading rank.
    """
    if not context.predictions:
        return ()
    member_predictions = {
        name: tuple(predictions.members()) for name, predictions in context.predictions.items()
    }
    count = len(member_predictions[ID_NAME])
    return (
        tuple(_size(context, member_predictions, count, size) for size in range(1, count + 1))
        if count > 1
        else ()
    )


def _size(
    context: AnalysisContext,
    member_predictions: Mapping[str, Sequence[StoredPredictions]],
    count: int,
    size: int,
) -> EnsembleSize:
    """Return the metrics of ensembles with `size` of `count` members, all or `MAX_ENSEMBLES` of them."""
    values: list[dict[str, float]] = []
    groups: list[dict[str, dict[str, float]]] = []
    for chosen in subsets(count, size, seed=context.run.measurement.resampling.seed):
        predictions = {
            name: Joined(tuple(set_predictions[m] for m in chosen))
            for name, set_predictions in member_predictions.items()
        }
        numbers = measure_ensemble(context, predictions)
        values.append(numbers.values)
        groups.append(numbers.means)
    return EnsembleSize(
        members=size,
        measured=len(values),
        possible=math.comb(count, size),
        values=_spreads(values),
        means={group: _spreads([group_means[group] for group_means in groups]) for group in groups[0]},
    )


def subsets(count: int, size: int, *, seed: int) -> Iterator[tuple[int, ...]]:
    """Yield the ensembles of a size in lexicographic order.

    Args:
        count: Number of members.
        size: Members per ensemble.
        seed: Seed of the sampling.

    Yields:
        Increasing member indices. All ensembles up to a number of `MAX_ENSEMBLES`, otherwise `MAX_ENSEMBLES` distinct random
        ensembles.
    """
    if math.comb(count, size) <= MAX_ENSEMBLES:
        yield from combinations(range(count), size)
        return
    draw = random.Random(f"members {seed} {count} {size}")  # noqa: S311 - no secret
    chosen: set[tuple[int, ...]] = set()
    while len(chosen) < MAX_ENSEMBLES:
        chosen.add(tuple(sorted(draw.sample(range(count), size))))
    yield from sorted(chosen)


def _spreads(numbers: Sequence[Mapping[str, float]]) -> dict[str, Spread]:
    columns = {name: [ensemble_numbers[name] for ensemble_numbers in numbers] for name in numbers[0]}
    return {
        name: Spread(mean=math.fsum(column) / len(column), low=min(column), high=max(column))
        for name, column in columns.items()
    }


def analyse_mlps(context: AnalysisContext) -> Merging | None:
    """Compare a hydra with merged weights and the ensemble of its separate members (Hydra Ensembles, B.7).

    The numbers are those of Table 11. The logits of both are divided by the hydra's temperature.

    Returns:
        Metrics of both, agreement and divergence of their predictions, and distances of the members' weights
        from the merged weights. None if no row has exactly these members.
    """
    if not context.separate_members:
        return None
    (part,) = context.parts
    merged = predict_sets(context, part, part.model)
    member_predictions = [predict_sets(context, part, model) for model in _separate_models(context, part)]
    separate: dict[str, StoredPredictions] = {
        name: Joined(tuple(model_predictions[name] for model_predictions in member_predictions))
        for name in merged
    }
    values, groups = zip(
        *(measure_ensemble(context, predictions) for predictions in (merged, separate)), strict=True
    )
    agreement, divergence = compare_answers(merged[ID_NAME], separate[ID_NAME])
    return Merging(
        values=_pairs(*values),
        means={group: _pairs(groups[0][group], groups[1][group]) for group in groups[0]},
        agreement=agreement,
        divergence=divergence,
        distances=distances(part.model_file, context.separate_members),
    )


def _separate_models(context: AnalysisContext, part: ModelOfRow) -> Iterator[Towers]:
    """Yield the separate members in turn, in the hydra's dtype and on the hydra's device."""
    for model_file in context.separate_members:
        model = load_model(model_file, dtype=part.model.dtype).to(part.model.device)
        set_classes(model, model_file, context.run.data.classes)
        yield model


def compare_answers(merged: StoredPredictions, separate: StoredPredictions) -> tuple[float, float]:
    """Compare the predictions of two ensembles on the same N samples.

    Returns:
        Share of samples with the same predicted class, and the mean of KL(separate || merged) in nats.
    """
    _, count, _ = separate.shape
    size, agreements, divergence = at_once(separate), 0, 0.0
    for parts in zip(merged.split(size), separate.split(size), strict=True):
        ours, theirs = (ensemble_log_probs(part.log_probs.double()) for part in parts)  # (B, C)
        agreements += int((ours.argmax(1) == theirs.argmax(1)).sum())
        divergence += float((theirs.exp() * (theirs - ours)).sum())
    return agreements / count, divergence / count


def _pairs(merged: Mapping[str, float], separate: Mapping[str, float]) -> dict[str, MergedAndSeparate]:
    return {name: MergedAndSeparate(merged=value, apart=separate[name]) for name, value in merged.items()}


def distances(hydra: OpenModel, members: Sequence[OpenModel]) -> dict[str, float]:
    """Return the relative distance of the members' merged weights from their mean, for each block.

    Args:
        hydra: Hydra with the merged weights, the means of the members' weights.
        members: The members before fusion.

    Returns:
        Square root of the members' mean squared distance divided by the squared norm of the mean. Keys are
        `tower.layer`, and `tower` for weights outside blocks. Blocks with a mean of zero are omitted.
    """
    fates = hydra.header.plan.fates if hydra.header.plan is not None else {}
    squared_distance: dict[str, float] = {}
    squared_norm: dict[str, float] = {}
    for name in sorted(name for name, fate in fates.items() if fate is Fate.MERGED):
        place = position_of(hydra.family, name)
        where = place.tower if place.layer is None else f"{place.tower}.{place.layer}"
        mean = hydra.checkpoint.tensor(name).double()
        squared_distances = torch.stack(
            [(member.checkpoint.tensor(name).double() - mean).square().sum() for member in members]
        )
        squared_distance[where] = squared_distance.get(where, 0.0) + float(squared_distances.mean())
        squared_norm[where] = squared_norm.get(where, 0.0) + float(mean.square().sum())
    return {
        where: (squared_distance[where] / squared_norm[where]) ** 0.5
        for where in squared_distance
        if squared_norm[where]
    }


REMOVED_SIXTHS = range(1, 6)
"""Removed sixths of the heads. With 12 heads in a layer, a sixth is 2 heads, as in Figure 5 of Hydra
Ensembles (2, 4, 6 and 8 removed)."""


def analyse_heads(context: AnalysisContext) -> tuple[BaseWithFewerHeads, ...]:
    """Measure a base without its least important heads, by each file of `--scores` (Hydra Ensembles, B.3).

    From one to five sixths of the heads are masked, without training; a masked head gives the same outputs as
    a pruned head. If the scoring method had a budget per layer, every layer loses the same number of heads.
    Otherwise heads are removed over the whole model, up to the end of a greedy method's order. Logits are
    divided by the row's temperature.

    Returns:
        An entry per file and number of heads. Empty if the row is not a single base.
    """
    return tuple(
        pruned_base
        for part in context.parts
        if part.model_file.header.kind == Kind.BASE and len(context.parts) == 1
        for pruned_base in _fewer(context, part)
    )


def _fewer(context: AnalysisContext, part: ModelOfRow) -> Iterator[BaseWithFewerHeads]:
    model = load_single(part.model_file, context)
    shape = part.model_file.header.architecture.towers
    for label, importance in context.scores.items():
        scored = {name: shape[name] for name in importance.towers}
        total = sum(tower.layers * tower.num_heads for tower in scored.values())
        for mask in masks(importance, scored):
            with tapped(model, scored, partial(_gated, mask)):
                numbers = measure_ensemble(context, predict_sets(context, part, model))
            yield BaseWithFewerHeads(
                scores=label,
                kept=total_kept(mask),
                heads=total,
                values=numbers.values,
                means=numbers.means,
            )


def _gated(mask: Mask, tower: str, layer: int, attention: Attention) -> Attention:
    """Return attention with zero output of removed heads."""
    group = attention.groups()[0]
    gate = torch.zeros(group.heads, device=group.proj.weight.device)
    gate[list(mask[tower].keep[layer])] = 1.0
    return Gated(attention, gate)


def masks(importance: HeadImportance, shape: Shape) -> Iterator[Mask]:
    """Yield masks that keep fewer and fewer heads by importance, without repetitions."""
    order = removal_order(
        importance.tables,
        None if importance.removals is None else [removal.id for removal in importance.removals],
    )
    total = sum(size.layers * size.num_heads for size in shape.values())
    counts = {total}
    for sixth in REMOVED_SIXTHS:
        mask: Mask
        if "keep" in importance.options:  # only methods with a budget per layer have this option
            mask = {
                name: best_mask_per_layer(
                    [head for head in order if head.tower == name],
                    {name: size},
                    keep=size.num_heads - round(size.num_heads * sixth / 6),
                )[name]
                for name, size in shape.items()
            }
        elif round(total * sixth / 6) <= len(order):
            mask = best_mask(order, shape, removals=round(total * sixth / 6))
        else:
            return
        if total_kept(mask) not in counts:
            counts.add(total_kept(mask))
            yield mask
