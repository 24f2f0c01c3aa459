"""Heads as points of a plane: t-SNE of their class-separability profiles (CAHP, step 3).

N heads. scikit-learn (1.9) squares the distances that it is given as it squares those that it computes itself. Its threads
add up in an order of their own, so one is used here, which for so few points is also the fastest.

t-SNE is chaotic: profiles or first points that differ by 1e-7, as between two machines, end in groups as different as
another seed's. Of 144 heads in six clear families and 20 groups about half of the pairs agree (adjusted Rand index 0.5 to
0.7), of 48 heads without any structure nearly none (0.1 to 0.4). Equal bits give equal points.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from sklearn.manifold import TSNE
from threadpoolctl import threadpool_limits

from hydractl.errors import DataError

if TYPE_CHECKING:
    from hydractl.scoring.cahp.profile import HeadDistances

STEPS = 1000
FIRST_SPREAD = 1e-4
"""The standard deviation of the first coordinate to begin with, as scikit-learn's own."""


def fitting_perplexity(requested: float, heads: int) -> float:
    """Return a perplexity that N heads allow: what was asked if it is below N - 1, else (N - 1) / 3.

    Perplexity is the effective number of neighbours, of which each head has N - 1; a third of them is customary.
    """
    return requested if requested < heads - 1 else (heads - 1) / 3


def embed(compared: HeadDistances, *, perplexity: float, seed: int) -> torch.Tensor:
    """Return heads as points (N, 2), fp64; a function of the profiles and the seed.

    Profiles that were held go to t-SNE as they are, as in the source. Of the others it is given the distances, and the first
    two principal components to begin with, which it would have begun with itself; they are found up to sign and to
    rounding, so both forms agree as well as two machines do.

    Raises:
        DataError: If the points are not finite.
    """
    tsne_input = compared.distances if compared.profiles is None else compared.profiles
    tsne = TSNE(
        n_components=2,
        max_iter=STEPS,
        perplexity=perplexity,
        random_state=seed,
        init="pca" if compared.gram is None else principal_start(compared.gram),
        metric="precomputed" if compared.profiles is None else "euclidean",
    )
    with threadpool_limits(limits=1):
        points = torch.from_numpy(tsne.fit_transform(tsne_input.numpy()))
    if not points.isfinite().all():
        raise DataError("t-SNE ends with points that are not finite", hint="add `--embedding none`")
    return points.double()


def principal_start(gram: torch.Tensor) -> np.ndarray:
    """Return the first two principal components (N, 2), fp32, scaled so that the first has the spread `FIRST_SPREAD`.

    Args:
        gram: Inner products (N, N) of centred points.
    """
    values, vectors = torch.linalg.eigh(gram)
    points = (vectors * values.clamp(min=0).sqrt()).flip(-1)[:, :2]
    largest = points.abs().argmax(dim=0)
    points = points * points.gather(0, largest[None]).sign()  # of two signs the one that makes it positive
    start: np.ndarray = (points / points[:, 0].std(correction=0) * FIRST_SPREAD).float().numpy()
    return start
