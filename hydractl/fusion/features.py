"""Features, the inputs of the classifier of each member, returned together with its logits.

Axes: M members, B batch, D features, C classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from typing_extensions import override

from hydractl.data.batches import Batch
from hydractl.errors import UnsupportedModelError
from hydractl.families.base import Family
from hydractl.families.stream import FeatureLinear, MemberParallel, placed_features
from hydractl.families.tower import Contrast, OutputHead, Towers
from hydractl.fusion.inference import respond
from hydractl.metrics.feature_scores import Classifier
from hydractl.metrics.per_sample import Responses
from hydractl.model_inputs import Inputs


@dataclass(frozen=True, slots=True, eq=False)
class FeatureExtractor:
    """A model whose readout returns features and logits.

    For a model with a classifier, features are the inputs of its last linear layer; with several classifiers (for a class
    and a distillation token) their inputs are concatenated. For a zero-shot model they are the embedding of the image,
    with length one.
    """

    model: Towers
    readouts: tuple[tuple[nn.Linear, ...], ...]
    """Last layers of the classifiers, one per readout; empty for a zero-shot model."""

    @classmethod
    def of(cls, model: Towers, family: Family, *, name: str) -> FeatureExtractor:
        """Make a model's readout return its features from now on; its logits do not change.

        Args:
            model: In evaluation mode.
            family: Its own.
            name: What errors call it.

        Raises:
            UnsupportedModelError: If its classifier does not end with a linear layer.
        """
        if any(isinstance(answer, Contrast) for answer in model.answers):
            return cls(model, ())
        readouts = tuple(
            tuple(layers[-1] for head in heads if (layers := _linear_layers(head)))
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
        if isinstance(readout := model.tower().readout, MemberParallel):
            readout.restack()
        return extractor

    def logits_and_features(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """Return the members' logits (M, B, C) and features (M, B, D) for inputs (B, ...), from one pass."""
        outputs = self.model.run_towers(inputs)
        features = self.features_of(outputs).expand(len(self.model.answers), -1, -1)
        return self.model.scaled_logits(outputs), features

    def features_of(self, outputs: Mapping[str, Tensor]) -> Tensor:
        """Return the features (G, B, D) of towers' outputs (G, B, F)."""
        return next(iter(outputs.values()))[..., -self.width :] if self.readouts else outputs["vision"]

    @property
    def width(self) -> int:
        """D."""
        if self.readouts:
            return sum(layer.in_features for layer in self.readouts[0])
        return next(answer.width for answer in self.model.answers if isinstance(answer, Contrast))

    def classifiers(self) -> list[Classifier]:
        """Return the weights (C, D) and biases (C,) that compute each member's logits from its features, M of them."""
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

    def responses(
        self, batches: Iterable[Batch[Inputs]], *, name: str, data: str
    ) -> Iterator[tuple[Tensor, Responses, Tensor]]:
        """Yield for each batch the indices of its items, their predictions, and their features (M, B, D), float32, on the CPU.

        Arguments and errors are those of `inference.responses`.
        """
        model = _FeatureKeeper(self)
        for batch in batches:
            log_probs, logsumexp, features = respond(
                model, batch.inputs, name=name, data=data, extra_outputs=lambda: (model.features.float(),)
            )
            yield batch.indices, Responses(log_probs, logsumexp), features


class _FeatureKeeper:
    """A model that stores the features (M, B, D) of its last batch."""

    features: Tensor

    def __init__(self, extractor: FeatureExtractor) -> None:
        self.extractor = extractor
        self.device, self.dtype = extractor.model.device, extractor.model.dtype

    def member_logits(self, inputs: Inputs) -> Tensor:
        """Return each member's logits (M, B, C)."""
        logits, self.features = self.extractor.logits_and_features(inputs)
        return logits


def heads_of(model: Towers, family: Family) -> tuple[tuple[nn.Module, ...], ...]:
    """Return the classifiers of each readout that runs of a model with one tower: one, or a class and a distillation token's."""
    return tuple(
        tuple(readout.get_submodule(path) for path in paths) for readout, paths in _head_paths(model, family)
    )


def give_head_inputs(model: Towers, family: Family) -> None:
    """Let a model answer with what its classifiers read, (M, B, F), in the place of logits; it is of no other use from then on.

    F is D; of P classifiers P D, side by side.
    """
    for answer in model.answers:
        vars(answer).update(multi_label=False)
    for readout, paths in _head_paths(model, family):
        for place, path in enumerate(paths):
            holder, _, name = path.rpartition(".")
            linear = isinstance(readout.get_submodule(path), nn.Linear)
            setattr(readout.get_submodule(holder), name, HeadInput(place, len(paths), linear=linear))


class HeadInput(nn.Module):
    """What stands in the place of a classifier and gives what that reads, as `FeatureLinear` does beside the logits."""

    def __init__(self, place: int, places: int, *, linear: bool) -> None:
        """Take the place of the `place`-th of P classifiers: a linear layer, or a network that reads one token (B, 1, D)."""
        super().__init__()
        self.place, self.places, self.linear = place, places, linear

    @override
    def forward(self, x: Tensor) -> Tensor:
        """Return the features that `FeatureLinear` gives."""
        return torch.cat(placed_features(x if self.linear else x.squeeze(1), self.place, self.places), -1)


def _head_paths(model: Towers, family: Family) -> list[tuple[nn.Module, list[str]]]:
    """Return each readout that runs, and the paths of its classifiers there."""
    (layout,) = family.towers.values()
    readout = model.tower().readout
    parts = [*readout.members] if isinstance(readout, MemberParallel) else [readout]
    return [(part, [path for prefix in layout.head for path in _path_under(prefix, part)]) for part in parts]


def _path_under(prefix: str, readout: nn.Module) -> list[str]:
    """Return the path of the classifier under a prefix of the library's names, in a list; an empty one without any.

    It is the module that holds all parameters there: the outermost where there are several, as of two layers.
    """
    under = {
        path: part
        for path, part in readout.named_modules()
        if f"{path.removeprefix('host.')}.".startswith(prefix)
    }
    holders = [path for path, part in under.items() if part._parameters]
    return holders if len(holders) == 1 else [*under][:1]


def _linear_layers(head: nn.Module) -> list[nn.Linear]:
    return [
        part
        for part in head.modules()
        if isinstance(part, nn.Linear) and type(part) in {nn.Linear, FeatureLinear}
    ]


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
