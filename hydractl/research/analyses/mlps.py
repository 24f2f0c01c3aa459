"""What merging weights changes: a hydra beside the members that it was fused from (Hydra Ensembles, B.7, Table 11).

Axes: N samples, B some of them, C classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from hydractl.families.base import place_of
from hydractl.families.load import OpenModel, load_model
from hydractl.families.tower import Towers
from hydractl.fusion.prompts import settle
from hydractl.manifest.analyses import MergedAndSeparate, Merging
from hydractl.manifest.header import Fate
from hydractl.manifest.shift_groups import ID_NAME
from hydractl.metrics.per_sample import Joined, StoredPredictions, at_once, ensemble_log_probs
from hydractl.research.analyses.predictions import ask, measured
from hydractl.stages.evaluate.analyses.context import AnalysisContext, ModelOfRow


def analyse(context: AnalysisContext) -> Merging | None:
    """Return the numbers of both, how alike their answers are, and how far merged weights are from those that they are the means of.

    Logits of both are divided by the hydra's temperature.
    """
    if not context.separate_members:
        return None
    (part,) = context.parts
    merged = ask(context, part, part.model)
    member_predictions = [ask(context, part, model) for model in _loaded(context, part)]
    separate: dict[str, StoredPredictions] = {
        name: Joined(tuple(model_predictions[name] for model_predictions in member_predictions))
        for name in merged
    }
    values, groups = zip(*(measured(context, predictions) for predictions in (merged, separate)), strict=True)
    agreement, divergence = compare_answers(merged[ID_NAME], separate[ID_NAME])
    return Merging(
        values=_pairs(*values),
        means={group: _pairs(groups[0][group], groups[1][group]) for group in groups[0]},
        agreement=agreement,
        divergence=divergence,
        distances=distances(part.opened, context.separate_members),
    )


def _loaded(context: AnalysisContext, part: ModelOfRow) -> Iterator[Towers]:
    """Yield the members, one at a time, as the hydra runs."""
    for opened in context.separate_members:
        model = load_model(opened, dtype=part.model.dtype).to(part.model.device)
        settle(model, opened, context.classes)
        yield model


def compare_answers(merged: StoredPredictions, separate: StoredPredictions) -> tuple[float, float]:
    """Return how often two ensembles say the same class of N samples, and the mean KL divergence of the first from the second."""
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
    """Return how far members' merged weights are from their mean, by `tower.layer`; those outside of blocks are `tower`'s."""
    fates = hydra.header.plan.fates if hydra.header.plan is not None else {}
    off: dict[str, float] = {}
    lengths: dict[str, float] = {}
    for name in sorted(name for name, fate in fates.items() if fate is Fate.MERGED):
        place = place_of(hydra.family, name)
        where = place.tower if place.layer is None else f"{place.tower}.{place.layer}"
        mean = hydra.checkpoint.tensor(name).double()
        squared_distances = torch.stack(
            [(member.checkpoint.tensor(name).double() - mean).square().sum() for member in members]
        )
        off[where] = off.get(where, 0.0) + float(squared_distances.mean())
        lengths[where] = lengths.get(where, 0.0) + float(mean.square().sum())
    return {where: (off[where] / lengths[where]) ** 0.5 for where in off if lengths[where]}
