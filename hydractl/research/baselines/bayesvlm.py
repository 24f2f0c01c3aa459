"""BayesVLM: a Laplace approximation of the two projections of a CLIP (Baumann et al. 2024).

The weights of each projection have a normal distribution around the trained weights. Its precision is
(sqrt(n) A + sqrt(lambda) I) (x) (sqrt(n) B + sqrt(lambda) I), the generalised Gauss-Newton matrix of InfoNCE
(the contrastive loss of image-caption pairs) in Kronecker form plus a prior of precision lambda. A is the sum
of a a' over the projected activations a, and B the sum of `curvature` over embeddings, each divided by the
square root of the number of pairs. n is the number of pairs that the data shall count for.

Embeddings are then normal too, and the cosine of two embeddings has a mean and a variance in closed form.
Logits are the scaled mean, shrunk by the variance (probit), as for `laplace:`.

The results equal those of the authors' code, with the same objective for lambda. Its optimum is searched here
instead of approached by gradient steps.

Axes: N pairs, C candidates or classes, P activations, F embedding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from typing_extensions import override

from hydractl import progress
from hydractl.data.datasets import Dataset
from hydractl.data.open_dataset import open_items
from hydractl.errors import DataError, UnsupportedModelError
from hydractl.families.open_model import OpenModel
from hydractl.families.tower import Contrast, Towers, blank_inputs, unit
from hydractl.fusion.build import load_any
from hydractl.manifest.header import Tokenization
from hydractl.messages import counted
from hydractl.model_inputs import Inputs
from hydractl.prediction.class_names import Classes, prompts_of
from hydractl.research.baselines.laplace import cheapest_prior, to_float64
from hydractl.research.baselines.options import MIN_ITEMS, BayesVlmOptions
from hydractl.research.baselines.rows import BaselineInputs, BaselineModel
from hydractl.runtime import at_least_single

CHUNK = 256
"""Embeddings per step of `curvature`, to bound the memory of matrices (CHUNK, C): 67 MB for 32768 candidates
in float64. Chosen by hand. Doubling doubles this memory; results differ by rounding."""
VISION, TEXT = "vision", "text"
NOT_LINEAR = "the embeddings of its {tower} tower are not the output of a linear layer"


class Projected(NamedTuple):
    """Inputs and outputs of a tower's projection.

    Attributes:
        activations: Inputs, (N, P).
        embeddings: Outputs before they are normalized, (N, F).
    """

    activations: Tensor
    embeddings: Tensor

    def part(self, begin: int, end: int) -> Projected:
        """Return the samples from `begin` to `end`."""
        return Projected(self.activations[begin:end], self.embeddings[begin:end])


def curvature(sources: Tensor, candidates: Tensor, scale: float) -> Tensor:
    """Sum the Gauss-Newton matrices of the contrastive loss over embeddings.

    For u = source / |source|, normalized candidates y_c, p = softmax(scale y u) and M = scale^2 (sum_c p_c
    y_c y_c' - m m') with m = sum_c p_c y_c, the matrix of an embedding is (I - u u') M (I - u u') /
    |source|^2. The sum is computed without a matrix per embedding.

    Args:
        sources: Embeddings before normalization, (N, F).
        candidates: Embeddings of the other modality, (C, F).
        scale: Factor of cosines in the logits.

    Returns:
        B, shape (F, F).
    """
    hessian = sources.new_zeros(sources.shape[1], sources.shape[1])
    targets = unit(candidates)
    for begin in range(0, len(sources), CHUNK):
        chunk = sources[begin : begin + CHUNK]
        u, weight = unit(chunk), chunk.square().sum(-1, keepdim=True).reciprocal()
        cosines = u @ targets.T
        probs = (scale * cosines).softmax(-1)
        mean = probs @ targets
        along = (probs * cosines) @ targets - mean * (probs * cosines).sum(-1, keepdim=True)  # M u
        length = (along * u).sum(-1, keepdim=True)
        hessian += targets.T @ ((weight * probs).sum(0)[:, None] * targets) - (weight * mean).T @ mean
        hessian += (weight * length * u).T @ u - (weight * u).T @ along - (weight * along).T @ u
    return scale**2 * hessian


def factors(sources: Projected, candidates: Tensor, *, scale: float, contrast: int) -> tuple[Tensor, Tensor]:
    """Return the Kronecker factors A (P, P) and B (F, F) of a projection, divided by sqrt(N).

    Args:
        sources: Projections of N pairs.
        candidates: Embeddings of the other modality, (N, F).
        scale: Factor of cosines in the logits.
        contrast: Pairs per batch of the contrastive loss; a divisor of N.
    """
    width, length = sources.activations.shape[1], sources.embeddings.shape[1]
    outer, inner = (
        to_float64(candidates).new_zeros(width, width),
        to_float64(candidates).new_zeros(length, length),
    )
    for begin in range(0, len(candidates), contrast):
        part = sources.part(begin, begin + contrast)
        activations = to_float64(part.activations)
        others = to_float64(candidates[begin : begin + contrast])
        outer += activations.T @ activations
        inner += curvature(to_float64(part.embeddings), others, scale)
    root = math.sqrt(len(candidates))
    return outer / root, inner / root


def best_prior(weight: Tensor, outer: Tensor, inner: Tensor, count: float) -> float:
    """Return the prior precision that maximizes the authors' objective.

    Args:
        weight: The projection, (F, P).
        outer: A, (P, P).
        inner: B, (F, F).
        count: Number of pairs to count the data for.
    """
    squares, root = float(to_float64(weight).square().sum()), math.sqrt(count)
    a, b = (torch.linalg.eigvalsh(factor).clamp(min=0) * root for factor in (outer, inner))

    def cost(log_prior: float) -> float:
        prior = math.exp(log_prior)
        determinants = sum(
            len(eigenvalues) * float((eigenvalues + math.sqrt(prior)).log().sum()) for eigenvalues in (a, b)
        )
        return 0.5 * prior * squares - 0.5 * weight.numel() * log_prior + determinants

    return cheapest_prior(cost)


@dataclass(frozen=True, slots=True)
class ProjectionCovariance:
    """Kronecker factors of the covariance of a projection's weights.

    Attributes:
        outer: Factor of the inputs, (P, P).
        inner: Diagonal of the factor of the outputs, (F,).
    """

    outer: Tensor
    inner: Tensor

    @classmethod
    def of(cls, outer: Tensor, inner: Tensor, *, count: float, prior: float) -> ProjectionCovariance:
        """Invert the precision that the factors A (P, P) and B (F, F) define."""
        inverses = [
            torch.linalg.inv(math.sqrt(count) * factor + math.sqrt(prior) * torch.eye(len(factor)).to(factor))
            for factor in (outer, inner)
        ]
        return cls(inverses[0], inverses[1].diagonal().clone())

    def variances(self, activations: Tensor) -> Tensor:
        """Return the variances (N, F) of the embeddings of activations (N, P)."""
        return ((activations @ self.outer) * activations).sum(-1, keepdim=True) * self.inner


def similarity(images: tuple[Tensor, Tensor], texts: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Return mean and variance (N, C) of the cosines between images and texts.

    Args:
        images: Embeddings and their variances, each (N, F).
        texts: Embeddings and their variances, each (C, F).
    """
    (e1, s1), (e2, s2) = images, texts
    n1, n2 = e1.square() + s1, e2.square() + s2
    length1, length2 = n1.sum(-1, keepdim=True), n2.sum(-1, keepdim=True)
    mean = (e1 * length1.rsqrt()) @ (e2 * length2.rsqrt()).T
    return mean, (n1 @ s2.T + s1 @ e2.square().T) / (length1 * length2.T)


