"""Feature-based scores equal independent implementations in numpy and scikit-learn."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from sklearn.covariance import EmpiricalCovariance
from sklearn.decomposition import PCA
from sklearn.neighbors import NearestNeighbors

from hydractl.errors import DataError
from hydractl.metrics import feature_scores
from hydractl.metrics.feature_scores import Classifier, Moments, Training, energy_density, fit
from hydractl.metrics.ood_scores import FITTED

COUNT, WIDTH, CLASSES, K = 60, 8, 4, 5
OLD = ":alpha=0:normalize=false"
"""Options for OpenOOD's distances."""


@dataclass(frozen=True)
class Data:
    """Features with one cluster per class and one class without samples, and a classifier with a bias."""

    features: torch.Tensor
    labels: torch.Tensor
    classifier: Classifier

    def logits(self, features):
        return features @ self.classifier.weight.T + self.classifier.bias

    @property
    def training(self):
        moments = {
            normalized: Moments(5, self.features.shape[1], normalized=normalized)
            for normalized in (True, False)
        }
        for sums in moments.values():
            for features, labels in zip(self.features.split(7), self.labels.split(7), strict=True):
                sums.add(features, labels)
        return Training(
            classifier=self.classifier,
            moments=moments,
            features=self.features,
            largest=self.logits(self.features).amax(1),
        )


def data(*, count=COUNT, width=WIDTH, seed=0):
    source = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES - 1, (count,), generator=source) * 2 % 5  # 0, 2 and 4
    centres = 3 * torch.randn(5, width, generator=source)
    mix = torch.randn(width, width, generator=source)
    features = centres[labels] + torch.randn(count, width, generator=source) @ mix + 20
    classifier = Classifier(
        torch.randn(CLASSES, width, generator=source), torch.randn(CLASSES, generator=source)
    )
    return Data(features, labels, classifier)


def strangers(d):
    features = d.features[:3].flip(1).repeat(6, 1) + torch.linspace(-2, 2, 18)[:, None]
    return features, d.logits(features)


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def lee(f, _, d):
    means = [d.features[d.labels == c].double().numpy().mean(0) for c in d.labels.unique().tolist()]
    own = dict(zip(d.labels.unique().tolist(), means, strict=True))
    off = np.stack([x - own[c] for x, c in zip(d.features.double().numpy(), d.labels.tolist(), strict=True)])
    tied = EmpiricalCovariance(assume_centered=True).fit(off)
    return np.stack([tied.mahalanobis(f - m) for m in means]).min(0)


def ren(f, z, d):
    return lee(f, z, d) - EmpiricalCovariance().fit(d.features.double().numpy()).mahalanobis(f)


def shrunk(f, d, *, relative, alpha=None):
    """Compute the distances by the definition, with an explicit inverse."""
    u, x, y = unit(f), unit(d.features.double().numpy()), d.labels.numpy()
    means = {c: x[y == c].mean(0) for c in np.unique(y)}
    off = x - np.stack([means[c] for c in y])
    n, width = x.shape
    alpha = np.sqrt(width / (width + n - len(means))) if alpha is None else alpha

    def inverse(z):
        covariance = z.T @ z / n
        return np.linalg.inv((1 - alpha) * covariance + alpha * np.trace(covariance) / width * np.eye(width))

    def distance(z, s):
        return np.einsum("bi,ij,bj->b", z, s, z)

    within, total = inverse(off), inverse(x - x.mean(0))
    nearest = np.min([distance(u - m, within) for m in means.values()], axis=0)
    return nearest - distance(u - x.mean(0), total) if relative else nearest


def neighbour(k):
    def sun(f, _, d):
        search = NearestNeighbors(n_neighbors=min(k, len(d.features)), algorithm="brute")
        return search.fit(unit(d.features.double().numpy())).kneighbors(unit(f))[0][:, -1]

    return sun


