"""How many heads a model needs: metrics as ever more of them go, without training (Hydra Ensembles, B.3, Figure 5)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from hydractl.families.attention import Attention
from hydractl.heads.masks import best_mask, best_mask_per_layer, removal_order, total_kept
from hydractl.manifest.analyses import BaseWithFewerHeads
from hydractl.manifest.head_mask import HeadScores, Mask, Shape
from hydractl.manifest.header import Kind
from hydractl.research.analyses.load_models import single
from hydractl.research.analyses.predictions import ask, measured
from hydractl.scoring.attention_hooks import Gated, tapped
from hydractl.stages.evaluate.analyses.context import AnalysisContext, ModelOfRow

SIXTHS = range(1, 6)


def analyse(context: AnalysisContext) -> tuple[BaseWithFewerHeads, ...]:
    """Return the metrics of a base whose least important heads are masked, by each file of scores: a sixth of the heads, two, to five.

    Masking a head is pruning it. Where layers were scored one by one, every layer loses equally many; else heads go over the whole
    model, as far as the order of a greedy method goes. The temperature is that of the row.
    """
    return tuple(
        pruned_base
        for part in context.parts
        if part.opened.header.kind == Kind.BASE and len(context.parts) == 1
        for pruned_base in _fewer(context, part)
    )


def _fewer(context: AnalysisContext, part: ModelOfRow) -> Iterator[BaseWithFewerHeads]:
    model = single(part.opened, context)
    shape = part.opened.header.architecture.towers
    for label, scores in context.scores.items():
        scored = {name: shape[name] for name in scores.towers}
        total = sum(tower.layers * tower.num_heads for tower in scored.values())
        for mask in masks(scores, scored):
            with tapped(model, scored, partial(_gated, mask)):
                numbers = measured(context, ask(context, part, model))
            yield BaseWithFewerHeads(
                scores=label,
                kept=total_kept(mask),
                heads=total,
                values=numbers.values,
                means=numbers.means,
            )


def _gated(mask: Mask, tower: str, layer: int, attention: Attention) -> Attention:
    """Return attention without what heads say that a mask removes."""
    group = attention.groups()[0]
    gate = torch.zeros(group.heads, device=group.proj.weight.device)
    gate[list(mask[tower].keep[layer])] = 1.0
    return Gated(attention, gate)


def masks(scores: HeadScores, shape: Shape) -> Iterator[Mask]:
    """Yield masks that keep ever fewer heads by scores, each once."""
    order = removal_order(
        scores.tables, None if scores.removals is None else [removal.id for removal in scores.removals]
    )
    total = sum(size.layers * size.num_heads for size in shape.values())
    counts = {total}
    for sixth in SIXTHS:
        mask: Mask
        if "keep" in scores.options:  # the method's own budget was that of a layer
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
