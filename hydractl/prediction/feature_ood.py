"""Features of members (the inputs of their classifiers), and feature-based OOD scores.

Axes: M members, B batch, N samples, C classes, D features, S scores. In `EnergyDensity`: G classes with
training samples, K directions in which features vary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from hydractl import progress
from hydractl.checkpoint import EXTRA_PREFIX, Checkpoint
from hydractl.data.batches import Batch
from hydractl.data.datasets import ItemPreprocess
from hydractl.errors import CheckpointError, DataError, InputError, UnsupportedModelError
from hydractl.families.base import Family
from hydractl.families.open_model import OpenModel
from hydractl.families.stream import FeatureLinear, MemberParallel, placed_features
from hydractl.families.tower import Contrast, OutputHead, Towers, without_autocast
from hydractl.manifest.guarantees import KnownTest, Threshold
from hydractl.manifest.header import Header
from hydractl.metrics import ood_scores
from hydractl.metrics.feature_scores import (
    TENSOR_SPECS,
    WITH_FEATURES,
    Classifier,
    FittedScore,
    Moments,
    Training,
    energy_density,
    fit,
)
from hydractl.metrics.ood_scores import ENERGY_DENSITY, MSP, default_score, msp, options_of
from hydractl.metrics.per_sample import Responses, of_inputs
from hydractl.model_inputs import Inputs
from hydractl.output.scratch import ROOM_HINT, scratch_tensor
from hydractl.prediction.class_names import Classes, with_class_names
from hydractl.prediction.inference import PreparedData, responses
from hydractl.prediction.open_inputs import overlap
from hydractl.processes.distributed import ProcessGroup


@dataclass(frozen=True, slots=True, eq=False)
class FeatureExtractor:
    """A model with features and logits as outputs.

    For a model with a classifier, features are the inputs of its last linear layer. If there are several
    classifiers (for a class token and a distillation token), their inputs are concatenated. For a zero-shot
    model, features are the normalized image embedding.
    """

    model: Towers
    readouts: tuple[tuple[nn.Linear, ...], ...]
    """Last layers of the classifiers, for each readout; empty for a zero-shot model."""

    @classmethod
    def of(cls, model: Towers, family: Family, *, name: str) -> FeatureExtractor:
        """Change a classifier in place to return features after its logits. The logits stay the same.

        A zero-shot model is not changed, because its features are the image embeddings.

        Args:
            model: The model in evaluation mode.
            family: Family of the model.
            name: Name of the model for errors.

        Raises:
            UnsupportedModelError: If a classifier of the model has no linear layer.
        """
        if any(isinstance(answer, Contrast) for answer in model.answers):
            return cls(model, ())
        kinds = {nn.Linear, FeatureLinear}
        readouts = tuple(
            tuple(
                layers[-1]
                for head in heads
                if (layers := [p for p in head.modules() if isinstance(p, nn.Linear) and type(p) in kinds])
            )
            for heads in heads_of(model, family)
        )
        if not all(readouts):
            raise UnsupportedModelError(f"{name}: its classifier has no linear layer, so it has no features")
        for last_layers in readouts:
            for place, layer in enumerate(last_layers):
                FeatureLinear.take_over(layer, place, len(last_layers))
        extractor = cls(model, readouts)
        for answer in model.answers:
            vars(answer).update(features=extractor.width)
        # Stacked readouts are copies without features, and must be created again.
        if isinstance(readout := model.tower().readout, MemberParallel):
            readout.restack()
        return extractor

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return self.model.device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the model."""
        return self.model.dtype

    def outputs(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """Return the members' logits (M, B, C) and features (M, B, D) of inputs (B, ...) from a single pass."""
        outputs = self.model.run_towers(inputs)
        features = self.features_of(outputs).expand(len(self.model.answers), -1, -1)
        return self.model.scaled_logits(outputs), features

    def features_of(self, outputs: Mapping[str, Tensor]) -> Tensor:
        """Return the features (G, B, D) from the towers' outputs (G, B, F) by tower name, G = 1 or M.

        They are the last D of the F columns of a classifier's outputs, or the outputs of the tower `vision`.
        """
        return next(iter(outputs.values()))[..., -self.width :] if self.readouts else outputs["vision"]

    @property
    def width(self) -> int:
        """Number of features D."""
        if self.readouts:
            return sum(layer.in_features for layer in self.readouts[0])
        return next(answer.width for answer in self.model.answers if isinstance(answer, Contrast))

    def classifiers(self) -> list[Classifier]:
        """Return each member's linear classifier: weights (C, D) and biases (C,), float32 on the CPU.

        Logits divided by the model's temperature equal `features @ weights.T + biases`.
        """
        heat = self.model.temperature
        if not self.readouts:
            return [_cosines(answer, heat) for answer in self.model.answers if isinstance(answer, Contrast)]
        to_classes = OutputHead().class_logits
        classifiers = [
            Classifier(
                to_classes(torch.cat([_copied(layer.weight) for layer in layers], 1).T).T
                / (len(layers) * heat),
                to_classes(torch.stack([_bias(layer) for layer in layers]).mean(0)) / heat,
            )
            for layers in self.readouts
        ]
        return classifiers if len(classifiers) > 1 else classifiers * len(self.model.answers)


def heads_of(model: Towers, family: Family) -> tuple[tuple[nn.Module, ...], ...]:
    """Return the classifiers of each readout of a model with a single tower.

    A readout has a single classifier, or separate classifiers for a class token and a distillation token.
    """
    return tuple(
        tuple(readout.get_submodule(path) for path in paths) for readout, paths in _head_paths(model, family)
    )


def give_head_inputs(model: Towers, family: Family) -> None:
    """Replace a model's logits by the inputs of its classifiers, shape (M, B, F).

    F is D for a single classifier and P D for P classifiers. The model cannot be used for other purposes
    afterwards.
    """
    for answer in model.answers:
        vars(answer).update(multi_label=False)
    for readout, paths in _head_paths(model, family):
        for place, path in enumerate(paths):
            holder, _, name = path.rpartition(".")
            linear = isinstance(readout.get_submodule(path), nn.Linear)
            setattr(readout.get_submodule(holder), name, HeadInput(place, len(paths), linear=linear))


class HeadInput(nn.Module):
    """Replacement for a classifier that returns the classifier's inputs, shape (B, P D).

    With P classifiers, the inputs are multiplied by P in the columns of this classifier. Other columns are 0.
    So the mean over the P classifiers contains the inputs of each.
    """

    def __init__(self, place: int, places: int, *, linear: bool) -> None:
        """Store the position of the classifier.

        Args:
            place: Index of the classifier.
            places: Number of classifiers P.
            linear: Whether the classifier is a linear layer. Other classifiers have the input of a single
                token, (B, 1, D).
        """
        super().__init__()
        self.place, self.places, self.linear = place, places, linear

    @override
    def forward(self, x: Tensor) -> Tensor:
        """Return the features (B, P D) from the inputs of the classifier."""
        return torch.cat(placed_features(x if self.linear else x.squeeze(1), self.place, self.places), -1)


def _head_paths(model: Towers, family: Family) -> list[tuple[nn.Module, list[str]]]:
    (layout,) = family.towers.values()
    readout = model.tower().readout
    parts = [*readout.members] if isinstance(readout, MemberParallel) else [readout]
    return [(part, [path for prefix in layout.head for path in _path_under(prefix, part)]) for part in parts]


def _path_under(prefix: str, readout: nn.Module) -> list[str]:
    """Return a list with the path of the classifier under a prefix of tensor names; empty if not found.

    The classifier is the only module with parameters, or the outermost module if several modules have
    parameters.
    """
    under = {
        path: part
        for path, part in readout.named_modules()
        if f"{path.removeprefix('host.')}.".startswith(prefix)
    }
    holders = [path for path, part in under.items() if part._parameters]
    return holders if len(holders) == 1 else [*under][:1]


def _cosines(answer: Contrast, heat: float) -> Classifier:
    classes = answer.class_embeddings
    if classes is None:
        raise ValueError("the classes must be set before features are computed")
    bias = answer.logit_bias
    weight = _copied(classes) * _copied(answer.logit_scale).exp() / heat
    shift = weight.new_zeros(len(weight)) if bias is None else _copied(bias).expand(len(weight)) / heat
    return Classifier(weight, shift)


def _copied(tensor: Tensor) -> Tensor:
    return tensor.detach().float().cpu()


def _bias(layer: nn.Linear) -> Tensor:
    bias: Tensor | None = layer.bias
    return torch.zeros(layer.out_features) if bias is None else _copied(bias)


FIT_ANEW = "fit it again with `hydractl eval ... --train TRAIN --val VAL --save-model PATH`"


def check_tests(*tests: KnownTest | Threshold | None, place: str) -> None:
    """Check that the definitions of the OOD scores have not changed since the tests were fitted.

    Raises:
        InputError: If a definition has changed.
    """
    for test in tests:
        if test and not ood_scores.has_same_definition(test.score, test.version):
            raise InputError(
                f"{place}: its threshold is for an earlier definition of `{test.score}`",
                hint="find it again with `hydractl eval ... --threshold-for 'risk<=R' --save-model PATH`",
            )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scores:
    """Fitted feature-based OOD scores of a model.

    Attributes:
        fitted: Fitted scores by name, one per member.
        temperature: Temperature of the model during the fit.
    """

    fitted: Mapping[str, Sequence[FittedScore]]
    temperature: float = 1.0

    @classmethod
    def stored(cls, checkpoint: Checkpoint, header: Header, *, scores: Sequence[str], name: str) -> Self:
        """Read the scores of a checkpoint.

        Args:
            checkpoint: Checkpoint with the tensors.
            header: Header of the checkpoint.
            scores: Names of the scores to read; the checkpoint must contain them.
            name: Name of the checkpoint for errors.

        Raises:
            CheckpointError: If a tensor is missing or invalid, or the definition of a score has changed since
                the fit.
        """
        version = header.fitted.version if header.fitted else ood_scores.VERSION
        if changed := [score for score in scores if not ood_scores.has_same_definition(score, version)]:
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
        """Return the tensors by their names in a checkpoint, which contain score and member."""
        return {
            _called(score, member, name): tensor
            for score, member_scores in self.fitted.items()
            for member, fitted_score in enumerate(member_scores)
            for name, tensor in fitted_score.tensors.items()
        }

    def check_width(self, extractor: FeatureExtractor, *, name: str) -> None:
        """Check that the scores were fitted on features of the model's width.

        Raises:
            CheckpointError: If the widths differ.
        """
        widths = {
            _wide(fitted_score).shape[-1]
            for member_scores in self.fitted.values()
            for fitted_score in member_scores
        }
        if widths != {extractor.width}:
            raise CheckpointError(
                f"{name}: its OOD scores are for {sorted(widths)} features, but the model has {extractor.width}",
                hint=FIT_ANEW,
            )

    def score(self, name: str, logits: Tensor, features: Tensor, *, temperature: float) -> Tensor:
        """Return an OOD score (B,), float64, averaged over members.

        Args:
            name: Name of the score.
            logits: Logits of members, (M, B, C), divided by `temperature`.
            features: Features of members, (M, B, D).
            temperature: Present temperature of the model.

        Raises:
            InputError: If a score is not finite in float32.
        """
        # Scores were fitted on logits divided by `self.temperature`, which may differ from the present
        # temperature.
        members = zip(self.fitted[name], features, logits * (temperature / self.temperature), strict=True)
        scores = torch.stack([fitted_score(f, z) for fitted_score, f, z in members]).mean(0)
        if not scores.float().isfinite().all():
            raise InputError(f"the OOD score `{name}` of the model is not finite", hint=FIT_ANEW)
        return scores


def _wide(fitted: FittedScore) -> Tensor:
    """Return any tensor (..., D) of a score."""
    axes = TENSOR_SPECS[ood_scores.kind_of(fitted.name)]
    return next(tensor for name, tensor in fitted.tensors.items() if axes[name][0].endswith("D"))


def _called(score: str, member: int, name: str) -> str:
    return f"{EXTRA_PREFIX}{score}/{member}/{name}"


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
class Predictor:
    """A model for predictions, with its fitted OOD scores if any exist.

    Attributes:
        model: The model in evaluation mode, on its device and in its dtype.
        name: Name of the model for errors.
        preprocess: Preprocessing of items.
        scores: Feature-based OOD scores; None if there are none.
        extractor: Model with features; None without `scores`.
    """

    model: Towers
    name: str
    preprocess: ItemPreprocess
    scores: Scores | None = None
    extractor: FeatureExtractor | None = None

    def with_scores(self, scores: Scores, family: Family) -> Predictor:
        """Return the predictor with fitted scores. The model is changed in place to return features too.

        Raises:
            CheckpointError: If the scores were fitted on features of another width.
            UnsupportedModelError: If the model has no features.
        """
        extractor = FeatureExtractor.of(self.model, family, name=self.name)
        scores.check_width(extractor, name=self.name)
        return replace(self, scores=scores, extractor=extractor)

    @property
    def score_names(self) -> tuple[str, ...]:
        """Names of the S scores; only `msp` if the model has no fitted scores."""
        return (ood_scores.MSP,) if self.scores is None else tuple(self.scores.fitted)

    def responses(self, batches: Iterable[Batch[Inputs]], *, data: str) -> Iterator[tuple[Tensor, ...]]:
        """Yield indices and predictions of each batch; see `inference.responses`.

        With fitted scores, a tensor of scores (1, B, S) follows, averaged over members.

        Args:
            batches: Batches of the data.
            data: Name of the data for errors.

        Raises:
            InputError: If a logit or a score is not finite, or the device has too little memory.
        """
        runnable = self.extractor or self.model
        for indices, log_probs, logsumexp, *others in responses(runnable, batches, name=self.name, data=data):
            if self.scores is not None:
                logits, temperature = Responses(log_probs, logsumexp).logits(), self.model.temperature
                scores = [
                    self.scores.score(name, logits, *others, temperature=temperature)
                    for name in self.scores.fitted
                ]
                yield indices, log_probs, logsumexp, torch.stack(scores, -1).unsqueeze(0)
            else:
                yield indices, log_probs, logsumexp, *others


def fit_scores(
    extractor: FeatureExtractor,
    scores: Sequence[str],
    training: tuple[Iterable[Batch[Inputs]], Tensor],
    held_out: Iterable[Batch[Inputs]] = (),
    *,
    name: str,
    team: ProcessGroup,
) -> Scores:
    """Run the model once on training data and fit scores. All processes get the same scores.

    Each process stores only sums over the data: D^2 + C D numbers per member. For `knn` and `vim`, it stores
    the features, in a file if they are large.

    Args:
        extractor: The model.
        scores: Names from `FITS`, with options, and `energy+density`.
        training: Batches of this process, and all labels (N,).
        held_out: Batches of held-out ID data, required for `energy+density`.
        name: Name of the model for errors.
        team: Process group with the other batches.

    Raises:
        DataError: If an item cannot be read, or a score cannot be fitted on these data.
        InputError: If a logit is not finite, or the device has too little memory.
        OutputError: If the disk has too little space for features.
    """
    batches, labels = training
    # `energy+density` is fitted in two passes: first its density, then the scales of both parts on held-out
    # data.
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
    return Scores(fitted=fitted, temperature=extractor.model.temperature)


def _observed(
    extractor: FeatureExtractor,
    scores: Sequence[str],
    batches: Iterable[Batch[Inputs]],
    labels: Tensor,
    *,
    name: str,
    team: ProcessGroup,
) -> list[Training]:
    """Return the statistics of each member on training data that the scores need."""
    classifiers, count = extractor.classifiers(), len(labels)
    width, classes = extractor.width, int(labels.max()) + 1
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
        (indices, Responses(log_probs, logsumexp).logits().float().amax(-1), features)
        for indices, log_probs, logsumexp, features in responses(extractor, batches, name=name, data="fit")
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
    """Return each member's energies and relative densities, shape (N',), of held-out data in order."""
    parts = [
        torch.stack([
            torch.stack([ood_scores.SCORES[ood_scores.ENERGY].of(z.unsqueeze(0)), density(f, z)])
            for density, f, z in zip(densities, features, Responses(log_probs, logsumexp).logits(), strict=True)
        ])
        for _, log_probs, logsumexp, features in responses(extractor, held_out, name=name, data="val")
    ]  # fmt: skip
    energies, values = torch.cat(team.in_order(parts), -1).unbind(1)
    return [*zip(energies, values, strict=True)]


class EnergyDensity(nn.Module):
    """The score `energy+density` of M members, in float32. Its buffers are not part of the state dict.

    With y = (f / ||f|| - mean) A, the density of `feature_scores.distance` is min_c (||n_c||^2 - 2 y n_c) +
    sum_k (1 - w_k) y_k^2. This form does not subtract large numbers.
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
        # Only the device may change: the buffers stay in float32 after `model.half()`.
        place = fn(self.mean.new_empty(0)).device
        return super()._apply(lambda x: x.to(place), recurse)  # type: ignore[no-untyped-call, no-any-return]

    @override
    def forward(self, logits: Tensor, features: Tensor) -> Tensor:
        """Return the scores (B,).

        Args:
            logits: Shape (M, B, C), divided by the temperature of the fit.
            features: Shape (M, B, D).
        """
        with without_autocast(logits.device):
            y = (nn.functional.normalize(features.float(), dim=-1) - self.mean) @ self.white
            nearest = (self.lengths + y @ self.points).amin(-1)
            density = nearest + (y.square() * self.weights).sum(-1)
            energy = -logits.float().logsumexp(-1)
            scores: Tensor = energy * self.energy_scale + density * self.density_scale - self.shift
        return scores.mean(0)


class WithDefaultScore(nn.Module):
    """A model with its default OOD score from the same pass: stored `energy+density`, else `msp`.

    The model is not registered as a submodule, so that another module may contain both.

    Attributes:
        score: Name of the score.
    """

    score = MSP

    def __init__(self, model: Towers, scores: Scores | None, family: Family, *, name: str) -> None:
        """Change the model to return features if the score needs them.

        Args:
            model: The model in evaluation mode.
            scores: OOD scores stored in its checkpoint, or None.
            family: Family of the model.
            name: Name of the model for errors.

        Raises:
            CheckpointError: If stored scores were fitted on features of another width.
        """
        super().__init__()
        # a tuple, because `nn.Module` would register the model as a submodule
        self._models = (model,)
        if scores is None or ENERGY_DENSITY not in scores.fitted:
            return
        self.score = ENERGY_DENSITY
        self.scores, self.extractor = scores, FeatureExtractor.of(model, family, name=name)
        scores.check_width(self.extractor, name=name)
        self.energy_density = EnergyDensity(scores.fitted[ENERGY_DENSITY])

    @classmethod
    def stored(cls, model: Towers, model_file: OpenModel, classes: Classes | None = None) -> Self:
        """Return a model with the default score of its checkpoint.

        Args:
            model: The model in evaluation mode.
            model_file: The checkpoint.
            classes: Classes of a zero-shot model. Stored scores apply only to the classes in the checkpoint.

        Raises:
            CheckpointError: If stored scores are invalid.
        """
        header, scores = with_class_names(model_file.header, classes), None
        if default_score(header) == ENERGY_DENSITY:
            scores = Scores.stored(
                model_file.checkpoint, header, scores=[ENERGY_DENSITY], name=model_file.reference
            )
        return cls(model, scores, model_file.family, name=model_file.reference)

    @property
    def model(self) -> Towers:
        """The model."""
        return self._models[0]

    def forward(self, inputs: Inputs, *, exact: bool = False) -> tuple[Tensor, Tensor]:
        """Return each member's logits and the OOD score of inputs (B, ...).

        Args:
            inputs: Inputs of the model.
            exact: Compute `energy+density` in float64, like `predict`.

        Returns:
            Logits (M, B, C) and scores (B,). For Q labels, (M, B, Q, 2) and (B,). For T tokens, (M, B, T, C)
            and (B, T).
        """
        if self.score == MSP:
            logits = self.model.member_logits(inputs)
            score = msp(logits.float().log_softmax(-1))
            return logits, of_inputs(score, multi_label=self.model.answer.multi_label)
        logits, features = self.extractor.outputs(inputs)
        temperature = self.model.temperature
        if exact:
            return logits, self.scores.score(ENERGY_DENSITY, logits, features, temperature=temperature)
        return logits, self.energy_density(logits * (temperature / self.scores.temperature), features)


def _padded(tensors: Sequence[Tensor]) -> Tensor:
    """Stack tensors (K, ...) with different K to shape (M, K, ...), padded with zeros."""
    return nn.utils.rnn.pad_sequence([*tensors], batch_first=True)


class FitOn(NamedTuple):
    """Data for fitting OOD scores.

    Attributes:
        inputs: The training data; each process has a share of the batches.
        labels: Labels of the training data as class indices of the model, shape (N,).
        held_out: Held-out ID data; None if no score needs them.
    """

    inputs: PreparedData
    labels: Tensor
    held_out: PreparedData | None = None


def overlap_of_val(val: np.ndarray, training: np.ndarray) -> str | None:
    """Return a warning if samples of `--val` are in `--train`, else None.

    Args:
        val: Digests of the samples of `--val`, of type `DIGEST`.
        training: Digests of the samples of `--train`.
    """
    shared = overlap("--val", val, "--train", training)
    return (
        shared
        and f"{shared}: `{ENERGY_DENSITY}` is standardized as if all inputs were as close as training data"
    )


def with_ood_scores(
    predictor: Predictor, model_file: OpenModel, scores: Sequence[str], on: FitOn | None, team: ProcessGroup
) -> Predictor:
    """Return a predictor with feature-based OOD scores.

    Args:
        predictor: The predictor without OOD scores.
        model_file: Checkpoint of the model.
        scores: Names of the scores; may be empty.
        on: Training data for the fit. None reads the scores stored in the checkpoint.
        team: The processes.

    Raises:
        UnsupportedModelError: If the model has no features.
        DataError: If a score cannot be fitted on these data.
        CheckpointError: If stored scores are invalid.
    """
    if not scores:
        return predictor
    if on is None:
        fitted = Scores.stored(
            model_file.checkpoint, model_file.header, scores=scores, name=model_file.reference
        )
    else:
        fitted = fit_on(predictor, model_file.family, scores, on, team)
    return predictor.with_scores(fitted, model_file.family)


def fit_on(
    predictor: Predictor, family: Family, scores: Sequence[str], on: FitOn, team: ProcessGroup
) -> Scores:
    """Fit OOD scores in a single pass over the data; see `fit_scores`.

    Args:
        predictor: The model.
        family: Family of the model.
        scores: Names of the scores.
        on: The data.
        team: The processes.

    Raises:
        UnsupportedModelError: If the model has no features.
        DataError: If a score cannot be fitted on these data.
    """
    name, preprocess = predictor.name, predictor.preprocess
    extractor = FeatureExtractor.of(predictor.model, family, name=name)
    if on.labels.ndim > 1:
        raise DataError(
            f"{name}: feature-based OOD scores compare classes of inputs, which have one label each",
            hint="use OOD scores of logits, such as energy",
        )
    batches, held_out = (
        () if inputs is None else inputs.tracked(preprocess, name) for inputs in (on.inputs, on.held_out)
    )
    fitted = fit_scores(extractor, scores, (batches, on.labels), held_out, name=name, team=team)
    for warning in _data_warnings(scores, on.labels, extractor.width):
        progress.warn(f"{name}: {warning}")
    return fitted


def _data_warnings(scores: Sequence[str], labels: Tensor, width: int) -> Iterator[str]:
    fewest = int(labels.unique(return_counts=True)[1].min())
    for score in scores:
        options = options_of(score)
        if options.get("alpha") == 0 and len(labels) - len(labels.unique()) < width:
            yield (
                f"{len(labels)} samples to fit `{score}` on are too few for {width} features, so directions in "
                "which they do not vary are ignored"
            )
        if (options.get("k") or 0) > fewest:
            yield (
                f"`{score}` uses more neighbours than the {fewest} samples of a class, so it also measures "
                "distances to other classes"
            )