class ProjectionTap:
    """Recorder of a CLIP's linear layers in forward passes, to find the projections."""

    def __init__(self, model: Towers, *, name: str) -> None:
        """Register a hook on each linear layer.

        Raises:
            UnsupportedModelError: If the model is not a CLIP with one member and both towers.
        """
        self.model, self.name = model, name
        answers = [answer for answer in model.answers if isinstance(answer, Contrast)]
        if len(answers) != 1 or not {VISION, TEXT} <= {*model.towers} or answers[0].logit_bias is not None:
            raise self.unfit("this model is not one")
        self.scale = float(answers[0].scale.detach())
        self._seen: list[tuple[nn.Linear, Tensor, Tensor]] = []
        for layer in [module for module in model.modules() if isinstance(module, nn.Linear)]:
            layer.register_forward_hook(self._see)

    def unfit(self, why: str) -> UnsupportedModelError:
        """Return the error for a model without linear projections; `why` ends the message."""
        return UnsupportedModelError(
            f"{self.name}: `bayesvlm:` needs a single CLIP that compares images with texts, but {why}",
            hint="give a base or a member of CLIP from transformers, with both towers",
        )

    def checked(self, tower: str, inputs: Inputs) -> tuple[Projected, nn.Linear]:
        """Return a tower's projection of a batch, and its linear layer.

        Raises:
            UnsupportedModelError: If the embeddings are not the normalized output of a linear layer without
                bias.
        """
        projected, layer, embeddings = self.project(tower, inputs)
        bias = cast("Tensor | None", layer.bias)
        if bias is None and torch.allclose(unit(projected.embeddings), embeddings, rtol=1e-2, atol=1e-3):
            return projected, layer
        raise self.unfit(NOT_LINEAR.format(tower=tower))

    def project(self, tower: str, inputs: Inputs) -> tuple[Projected, nn.Linear, Tensor]:
        """Return a tower's projection of a batch, its linear layer, and the normalized embeddings (N, F).

        Raises:
            UnsupportedModelError: If no linear layer has outputs of the shape of the embeddings.
        """
        self._seen = []
        (embeddings,) = self.model.run_tower(tower, self.model.adapted(inputs))
        # The projection is the last layer with outputs of this shape.
        for layer, activations, layer_output in reversed(self._seen):
            if layer_output.shape == embeddings.shape:
                return Projected(activations, layer_output), layer, embeddings
        raise self.unfit(NOT_LINEAR.format(tower=tower))

    def _see(self, layer: nn.Linear, inputs: tuple[Tensor, ...], outputs: Tensor) -> None:
        self._seen.append((layer, inputs[0], outputs))


