"""First-order Taylor scores of every head of every tower (Hydra Ensembles, C.3, Figure 7)."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from hydractl.manifest.analyses import HeadTable
from hydractl.progress import SILENT
from hydractl.research.analyses.load_models import LabelledBatches, members_of
from hydractl.scoring.job import ScoreJob
from hydractl.scoring.settings import TaylorSettings
from hydractl.scoring.taylor import score_taylor
from hydractl.stages.evaluate.analyses.context import AnalysisContext


def analyse(context: AnalysisContext) -> tuple[HeadTable, ...]:
    """Return for each member what `score --method taylor --scope global` says on the ID set: |weight × gradient| of q, k and v.

    Nothing is normalised, so that towers can be compared.
    """
    return tuple(_tables(context))


def _tables(context: AnalysisContext) -> Iterator[HeadTable]:
    for part in context.parts:
        opened = part.opened
        for member, model in enumerate(members_of(part, context)):
            job = ScoreJob(
                model=model,
                family=opened.family,
                architecture=opened.header.architecture,
                id_data=LabelledBatches(
                    context, part, torch.empty(0, device=model.device, dtype=model.dtype)
                ),
                settings=TaylorSettings(scope="global"),
                team=context.team,
            )
            # it would say that `prune` compares the scores of towers, by an option of `score`
            for tower, rows in score_taylor(job, SILENT).scores.items():
                mask = opened.header.masks[member][tower]
                placed = [
                    dict(zip(head_numbers, map(float, row), strict=True))
                    for head_numbers, row in zip(mask.keep, rows, strict=True)
                ]
                yield HeadTable(
                    member=part.first + member,
                    tower=tower,
                    scores=tuple(
                        tuple(score_by_head.get(head) for head in range(mask.num_heads))
                        for score_by_head in placed
                    ),
                )
