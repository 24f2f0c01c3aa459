"""Signatures of attention maps, and profiles: how well each head separates pairs of classes (CAHP).

A signature does not depend on the length of a sample. Its mean and variance for each class are merged over
batches and processes.

Axes: B batch, T tokens, H heads of a layer, N heads of a tower (layer after layer), D = size² numbers of a
signature, C classes of the data, P = C (C - 1) / 2 pairs of classes.
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
"""Variance of a class with one sample, and lower bound of variances in distances (CAHP, steps 1 and 2).
Doubling it reduces distances between classes of nearly constant attention."""
MOMENTS_BYTES = 8 << 30
"""Memory limit of the moments of all classes, in bytes: 1,000 classes need 2.2 GiB for ViT-B, 5.9 GiB for
ViT-L. Chosen by hand; doubling it allows twice the number of classes."""


ClassMoments: TypeAlias = "tuple[int, torch.Tensor, torch.Tensor]"
"""Count, mean and sum of squared deviations of a class."""


class SignatureMoments(NamedTuple):
    """Mean and variance of the signatures for each class, float64, on the CPU.

    Attributes:
        labels: Class indices, increasing, length C.
        counts: Number of samples of each class.
        mean: Shape (C, N, D).
        variance: Sample variance with divisor n - 1, shape (C, N, D); `VARIANCE_FLOOR` for classes with one
            sample.
        batches: Number of batches of all processes.
    """

    labels: tuple[int, ...]
    counts: tuple[int, ...]
    mean: torch.Tensor
    variance: torch.Tensor
    batches: int


def class_moments(job: ScoreJob, tower: str, *, size: int) -> SignatureMoments:
    """Compute the moments of the signatures of all heads in one pass over the data.

    Each batch is reduced to the moments of its classes. These are merged in the order of the data, so the
    result has the same bits for any number of processes. Each process stores 16 N C D bytes and one batch.

    Args:
        job: The job, with labelled data.
        tower: Name of the tower.
        size: Side of a signature; D = size².

    Raises:
        DataError: If labels are missing, attention is not finite, or the moments exceed `MOMENTS_BYTES`.
    """
    shape = job.architecture.towers[tower]
    heads, width = shape.layers * shape.num_heads, size**2
    classes: dict[int, ClassMoments] = {}
    batches, local_batches = 0, iter(job.id_data)
    # Each round exchanges one batch per process: the moments of all batches could be as large as all
    # signatures.
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
        count, own_mean, squares = classes.pop(label)  # `pop` releases the memory of each class.
        counts.append(count)
        mean[i] = own_mean.view(heads, width)
        variance[i] = VARIANCE_FLOOR if count == 1 else squares.view(heads, width) / (count - 1)
    return SignatureMoments(labels, tuple(counts), mean, variance, batches)


def _packed(job: ScoreJob, tower: str, samples: Samples, *, size: int) -> torch.Tensor:
    """Return the moments of the classes of a batch, a row per class.

    A row has the label, the count, N D means and N D sums of squared deviations.
    """
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
    """Add the moments of one class of a batch (Chan, Golub and LeVeque 1983, equations 2.1a and 2.1b)."""
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
    """Return the signatures (B, N, D) of all heads for inputs (B, ...), in fp32 or the model's wider dtype.

    Only the given tower runs. The attention weights of one layer are stored at a time: B H T² numbers.

    Args:
        model: The model.
        tower: Name of the tower.
        inputs: Inputs of the model.
        size: Side of a signature; D = size².

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
    """Return attention maps resized to a common size (CAHP, step 1).

    The weights between the L tokens of a sample are resized to size × size: bilinear, corners not aligned,
    without antialiasing, so maps with more than `size` tokens are subsampled. Rows do not sum to 1. Padding
    has no influence.

    Args:
        weights: Attention weights of all tokens, shape (B, H, T, T).
        lengths: Number of tokens L of each sample, 1 to T, shape (B,), on the CPU; None without padding.
        size: Side of a signature.

    Returns:
        Shape (B, H, size²).
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
    """Return the number of tokens of each text without padding, shape (B,), on the CPU.

    The lengths come from the inputs, because the mask of a layer may be a window around each token.

    Returns:
        None for images and for texts without a mask.

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
"""Size limit of the table of profiles, 8 N D P bytes. Larger tables are replaced by the distances between
heads. Chosen by hand; doubling it only changes which form is used."""
BLOCK_BYTES = 8 << 20
"""Size of a block of profiles in bytes: large enough for an efficient matrix product, small enough for the
cache. Chosen by hand; doubling it changes time and memory only."""


