"""OOD scores that look at features, and know from training data what they are usually like: the higher, the more OOD.

Features are what a member's classifier reads. Each score is fitted for one member, and maps its features (B, D) and its logits
(B, C) to (B,), float64. A row of several members has the mean of their scores, as of `energy`: each member keeps features of its
own, and neither their widths nor how many samples there are to fit on limits how many members there may be. OpenOOD and
torch-uncertainty fit such scores for single models only.

Axes: N training samples, B others, D features, C classes.
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
from hydractl.metrics.ood_scores import KNN, MAHALANOBIS, VIM

FittedTensors: TypeAlias = Mapping[str, Tensor]
AT_ONCE = 8192
WIDE, MIDDLE = (2048, 1000), (768, 512)
"""From which width on, and then how many, dimensions are ViM's principal space."""
ROUNDED = 8 * torch.finfo(torch.float32).eps
"""A deviation that may be rounding, as a share of the features' length."""
RESIDUE = 1e-6
"""Residuals of training data, as a share of the features' lengths, that are but rounding: too few samples span all there is."""


class Classifier(NamedTuple):
    """What makes logits of features: weight (C, D) and bias (C,)."""

    weight: Tensor
    bias: Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Training:
    """What a member says of training data.

    Attributes:
        features: Shape (N, D).
        largest: The largest logit of each, (N,).
        labels: Shape (N,), int64, from 0; a class without samples has no mean.
        classifier: The member's own.
        neighbours: Which of the nearest samples tells the distance, at least 1; of fewer samples the farthest.
    """

    features: Tensor
    largest: Tensor
    labels: Tensor
    classifier: Classifier
    neighbours: int

    def parts(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield features in float64 with their labels, some samples at a time."""
        for features, labels in zip(self.features.split(AT_ONCE), self.labels.split(AT_ONCE), strict=True):
            yield features.double(), labels


@dataclass(frozen=True, slots=True, eq=False)
class FittedScore:
    """A score as it was fitted for one member, and all that it keeps of training data.

    Attributes:
        score: Its name.
        tensors: Tensors by name, on the CPU, of the shapes and dtypes that `TENSOR_SPECS` says.
    """

    score: str
    tensors: FittedTensors

    def __call__(self, features: Tensor, logits: Tensor) -> Tensor:
        """Return the scores (B,), float64, of features (B, D) and logits (B, C)."""
        return _APPLIED[self.score](self.tensors, features, logits)

    def check(self) -> None:
        """Refuse tensors that are not what the score keeps.

        Raises:
            ValueError: Naming one of them.
        """
        specs, sizes = TENSOR_SPECS[self.score], dict[str, int]()
        if self.tensors.keys() != specs.keys():
            raise ValueError(f"it keeps {', '.join(specs)}, not {', '.join(sorted(self.tensors))}")
        for name, (axes, dtype) in specs.items():
            tensor = self.tensors[name]
            fits = tensor.ndim == len(axes) and tensor.dtype == dtype and tensor.numel() > 0
            if not fits or any(sizes.setdefault(a, n) != n for a, n in zip(axes, tensor.shape, strict=True)):
                raise ValueError(
                    f"`{name}` must be {axes or 'a number'} of {dtype}, with equal letters for equal sizes"
                )
            if not bool(tensor.isfinite().all()):
                raise ValueError(f"`{name}` is not finite")
        if self.score == KNN and not 1 <= int(self.tensors["neighbours"]) <= sizes["N"]:
            raise ValueError("`neighbours` must count from 1 to the samples of `bank`")


def mahalanobis(data: Training) -> FittedScore:
    """Return the squared distance min_c (f - m_c)^T S^-1 (f - m_c), at least 0 (Lee et al. 2018, eqs. 1 and 2, negated).

    m_c are the classes' means and S = 1/N sum_i (f_i - m_{y_i})(f_i - m_{y_i})^T is the covariance that they share. Of the last
    features alone, inputs left as they are, as OpenOOD has it. The pseudoinverse stands for the inverse: a direction in which
    training data varies no more than float32 rounds does not count. A norm before the classifier leaves one of these.

    Raises:
        DataError: If training data does not vary within classes.
    """
    means, places = _means(data.labels, data)
    white = _whitening(data, means[places[data.labels]])
    middle = means.mean(0)  # what is far from 0 in directions of little variance would be rounded there
    near = (means - middle) @ white
    return FittedScore(MAHALANOBIS[0], {"middle": middle, "white": white, "near": near})


def relative_mahalanobis(data: Training) -> FittedScore:
    """Return `mahalanobis` less (f - m)^T S_0^-1 (f - m), of the mean and covariance of all data (Ren et al. 2021, negated).

    Raises:
        DataError: As `mahalanobis`.
    """
    by_class = mahalanobis(data)
    mean, _ = _means(torch.zeros_like(data.labels), data)
    whitening_of_all = _whitening(data, mean.expand(len(data.labels), -1))
    return FittedScore(
        MAHALANOBIS[1], {**by_class.tensors, "mean": mean.squeeze(0), "whole": whitening_of_all}
    )


def knn(data: Training) -> FittedScore:
    """Return the Euclidean distance to the k-th nearest training sample, features of length one, in [0, 2] (Sun et al. 2022, section 3).

    k counts from 1; if all of N < k samples are nearer, it is the distance to the farthest. A feature vector of zeros stays one.
    OpenOOD has the square, which ranks alike.
    """
    bank = F.normalize(data.features, dim=1)
    return FittedScore(KNN, {"bank": bank, "neighbours": torch.tensor(min(data.neighbours, len(bank)))})


def vim(data: Training) -> FittedScore:
    """Return the virtual logit less the logsumexp of the logits, a monotone map of the virtual class's probability (Wang et al. 2022).

    With x = f - o, where o = -W^+ b is the point whose logits are nearest to zero, the principal space is spanned by the
    eigenvectors of the largest eigenvalues of sum_i x_i x_i^T, and the virtual logit is a times the length of what x has outside
    of it (section 4); a makes its mean over training data that of the largest logit.

    Raises:
        DataError: If training data has nothing outside of its principal space.
    """
    weight, bias = (tensor.double() for tensor in data.classifier)
    origin: Tensor = -torch.linalg.pinv(weight) @ bias
    width, rank = len(origin), principal(len(origin))
    scatter, lengths = origin.new_zeros(width, width), 0.0
    for features, _ in data.parts():
        x = features - origin
        scatter += x.T @ x
        lengths += float(x.norm(dim=1).sum())
    outside: Tensor = torch.linalg.eigh(scatter).eigenvectors[:, : width - rank]  # eigenvalues ascend

    tensors = {"origin": origin, "outside": outside.contiguous()}
    residuals = sum(float(_residual(tensors, features).sum()) for features, _ in data.parts())
    if residuals <= RESIDUE * lengths:
        raise DataError(
            f"`{VIM}`: the features of {len(data.labels)} samples span no more than the {rank} dimensions of its principal space",
            hint=f"name more data with `--fit`: more than {rank} samples, and several a class",
        )
    scale = float(data.largest.double().sum()) / residuals
    return FittedScore(VIM, {**tensors, "scale": torch.tensor(scale, dtype=torch.float64)})


def principal(width: int) -> int:
    """Return how many of D dimensions are ViM's principal space.

    As in the authors' code 1000 where D is at least 2048, else 512; below 768, of which they say nothing, half of D.
    """
    return next((dims for least, dims in (WIDE, MIDDLE) if width >= least), width // 2)


FITS: Mapping[str, Callable[[Training], FittedScore]] = MappingProxyType(
    {
        **dict(zip(MAHALANOBIS, (mahalanobis, relative_mahalanobis), strict=True)),
        KNN: knn,
        VIM: vim,
    }
)
"""How each of `ood_scores.FITTED` is fitted."""

_BY_CLASS = {
    "middle": ("D", torch.float64),
    "white": ("DR", torch.float64),
    "near": ("GR", torch.float64),
}
TENSOR_SPECS: Mapping[str, Mapping[str, tuple[str, torch.dtype]]] = MappingProxyType(
    {
        MAHALANOBIS[0]: _BY_CLASS,
        MAHALANOBIS[1]: {**_BY_CLASS, "mean": ("D", torch.float64), "whole": ("DS", torch.float64)},
        KNN: {"bank": ("ND", torch.float32), "neighbours": ("", torch.int64)},
        VIM: {
            "origin": ("D", torch.float64),
            "outside": ("DO", torch.float64),
            "scale": ("", torch.float64),
        },
    }
)
"""What each keeps of training data, for one member: axes, a letter each, and dtype.

N samples, D features, G classes with samples; R and S are directions in which features vary, O those outside of ViM's
principal space.
"""


def _nearest_class(tensors: FittedTensors, features: Tensor, _: Tensor) -> Tensor:
    return _squares((features.double() - tensors["middle"]) @ tensors["white"], tensors["near"]).amin(1)


def _relative(tensors: FittedTensors, features: Tensor, logits: Tensor) -> Tensor:
    off = (features.double() - tensors["mean"]) @ tensors["whole"]
    return _nearest_class(tensors, features, logits) - off.square().sum(1)


def _neighbour(tensors: FittedTensors, features: Tensor, _: Tensor) -> Tensor:
    k, unit = int(tensors["neighbours"]), F.normalize(features.double(), dim=1)
    nearest = unit.new_empty(len(unit), 0)
    for part in tensors["bank"].split(AT_ONCE):
        distances = torch.cat([nearest, _squares(unit, part.double())], 1)
        nearest = distances.topk(min(k, distances.shape[1]), dim=1, largest=False).values
    return nearest.amax(1).sqrt()


def _residual(tensors: FittedTensors, features: Tensor) -> Tensor:
    return ((features.double() - tensors["origin"]) @ tensors["outside"]).square().sum(1).sqrt()


def _virtual(tensors: FittedTensors, features: Tensor, logits: Tensor) -> Tensor:
    return tensors["scale"] * _residual(tensors, features) - logits.double().logsumexp(1)


_APPLIED: Mapping[str, Callable[[FittedTensors, Tensor, Tensor], Tensor]] = MappingProxyType(
    {**dict(zip(MAHALANOBIS, (_nearest_class, _relative), strict=True)), KNN: _neighbour, VIM: _virtual}
)


def _means(groups: Tensor, data: Training) -> tuple[Tensor, Tensor]:
    """Return the mean features (G, D) of the groups that have samples, and each group's place among them."""
    counts = groups.bincount()
    has_samples = counts > 0
    sums = torch.zeros(len(counts), data.features.shape[1], dtype=torch.float64)
    for (features, _), part_groups in zip(data.parts(), groups.split(AT_ONCE), strict=True):
        sums.index_add_(0, part_groups, features)
    return sums[has_samples] / counts[has_samples].unsqueeze(1), has_samples.cumsum(0) - 1


def _whitening(data: Training, centres: Tensor) -> Tensor:
    """Return A (D, R) with A A^T the (pseudo)inverse of the covariance of features less their centres (N, D)."""
    width = data.features.shape[1]
    covariance = torch.zeros(width, width, dtype=torch.float64)
    for (features, _), part_centres in zip(data.parts(), centres.split(AT_ONCE), strict=True):
        off = features - part_centres
        covariance += off.T @ off / len(data.labels)
    size = sum(float(features.square().sum()) for features, _ in data.parts()) / len(data.labels)
    white = whitening(covariance, size)
    if not white.numel():
        raise DataError(
            "the features of the data to fit on do not vary within classes",
            hint="name more data with `--fit`: several samples a class",
        )
    return white


def whitening(covariance: Tensor, size: float) -> Tensor:
    """Return A (D, R) with A A^T the (pseudo)inverse of a covariance (D, D), float64.

    Directions in which nothing varies, or no more than float32 rounds, are left out.

    Args:
        covariance: Of float32 numbers.
        size: Their mean squared length.
    """
    values, vectors = torch.linalg.eigh(covariance)
    varying = values > max(
        size * ROUNDED**2, float(values.amax()) * len(values) * torch.finfo(values.dtype).eps
    )
    white: Tensor = vectors[:, varying] / values[varying].sqrt()
    return white


def _squares(a: Tensor, b: Tensor) -> Tensor:
    """Return the squared distances (B, G) of rows (B, D) and (G, D), float64; rounding below 0 is clamped."""
    distances = a.square().sum(1, keepdim=True) + b.square().sum(1) - 2 * a @ b.T
    return distances.clamp(min=0)
