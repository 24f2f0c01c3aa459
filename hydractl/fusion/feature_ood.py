"""A model with feature-based OOD scores.

Axes: M members, B batch, N samples, S scores.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from hydractl.checkpoint import BESIDE, Checkpoint
from hydractl.data.batches import Batch
from hydractl.errors import CheckpointError, InputError
from hydractl.fusion.features import FeatureExtractor
from hydractl.manifest.guarantees import Threshold
from hydractl.manifest.header import Header
from hydractl.metrics import ood_scores
from hydractl.metrics.feature_scores import (
    TENSOR_SPECS,
    WITH_FEATURES,
    FittedScore,
    Moments,
    Training,
    energy_density,
    fit,
)
from hydractl.metrics.per_sample import Responses, Scored
from hydractl.model_inputs import Inputs
from hydractl.output.scratch import ROOM_HINT, scratch_tensor
from hydractl.processes.distributed import ProcessGroup

FIT_ANEW = "fit it again with `hydractl eval ... --fit TRAIN --val VAL --store PATH`"


def default_score(header: Header) -> str:
    """Return the default OOD score of a model: `energy+density` if its checkpoint stores it, else `msp`."""
    return (
        ood_scores.ENERGY_DENSITY
        if header.fitted and ood_scores.ENERGY_DENSITY in header.fitted.scores
        else ood_scores.MSP
    )


def check_threshold(threshold: Threshold, *, where: str) -> None:
    """Refuse a threshold on a score whose definition has changed since.

    Raises:
        InputError: If the definition has changed.
    """
    if not ood_scores.means_the_same(threshold.score, threshold.version):
        raise InputError(
            f"{where}: its threshold is for an earlier definition of `{threshold.score}`",
            hint="find it again with `hydractl eval ... --threshold-for 'risk<=R' --store PATH`",
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scores:
    """Fitted feature-based OOD scores of a model.

    Attributes:
        fitted: Fitted scores by name, one per member.
        temperature: Temperature of the model when the scores were fitted.
    """

    fitted: Mapping[str, Sequence[FittedScore]]
    temperature: float = 1.0

    @classmethod
    def stored(cls, checkpoint: Checkpoint, header: Header, *, scores: Sequence[str], name: str) -> Self:
        """Read the scores of a checkpoint.

        Args:
            checkpoint: Checkpoint with the tensors.
            header: Header of the checkpoint.
            scores: Names of scores to read; the checkpoint must have them.
            name: Name of the checkpoint for errors.

        Raises:
            CheckpointError: If a tensor is missing or invalid, or the definition of a score has changed since it was
                fitted.
        """
        version = header.fitted.version if header.fitted else ood_scores.VERSION
        if changed := [score for score in scores if not ood_scores.means_the_same(score, version)]:
            raise CheckpointError(
                f"{name}: its OOD score `{changed[0]}` was fitted by its earlier definition",
                hint=FIT_ANEW,
            )
        fitted = {
            score: [_read(checkpoint, score, member, name) for member in range(len(header.masks))]
            for score in scores
        }
        return cls(fitted=fitted, temperature=header.fitted.temperature if header.fitted else 1.0)

    @property
    def size(self) -> int:
        """Size of the tensors in bytes."""
        return sum(score.size for member_scores in self.fitted.values() for score in member_scores)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors by their names in a checkpoint."""
        return {
            _called(score, member, name): tensor
            for score, member_scores in self.fitted.items()
            for member, fitted_score in enumerate(member_scores)
            for name, tensor in fitted_score.tensors.items()
        }

    def of(self, extractor: FeatureExtractor, *, name: str) -> WithOodScores:
        """Return the model with these scores.

        Raises:
            CheckpointError: If they are for features of another width.
        """
        with_scores = WithOodScores(extractor=extractor, scores=self)
        widths = {
            _wide(fitted_score).shape[-1]
            for member_scores in self.fitted.values()
            for fitted_score in member_scores
        }
        if widths != {with_scores.width}:
            raise CheckpointError(
                f"{name}: its OOD scores are for {sorted(widths)} features, but the model has {with_scores.width}",
                hint=FIT_ANEW,
            )
        return with_scores


