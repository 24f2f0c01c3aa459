"""Scores of features against their definitions in numpy and scikit-learn, written down a second time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from sklearn.covariance import EmpiricalCovariance
from sklearn.decomposition import PCA
from sklearn.neighbors import NearestNeighbors

from hydractl.errors import DataError
from hydractl.metrics import feature_scores
from hydractl.metrics.feature_scores import FITS, Classifier, Training
from hydractl.metrics.ood_scores import FITTED

COUNT, WIDTH, CLASSES, K = 60, 8, 4, 5


def training(*, count=COUNT, width=WIDTH, neighbours=K, seed=0):
    """Features of a cluster a class, of which one class has no sample, with logits of a classifier that has a bias."""
    source = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES - 1, (count,), generator=source) * 2 % 5  # 0, 2 and 4
    centres = 3 * torch.randn(5, width, generator=source)
    mix = torch.randn(width, width, generator=source)
    features = centres[labels] + torch.randn(count, width, generator=source) @ mix + 20
    classifier = Classifier(
        torch.randn(CLASSES, width, generator=source), torch.randn(CLASSES, generator=source)
    )
    logits = features @ classifier.weight.T + classifier.bias
    return Training(
        features=features,
        largest=logits.amax(1),
        labels=labels,
        classifier=classifier,
        neighbours=neighbours,
    )


def strangers(data):
    features = data.features[:3].flip(1).repeat(6, 1) + torch.linspace(-2, 2, 18)[:, None]
    return features, features @ data.classifier.weight.T + data.classifier.bias


def lee(f, _, d):
    means = [d.features[d.labels == c].double().numpy().mean(0) for c in d.labels.unique().tolist()]
    own = dict(zip(d.labels.unique().tolist(), means, strict=True))
    off = np.stack([x - own[c] for x, c in zip(d.features.double().numpy(), d.labels.tolist(), strict=True)])
    tied = EmpiricalCovariance(assume_centered=True).fit(off)
    return np.stack([tied.mahalanobis(f - m) for m in means]).min(0)


def ren(f, z, d):
    return lee(f, z, d) - EmpiricalCovariance().fit(d.features.double().numpy()).mahalanobis(f)


def sun(f, _, d):
    def unit(x):
        return x / np.linalg.norm(x, axis=1, keepdims=True)

    search = NearestNeighbors(n_neighbors=min(K, len(d.features)), algorithm="brute")
    return search.fit(unit(d.features.double().numpy())).kneighbors(unit(f))[0][:, -1]


def wang(f, z, d):
    """The residual by PCA: of data and its mirror image, whose mean is 0, components are eigenvectors of the second moment."""
    weight, bias = (x.double().numpy() for x in d.classifier)
    origin = np.linalg.lstsq(weight, -bias, rcond=None)[0]
    x = d.features.double().numpy() - origin
    principal = PCA(n_components=WIDTH // 2, svd_solver="full").fit(np.concatenate([x, -x]))

    def residual(own):
        return np.linalg.norm(own - principal.inverse_transform(principal.transform(own)), axis=1)

    alpha = d.largest.double().numpy().mean() / residual(x).mean()
    return alpha * residual(f - origin) - logsumexp(z, axis=1)


ORACLES = {"mahalanobis": lee, "relative-mahalanobis": ren, "knn": sun, "vim": wang}


def test_every_score_has_an_oracle():
    assert ORACLES.keys() == FITS.keys() == FITTED.keys()


@pytest.mark.parametrize("at_once", [8192, 7])
@pytest.mark.parametrize("name", ORACLES)
def test_it_is_its_definition(name, at_once, monkeypatch):
    monkeypatch.setattr(feature_scores, "AT_ONCE", at_once)
    data = training()
    features, logits = strangers(data)

    found = FITS[name](data)(features, logits)

    expected = ORACLES[name](features.double().numpy(), logits.double().numpy(), data)
    assert found.dtype == torch.float64
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ORACLES)
def test_what_is_far_from_all_scores_higher(name):
    data = training()
    score = FITS[name](data)
    away = data.features * torch.tensor([1.0, -1.0]).repeat(WIDTH // 2)

    logits = data.features @ data.classifier.weight.T + data.classifier.bias
    assert score(away, logits).min() > score(data.features, logits).mean()


def test_of_fewer_samples_the_farthest_neighbour_counts():
    data = training(count=3)
    features, logits = strangers(data)

    expected = sun(features.double().numpy(), None, data)

    np.testing.assert_allclose(FITS["knn"](data)(features, logits).numpy(), expected, atol=1e-6)


def test_a_singular_covariance_is_pseudoinverted():
    data = training(count=9, width=12)
    features, logits = strangers(data)

    expected = lee(features.double().numpy(), None, data)

    np.testing.assert_allclose(FITS["mahalanobis"](data)(features, logits).numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize("name", ["mahalanobis", "relative-mahalanobis"])
def test_what_varies_by_rounding_alone_does_not_count(name):
    """As after a norm: one direction of the features has no variance but what float32 leaves."""
    data = training()
    flat = torch.linalg.qr(torch.randn(WIDTH + 1, WIDTH, generator=torch.Generator().manual_seed(1))).Q
    features, logits = strangers(data)
    lifted = replace(data, features=data.features @ flat.T)

    found = FITS[name](lifted)(features @ flat.T, logits)

    torch.testing.assert_close(found, FITS[name](data)(features, logits), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("name", "count"), [("mahalanobis", 1), ("relative-mahalanobis", 1), ("vim", 3)])
def test_too_few_samples_are_refused(name, count):
    with pytest.raises(DataError, match=r"vary within classes|span no more than"):
        FITS[name](training(count=count))


@pytest.mark.parametrize(("width", "kept"), [(64, 32), (768, 512), (1024, 512), (2048, 1000)])
def test_vim_keeps_the_dimensions_of_its_authors(width, kept):
    assert feature_scores.principal(width) == kept