@dataclass(frozen=True, slots=True)
class Pairs:
    """Batches of images and of captions, each with the positions of its items among the pairs.

    Attributes:
        images: Inputs of the image tower and positions (B,).
        captions: Inputs of the text tower and positions (B,).
        count: Number of pairs.
    """

    images: Iterator[tuple[Inputs, Tensor]]
    captions: Iterator[tuple[Inputs, Tensor]]
    count: int


class BayesVlm(BaselineModel):
    """A CLIP with a normal distribution over both projections.

    Attributes:
        priors: Prior precision of the image projection and of the text projection.
    """

    covariance_outer: Tensor
    covariance_inner: Tensor
    classes: Tensor
    class_variances: Tensor

    def __init__(
        self,
        model: Towers,
        options: BayesVlmOptions,
        pairs: Pairs,
        prompts: dict[str, Tensor],
        *,
        name: str,
    ) -> None:
        """Fit the distributions in a single pass over the pairs.

        Args:
            model: In evaluation mode, on the device of the run.
            options: Options of the baseline.
            pairs: Images with a caption each.
            prompts: Tokens of a prompt per class, (C, T).
            name: Name of the model in errors.

        Raises:
            UnsupportedModelError: If the model is not a CLIP with linear projections.
        """
        super().__init__(model)
        self.projection_tap = ProjectionTap(model, name=name)
        contrast = min(options.contrast, pairs.count)
        used = pairs.count // contrast * contrast
        sides = {VISION: pairs.images, TEXT: pairs.captions}
        projected = {side: self._all(side, batches, pairs.count) for side, batches in sides.items()}
        doubts: list[ProjectionCovariance] = []
        self.priors: list[float] = []
        for side, other_side, fixed_prior in (
            (VISION, TEXT, options.prior_image),
            (TEXT, VISION, options.prior_text),
        ):
            sources, layer = projected[side]
            candidates = projected[other_side][0].embeddings[:used]
            outer, inner = factors(
                sources.part(0, used), candidates, scale=self.projection_tap.scale, contrast=contrast
            )
            prior = (
                best_prior(layer.weight.detach(), outer, inner, options.count)
                if fixed_prior is None
                else fixed_prior
            )
            self.priors.append(prior)
            doubts.append(ProjectionCovariance.of(outer, inner, count=options.count, prior=prior))
        self.register_buffer("covariance_outer", doubts[0].outer)
        self.register_buffer("covariance_inner", doubts[0].inner)
        with torch.inference_mode():
            texts, _ = self.projection_tap.checked(
                TEXT, {key: x.to(model.device) for key, x in prompts.items()}
            )
        self.register_buffer("classes", to_float64(texts.embeddings).clone())
        self.register_buffer("class_variances", doubts[1].variances(to_float64(texts.activations).clone()))

    @override
    def member_logits(self, inputs: Inputs) -> Tensor:
        """Return logits (1, B, C) of images, shrunk by their variance."""
        images, _, _ = self.projection_tap.project(VISION, inputs)
        variances = ProjectionCovariance(self.covariance_outer, self.covariance_inner).variances(
            to_float64(images.activations)
        )
        mean, variance = similarity(
            (to_float64(images.embeddings), variances), (self.classes, self.class_variances)
        )
        scale = self.projection_tap.scale / self.temperature
        logits = scale * mean * (1 + math.pi / 8 * scale**2 * variance).rsqrt()
        return logits.to(at_least_single(images.embeddings.dtype))[None]

    def _all(
        self, side: str, batches: Iterator[tuple[Inputs, Tensor]], count: int
    ) -> tuple[Projected, nn.Linear]:
        """Project all pairs with one tower, in the order of the pairs."""
        storage: list[Tensor] = []
        layer = None
        for inputs, places in batches:
            with torch.inference_mode():
                projected, layer = self.projection_tap.checked(side, inputs)
            if not storage:
                storage = [x.new_empty(count, x.shape[1]) for x in projected]
            for all_pairs, part in zip(storage, projected, strict=True):
                all_pairs[places.to(all_pairs.device)] = part
        if layer is None:
            raise ValueError("there are no pairs")
        return Projected(*(x.clone() for x in storage)), layer


