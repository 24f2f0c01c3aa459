"""A model beside OOD scores that look at its features.

Axes: M members, B batch, N samples, S scores.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from hydractl.data.batches import Batch
from hydractl.fusion.features import Watched
from hydractl.fusion.responding import collected
from hydractl.inputs import Inputs
from hydractl.metrics.fitted import FITS, Fitted, Training
from hydractl.parallel import Team


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Detecting:
    """A model beside OOD scores of its features, which are fitted on training data.

    Attributes:
        watched: The model.
        fitted: Each score's, one a member.
    """

    watched: Watched
    fitted: Mapping[str, Sequence[Fitted]]

    @classmethod
    def fit(
        cls,
        watched: Watched,
        scores: Sequence[str],
        training: tuple[Iterable[Batch[Inputs]], Tensor],
        *,
        name: str,
        team: Team,
        neighbours: int,
    ) -> Self:
        """Run the model on training data, once, and fit scores, in every process alike.

        Args:
            watched: The model.
            scores: Names from `FITS`.
            training: The batches that this process has, and all labels (N,).
            name: What errors call the model.
            team: Who has the others.
            neighbours: See `fitted.Training`.

        Raises:
            DataError: If an item cannot be read, or a score cannot be fitted on so few.
            InputError: As `respond_to_all`.
        """
        batches, labels = training
        own = watched.responses(batches, name=name, data="fit")
        found = team.each((indices, said.logits().float(), features) for indices, said, features in own)
        logits, features = collected(found, count=len(labels), data="fit")
        each = [
            Training(features=f, logits=z, labels=labels, classifier=c, neighbours=neighbours)
            for f, z, c in zip(features, logits, watched.classifiers(), strict=True)
        ]
        return cls(watched=watched, fitted={score: [FITS[score](own) for own in each] for score in scores})

    @property
    def width(self) -> int:
        """D."""
        return len(self.watched.classifiers()[0].weight.T)

    def responses(
        self, batches: Iterable[Batch[Inputs]], *, name: str, data: str
    ) -> Iterator[tuple[Tensor, ...]]:
        """Yield what `responding.responses` does, and the scores (1, B, S), means over members."""
        for indices, said, features in self.watched.responses(batches, name=name, data=data):
            pairs = [*zip(features, said.logits(), strict=True)]
            scores = [
                torch.stack([score(f, z) for score, (f, z) in zip(own, pairs, strict=True)]).mean(0)
                for own in self.fitted.values()
            ]
            yield indices, *said.tensors(), torch.stack(scores, -1).unsqueeze(0)
