"""Features: what precedes the classifier of each member of a model, seen in passing as it answers.

Axes: M members, B batch, D features, C classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hydractl.data.batches import Batch
from hydractl.errors import UnsupportedModelError
from hydractl.families.base import Family
from hydractl.families.batched_members import MemberParallel
from hydractl.families.tower import Stream, Towers
from hydractl.families.zero_shot import Contrast
from hydractl.fusion.inference import respond
from hydractl.metrics.feature_scores import Classifier
from hydractl.metrics.per_sample import Responses
from hydractl.model_inputs import Inputs, batch_of


@dataclass(frozen=True, slots=True, eq=False)
class FeatureExtractor:
    """A model whose features are seen.

    Of a model with a classifier they are the inputs of its last linear layer, of one with several classifiers (a class and a
    distillation token) of each, side by side; of a zero-shot model they are the image's embedding, of length one.
    """

    model: Towers
    readouts: tuple[tuple[nn.Linear, ...], ...]
    """The classifiers' last layers, of each readout that runs; none of a zero-shot model."""

    @classmethod
    def of(cls, model: Towers, family: Family, *, name: str) -> FeatureExtractor:
        """Find what to look at.

        Args:
            model: In evaluation mode.
            family: Its own.
            name: What errors call it.

        Raises:
            UnsupportedModelError: If its classifier does not end with a linear layer.
        """
        if any(isinstance(answer, Contrast) for answer in model.answers):
            return cls(model, ())
        (layout,) = family.towers.values()
        readouts = tuple(_last_layers(part, layout.head) for part in _parts(model.tower().readout))
        if not all(readouts):
            raise UnsupportedModelError(
                f"{name}: its classifier has no linear layer, so it has no features to look at",
                hint="choose OOD scores of logits: `--ood-score msp,energy`",
            )
        return cls(model, readouts)

    def classifiers(self) -> list[Classifier]:
        """Return what makes each member's logits of its features, as the model answers: (C, D) and (C,), M of them."""
        heat = self.model.temperature
        if not self.readouts:
            return [_cosines(answer, heat) for answer in self.model.answers if isinstance(answer, Contrast)]
        classifiers = [
            Classifier(
                torch.cat([_copied(layer.weight) for layer in layers], 1) / (len(layers) * heat),
                torch.stack([_bias(layer) for layer in layers]).mean(0) / heat,
            )
            for layers in self.readouts
        ]
        return classifiers if len(classifiers) > 1 else classifiers * len(self.model.answers)

    def responses(
        self, batches: Iterable[Batch[Inputs]], *, name: str, data: str
    ) -> Iterator[tuple[Tensor, Responses, Tensor]]:
        """Yield for each batch the places of its items, what is said of them, and their features (M, B, D), float32, on the CPU.

        Arguments and errors are those of `inference.responses`.
        """
        with self._watching() as features_by_layer:
            for batch in batches:
                features_by_layer.clear()
                member_responses = respond(self.model, batch.inputs, name=name, data=data)
                size, members = batch_of(batch.inputs), member_responses.shape[0]
                parts = [
                    torch.cat(layer_features).float().cpu().unflatten(0, (-1, size))
                    for layer_features in features_by_layer.values()
                ]
                features = torch.cat(parts, -1)
                yield batch.indices, member_responses, features.expand(members, -1, -1)

    @contextmanager
    def _watching(self) -> Iterator[dict[int, list[Tensor]]]:
        """Give the features (N, D) of all that run, by the place of the layer in its readout."""
        features_by_layer: dict[int, list[Tensor]] = {}
        streams: list[Stream] = []

        def enter(stream: Stream) -> None:
            streams[:] = [stream]

        def see(place: int, x: Tensor) -> None:
            # some classify each token and take the mean of the logits: that of the features gives the same
            features_by_layer.setdefault(place, []).append(x if x.ndim == 2 else streams[0].mean(x))

        tower = self.model.tower("vision" if not self.readouts else None)
        readout = tower.readout
        hooks = [part.register_forward_pre_hook(lambda _, args: enter(args[0])) for part in _parts(readout)]
        hooks += [
            layer.register_forward_pre_hook(lambda _, args, place=place: see(place, args[0]))
            for layers in self.readouts
            for place, layer in enumerate(layers)
        ]
        if not self.readouts:
            hooks = [tower.register_forward_hook(lambda _, __, out: see(0, out))]
        try:
            with readout.in_turn() if isinstance(readout, MemberParallel) else nullcontext():
                yield features_by_layer
        finally:
            for hook in hooks:
                hook.remove()


def _parts(readout: nn.Module) -> list[nn.Module]:
    """Return each member's readout, or the one that all share."""
    return [*readout.members] if isinstance(readout, MemberParallel) else [readout]


def _last_layers(readout: nn.Module, prefixes: Iterable[str]) -> tuple[nn.Linear, ...]:
    """Return the last linear layer under each of the classifiers' prefixes."""
    layers = {
        name.removeprefix("host.") + ".": part
        for name, part in readout.named_modules()
        if isinstance(part, nn.Linear)
    }
    under = [[part for name, part in layers.items() if name.startswith(prefix)] for prefix in prefixes]
    return tuple(linear_layers[-1] for linear_layers in under if linear_layers)


def _cosines(answer: Contrast, heat: float) -> Classifier:
    classes = answer.class_embeddings
    if classes is None:
        raise ValueError("the classes are settled before features are looked at")
    bias = answer.logit_bias
    weight = _copied(classes) * _copied(answer.logit_scale).exp() / heat
    shift = weight.new_zeros(len(weight)) if bias is None else _copied(bias).expand(len(weight)) / heat
    return Classifier(weight, shift)


def _copied(tensor: Tensor) -> Tensor:
    return tensor.detach().float().cpu()


def _bias(layer: nn.Linear) -> Tensor:
    bias: Tensor | None = layer.bias
    return torch.zeros(layer.out_features) if bias is None else _copied(bias)
