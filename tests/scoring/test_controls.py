from __future__ import annotations

import pytest
import torch

from hydractl.errors import UsageError
from hydractl.scoring.job import ScoreJob
from hydractl.scoring.settings import MagnitudeSettings
from hydractl.scoring.weight_importance import score_magnitude, score_random
from support.builders import base
from support.variants import variant

DOUBLE = torch.float64


def job_for(sample, **changes):
    return ScoreJob(
        model=sample.model(DOUBLE), family=sample.family, architecture=sample.header.architecture, **changes
    )


def test_random_scores_are_a_function_of_the_seed():
    sample = base(variant("class-token"))

    first, again, other = (score_random(job_for(sample, seed=s)).scores["vision"] for s in (1, 1, 2))

    assert first == again != other
    assert all(0 <= s < 1 for row in first for s in row)
    # the value must be the same on every machine
    assert first[0][0] == pytest.approx(0.12010046664302088, abs=1e-15)


def test_magnitude_is_the_mean_of_four_means():
    sample = base(variant("class-token"))
    attention = sample.library(DOUBLE).blocks[1].attn

    found = score_magnitude(job_for(sample)).scores["vision"][1]

    q, k, v = attention.qkv.weight.detach().split(32)
    for head in range(4):
        rows = slice(8 * head, 8 * head + 8)
        parts = [q[rows], k[rows], v[rows], attention.proj.weight.detach()[:, rows]]
        assert found[head] == pytest.approx(sum(p.abs().mean().item() for p in parts) / 4, rel=1e-12)


def test_magnitude_scales_with_the_weights():
    sample = base(variant("class-token"))
    doubled = type(sample)(sample.header, {n: 2 * t for n, t in sample.state.items()})

    one, two = (torch.tensor(score_magnitude(job_for(s)).scores["vision"]) for s in (sample, doubled))

    assert torch.allclose(two, 2 * one)


def test_magnitude_is_normalised_as_asked():
    sample = base(variant("class-token"))
    plain, layer, tower = (
        torch.tensor(
            score_magnitude(job_for(sample, settings=MagnitudeSettings(normalize=preprocess))).scores[
                "vision"
            ]
        )
        for preprocess in ("none", "layer", "tower")
    )

    assert torch.allclose(layer, plain / plain.norm(dim=1, keepdim=True))
    assert torch.allclose(tower, plain / plain.square().mean().sqrt())
    with pytest.raises(UsageError, match="`--normalize x`: unknown"):
        MagnitudeSettings(normalize="x")