def wang(f, z, d):
    """Compute ViM with PCA.

    The data and their mirror image have mean 0, so components are eigenvectors of the second moment.
    """
    weight, bias = (x.double().numpy() for x in d.classifier)
    origin = np.linalg.lstsq(weight, -bias, rcond=None)[0]
    x = d.features.double().numpy() - origin
    principal = PCA(n_components=WIDTH // 2, svd_solver="full").fit(np.concatenate([x, -x]))

    def residual(own):
        return np.linalg.norm(own - principal.inverse_transform(principal.transform(own)), axis=1)

    alpha = d.logits(d.features).amax(1).double().numpy().mean() / residual(x).mean()
    return alpha * residual(f - origin) - logsumexp(z, axis=1)


ORACLES = {
    "mahalanobis": lambda f, _, d: shrunk(f, d, relative=False),
    "relative-mahalanobis": lambda f, _, d: shrunk(f, d, relative=True),
    "relative-mahalanobis:alpha=0.25": lambda f, _, d: shrunk(f, d, relative=True, alpha=0.25),
    f"mahalanobis{OLD}": lee,
    f"relative-mahalanobis{OLD}": ren,
    "knn": neighbour(1),
    f"knn:k={K}": neighbour(K),
    "vim": wang,
}


def test_every_score_has_an_oracle():
    assert {name.partition(":")[0] for name in ORACLES} == FITTED.keys() - {"energy+density"}


@pytest.mark.parametrize("count", [COUNT, 2000, 9])
@pytest.mark.parametrize("name", ORACLES)
def test_it_is_its_definition(name, count, monkeypatch):
    """Tensors stored in float32 change a score by less than 0.001 of its standard deviation."""
    monkeypatch.setattr(feature_scores, "AT_ONCE", 7 if count == COUNT else 8192)
    d = data(count=count)
    if count == 9 and name.endswith(OLD):
        d = data(count=14)  # with fewer samples covariances are singular; another test covers pseudoinverses
    features, logits = strangers(d)

    scores = fit(name, d.training)(features, logits)

    expected = ORACLES[name](features.double().numpy(), logits.double().numpy(), d)
    assert scores.dtype == torch.float64
    np.testing.assert_allclose(scores.numpy(), expected, atol=1e-3 * expected.std(), rtol=1e-5)


@pytest.mark.parametrize("name", ORACLES)
def test_what_is_far_from_all_scores_higher(name):
    d = data()
    score = fit(name, d.training)
    away = d.features * torch.tensor([1.0, -1.0]).repeat(WIDTH // 2)

    logits = d.logits(d.features)
    assert score(away, logits).min() > score(d.features, logits).mean()


def test_energy_and_density_are_standardized_on_held_out_data():
    d, held_out = data(), data(seed=1)
    density = fit("relative-mahalanobis", d.training)

    def parts(features):
        logits = d.logits(features)
        return -logits.double().logsumexp(1), density(features, logits)

    score = energy_density(density, *parts(held_out.features))

    features, logits = strangers(d)
    expected = sum(
        (part - known.mean()) / known.std(correction=0)
        for part, known in zip(parts(features), parts(held_out.features), strict=True)
    )
    torch.testing.assert_close(score(features, logits), expected)
    assert abs(score(held_out.features, d.logits(held_out.features)).mean()) < 1e-9


def test_energy_and_density_need_held_out_data_that_differ():
    d = data()
    with pytest.raises(DataError, match="all held-out samples have the same score") as caught:
        energy_density(fit("relative-mahalanobis", d.training), torch.ones(3), torch.rand(3))
    assert "--val" in caught.value.hint


def test_of_fewer_samples_the_farthest_neighbour_counts():
    d = data(count=3)
    features, logits = strangers(d)

    expected = neighbour(K)(features.double().numpy(), None, d)

    np.testing.assert_allclose(fit(f"knn:k={K}", d.training)(features, logits).numpy(), expected, atol=1e-6)


@pytest.mark.parametrize(("name", "oracle"), [("mahalanobis", lee), ("relative-mahalanobis", ren)])
def test_a_singular_covariance_is_pseudoinverted_without_shrinkage(name, oracle):
    d = data(count=9, width=12)
    features, logits = strangers(d)

    expected = oracle(features.double().numpy(), None, d)

    scores = fit(f"{name}{OLD}", d.training)(features, logits).numpy()
    np.testing.assert_allclose(scores, expected, atol=1e-3 * expected.std(), rtol=1e-5)


@pytest.mark.parametrize("name", ["mahalanobis", "relative-mahalanobis"])
def test_what_varies_by_rounding_alone_does_not_count(name):
    """A layer norm causes a direction of the features with only float32 rounding as variance."""
    d = data()
    flat = torch.linalg.qr(torch.randn(WIDTH + 1, WIDTH, generator=torch.Generator().manual_seed(1))).Q
    features, logits = strangers(d)
    lifted = replace(
        d, features=d.features @ flat.T, classifier=Classifier(torch.ones(1, WIDTH + 1), torch.ones(1))
    )

    scores = fit(f"{name}{OLD}", lifted.training)(features @ flat.T, logits)

    expected = fit(f"{name}{OLD}", d.training)(features, logits)
    torch.testing.assert_close(scores, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("name", "count"),
    [("mahalanobis", 1), ("relative-mahalanobis", 1), (f"mahalanobis{OLD}", 1), ("vim", WIDTH - 1)],
)
def test_too_few_samples_are_refused(name, count):
    with pytest.raises(DataError, match=r"vary within classes|do not span the"):
        fit(name, data(count=count).training)


@pytest.mark.parametrize(("width", "kept"), [(64, 32), (768, 512), (1024, 512), (2048, 1000)])
def test_vim_keeps_the_dimensions_of_its_authors(width, kept):
    assert feature_scores.principal(width) == kept
