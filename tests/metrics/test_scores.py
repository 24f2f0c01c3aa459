"""OOD scores: their formulas, and that the unsure are the strange."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hydractl.metrics.scores import LOGIT_SCORES, msp_score


def test_msp_is_higher_for_the_unsure():
    scores = msp_score(torch.tensor([[1.0, 0.0], [0.5, 0.5]]))

    assert scores.tolist() == [-1.0, -0.5]


@given(st.integers(0, 10_000))
def test_scores_of_logits(seed):
    logits = 4 * torch.randn(3, 6, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    probs = logits.softmax(-1)

    found = {name: score(logits) for name, score in LOGIT_SCORES.items()}

    assert torch.equal(found["msp"].flatten(), msp_score(probs.flatten(0, 1)))
    torch.testing.assert_close(found["energy"], -logits.exp().sum(-1).log())
    torch.testing.assert_close(found["entropy"], -(probs * probs.log()).sum(-1))
    assert torch.equal(found["max-logit"], -logits.max(-1).values)
    assert all(score.shape == (3, 6) for score in found.values())


@pytest.mark.parametrize("name", LOGIT_SCORES)
def test_scores_grow_with_strangeness(name):
    sure, unsure = torch.tensor([9.0, 0.0, 0.0]), torch.tensor([1.0, 0.9, 0.8])

    assert LOGIT_SCORES[name](unsure) > LOGIT_SCORES[name](sure)
