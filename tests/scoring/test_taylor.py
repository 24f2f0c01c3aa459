from __future__ import annotations

import pytest
import torch

from hydractl.errors import DataError
from hydractl.progress import SILENT
from hydractl.scoring.job import Samples, ScoreJob
from hydractl.scoring.settings import TaylorSettings
from hydractl.scoring.taylor import score_taylor
from support import naive
from support.builders import base
from support.variants import variant

DOUBLE = torch.float64
COUNT = 10


def labelled(sample):
    labels = torch.randint(0, 7, (COUNT,), generator=torch.Generator().manual_seed(2))
    return sample.inputs(batch=COUNT, seed=1, dtype=DOUBLE), labels


def job_for(sample, *, batch=4, **changes):
    images, labels = labelled(sample)
    data = [Samples(x, y) for x, y in zip(images.split(batch), labels.split(batch), strict=True)]
    return ScoreJob(
        model=sample.model(DOUBLE),
        family=sample.family,
        architecture=sample.header.architecture,
        id_data=data,
        **changes,
    )


def test_global_scores_are_the_papers_formula():
    sample = base(variant("class-token"))

    found = score_taylor(job_for(sample, settings=TaylorSettings(scope="global")), SILENT).scores["vision"]

    library = sample.library(DOUBLE)
    for layer, row in enumerate(found):
        assert row == pytest.approx(naive.taylor_layer(library, layer, *labelled(sample)), rel=1e-10)


@pytest.mark.parametrize("keep", [0, 1, 3, 4])
def test_each_layer_is_scored_without_the_heads_that_went_before(keep):
    sample = base(variant("class-token"))

    found = score_taylor(job_for(sample, keep=keep), SILENT).scores["vision"]

    heads = 4
    kept = [tuple(range(heads))] * len(found)
    for layer, row in enumerate(found):
        library = sample.masked(*kept).library(DOUBLE)
        assert row == pytest.approx(naive.taylor_layer(library, layer, *labelled(sample)), rel=1e-9)
        kept[layer] = tuple(sorted(sorted(range(heads), key=lambda h, row=row: (row[h], h))[heads - keep :]))


def test_batches_do_not_matter():
    sample = base(variant("distilled"))

    one, many = (
        score_taylor(job_for(sample, batch=n, settings=TaylorSettings(scope="global")), SILENT).scores[
            "vision"
        ]
        for n in (COUNT, 3)
    )

    assert torch.tensor(one) == pytest.approx(torch.tensor(many), rel=1e-10)


def test_non_finite_gradients_are_refused():
    sample = base(variant("class-token"))
    state = {n: t * float("nan") if n == "head.weight" else t for n, t in sample.state.items()}

    with pytest.raises(DataError, match="not finite"):
        score_taylor(
            job_for(type(sample)(sample.header, state), settings=TaylorSettings(scope="global")), SILENT
        )