def _wide(fitted: FittedScore) -> Tensor:
    """Return a tensor (..., D) of a score."""
    axes = TENSOR_SPECS[ood_scores.kind_of(fitted.name)]
    return next(tensor for name, tensor in fitted.tensors.items() if axes[name][0].endswith("D"))


def _called(score: str, member: int, name: str) -> str:
    return f"{BESIDE}{score}/{member}/{name}"


def _read(checkpoint: Checkpoint, score: str, member: int, name: str) -> FittedScore:
    hint = "it may be from another version of hydractl"
    tensors = {
        tensor_name: checkpoint.tensor(_called(score, member, tensor_name))
        for tensor_name in TENSOR_SPECS[ood_scores.kind_of(score)]
    }
    fitted_score = FittedScore(score, tensors)
    try:
        fitted_score.check()
    except ValueError as error:
        raise CheckpointError(
            f"{name}: OOD score `{score}` of member {member}: {error}", hint=hint
        ) from error
    return fitted_score


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WithOodScores:
    """A model with feature-based OOD scores, fitted on training data.

    Attributes:
        extractor: The model.
        scores: Fitted scores.
    """

    extractor: FeatureExtractor
    scores: Scores

    @property
    def names(self) -> tuple[str, ...]:
        """Of the S scores."""
        return tuple(self.scores.fitted)

    @classmethod
    def fit(
        cls,
        extractor: FeatureExtractor,
        scores: Sequence[str],
        training: tuple[Iterable[Batch[Inputs]], Tensor],
        held_out: Iterable[Batch[Inputs]] = (),
        *,
        name: str,
        team: ProcessGroup,
    ) -> Self:
        """Run the model once on training data and fit scores; all processes get the same scores.

        A process holds only sums over the data, D^2 + C D numbers per member; for `knn` and `vim` it holds the features,
        in a file if they are large.

        Args:
            extractor: The model.
            scores: Names from `FITS`, with options, and `energy+density`.
            training: Batches of this process, and all labels (N,).
            held_out: Batches of held-out ID data, which `energy+density` needs.
            name: Name of the model for errors.
            team: Process group with the other batches.

        Raises:
            DataError: If an item cannot be read, or a score cannot be fitted on these data.
            InputError: As for `respond_to_all`.
            OutputError: If there is no disk space for features.
        """
        batches, labels = training
        by_density = {
            score: ood_scores.RELATIVE if score == ood_scores.ENERGY_DENSITY else score for score in scores
        }
        observed = _observed(extractor, [*by_density.values()], batches, labels, name=name, team=team)
        fitted = {score: [fit(kind, member) for member in observed] for score, kind in by_density.items()}
        if ood_scores.ENERGY_DENSITY in fitted:
            values = _energies_and_densities(
                extractor, fitted[ood_scores.ENERGY_DENSITY], held_out, name=name, team=team
            )
            fitted[ood_scores.ENERGY_DENSITY] = [
                energy_density(density, *of_member)
                for density, of_member in zip(fitted[ood_scores.ENERGY_DENSITY], values, strict=True)
            ]
        return cls(extractor=extractor, scores=Scores(fitted=fitted, temperature=extractor.model.temperature))

    @property
    def width(self) -> int:
        """D."""
        return len(self.extractor.classifiers()[0].weight.T)

    def responses(
        self, batches: Iterable[Batch[Inputs]], *, name: str, data: str
    ) -> Iterator[tuple[Tensor, ...]]:
        """Yield the outputs of `inference.responses` and the scores (1, B, S), means over members."""
        for indices, member_responses, features in self.extractor.responses(batches, name=name, data=data):
            scores = [self.score(score, member_responses.logits(), features) for score in self.names]
            yield indices, *member_responses.tensors(), torch.stack(scores, -1).unsqueeze(0)

    @property
    def as_fitted(self) -> float:
        """Factor of logits that restores the temperature with which the scores were fitted."""
        return self.extractor.model.temperature / self.scores.temperature

    def score(self, name: str, logits: Tensor, features: Tensor) -> Tensor:
        """Return a score (B,), float64, the mean over members, for logits (M, B, C) and features (M, B, D).

        Raises:
            InputError: If a score is not finite in float32.
        """
        members = zip(self.scores.fitted[name], features, logits * self.as_fitted, strict=True)
        scores = torch.stack([fitted_score(f, z) for fitted_score, f, z in members]).mean(0)
        if not scores.float().isfinite().all():
            raise InputError(f"the OOD score `{name}` of the model is not finite", hint=FIT_ANEW)
        return scores

    def scored(self, responses: Responses, scores: Tensor) -> Scored:
        """Return predictions of N samples with scores (1, N, S), as from `responses`."""
        return Scored(responses, dict(zip(self.names, scores.squeeze(0).unbind(1), strict=True)))


