"""A model beside OOD scores that look at its features.

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
from hydractl.errors import CheckpointError
from hydractl.fusion.features import FeatureExtractor
from hydractl.fusion.inference import collected
from hydractl.manifest.header import Header
from hydractl.metrics.feature_scores import FITS, TENSOR_SPECS, FittedScore, Training
from hydractl.metrics.ood_scores import KNN
from hydractl.metrics.per_sample import Responses, Scored
from hydractl.model_inputs import Inputs
from hydractl.processes.distributed import ProcessGroup


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scores:
    """OOD scores of a model's features as they were fitted.

    Attributes:
        fitted: Each score's, one a member.
        temperature: What the model's logits were divided by then.
    """

    fitted: Mapping[str, Sequence[FittedScore]]
    temperature: float = 1.0

    @classmethod
    def stored(cls, checkpoint: Checkpoint, header: Header, *, scores: Sequence[str], name: str) -> Self:
        """Read what a checkpoint holds.

        Args:
            checkpoint: Its tensors.
            header: What it says of them.
            scores: Which; it must hold these.
            name: What errors call it.

        Raises:
            CheckpointError: If a tensor is missing, or not what the score keeps.
        """
        fitted = {
            score: [_read(checkpoint, score, member, name) for member in range(len(header.masks))]
            for score in scores
        }
        return cls(fitted=fitted, temperature=header.fitted.temperature if header.fitted else 1.0)

    @property
    def neighbours(self) -> int | None:
        """Which nearest sample of training data `knn` looks at; None where it is not among them."""
        return int(self.fitted[KNN][0].tensors["neighbours"]) if KNN in self.fitted else None

    def tensors(self) -> dict[str, Tensor]:
        """Return what a checkpoint holds of them, by the names that they have there."""
        return {
            _called(score, member, name): tensor
            for score, member_scores in self.fitted.items()
            for member, fitted_score in enumerate(member_scores)
            for name, tensor in fitted_score.tensors.items()
        }

    def of(self, extractor: FeatureExtractor, *, name: str) -> WithOodScores:
        """Return the model beside these scores.

        Raises:
            CheckpointError: If they are of features of another width.
        """
        with_scores = WithOodScores(extractor=extractor, scores=self)
        widths = {
            _wide(fitted_score).shape[-1]
            for member_scores in self.fitted.values()
            for fitted_score in member_scores
        }
        if widths != {with_scores.width}:
            raise CheckpointError(
                f"{name}: its OOD scores are of {sorted(widths)} features, the model has {with_scores.width}",
                hint="fit them anew: `hydractl eval ... --fit DATA --store PATH`",
            )
        return with_scores


def _wide(fitted: FittedScore) -> Tensor:
    """Return a tensor (..., D) of a score."""
    axes = TENSOR_SPECS[fitted.score]
    return next(tensor for name, tensor in fitted.tensors.items() if axes[name][0].endswith("D"))


def _called(score: str, member: int, name: str) -> str:
    return f"{BESIDE}{score}/{member}/{name}"


def _read(checkpoint: Checkpoint, score: str, member: int, name: str) -> FittedScore:
    hint = "was it written by another version of hydractl?"
    if score not in TENSOR_SPECS:
        raise CheckpointError(f"{name}: holds an OOD score `{score}`, which is none of features", hint=hint)
    tensors = {
        tensor_name: checkpoint.tensor(_called(score, member, tensor_name))
        for tensor_name in TENSOR_SPECS[score]
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
    """A model beside OOD scores of its features, which are fitted on training data.

    Attributes:
        extractor: The model.
        scores: Those.
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
        *,
        name: str,
        team: ProcessGroup,
        neighbours: int,
    ) -> Self:
        """Run the model on training data, once, and fit scores, in every process alike.

        Args:
            extractor: The model.
            scores: Names from `FITS`.
            training: The batches that this process has, and all labels (N,).
            name: What errors call the model.
            team: Who has the others.
            neighbours: See `feature_scores.Training`.

        Raises:
            DataError: If an item cannot be read, or a score cannot be fitted on so few.
            InputError: As `respond_to_all`.
        """
        batches, labels = training
        local_responses = extractor.responses(batches, name=name, data="fit")
        gathered = team.iterate(
            (indices, responses.logits().float().amax(-1), features)
            for indices, responses, features in local_responses
        )
        largest, features = collected(gathered, count=len(labels), data="fit")
        training_of_members = [
            Training(features=f, largest=z, labels=labels, classifier=c, neighbours=neighbours)
            for f, z, c in zip(features, largest, extractor.classifiers(), strict=True)
        ]
        fitted = {
            score: [FITS[score](member_training) for member_training in training_of_members]
            for score in scores
        }
        return cls(extractor=extractor, scores=Scores(fitted=fitted, temperature=extractor.model.temperature))

    @property
    def width(self) -> int:
        """D."""
        return len(self.extractor.classifiers()[0].weight.T)

    def responses(
        self, batches: Iterable[Batch[Inputs]], *, name: str, data: str
    ) -> Iterator[tuple[Tensor, ...]]:
        """Yield what `inference.responses` does, and the scores (1, B, S), means over members."""
        as_fitted = self.extractor.model.temperature / self.scores.temperature
        for indices, member_responses, features in self.extractor.responses(batches, name=name, data=data):
            pairs = [*zip(features, member_responses.logits() * as_fitted, strict=True)]
            scores = [
                torch.stack([score(f, z) for score, (f, z) in zip(member_scores, pairs, strict=True)]).mean(0)
                for member_scores in self.scores.fitted.values()
            ]
            yield indices, *member_responses.tensors(), torch.stack(scores, -1).unsqueeze(0)

    def scored(self, responses: Responses, scores: Tensor) -> Scored:
        """Return what is said of N samples beside scores (1, N, S), as `responses` has them."""
        return Scored(responses, dict(zip(self.names, scores.squeeze(0).unbind(1), strict=True)))
