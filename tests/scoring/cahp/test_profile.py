from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm
from sklearn.metrics import pairwise_distances

from hydractl.errors import DataError
from hydractl.scoring import head_profiles
from hydractl.scoring.head_profiles import SignatureMoments, compare, gram_distances, jeffries_matusita
from support import naive_cahp

DOUBLE = torch.float64
CPU = torch.device("cpu")


def moments(classes=4, heads=10, width=9, *, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = classes, heads, width
    return SignatureMoments(
        tuple(range(classes)),
        (5,) * classes,
        torch.rand(shape, generator=generator, dtype=DOUBLE),
        torch.rand(shape, generator=generator, dtype=DOUBLE) * 0.1,
        1,
    )


def jm(*numbers):
    return jeffries_matusita(*(torch.tensor(x, dtype=DOUBLE) for x in numbers)).item()


@pytest.mark.parametrize(
    ("mean", "variance", "other", "their"), [(0.0, 1.0, 0.5, 2.0), (1.0, 0.3, 1.0, 0.3), (0, 0.01, 0.4, 0.09)]
)
def test_jm_is_two_less_twice_the_overlap_of_two_normals(mean, variance, other, their):
    a, b = norm(mean, variance**0.5), norm(other, their**0.5)

    overlap, _ = quad(lambda x: np.sqrt(a.pdf(x) * b.pdf(x)), -15, 15, points=[mean, other], limit=500)

    assert jm(mean, variance, other, their) == pytest.approx(2 * (1 - overlap), abs=1e-7)


def test_jm_is_symmetric_bounded_and_zero_of_equals():
    a, b = moments(seed=1), moments(seed=2)

    there = jeffries_matusita(a.mean, a.variance, b.mean, b.variance)

    assert torch.equal(there, jeffries_matusita(b.mean, b.variance, a.mean, a.variance))
    assert there.min() >= 0
    assert there.max() <= 2
    assert jeffries_matusita(a.mean, a.variance, a.mean, a.variance).max() < 1e-15
    assert jm(0.0, 0.0, 100.0, 0.0) == 2.0


def test_variances_have_a_floor():
    assert jm(0.0, 0.0, 1e-3, 1e-9) == jm(0.0, 1e-6, 1e-3, 1e-6) == pytest.approx(2 * (1 - np.exp(-1 / 8)))


def test_profiles_are_those_of_the_transcription():
    generator = torch.Generator().manual_seed(0)
    signed = torch.rand(17, 5, 4, generator=generator, dtype=DOUBLE)
    labels = torch.tensor([*torch.arange(16).remainder(3).tolist(), 3])
    groups = [signed[labels == c] for c in range(4)]
    variance = [x.var(0) if len(x) > 1 else torch.full_like(x[0], 1e-6) for x in groups]
    found = SignatureMoments(
        (0, 1, 2, 3), (6, 5, 5, 1), torch.stack([x.mean(0) for x in groups]), torch.stack(variance), 1
    )

    compared = compare(found, device=CPU)

    expected = naive_cahp.profiles(signed.numpy(), labels.numpy())
    assert compared.gram is None
    assert compared.profiles.numpy() == pytest.approx(expected, abs=1e-5)
    assert compared.profiles.numpy() == pytest.approx(expected, abs=1e-12)
    assert compared.distances.numpy() == pytest.approx(pairwise_distances(expected), abs=1e-6)


@pytest.mark.parametrize("classes", [2, 3, 9])
@pytest.mark.parametrize("block", [1, 8 * 10 * 9 * 4, 1 << 30])
def test_the_gram_form_has_the_same_distances(monkeypatch, classes, block):
    direct = compare(moments(classes), device=CPU)
    monkeypatch.setattr(head_profiles, "DIRECT_BYTES", 0)
    monkeypatch.setattr(head_profiles, "BLOCK_BYTES", block)

    gram = compare(moments(classes), device=CPU)

    assert direct.gram is None
    assert gram.profiles is None
    assert gram.profiles is None
    assert torch.allclose(gram.distances, direct.distances, rtol=1e-6, atol=0)
    centred = direct.profiles - direct.profiles.mean(0)
    assert torch.allclose(gram.gram, centred @ centred.T, rtol=0, atol=1e-9)


def test_the_gram_form_has_the_same_distances_between_near_heads(monkeypatch):
    """Two profiles differ by a relative distance of 1e-4."""
    near = moments(6)
    near.mean[:, 1], near.variance[:, 1] = near.mean[:, 0] + 1e-4, near.variance[:, 0]
    direct = compare(near, device=CPU)
    monkeypatch.setattr(head_profiles, "DIRECT_BYTES", 0)

    gram = compare(near, device=CPU)

    assert direct.distances[0, 1] < 1e-2 * direct.distances.median()
    assert torch.allclose(gram.distances, direct.distances, rtol=1e-6, atol=0)


def test_the_form_follows_from_the_size(monkeypatch):
    small = moments(4, heads=10, width=9)
    size = 8 * 10 * 9 * 6
    for limit, direct in ((size, True), (size - 1, False)):
        monkeypatch.setattr(head_profiles, "DIRECT_BYTES", limit)

        assert (compare(small, device=CPU).gram is None) == direct


def test_distances_of_a_gram_matrix():
    points = torch.randn(7, 3, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)

    found = gram_distances(points @ points.T)

    assert torch.allclose(found, torch.cdist(points, points), atol=1e-7)
    assert (found.diagonal() == 0).all()


@pytest.mark.parametrize("classes", [0, 1])
def test_fewer_than_two_classes_are_refused(classes):
    with pytest.raises(DataError, match="but at least two are needed"):
        compare(moments(classes), device=CPU)


def test_equal_heads_and_infinite_distances_are_refused():
    same, bad = moments(), moments()
    same.mean[:], same.variance[:] = same.mean[:, :1], same.variance[:, :1]
    bad.mean[0, 0, 0] = float("nan")

    with pytest.raises(
        DataError, match="all heads have the same attention on these data, so they cannot be grouped"
    ):
        compare(same, device=CPU)
    with pytest.raises(DataError, match="not finite"):
        compare(bad, device=CPU)