def check(_: BayesVlmOptions, files: Sequence[OpenModel], classes: Classes | None) -> None:
    """Check that a model compares images with texts by linear projections. The call loads the weights.

    Raises:
        UnsupportedModelError: If the model is not a CLIP with both towers, has no linear projections, or
            there are several templates.
    """
    model_file = files[0]
    tokenization, _classes = text_settings(model_file, classes)
    projection_tap = ProjectionTap(model := load_any(model_file), name=model_file.reference)
    for tower, preprocess in ((VISION, model_file.header.preprocess), (TEXT, tokenization)):
        projection_tap.checked(tower, blank_inputs(preprocess, 1, device=model.device))


def build(options: BayesVlmOptions, inputs: BaselineInputs) -> tuple[Towers, dict[str, float]]:
    """Fit the baseline.

    Returns:
        The model with distributions over its projections, and the prior precisions for the record.
    """
    model_file = inputs.files[0]
    tokenization, classes = text_settings(model_file, inputs.data.classes)
    images = inputs.fitted_on[str(options.data_ref)].items
    captions = open_items(options.captions, tokenization, labelled=False)
    check_pairs(options, images)
    remainder = len(images) % min(options.contrast, len(images))
    if remainder:
        progress.warn(
            f"{options.data}: the last {counted(remainder, 'pair')} are ignored, because a batch has "
            f"{options.contrast} pairs"
        )
    progress.step(f"Fitting the projections of {model_file.reference} on {counted(len(images), 'pair')}")
    pairs = Pairs(
        inputs.batches(images, model_file.header.preprocess),
        inputs.batches(captions, tokenization),
        len(images),
    )
    prompts = prompts_of(model_file, classes)
    fitted = BayesVlm(inputs.models[0], options, pairs, prompts, name=model_file.reference)
    return fitted, {"prior_image": fitted.priors[0], "prior_text": fitted.priors[1]}


def text_settings(model_file: OpenModel, classes: Classes | None) -> tuple[Tokenization, Classes]:
    """Return the tokenization of a zero-shot model and the classes of the data.

    Raises:
        UnsupportedModelError: If the model is not zero-shot, or if there are several templates.
    """
    prompting = model_file.header.prompting
    if prompting is None or classes is None:
        raise UnsupportedModelError(
            f"{model_file.reference}: `bayesvlm:` needs a model that compares images with texts",
            hint="for the last layer of a classifier use `laplace:`",
        )
    if len(classes.templates) > 1:
        raise UnsupportedModelError(
            f"{model_file.reference}: `bayesvlm:` needs one template, but there are {len(classes.templates)}",
            hint="give one `--template`",
        )
    return prompting.tokenization, classes


def check_pairs(options: BayesVlmOptions, images: Dataset) -> None:
    """Check for at least two pairs, because a single caption cannot be contrasted.

    Raises:
        DataError: For a single pair.
    """
    if len(images) < MIN_ITEMS:
        raise DataError(
            f"{options.data}: at least two pairs are needed", hint="use data with thousands of pairs"
        )
