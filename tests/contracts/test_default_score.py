"""All variants: the default OOD score of Auto classes and exported graphs equals the score of `predict`."""

from __future__ import annotations

import pytest
import torch

from hydractl.data.batches import Batch
from hydractl.families.registry import FAMILIES
from hydractl.families.tower import Contrast, largest_difference, unit
from hydractl.fusion.hydra import Hydra
from hydractl.metrics.ood_scores import ENERGY_DENSITY, MSP, SCORES
from hydractl.prediction.feature_ood import Predictor, WithDefaultScore
from support.builders import base
from support.stored_scores import COUNT, fitted
from support.variants import OF_CLASSES, PLAIN, READERS

KEEPS = (((0, 2, 3), (), (1,)), ((), (1, 2), (0, 3)))


def images_or_texts(sample, *, batch, seed):
    inputs = sample.inputs(batch=batch, seed=seed)
    return inputs["pixel_values"] if sample.header.prompting else inputs


def hydra_of(sample):
    """Return a hydra of two members without shared tensors; a zero-shot model gets seven classes."""
    hydra = Hydra([sample.pruned(*keep).tuned(i).model() for i, keep in enumerate(KEEPS)]).eval()
    for seed, answer in enumerate(hydra.answers):
        if isinstance(answer, Contrast):
            answer.set_class_embeddings(
                unit(torch.randn(7, answer.width, generator=torch.Generator().manual_seed(seed)))
            )
    return hydra


def scores_of(hydra, sample):
    fit, val = (images_or_texts(sample, batch=COUNT, seed=seed) for seed in (1, 2))
    return fitted(hydra, FAMILIES[sample.header.architecture.family], fit, val)


@torch.inference_mode()
@pytest.mark.spread(
    families=(*READERS, "transformers-vit"),
    every=12,
)
@pytest.mark.parametrize("variant", OF_CLASSES, ids=str)
def test_the_score_of_one_graph_is_that_of_predict(variant):
    """The temperature differs from the temperature of the fit."""
    sample = base(variant)
    hydra, family = hydra_of(sample), FAMILIES[sample.header.architecture.family]
    scores = scores_of(hydra, sample)
    hydra.temperature = 2.0
    asked = images_or_texts(sample, batch=5, seed=3)

    logits, found = WithDefaultScore(hydra, scores, family, name="m")(asked)

    beside = Predictor(model=hydra, name="m", preprocess=sample.header.preprocess).with_scores(scores, family)
    ((*_, expected),) = beside.responses([Batch(asked, torch.arange(5))], data="d")
    assert largest_difference(found, expected[0, :, 0]) < 1e-4
    assert found.unique().numel() == 5
    torch.testing.assert_close(logits, hydra.member_logits(asked))


@torch.inference_mode()
def test_without_a_stored_score_it_is_msp():
    hydra, asked = hydra_of(base(PLAIN)), base(PLAIN).inputs(batch=3)
    with_score = WithDefaultScore(hydra, None, FAMILIES["timm-vit"], name="m")

    logits, found = with_score(asked)

    assert with_score.score == MSP
    torch.testing.assert_close(found, SCORES[MSP].of(logits))
    assert not [*with_score.buffers()]


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_the_score_keeps_its_digits_in_any_dtype(dtype):
    """Buffers remain float32 after a conversion and under autocast."""
    sample = base(PLAIN)
    hydra = hydra_of(sample)
    with_score = WithDefaultScore(hydra, scores_of(hydra, sample), FAMILIES["timm-vit"], name="m")
    assert with_score.score == ENERGY_DENSITY
    asked = sample.inputs(batch=5, seed=3)
    _, before = with_score(asked)

    with_score.to(dtype)
    with torch.autocast("cpu", torch.bfloat16):
        logits, features = (x.float() for x in with_score.extractor.outputs(asked))
        beside = with_score.energy_density(logits, features)

    assert {buffer.dtype for buffer in with_score.buffers()} == {torch.float32}
    assert not with_score.state_dict()
    assert torch.equal(with_score(asked)[1], before)
    torch.testing.assert_close(
        beside.double(),
        with_score.scores.score(ENERGY_DENSITY, logits, features, temperature=1.0),
        atol=1e-4,
        rtol=1e-4,
    )
