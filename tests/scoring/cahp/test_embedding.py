from __future__ import annotations

import pytest
import torch
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from sklearn.metrics import adjusted_rand_score
from threadpoolctl import threadpool_limits

from hydractl.errors import DataError
from hydractl.scoring.cahp import embed, fitting_perplexity, group_points, principal_start
from hydractl.scoring.head_profiles import HeadDistances

DOUBLE = torch.float64
KINDS = 4


def points(heads=24, width=50):
    """Return points in four distant families, alternating between families."""
    generator = torch.Generator().manual_seed(0)
    middles = 3 * torch.randn(KINDS, width, generator=generator, dtype=DOUBLE)
    return middles.repeat(heads // KINDS, 1) + 0.3 * torch.randn(
        heads, width, generator=generator, dtype=DOUBLE
    )


def compared(x, form):
    centred = x - x.mean(0)
    distances = torch.cdist(x, x)
    if form == "direct":
        return HeadDistances(distances, profiles=x)
    return HeadDistances(distances, gram=centred @ centred.T)


@pytest.mark.parametrize("seed", [0, 7])
def test_held_profiles_are_placed_as_in_the_source(seed):
    x = points()

    found = embed(compared(x, "direct"), perplexity=5, seed=seed)

    expected = TSNE(n_components=2, max_iter=1000, perplexity=5, random_state=seed).fit_transform(x.numpy())
    assert torch.equal(found, torch.from_numpy(expected).double())


def test_distances_are_given_to_tsne_unsquared():
    """Points and their distances give the same embedding from the same start."""
    x = points()
    found = compared(x, "gram")
    start = principal_start(found.gram)

    there = embed(found, perplexity=5, seed=0)

    here = TSNE(n_components=2, max_iter=1000, perplexity=5, random_state=0, init=start).fit_transform(
        x.numpy()
    )
    assert torch.allclose(there, torch.from_numpy(here).double(), rtol=0, atol=1e-3)


def test_both_forms_find_the_same_families():
    x = points(80)

    direct, gram = (embed(compared(x, form), perplexity=5, seed=0) for form in ("direct", "gram"))

    for y in (direct, gram):
        found = [group_points(torch.cdist(y, y), KINDS, seed=seed).group.tolist() for seed in range(10)]
        assert max(adjusted_rand_score(g, [i % KINDS for i in range(80)]) for g in found) == 1.0


def test_the_start_is_that_of_pca_up_to_sign():
    x = points().numpy()

    start = principal_start(compared(torch.from_numpy(x), "gram").gram)

    expected = PCA(2, svd_solver="full").fit_transform(x)
    expected = expected / expected[:, 0].std() * 1e-4
    assert abs(start) == pytest.approx(abs(expected), abs=1e-9)
    assert abs(abs((start * expected).sum(0)) - (expected**2).sum(0)).max() < 1e-12
    assert start[:, 0].std() == pytest.approx(1e-4, rel=1e-5)


@pytest.mark.parametrize("form", ["direct", "gram"])
def test_threads_change_nothing(form):
    found = []
    for threads in (1, 3):
        with threadpool_limits(limits=threads):
            found.append(embed(compared(points(), form), perplexity=5, seed=0))

    assert torch.equal(*found)


@pytest.mark.parametrize(
    ("asked", "heads", "expected"),
    [(10, 144, 10), (10, 12, 10), (10, 11, 10 / 3), (10, 6, 5 / 3), (1e9, 31, 10)],
)
def test_perplexity_is_below_the_number_of_neighbours(asked, heads, expected):
    assert fitting_perplexity(asked, heads) == pytest.approx(expected)


@pytest.mark.parametrize("heads", [4, 8])
def test_few_heads_can_be_placed(heads):
    y = embed(compared(points(heads), "direct"), perplexity=fitting_perplexity(10, heads), seed=0)

    assert y.shape == (heads, 2)
    assert y.isfinite().all()


def test_points_that_are_not_finite_are_refused(monkeypatch):
    monkeypatch.setattr(TSNE, "fit_transform", lambda _, x: x * float("inf"))

    with pytest.raises(DataError, match="t-SNE returns points that are not finite") as caught:
        embed(compared(points(), "direct"), perplexity=5, seed=0)
    assert caught.value.hint == "add `--embedding none`"
