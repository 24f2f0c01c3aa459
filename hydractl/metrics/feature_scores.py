"""Feature-based OOD scores, fitted on training data; a higher score is more OOD.

Features are the inputs of a member's classifier. Each score is fitted for one member, and maps the member's
features (B, D) and logits (B, C) to (B,), float64. The score of an ensemble is the mean of its members'
scores, as for `energy`. OpenOOD and torch-uncertainty fit these scores for single models only.

Axes: N training samples, B other samples, D features, C classes, G classes with training samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the field's own name

from hydractl.errors import DataError
from hydractl.metrics.ood_scores import ENERGY_DENSITY, KNN, MAHALANOBIS, RELATIVE, VIM, kind_of, options_of

FittedTensors: TypeAlias = Mapping[str, Tensor]
AT_ONCE = 8192
"""Number of samples per chunk, 50 MB of float64 for 768 features. Chosen by hand; doubling the number doubles
this memory."""
WIDE, MIDDLE = (2048, 1000), (768, 512)
"""(minimum width of features, dimensions of ViM's principal space), from the authors' code. Twice the
dimensions leave fewer for the residual."""
ROUNDED = 8 * torch.finfo(torch.float32).eps
"""Largest deviation, relative to the norm of the features, that is treated as rounding of float32 features:
eight units of rounding. Chosen by hand; twice the value drops directions with up to twice this deviation."""
RESIDUE = 1e-6
"""Largest residual of training data, relative to the norm of the features, that is treated as rounding. Such
training data span no dimension outside the principal space. Chosen by hand; twice the value raises an error
for residuals up to twice as large."""
WITH_FEATURES = (KNN, VIM)
"""Scores that need all features of the training data. `Moments` suffice for the other scores."""


class Classifier(NamedTuple):
    """Linear classifier of features.

    Attributes:
        weight: Shape (C, D).
        bias: Shape (C,).
    """

    weight: Tensor
    bias: Tensor


class Moments:
    """Sums over features of training data in float64, accumulated in the order of batches.

    Attributes:
        normalized: Whether features are normalized to length one first.
        counts: Number of samples of each class, shape (C,).
        sums: Sum of features of each class, shape (C, D).
        products: Sum of f f^T over all samples, shape (D, D).
    """

    def __init__(self, classes: int, width: int, *, normalized: bool) -> None:
        self.normalized = normalized
        self.counts = torch.zeros(classes, dtype=torch.int64)
        self.sums = torch.zeros(classes, width, dtype=torch.float64)
        self.products = torch.zeros(width, width, dtype=torch.float64)

    def add(self, features: Tensor, labels: Tensor) -> None:
        """Add samples with features (B, D) and labels (B,)."""
        x = F.normalize(features.double(), dim=1) if self.normalized else features.double()
        self.counts += labels.bincount(minlength=len(self.counts))
        self.sums.index_add_(0, labels, x)
        self.products.addmm_(x.T, x)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Training:
    """Outputs of a member on training data.

    Attributes:
        classifier: Classifier of the member.
        moments: Moments of the features by whether features are normalized. Contains only moments that the
            scores need.
        features: Shape (N, D), for scores in `WITH_FEATURES`. May be a memory-mapped file.
        largest: Maximum logit of each sample, shape (N,).
    """

    classifier: Classifier
    moments: Mapping[bool, Moments]
    features: Tensor
    largest: Tensor

    def parts(self) -> Iterator[Tensor]:
        """Yield the features in float64, in chunks of samples."""
        for features in self.features.split(AT_ONCE):
            yield features.double()


@dataclass(frozen=True, slots=True, eq=False)
class FittedScore:
    """A score fitted for one member.

    Attributes:
        name: Name with options.
        tensors: Tensors by name, on the CPU, with the shapes and dtypes of `TENSOR_SPECS`.
    """

    name: str
    tensors: FittedTensors

    def __call__(self, features: Tensor, logits: Tensor) -> Tensor:
        """Return the scores (B,), float64, for features (B, D) and logits (B, C)."""
        return _APPLIED[kind_of(self.name)](self, features, logits)

    @property
    def multiplications(self) -> int:
        """Multiplications per sample: the number of elements of all matrices."""
        return sum(tensor.numel() for tensor in self.tensors.values() if tensor.ndim > 1)

    @property
    def size(self) -> int:
        """Size of the tensors in bytes."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def check(self) -> None:
        """Validate names, shapes, dtypes and values of the tensors.

        Raises:
            ValueError: If a tensor is invalid. The message has its name.
        """
        specs, sizes = TENSOR_SPECS[kind_of(self.name)], dict[str, int]()
        if self.tensors.keys() != specs.keys():
            raise ValueError(f"it stores {', '.join(specs)}, not {', '.join(sorted(self.tensors))}")
        for name, (axes, dtype) in specs.items():
            tensor = self.tensors[name]
            fits = tensor.ndim == len(axes) and tensor.dtype == dtype and tensor.numel() > 0
            if not fits or any(sizes.setdefault(a, n) != n for a, n in zip(axes, tensor.shape, strict=True)):
                raise ValueError(
                    f"`{name}` must be {axes or 'a number'} of {dtype}, with equal letters for equal sizes"
                )
            if not bool(tensor.float().isfinite().all()):
                raise ValueError(f"`{name}` is not finite in float32")
        if kind_of(self.name) == KNN and self.tensors["neighbours"] != min(
            int(options_of(self.name)["k"] or 1), sizes["N"]
        ):
            raise ValueError(
                "`neighbours` must be `k`, or the number of samples of `bank` if that is smaller"
            )
        precision = torch.finfo(torch.float32)
        if kind_of(self.name) == ENERGY_DENSITY and any(
            self.tensors[f"{name}_deviation"]
            < max(precision.tiny, precision.eps * abs(float(self.tensors[f"{name}_mean"])))
            for name in ("energy", "density")
        ):
            raise ValueError(
                "its standard deviations must be positive, also relative to its means in float32"
            )


def distance(data: Training, *, name: str, alpha: float | None = None, normalize: bool = True) -> FittedScore:
    """Fit `mahalanobis` or `relative-mahalanobis`.

    `mahalanobis` (Lee et al. 2018, eqs. 1 and 2, negated) is min_c (u - m_c)^T S_w^-1 (u - m_c), at least 0.
    `relative-mahalanobis` (Ren et al. 2021, negated) subtracts (u - m)^T S_t^-1 (u - m). u = f / ||f|| is a
    feature vector of length one (Müller and Hein 2025), or f itself if `normalize` is false. m_c are the
    class means, m is the mean of all samples. S_w = 1/N sum_i (u_i - m_{y_i})(u_i - m_{y_i})^T is the
    covariance within classes, S_t the covariance of all samples.

    With fewer samples than features the covariances are singular. Both are shrunk with the same alpha: S <-
    (1 - alpha) S + alpha tr(S)/D I with alpha = sqrt(D / (D + N - G)), which decreases with the number of
    samples. `alpha=0` and `normalize=false` give OpenOOD's score, with a pseudoinverse that ignores
    directions in which training data vary by no more than float32 rounding. A layer norm causes one such
    direction.

    The score is stored as a matrix A (D, K), points n_c (G, K) and weights w (K,): with y = (u - m)^T A the
    score is min_c ||y - n_c||^2 - sum_k w_k y_k^2. A whitens S_w and makes S_t diagonal, K = D. If one
    covariance is singular, A is the whitening of S_w next to the whitening of S_t. In the columns of the
    latter n is 0 and w is 2, because the first term already contains y_k^2 once.

    Args:
        data: Training data of the member.
        name: Name of the score with options.
        alpha: Shrinkage, in [0, 1]. `None` for the estimate above.
        normalize: Whether features are normalized to length one.

    Raises:
        DataError: If training data do not vary within classes.
    """
    moments = data.moments[normalize]
    counts = moments.counts[moments.counts > 0].double().unsqueeze(1)
    total_count, width = int(counts.sum()), len(moments.products)
    means = moments.sums[moments.counts > 0] / counts
    mean = (counts * means).sum(0) / total_count
    shares, off = counts / total_count, means - mean
    second = moments.products / total_count
    size = float(second.trace())
    total = second - torch.outer(mean, mean)
    within = total - (shares * off).T @ off
    if alpha is None:
        alpha = (width / (width + total_count - len(counts))) ** 0.5
    white = whitening(within, size)
    if not white.numel():
        raise DataError(
            "the features of the training data do not vary within classes",
            hint="give more data to `--train`, with several samples per class",
        )
    if alpha > 0:
        within, total = (_shrunk(covariance, alpha) for covariance in (within, total))
        white = whitening(within, 0)
    if kind_of(name) == MAHALANOBIS:
        return _stored(name, mean, white, off @ white, None)
    if white.shape[1] == width and whitening(total, size if alpha == 0 else 0).shape[1] == width:
        variances, turn = torch.linalg.eigh(white.T @ total @ white)
        white = white @ turn
        return _stored(name, mean, white, off @ white, 1 / variances)
    white_of_all = whitening(total, size)
    points = torch.cat([off @ white, off.new_zeros(len(off), white_of_all.shape[1])], 1)
    weights = torch.cat([off.new_zeros(white.shape[1]), off.new_full((white_of_all.shape[1],), 2)])
    return _stored(name, mean, torch.cat([white, white_of_all], 1), points, weights)


def _stored(name: str, mean: Tensor, white: Tensor, points: Tensor, weights: Tensor | None) -> FittedScore:
    tensors = {"mean": mean, "white": white, "points": points}
    tensors |= {} if weights is None else {"weights": weights}
    return FittedScore(name, {key: tensor.float().contiguous() for key, tensor in tensors.items()})


def _shrunk(covariance: Tensor, alpha: float) -> Tensor:
    shrunk = (1 - alpha) * covariance
    shrunk.diagonal().add_(alpha * covariance.diagonal().mean())
    return shrunk


def energy_density(density: FittedScore, energies: Tensor, densities: Tensor) -> FittedScore:
    """Return the score `energy+density` from a fitted `relative-mahalanobis`.

    Energy and density are each standardized with mean and standard deviation on held-out ID data, and added.

    Args:
        density: Fitted `relative-mahalanobis`.
        energies: The member's `energy` of N' held-out samples, shape (N',).
        densities: Values of `density` for the same samples, shape (N',).

    Raises:
        DataError: If energies or densities are constant.
    """
    standards = {
        f"{name}_{moment}": number
        for name, values in (("energy", energies), ("density", densities))
        for moment, number in (("mean", values.mean()), ("deviation", values.std(correction=0)))
    }
    if not min(standards["energy_deviation"], standards["density_deviation"]) > 0:
        raise DataError(
            f"`{ENERGY_DENSITY}`: all held-out samples have the same score",
            hint="give more data to `--val`",
        )
    return FittedScore(ENERGY_DENSITY, {**density.tensors, **standards})


def knn(data: Training, *, name: str = KNN, k: int = 1) -> FittedScore:
    """Fit the distance to the k-th nearest training sample (Sun et al. 2022, section 3).

    Features are normalized to length one. The Euclidean distance is in [0, 2]. k counts from 1; with N < k
    training samples the farthest sample is used. A zero feature vector is not normalized. OpenOOD uses the
    squared distance, with the same ranking, and k = 50, which is too large for classes with fewer samples.
    """
    bank = F.normalize(data.features, dim=1)
    return FittedScore(name, {"bank": bank, "neighbours": torch.tensor(min(k, len(bank)))})


def vim(data: Training, *, name: str = VIM) -> FittedScore:
    """Fit ViM: the virtual logit minus the logsumexp of the logits (Wang et al. 2022).

    The score is a monotone function of the virtual class's probability. With x = f - o, where o = -W^+ b is
    the point with logits nearest to zero, the principal space is spanned by the eigenvectors of sum_i x_i
    x_i^T with the largest eigenvalues. The virtual logit is a times the norm of the component of x outside
    this space (section 4). a equates its mean over training data to the mean of the maximum logit.

    Raises:
        DataError: If there are fewer samples than features, or the features have no component outside the
            principal space. The residual would then be almost 0 for training data and large for all other
            data.
    """
    weight, bias = (tensor.double() for tensor in data.classifier)
    origin: Tensor = -torch.linalg.pinv(weight) @ bias
    width, rank = len(origin), principal(len(origin))
    scatter, lengths = origin.new_zeros(width, width), 0.0
    for features in data.parts():
        x = features - origin
        scatter += x.T @ x
        lengths += float(x.norm(dim=1).sum())
    outside: Tensor = torch.linalg.eigh(scatter).eigenvectors[:, : width - rank]  # eigenvalues ascend

    tensors = {"origin": origin, "outside": outside.contiguous()}
    residuals = sum(float(_residual(tensors, features).sum()) for features in data.parts())
    if len(data.features) < width or residuals <= RESIDUE * lengths:
        raise DataError(
            f"`{VIM}`: {len(data.features)} samples do not span the {width} dimensions of the features, so "
            f"residuals outside the {rank} dimensions of its principal space are not defined",
            hint=f"give at least {width} samples to `--train`, or use `{RELATIVE}`, which needs fewer",
        )
    scale = float(data.largest.double().sum()) / residuals
    return FittedScore(name, {**tensors, "scale": torch.tensor(scale, dtype=torch.float64)})


def principal(width: int) -> int:
    """Return the dimension of ViM's principal space for D features.

    1000 for D >= 2048 and 512 for 768 <= D < 2048, as in the authors' code. Half of D for smaller D, which
    the authors' code does not cover.
    """
    return next((dims for least, dims in (WIDE, MIDDLE) if width >= least), width // 2)


FITS: Mapping[str, Callable[..., FittedScore]] = MappingProxyType(
    {RELATIVE: distance, MAHALANOBIS: distance, KNN: knn, VIM: vim}
)
"""Functions that fit each score of `ood_scores.FITTED` on training data."""


def fit(score: str, data: Training) -> FittedScore:
    """Fit a score in `FITS` with its options.

    Raises:
        DataError: If the score cannot be fitted on these data.
    """
    return FITS[kind_of(score)](data, name=score, **options_of(score))


_DISTANCES = {
    "mean": ("D", torch.float32),
    "white": ("DK", torch.float32),
    "points": ("GK", torch.float32),
}
_RELATIVE = {**_DISTANCES, "weights": ("K", torch.float32)}
TENSOR_SPECS: Mapping[str, Mapping[str, tuple[str, torch.dtype]]] = MappingProxyType(
    {
        ENERGY_DENSITY: _RELATIVE
        | {
            f"{name}_{moment}": ("", torch.float64)
            for name in ("energy", "density")
            for moment in ("mean", "deviation")
        },
        RELATIVE: _RELATIVE,
        MAHALANOBIS: _DISTANCES,
        KNN: {"bank": ("ND", torch.float32), "neighbours": ("", torch.int64)},
        VIM: {
            "origin": ("D", torch.float64),
            "outside": ("DO", torch.float64),
            "scale": ("", torch.float64),
        },
    }
)
"""Tensors of each fitted score for one member: axes (one letter each) and dtype.

N samples, D features, G classes with samples. K: directions in which features vary. O: directions outside
ViM's principal space.
"""


def _distance(score: FittedScore, features: Tensor, _: Tensor) -> Tensor:
    f, tensors = features.double(), score.tensors
    if options_of(score.name).get("normalize", True):
        f = F.normalize(f, dim=1)
    y = (f - tensors["mean"]) @ tensors["white"].double()
    nearest = _squares(y, tensors["points"].double()).amin(1)
    return nearest - y.square() @ tensors["weights"].double() if "weights" in tensors else nearest


def _energy_density(score: FittedScore, features: Tensor, logits: Tensor) -> Tensor:
    values = {"energy": -logits.double().logsumexp(1), "density": _distance(score, features, logits)}
    standard = [
        (value - score.tensors[f"{name}_mean"]) / score.tensors[f"{name}_deviation"]
        for name, value in values.items()
    ]
    return standard[0] + standard[1]


def _neighbour(score: FittedScore, features: Tensor, _: Tensor) -> Tensor:
    k, unit = int(score.tensors["neighbours"]), F.normalize(features.double(), dim=1)
    nearest = unit.new_empty(len(unit), 0)
    for part in score.tensors["bank"].split(AT_ONCE):
        distances = torch.cat([nearest, _squares(unit, part.double())], 1)
        nearest = distances.topk(min(k, distances.shape[1]), dim=1, largest=False).values
    return nearest.amax(1).sqrt()


def _residual(tensors: FittedTensors, features: Tensor) -> Tensor:
    return ((features.double() - tensors["origin"]) @ tensors["outside"]).square().sum(1).sqrt()


def _virtual(score: FittedScore, features: Tensor, logits: Tensor) -> Tensor:
    return score.tensors["scale"] * _residual(score.tensors, features) - logits.double().logsumexp(1)


_APPLIED: Mapping[str, Callable[[FittedScore, Tensor, Tensor], Tensor]] = MappingProxyType(
    {
        ENERGY_DENSITY: _energy_density,
        RELATIVE: _distance,
        MAHALANOBIS: _distance,
        KNN: _neighbour,
        VIM: _virtual,
    }
)


def whitening(covariance: Tensor, size: float) -> Tensor:
    """Return A (D, R), float64, with A A^T the (pseudo)inverse of a covariance (D, D).

    Directions without variance, or with no more variance than float32 rounding, are dropped.

    Args:
        covariance: Covariance of float32 features, shape (D, D).
        size: Mean squared length of the features.
    """
    values, vectors = torch.linalg.eigh(covariance)
    varying = values > max(
        size * ROUNDED**2, float(values.amax()) * len(values) * torch.finfo(values.dtype).eps
    )
    white: Tensor = vectors[:, varying] / values[varying].sqrt()
    return white


def _squares(a: Tensor, b: Tensor) -> Tensor:
    """Return the squared distances (B, G), float64, between rows (B, D) and rows (G, D), at least 0."""
    distances = a.square().sum(1, keepdim=True) + b.square().sum(1) - 2 * a @ b.T
    return distances.clamp(min=0)