def _observed(
    extractor: FeatureExtractor,
    scores: Sequence[str],
    batches: Iterable[Batch[Inputs]],
    labels: Tensor,
    *,
    name: str,
    team: ProcessGroup,
) -> list[Training]:
    """Return the outputs of each member on training data that the scores need."""
    classifiers, count = extractor.classifiers(), len(labels)
    width, classes = len(classifiers[0].weight.T), int(labels.max()) + 1
    lengths = {
        bool(ood_scores.options_of(score)["normalize"])
        for score in scores
        if ood_scores.kind_of(score) not in WITH_FEATURES
    }
    moments = [
        {normalized: Moments(classes, width, normalized=normalized) for normalized in lengths}
        for _ in classifiers
    ]
    keeps_features = any(ood_scores.kind_of(score) in WITH_FEATURES for score in scores)
    all_features = scratch_tensor(
        (len(classifiers), count if keeps_features else 0, width),
        name=f"the features of {count} samples",
        until="scores are fitted",
        hint=f"{ROOM_HINT}, or use a score that stores no features: `{ood_scores.RELATIVE}`",
    )
    largest_logits, arrived = torch.empty(len(classifiers), count), 0
    for indices, largest, features in team.iterate(
        (indices, responses.logits().float().amax(-1), features)
        for indices, responses, features in extractor.responses(batches, name=name, data="fit")
    ):
        arrived += len(indices)
        largest_logits[:, indices] = largest
        if keeps_features:
            all_features[:, indices] = features
        for member_moments, f in zip(moments, features, strict=True):
            for sums in member_moments.values():
                sums.add(f, labels[indices])
    if arrived != count:
        raise ValueError(f"fit: {arrived} of {count} items were read")
    return [
        Training(classifier=c, moments=m, features=f, largest=z)
        for c, m, f, z in zip(classifiers, moments, all_features, largest_logits, strict=True)
    ]


def _energies_and_densities(
    extractor: FeatureExtractor,
    densities: Sequence[FittedScore],
    held_out: Iterable[Batch[Inputs]],
    *,
    name: str,
    team: ProcessGroup,
) -> list[tuple[Tensor, Tensor]]:
    """Return each member's energies and relative densities of held-out data, in the order of the data."""
    parts = [
        torch.stack([
            torch.stack([ood_scores.SCORES[ood_scores.ENERGY].of(z.unsqueeze(0)), density(f, z)])
            for density, f, z in zip(densities, features, responses.logits(), strict=True)
        ])
        for _, responses, features in extractor.responses(held_out, name=name, data="val")
    ]  # fmt: skip
    energies, values = torch.cat(team.in_order(parts), -1).unbind(1)
    return [*zip(energies, values, strict=True)]
