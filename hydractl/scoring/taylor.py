"""First-order Taylor scores of heads (Hydra Ensembles, appendix D.1.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - the field's own name

from hydractl.errors import DataError
from hydractl.families.base import HeadTensor, Role, locate
from hydractl.scoring.job import Ranking, ScoreJob
from hydractl.scoring.settings import TaylorSettings

if TYPE_CHECKING:
    from hydractl.families.tower import Tower
    from hydractl.progress import Progress


def score_taylor(job: ScoreJob, progress: Progress) -> Ranking:
    """Score heads by |weight × gradient| of their q, k and v rows; the output projection and biases do not count.

    s_h = mean over q, k, v of 1/(K D) Σ |W ∘ G|, where G is the gradient of the cross-entropy, averaged over the
    calibration data, with respect to W. With `scope` `layer`, layers are taken from the first to the last: the
    layer's lowest-scored heads but `keep` are removed, and the next layer's gradients are computed without them.
    With `global` all layers are scored at once on the whole model. Of equal scores the lower head goes first.
    """
    tables = {name: [[0.0] * t.num_heads for _ in range(t.layers)] for name, t in job.scored.items()}
    places = [(tower, layer) for tower, t in job.scored.items() for layer in range(t.layers)]
    if job.set_for(TaylorSettings).scope == "global":
        for (tower, layer), scores in _scored(job, places).items():
            tables[tower][layer] = scores
        return Ranking(scores=tables)
    for place in progress.track(places, label="Scoring layers", total=len(places)):
        tower, layer = place
        scores = _scored(job, [place])[place]
        tables[tower][layer] = scores
        order = sorted(range(len(scores)), key=lambda head: (scores[head], head))
        _keep_heads(job.model.tower(tower), layer, sorted(order[len(order) - job.keep :] if job.keep else []))
    return Ranking(scores=tables)


def _scored(job: ScoreJob, places: list[tuple[str, int]]) -> dict[tuple[str, int], list[float]]:
    """Return the scores of the heads of some layers."""
    weights = _input_weights(job, places)
    for parameter in job.model.parameters():
        parameter.requires_grad = False
    for parameter, _ in (pair for pairs in weights.values() for pair in pairs):
        parameter.requires_grad_()
        parameter.grad = None
    _accumulate(job)
    scores = {}
    for place, pairs in weights.items():
        tower = job.architecture.towers[place[0]]
        per_matrix = [
            (p.detach().double() * _gradient(p))
            .abs()
            .movedim(h.axis, 0)
            .reshape(h.copies, tower.num_heads, -1)
            .mean(dim=-1)
            for p, h in pairs
        ]
        scores[place] = torch.cat(per_matrix).mean(dim=0).tolist()
    return scores


def _gradient(parameter: nn.Parameter) -> torch.Tensor:
    if parameter.grad is None or not parameter.grad.isfinite().all():
        raise DataError("the gradients are not finite; is the model trained, and is its input normalised?")
    return parameter.grad.double()


def _accumulate(job: ScoreJob) -> None:
    """Add up the gradient of the summed cross-entropy, then divide by the number of samples."""
    count = 0
    with torch.enable_grad():
        for inputs, labels in job.id_data:
            if labels is None:
                raise DataError("scoring by gradients needs labelled data")
            logits = job.model(inputs)
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
            loss = F.cross_entropy(logits, labels, reduction="sum")
            loss.backward()
            count += len(labels)
    for parameter in job.model.parameters():
        if parameter.grad is not None:
            parameter.grad /= count


def _input_weights(
    job: ScoreJob, places: list[tuple[str, int]]
) -> dict[tuple[str, int], list[tuple[nn.Parameter, HeadTensor]]]:
    found: dict[tuple[str, int], list[tuple[nn.Parameter, HeadTensor]]] = {place: [] for place in places}
    for name, tensor in job.model.library_state().items():
        place = locate(job.family, name)
        if place.heads is None or place.layer is None or place.heads.role != Role.INPUT:
            continue
        if (key := (place.tower, place.layer)) in found:
            found[key].append((cast("nn.Parameter", tensor), place.heads))
    return found


def _keep_heads(tower: Tower, layer: int, kept: list[int]) -> None:
    attention = tower.layers()[layer].attn
    attention.members[0] = attention.groups()[0].select(kept)
