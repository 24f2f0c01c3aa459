"""Predictions: log-softmax of logits, decoding of images, the saved file."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hydractl.data.datasets import ImageSet
from hydractl.data.open_dataset import open_data
from hydractl.data.preprocess import eval_transform
from hydractl.errors import InputError
from hydractl.metrics.per_sample import Responses
from hydractl.prediction.feature_ood import Predictor
from hydractl.prediction.inference import PreparedData
from hydractl.prediction.run_models import predict, write_predictions
from support.builders import base
from support.predictions import SavedPredictions


@pytest.fixture(scope="module")
def digits():
    return open_data("digits::classes=0-6,limit=23")


class Counting(ImageSet):
    """Image set that records the index of each decoded image."""

    __slots__ = ()
    seen: list[int] = []  # noqa: RUF012 - emptied by each test

    def image(self, index, **options):
        self.seen.append(index)
        return super().image(index, **options)


def counting(dataset):
    Counting.seen.clear()
    return Counting(
        store=dataset.store,
        places=dataset.places,
        class_names=dataset.class_names,
        labels=dataset.labels,
        name=dataset.name,
    )


def predictor(model, preprocess):
    return Predictor(model=model, name="m", preprocess=preprocess)


@pytest.mark.parametrize("batch_size", [1, 5, 23, 100])
def test_predictions_are_the_log_softmax_of_the_logits(digits, batch_size):
    sample = base()
    model, preprocess = sample.model(), sample.header.preprocess
    images = torch.stack([eval_transform(preprocess)(digits.image(i)) for i in range(len(digits))])

    found = predict(predictor(model, preprocess), PreparedData(digits, batch_size=batch_size))

    assert (found.log_probs.shape, found.log_probs.dtype) == ((1, 23, 7), torch.float32)
    with torch.inference_mode():
        logits = model(images)
    torch.testing.assert_close(found.log_probs[0], logits.log_softmax(-1), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.logits()[0].float(), logits, atol=1e-5, rtol=1e-5)


def test_a_half_precision_model_predicts_in_its_own_dtype(digits):
    model = base().cast(torch.bfloat16).model(torch.bfloat16)

    found = predict(predictor(model, base().header.preprocess), PreparedData(digits, batch_size=8))

    assert {x.dtype for x in found.tensors()} == {torch.float32}
    torch.testing.assert_close(found.log_probs.exp().sum(-1), torch.ones(1, 23))


@pytest.mark.parametrize(("limit_bytes", "times"), [(2**20, 1), (0, 2)])
def test_images_are_decoded_once_if_they_fit(digits, limit_bytes, times):
    inputs = PreparedData(counting(digits), batch_size=8, limit_bytes=limit_bytes)
    for seed in (0, 1):
        predict(predictor(base(seed=seed).model(), base().header.preprocess), inputs)

    assert Counting.seen.count(22) == times


def test_models_that_preprocess_otherwise_get_their_own_inputs(digits):
    inputs = PreparedData(digits, batch_size=8)
    plain = base().header.preprocess
    bright = plain.model_copy(update={"mean": (0.0,), "std": (0.5,)})
    model = base().model()

    first, other, again = (predict(predictor(model, p), inputs).log_probs for p in (plain, bright, plain))

    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_logits_that_are_not_finite_are_refused(digits):
    sample = base()
    broken = replace(sample, state=sample.state | {"head.bias": torch.full((7,), torch.inf)})
    model = broken.model()

    with pytest.raises(InputError, match="m: has logits that are not finite on `it`"):
        predict(predictor(model, sample.header.preprocess), PreparedData(digits, batch_size=8, name="it"))


@pytest.mark.parametrize("raw", [True, False])
def test_a_saved_file_reads_back(raw, tmp_path):
    said = {
        name: Responses(torch.randn(3, count, 2), torch.randn(3, count))
        for name, count in (("id", 5), ("Tiny ImageNet", 4))
    }
    labels = {"id": torch.tensor([0, 1, 1, 0, 1])}
    with (tmp_path / "p.st").open("wb") as file:
        write_predictions(file, {"Deep ensemble x3": said}, labels, with_logits=raw)

    found = SavedPredictions.load(tmp_path / "p.st")

    assert torch.equal(found.labels["id"], labels["id"])
    for name, own in found.of("Deep ensemble x3").items():
        assert torch.equal(own.log_probs, said[name].log_probs)
        assert torch.equal(own.logsumexp, said[name].logsumexp) if raw else own.logsumexp is None
