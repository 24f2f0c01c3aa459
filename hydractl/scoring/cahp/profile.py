"""How well each head tells each pair of classes apart, and how far heads are apart in that.

Axes: C classes, P = C (C - 1) / 2 pairs of them, N heads, D numbers of a signature.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

import torch
from scipy.spatial.distance import cdist

from hydractl.errors import DataError
from hydractl.messages import counted
from hydractl.progress import Progress
from hydractl.scoring.cahp.moments import VARIANCE_FLOOR, SignatureMoments

DIRECT_BYTES = 256 << 20
"""Size limit of the table of profiles, 8 N D P bytes; above it only the distances between heads are computed."""
BLOCK_BYTES = 8 << 20
"""Size of its blocks then, in bytes: large enough for a matrix product, small enough for the cache."""


class Form(StrEnum):
    """How profiles were compared."""

    DIRECT = "direct"
    """All profiles are stored."""
    GRAM = "gram"
    """Only inner products are stored, summed over blocks of class pairs."""


class HeadDistances(NamedTuple):
    """How far heads are apart; float64, on the CPU.

    Attributes:
        form: How this was found.
        distances: Euclidean, between profiles: (N, N), symmetric, zeros on the diagonal.
        profiles: (N, P D), classes' pairs in lexicographic order; None in the Gram form.
        gram: Inner products (N, N) of the profiles minus their mean over heads; None in the direct form.
    """

    form: Form
    distances: torch.Tensor
    profiles: torch.Tensor | None = None
    gram: torch.Tensor | None = None


def compare(moments: SignatureMoments, progress: Progress, *, device: torch.device) -> HeadDistances:
    """Compare heads' profiles: directly as long as these take at most `DIRECT_BYTES`, else by their Gram matrix.

    Of 1,000 classes the profile of a head has 5e8 numbers for signatures of 32 x 32, and the Gram form streams through
    them once, in blocks of `BLOCK_BYTES` with four of that size at work. Of 144 heads a pair of classes takes about 3 ms on
    one CPU core, a third of it for 2 N² D floating-point operations: 25 minutes for all 499,500.

    Raises:
        DataError: If there are fewer than two classes, or all heads are alike.
    """
    classes, heads, width = moments.mean.shape
    if classes < 2:
        raise DataError(
            f"the data has {counted(classes, 'class', 'classes')}, but at least two are needed",
            hint="use data with all of the model's classes",
        )
    if 8 * heads * width * (classes * (classes - 1) // 2) <= DIRECT_BYTES:
        profiles = torch.cat([block.transpose(0, 1).flatten(1) for block in _blocks(moments)], dim=1)
        compared = HeadDistances(Form.DIRECT, torch.from_numpy(cdist(profiles, profiles)), profiles=profiles)
    else:
        gram = _gram(moments, progress, device=device)
        compared = HeadDistances(Form.GRAM, gram_distances(gram), gram=gram)
    if not compared.distances.isfinite().all():
        raise DataError("the distances between heads are not finite")
    if not compared.distances.any():
        raise DataError("all heads have the same attention on these data, so they cannot be grouped")
    return compared


def jeffries_matusita(
    mean: torch.Tensor, variance: torch.Tensor, others: torch.Tensor, their_variance: torch.Tensor
) -> torch.Tensor:
    """Return the Jeffries-Matusita distance of normal distributions, in [0, 2], elementwise (CAHP, step 2).

    JM = 2 (1 - e^-B) with Bhattacharyya's B = ¼ (μ - μ')² / (σ² + σ'²) + ½ ln[(σ² + σ'²) / (2 σ σ')], so that
    e^-B = e^(-¼ (μ - μ')² / (σ² + σ'²)) √(2 σ σ' / (σ² + σ'²)). Variances are at least `VARIANCE_FLOOR`.

    Args:
        mean: μ, any shape.
        variance: σ², likewise.
        others: μ', a shape that broadcasts.
        their_variance: σ'², likewise.
    """
    a, b = variance.clamp(min=VARIANCE_FLOOR), their_variance.clamp(min=VARIANCE_FLOOR)
    total = a + b
    affinity = (mean - others).square_().div_(total).mul_(-0.25).exp_()
    affinity *= (a * b).sqrt_().mul_(2).div_(total).sqrt_()
    return affinity.mul_(-2).add_(2).clamp_(min=0.0)


def gram_distances(gram: torch.Tensor) -> torch.Tensor:
    """Return the distances (N, N) of points whose inner products (N, N) are given: d²_ij = g_ii + g_jj - 2 g_ij."""
    norms = gram.diagonal()
    squares = norms[:, None] + norms[None, :] - 2 * gram
    return squares.clamp(min=0).sqrt().fill_diagonal_(0)


def _gram(moments: SignatureMoments, progress: Progress, *, device: torch.device) -> torch.Tensor:
    """Return the profiles' inner products (N, N), profiles minus their mean, which leaves distances as they are."""
    place = torch.device("cpu") if device.type == "mps" else device  # it has no float64
    placed = moments._replace(mean=moments.mean.to(place), variance=moments.variance.to(place))
    heads = placed.mean.shape[1]
    gram = torch.zeros(heads, heads, dtype=torch.float64, device=place)
    rows = range(len(moments.labels) - 1)
    for first in progress.track(rows, label="Comparing classes", total=len(rows)):
        for block in _blocks(placed, first):
            # distances are small beside the profiles themselves
            centred = block.sub_(block.mean(dim=1, keepdim=True))
            gram += torch.bmm(centred, centred.transpose(1, 2)).sum(dim=0)
    return gram.cpu()


def _blocks(moments: SignatureMoments, first: int | None = None) -> Iterator[torch.Tensor]:
    """Yield the profiles (p, N, D) of p pairs of classes each, those of class `first` with the later ones, or all."""
    mean, variance = moments.mean, moments.variance
    classes, heads, width = mean.shape
    pairs_per_block = max(1, BLOCK_BYTES // (8 * heads * width))
    for first_class in range(classes - 1) if first is None else (first,):
        for begin in range(first_class + 1, classes, pairs_per_block):
            second_classes = slice(begin, begin + pairs_per_block)
            yield jeffries_matusita(
                mean[first_class], variance[first_class], mean[second_classes], variance[second_classes]
            )
