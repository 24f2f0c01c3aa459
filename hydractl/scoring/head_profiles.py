"""Signatures of heads' attention maps, and how well each head separates each pair of classes (CAHP).

A signature does not depend on the length of a sample. Its mean and variance of each class are summed over batches and
processes.

Axes: B batch, T tokens, H heads of a layer, N heads of a tower (layer after layer), D = size² numbers of a signature,
C classes of the data, P = C (C - 1) / 2 pairs of classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple, TypeAlias

import torch
from scipy.spatial.distance import cdist
from torch.nn import functional as F  # noqa: N812 - the field's own name

from hydractl import progress
from hydractl.errors import DataError
from hydractl.families.attention import Attention
from hydractl.families.tower import Model
from hydractl.messages import counted
from hydractl.model_inputs import Inputs
from hydractl.runtime import on_cpu, on_device
from hydractl.scoring.attention_hooks import AttentionTap, tapped
from hydractl.scoring.job import Samples, ScoreJob

VARIANCE_FLOOR = 1e-6
"""Variance of a class with one sample, and lower bound of variances in distances (CAHP)."""
MOMENTS_BYTES = 8 << 30
"""Memory limit of the moments of all classes, in bytes: 1,000 classes take 2.2 GiB for ViT-B, 5.9 GiB for ViT-L."""


ClassMoments: TypeAlias = "tuple[int, torch.Tensor, torch.Tensor]"
"""Count, mean and sum of squared deviations of a class."""


class SignatureMoments(NamedTuple):
    """What the data say of each class's signatures; float64, on the CPU.

    Attributes:
        labels: Of the classes, increasing; C of them.
        counts: Samples of each class.
        mean: (C, N, D).
        variance: The sample variance (C, N, D), divisor n - 1; `VARIANCE_FLOOR` where n is 1.
        batches: How many there were, over all processes.
    """

    labels: tuple[int, ...]
    counts: tuple[int, ...]
    mean: torch.Tensor
    variance: torch.Tensor
    batches: int


def class_moments(job: ScoreJob, tower: str, *, size: int) -> SignatureMoments:
    """Return the moments of all heads' signatures, in one pass over the data.

    A batch is boiled down to the moments of its own classes, and these are merged in the order of the data, so that the
    bits do not depend on the number of processes. 16 N C D bytes are held (`MOMENTS_BYTES` at most), and one batch a process.

    Raises:
        DataError: If there are no labels, if attention is not finite, or if the moments would take more memory.
    """
    shape = job.architecture.towers[tower]
    heads, width = shape.layers * shape.num_heads, size**2
    classes: dict[int, ClassMoments] = {}
    batches, local_batches = 0, iter(job.id_data)
    # a round at a time: a single list of all batches' moments could be as large as all signatures
    while round_moments := job.team.in_order(
        [_packed(job, tower, s, size=size) for s in islice(local_batches, 1)]
    ):
        for row in (row for packed in round_moments for row in packed):
            _merge(classes, row)
            if 16 * len(classes) * heads * width > MOMENTS_BYTES:
                raise DataError(
                    f"the moments of {heads} heads in at least {len(classes)} classes need more than "
                    f"{MOMENTS_BYTES >> 30} GiB",
                    hint="use a smaller `--signature-size`, or fewer classes: `--data DATA::classes=0-99`",
                )
        batches += len(round_moments)
    labels, counts = tuple(sorted(classes)), list[int]()
    mean, variance = torch.empty(2, len(labels), heads, width, dtype=torch.float64).unbind(0)
    for i, label in enumerate(labels):
        count, own_mean, squares = classes.pop(label)  # so that nothing is held twice
        counts.append(count)
        mean[i] = own_mean.view(heads, width)
        variance[i] = VARIANCE_FLOOR if count == 1 else squares.view(heads, width) / (count - 1)
    return SignatureMoments(labels, tuple(counts), mean, variance, batches)


def _packed(job: ScoreJob, tower: str, samples: Samples, *, size: int) -> torch.Tensor:
    """Return the moments of one batch: for each of its classes the label, the count, N D means, N D squared deviations."""
    inputs, labels = samples.labelled("scoring by class separability")
    signed = signatures(job.model, tower, inputs, size=size).flatten(1)
    (labels,) = on_cpu(labels)
    classes, counts = labels.unique(return_counts=True)
    by_class = signed[on_device(labels.argsort(stable=True), signed.device)].double().split(counts.tolist())
    headers = on_device(torch.stack([classes, counts], 1).double(), signed.device)
    means = [class_signatures.mean(dim=0) for class_signatures in by_class]
    squares = [(x - mean).square().sum(dim=0) for x, mean in zip(by_class, means, strict=True)]
    return torch.cat([headers, torch.stack(means), torch.stack(squares)], 1)


def _merge(classes: dict[int, ClassMoments], row: torch.Tensor) -> None:
    """Add one class of a batch (Chan, Golub and LeVeque 1983, equations 2.1a and 2.1b)."""
    label, batch_count = (int(x) for x in row[:2].tolist())
    mean, squares = row[2:].chunk(2)
    if label not in classes:
        classes[label] = batch_count, mean.clone(), squares.clone()
        return
    count, all_mean, all_squares = classes[label]
    mean_shift = mean - all_mean
    all_squares += squares + mean_shift.square() * (count * batch_count / (count + batch_count))
    all_mean += mean_shift * (batch_count / (count + batch_count))
    classes[label] = count + batch_count, all_mean, all_squares


def signatures(model: Model, tower: str, inputs: Inputs, *, size: int) -> torch.Tensor:
    """Return every head's signature (B, N, D) on the model's inputs (B, ...), in fp32 or the model's wider dtype.

    Only the one tower runs. Attention weights are held for a layer at a time: B H T² numbers.

    Raises:
        DataError: If attention is not finite, a text has no token, or padding is not on the right.
    """
    tower_inputs = model.routed(inputs)[tower]
    lengths = text_lengths(tower_inputs)
    layer_signatures: list[torch.Tensor] = []

    def watched(_name: str, _layer: int, attention: Attention) -> Attention:
        return AttentionTap(
            attention, lambda weights, _: layer_signatures.append(signature(weights, lengths, size=size))
        )

    with torch.no_grad(), tapped(model, [tower], watched):
        model.tower(tower)(tower_inputs)
    signed = torch.cat(layer_signatures, dim=1)
    if not signed.isfinite().all():
        raise DataError("attention weights are not finite on these data")
    return signed


def signature(weights: torch.Tensor, lengths: torch.Tensor | None, *, size: int) -> torch.Tensor:
    """Return attention maps at a common size (CAHP, section "signature").

    The weights between a sample's own L tokens are resized to size x size: bilinear, corners not aligned, not smoothed
    beforehand, so that a map of more than `size` tokens is sampled; rows do not sum to 1. So padding never counts.

    Args:
        weights: Of all tokens, (B, H, T, T).
        lengths: L of each sample, (B,), 1 to T, on the CPU; None where none is padded.
        size: Of the signature.

    Returns:
        (B, H, size²).
    """
    weights = weights.to(torch.promote_types(weights.dtype, torch.float32))
    if lengths is None:
        return _resized(weights, size)
    signed = weights.new_empty(*weights.shape[:2], size * size)
    for length in lengths.unique().tolist():
        same_length = on_device((lengths == length).nonzero().flatten(), weights.device)
        signed[same_length] = _resized(weights[same_length][..., :length, :length], size)
    return signed


def text_lengths(inputs: Inputs) -> torch.Tensor | None:
    """Return how many tokens of each sample (B,) are its own, on the CPU; None for images and for texts without a mask.

    Taken from the inputs, because what a layer is given may be a window around each token.

    Raises:
        DataError: If a text has no token, or padding is not on the right.
    """
    if not isinstance(inputs, Mapping) or "attention_mask" not in inputs:
        return None
    (mask,) = on_cpu(inputs["attention_mask"].bool())
    if not mask[:, 0].all() or (mask[:, 1:] & ~mask[:, :-1]).any():
        raise DataError("texts must begin with a special token and be padded on the right")
    return mask.sum(dim=-1)


def _resized(maps: torch.Tensor, size: int) -> torch.Tensor:
    resize: Callable[..., torch.Tensor] = F.interpolate
    return resize(maps, size=(size, size), mode="bilinear", align_corners=False).flatten(2)


DIRECT_BYTES = 256 << 20
"""Size limit of the table of profiles, 8 N D P bytes; above it only the distances between heads are computed."""
BLOCK_BYTES = 8 << 20
"""Size of its blocks then, in bytes: large enough for a matrix product, small enough for the cache."""


class HeadDistances(NamedTuple):
    """How far heads are apart; float64, on the CPU.

    Attributes:
        distances: Euclidean, between profiles: (N, N), symmetric, zeros on the diagonal.
        profiles: (N, P D), pairs of classes in lexicographic order; None if only inner products are stored.
        gram: Inner products (N, N) of the profiles minus their mean over heads; None if profiles are stored.
    """

    distances: torch.Tensor
    profiles: torch.Tensor | None = None
    gram: torch.Tensor | None = None


def compare(moments: SignatureMoments, *, device: torch.device) -> HeadDistances:
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
        compared = HeadDistances(torch.from_numpy(cdist(profiles, profiles)), profiles=profiles)
    else:
        gram = _gram(moments, device=device)
        compared = HeadDistances(gram_distances(gram), gram=gram)
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


def _gram(moments: SignatureMoments, *, device: torch.device) -> torch.Tensor:
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