class HeadDistances(NamedTuple):
    """Distances between heads, float64, on the CPU.

    Attributes:
        distances: Euclidean distances between profiles, shape (N, N), symmetric, with a diagonal of zeros.
        profiles: Shape (N, P D), pairs of classes in lexicographic order; None if only inner products are
            stored.
        gram: Inner products (N, N) of profiles minus their mean over heads; None if profiles are stored.
    """

    distances: torch.Tensor
    profiles: torch.Tensor | None = None
    gram: torch.Tensor | None = None


def compare(moments: SignatureMoments, *, device: torch.device) -> HeadDistances:
    """Compute the distances between the profiles of heads.

    Profiles of at most `DIRECT_BYTES` are compared directly, larger ones by their Gram matrix. For 1,000
    classes and signatures of 32 × 32, a profile has 5e8 numbers. The Gram form reads them once, in blocks of
    `BLOCK_BYTES`, with up to four blocks in memory. For 144 heads a pair of classes takes about 3 ms on one
    CPU core, and all 499,500 pairs 25 minutes. The 2 N² D floating-point operations are a third of this time.

    Args:
        moments: Moments of the signatures.
        device: Device of the Gram form.

    Raises:
        DataError: If there are fewer than two classes, distances are not finite, or all heads are equal.
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

    JM = 2 (1 - e^-B) with Bhattacharyya's B = ¼ (μ - μ')² / (σ² + σ'²) + ½ ln[(σ² + σ'²) / (2 σ σ')]. The
    code computes e^-B = e^(-¼ (μ - μ')² / (σ² + σ'²)) √(2 σ σ' / (σ² + σ'²)), without a logarithm. Variances
    are at least `VARIANCE_FLOOR`.

    Args:
        mean: μ, any shape.
        variance: σ², same shape.
        others: μ', broadcastable.
        their_variance: σ'², broadcastable.
    """
    a, b = variance.clamp(min=VARIANCE_FLOOR), their_variance.clamp(min=VARIANCE_FLOOR)
    total = a + b
    affinity = (mean - others).square_().div_(total).mul_(-0.25).exp_()
    affinity *= (a * b).sqrt_().mul_(2).div_(total).sqrt_()
    return affinity.mul_(-2).add_(2).clamp_(min=0.0)


def gram_distances(gram: torch.Tensor) -> torch.Tensor:
    """Return the distances (N, N) of points for their inner products (N, N): d²_ij = g_ii + g_jj - 2 g_ij."""
    norms = gram.diagonal()
    squares = norms[:, None] + norms[None, :] - 2 * gram
    return squares.clamp(min=0).sqrt().fill_diagonal_(0)


def _gram(moments: SignatureMoments, *, device: torch.device) -> torch.Tensor:
    """Return the inner products (N, N) of profiles minus the mean over heads. Distances stay the same."""
    place = torch.device("cpu") if device.type == "mps" else device  # mps has no float64.
    placed = moments._replace(mean=moments.mean.to(place), variance=moments.variance.to(place))
    heads = placed.mean.shape[1]
    gram = torch.zeros(heads, heads, dtype=torch.float64, device=place)
    rows = range(len(moments.labels) - 1)
    for first in progress.track(rows, label="Comparing classes", total=len(rows)):
        for block in _blocks(placed, first):
            # Distances are small compared with the profiles; without centering they would lose digits.
            centred = block.sub_(block.mean(dim=1, keepdim=True))
            gram += torch.bmm(centred, centred.transpose(1, 2)).sum(dim=0)
    return gram.cpu()


def _blocks(moments: SignatureMoments, first: int | None = None) -> Iterator[torch.Tensor]:
    """Yield the profiles (p, N, D) of p pairs of classes at a time.

    Args:
        moments: Moments of the signatures.
        first: Only pairs of this class with later classes; None for all pairs.
    """
    mean, variance = moments.mean, moments.variance
    classes, heads, width = mean.shape
    pairs_per_block = max(1, BLOCK_BYTES // (8 * heads * width))
    for first_class in range(classes - 1) if first is None else (first,):
        for begin in range(first_class + 1, classes, pairs_per_block):
            second_classes = slice(begin, begin + pairs_per_block)
            yield jeffries_matusita(
                mean[first_class], variance[first_class], mean[second_classes], variance[second_classes]
            )
