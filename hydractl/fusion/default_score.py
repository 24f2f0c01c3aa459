"""The logits and the default OOD score of a model in one graph, for Auto classes and exported models.

Axes: M members, B batch, C classes, D features, G classes with training samples, K directions in which features vary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

import torch
from torch import Tensor, nn
from typing_extensions import override

from hydractl.families.base import Family
from hydractl.families.load import OpenModel
from hydractl.families.tower import Towers, without_autocast
from hydractl.fusion.feature_ood import Scores, default_score
from hydractl.fusion.features import FeatureExtractor
from hydractl.fusion.prompts import Classes, with_class_names
from hydractl.metrics.feature_scores import FittedScore
from hydractl.metrics.ood_scores import ENERGY_DENSITY, MSP, msp
from hydractl.metrics.per_sample import of_inputs
from hydractl.model_inputs import Inputs


class EnergyDensity(nn.Module):
    """`energy+density` of M members, always in float32 and not part of a state dict.

    With y = (f / ||f|| - mean) A, the density of `feature_scores.distance` is min_c (||n_c||^2 - 2 y n_c) + sum_k (1 -
    w_k) y_k^2, which avoids the subtraction of large numbers.
    """

    mean: Tensor
    white: Tensor
    points: Tensor
    lengths: Tensor
    weights: Tensor
    energy_scale: Tensor
    density_scale: Tensor
    shift: Tensor

    def __init__(self, fitted: Sequence[FittedScore]) -> None:
        super().__init__()
        tensors = {name: [score.tensors[name].double() for score in fitted] for name in fitted[0].tensors}
        white, points = (_padded([x.T for x in tensors[name]]) for name in ("white", "points"))
        scales = [torch.stack(tensors[f"{name}_deviation"]).view(-1, 1) for name in ("energy", "density")]
        means = [torch.stack(tensors[f"{name}_mean"]).view(-1, 1) for name in ("energy", "density")]
        constants = {
            "mean": torch.stack(tensors["mean"]).unsqueeze(1),  # (M, 1, D)
            "white": white.mT.contiguous(),  # (M, D, K)
            "points": -2 * points,  # (M, K, G)
            "lengths": points.square().sum(1, keepdim=True),  # (M, 1, G)
            "weights": 1 - _padded(tensors["weights"]).unsqueeze(1),  # (M, 1, K)
            "energy_scale": 1 / scales[0],  # (M, 1)
            "density_scale": 1 / scales[1],
            "shift": means[0] / scales[0] + means[1] / scales[1],
        }
        for name, tensor in constants.items():
            self.register_buffer(name, tensor.float(), persistent=False)

    @override
    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> EnergyDensity:
        place = fn(self.mean.new_empty(0)).device
        return super()._apply(lambda x: x.to(place), recurse)  # type: ignore[no-untyped-call, no-any-return]

    @override
    def forward(self, logits: Tensor, features: Tensor) -> Tensor:
        """Return the scores (B,) of logits (M, B, C), at the temperature of the fit, and features (M, B, D)."""
        with without_autocast(logits.device):
            y = (nn.functional.normalize(features.float(), dim=-1) - self.mean) @ self.white
            nearest = (self.lengths + y @ self.points).amin(-1)
            density = nearest + (y.square() * self.weights).sum(-1)
            energy = -logits.float().logsumexp(-1)
            scores: Tensor = energy * self.energy_scale + density * self.density_scale - self.shift
        return scores.mean(0)


class WithDefaultScore(nn.Module):
    """A model with its default OOD score, computed in the same pass: `energy+density` if its checkpoint stores it, else `msp`.

    The model is not registered as a submodule, so that a module may hold both.

    Attributes:
        score: Name of the score.
    """

    score = MSP

    def __init__(self, model: Towers, scores: Scores | None, family: Family, *, name: str) -> None:
        """Make the model's readout return features, if the score needs them.

        Args:
            model: In evaluation mode.
            scores: OOD scores that its checkpoint stores.
            family: Family of the model.
            name: Name of the model for errors.

        Raises:
            CheckpointError: If stored scores are for features of another width.
        """
        super().__init__()
        self._models = (model,)
        if scores is None or ENERGY_DENSITY not in scores.fitted:
            return
        self.score = ENERGY_DENSITY
        self.with_scores = scores.of(FeatureExtractor.of(model, family, name=name), name=name)
        self.energy_density = EnergyDensity(scores.fitted[ENERGY_DENSITY])

    @classmethod
    def stored(cls, model: Towers, opened: OpenModel, classes: Classes | None = None) -> Self:
        """Return a model with the default score of its checkpoint.

        Args:
            model: In evaluation mode.
            opened: The checkpoint.
            classes: Classes of a zero-shot model; stored scores apply only to the classes of the checkpoint.

        Raises:
            CheckpointError: If stored scores are invalid.
        """
        header, scores = with_class_names(opened.header, classes), None
        if default_score(header) == ENERGY_DENSITY:
            scores = Scores.stored(opened.checkpoint, header, scores=[ENERGY_DENSITY], name=opened.reference)
        return cls(model, scores, opened.family, name=opened.reference)

    @property
    def model(self) -> Towers:
        """The model."""
        return self._models[0]

    def forward(self, inputs: Inputs, *, exact: bool = False) -> tuple[Tensor, Tensor]:
        """Return each member's logits and the score of inputs (B, ...); `exact` uses float64, as `predict`.

        They are (M, B, C) and (B,), of Q labels (M, B, Q, 2) and (B,), of tokens (M, B, T, C) and (B, T).
        """
        if self.score == MSP:
            logits = self.model.member_logits(inputs)
            score = msp(logits.float().log_softmax(-1))
            return logits, of_inputs(score, multi_label=self.model.answer.multi_label)
        logits, features = self.with_scores.extractor.logits_and_features(inputs)
        if exact:
            return logits, self.with_scores.score(ENERGY_DENSITY, logits, features)
        return logits, self.energy_density(logits * self.with_scores.as_fitted, features)


def _padded(tensors: Sequence[Tensor]) -> Tensor:
    """Stack tensors (K, ...) of different K to (M, K, ...), padded with zeros."""
    return nn.utils.rnn.pad_sequence([*tensors], batch_first=True)
