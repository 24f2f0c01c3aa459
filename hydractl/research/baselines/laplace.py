"""Laplace approximation of the last layer (Daxberger et al. 2021, Laplace Redux; after MacKay 1992).

The results equal those of `LLLaplace` of laplace-torch to the last digits. For features x of N training
samples, the negative log posterior of the last layer's weights has the generalised Gauss-Newton matrix G =
sum_n L_n (x) x_n x_n' at the trained weights, with L = diag(p) - p p'. G needs no labels. A normal prior adds
a precision to the diagonal. `full` uses G, with biases as weights of a constant feature. `kron` approximates
the weights' part by (sum_n L_n / N) (x) (sum_n x_n x_n') and the biases' part by sum_n L_n, without
correlation between both parts (KFAC; Ritter et al. 2018).

The prior precision maximizes the marginal likelihood. With held-out data the precision minimizes the NLL over
the grid of laplace-torch's `optimize_prior_precision(method="gridsearch", val_loader=...)`. laplace-torch 0.3
does not reset the running NLL between two precisions of this search; this module does.

`probit` divides each logit by sqrt(1 + pi/8 times its variance) before the softmax (MacKay 1992; Kristiadi et
al. 2020). `samples` draws weights, and each draw is a member.

Axes: B batch, C classes, D features, S draws, P weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import cast

import torch
from scipy.optimize import minimize_scalar
from torch import nn
from typing_extensions import override

from hydractl import progress
from hydractl.errors import UnsupportedModelError
from hydractl.families.open_model import OpenModel
from hydractl.families.tower import Towers, probe_inputs
from hydractl.fusion.build import load_any
from hydractl.messages import counted
from hydractl.model_inputs import Inputs
from hydractl.prediction.class_names import Classes
from hydractl.research.baselines.options import FULL, LaplaceOptions
from hydractl.research.baselines.rows import BaselineInputs, BaselineModel

LOWEST, HIGHEST = 1e-6, 1e9
"""Bounds of the search for the prior precision. Chosen by hand, far apart; wider bounds change the result
only if the optimum is a bound."""
GRID = tuple(10 ** (8 * step / 99 - 4) for step in range(100))
"""Candidates for selection by held-out data: `logspace(-4, 4, 100)`, the grid of laplace-torch."""
MAX_FULL_WEIGHTS = 6000
"""Largest number of weights for `hessian=full`. The matrix has 6000 x 6000 float64 numbers (288 MB). Chosen
by hand; doubling needs four times the memory and eight times the time of the eigendecomposition."""


class Kron(nn.Module):
    """Normal distribution over weights with a Kronecker-factored Hessian, without the prior."""

    outer: torch.Tensor
    inner: torch.Tensor
    of_weights: torch.Tensor
    of_biases: torch.Tensor

    def __init__(self, labels: torch.Tensor, features: torch.Tensor, count: int) -> None:
        """Decompose the Kronecker factors.

        Args:
            labels: Sum of L over the samples, (C, C).
            features: Sum of x x' over the samples, (D, D).
            count: Number of samples.
        """
        super().__init__()
        of_labels, outer = _eigen(labels)
        of_features, inner = _eigen(features)
        self.register_buffer("outer", outer)
        self.register_buffer("inner", inner)
        self.register_buffer("of_weights", of_labels[:, None] / count * of_features)
        self.register_buffer("of_biases", of_labels)

    @property
    def curvatures(self) -> torch.Tensor:
        """Eigenvalues of the Hessian without the prior, (P,)."""
        return torch.cat([self.of_weights.flatten(), self.of_biases])

    def variances(self, features: torch.Tensor, prior: float) -> torch.Tensor:
        """Return the variances of the logits (B, C) of features (B, D)."""
        along = (features @ self.inner).square() @ (1 / (self.of_weights + prior)).T
        return (along + 1 / (self.of_biases + prior)) @ self.outer.square().T

    def draws(self, count: int, prior: float, generator: torch.Generator) -> torch.Tensor:
        """Draw differences from the trained weights, (S, C, D + 1), biases last."""
        scales = torch.cat([self.of_weights, self.of_biases[:, None]], 1).add(prior).rsqrt()
        along = self.outer @ (_normal(count, *scales.shape, generator=generator).to(scales) * scales)
        return torch.cat([along[..., :-1] @ self.inner.T, along[..., -1:]], -1)


class Full(nn.Module):
    """Normal distribution over weights with the full Hessian (C, D + 1, C, D + 1), without the prior."""

    curvatures: torch.Tensor
    vectors: torch.Tensor

    def __init__(self, matrix: torch.Tensor) -> None:
        super().__init__()
        size = matrix.shape[0] * matrix.shape[1]
        values, vectors = _eigen(matrix.reshape(size, size))
        self.register_buffer("curvatures", values)
        self.register_buffer("vectors", vectors.view(*matrix.shape[:2], size))

    def variances(self, features: torch.Tensor, prior: float) -> torch.Tensor:
        """Return the variances of the logits (B, C) of features (B, D)."""
        along = torch.einsum("bd,cdp->bcp", with_bias(features), self.vectors)
        return along.square() @ (1 / (self.curvatures + prior))

    def draws(self, count: int, prior: float, generator: torch.Generator) -> torch.Tensor:
        """Draw differences from the trained weights, (S, C, D + 1), biases last."""
        normal = _normal(count, len(self.curvatures), generator=generator).to(self.curvatures)
        return torch.einsum("cdp,sp->scd", self.vectors, normal * (self.curvatures + prior).rsqrt())


class LastLayer(BaselineModel):
    """A model with a normal distribution over the weights of its last layer.

    Attributes:
        posterior: The distribution, without the prior.
        prior: Prior precision of the weights.
        count: Number of training samples.
        drawn_weights: Drawn weights (S, C, D + 1) of `predictive=samples`, otherwise None.
    """

    drawn_weights: torch.Tensor | None

    def __init__(
        self,
        model: Towers,
        options: LaplaceOptions,
        batches: Iterable[Inputs],
        *,
        held_out: Iterable[tuple[Inputs, torch.Tensor]] | None = None,
        name: str,
    ) -> None:
        """Fit the distribution in a single pass over the training data, and select the prior precision.

        Args:
            model: In evaluation mode, on the device of the run.
            options: Options of the baseline.
            batches: Inputs of the training data.
            held_out: Held-out inputs with labels (B,) in 0..C-1 that select the prior precision. If None, the
                option `prior` or the marginal likelihood decides.
            name: Name of the model in errors.

        Raises:
            UnsupportedModelError: If there are several models, no linear last layer, or too many weights for
                `full`.
        """
        super().__init__(model)
        self.options, self.name, self.count = options, name, 0
        self._seen: list[tuple[nn.Linear, torch.Tensor, torch.Tensor]] = []
        for layer in [module for module in model.modules() if isinstance(module, nn.Linear)]:
            layer.register_forward_hook(self._see)
        self.posterior, weights = self._fit(batches)
        self.register_buffer("drawn_weights", None)
        prior = options.prior if held_out is None else self._best(held_out, weights)
        if prior is None:
            prior = max_likelihood_prior(self.posterior.curvatures, float(weights.square().sum()))
        self._set_prior(prior, weights)

    @override
    def member_logits(self, inputs: Inputs) -> torch.Tensor:
        """Return logits (1, B, C) shrunk by their variance, or logits (S, B, C) of the drawn weights."""
        logits, features, _ = self._logits_and_features(inputs)
        return self._with_uncertainty(logits, features)

    def _with_uncertainty(self, logits: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        """Return `member_logits` given the model's logits (B, C) and the features (B, D) of its last layer."""
        features = to_float64(features)
        if self.drawn_weights is not None:
            return torch.einsum("bd,scd->sbc", with_bias(features), self.drawn_weights).to(logits.dtype)
        variances = self.posterior.variances(features, self.prior)
        return (to_float64(logits) * (1 + math.pi / 8 * variances).rsqrt()).to(logits.dtype)[None]

    def _set_prior(self, prior: float, weights: torch.Tensor) -> None:
        """Set the prior precision; with `samples`, draw weights around the trained weights (C, D + 1)."""
        self.prior = prior
        if self.options.samples is not None:
            generator = torch.Generator().manual_seed(self.options.seed)
            self.drawn_weights = weights + self.posterior.draws(self.options.samples, prior, generator)

    def _best(self, held_out: Iterable[tuple[Inputs, torch.Tensor]], weights: torch.Tensor) -> float:
        """Return the precision in `GRID` with the lowest NLL on held-out data (the lowest of equal ones)."""
        with torch.inference_mode():
            held_out_outputs = [
                (*self._logits_and_features(inputs)[:2], labels) for inputs, labels in held_out
            ]

        def cost(prior: float) -> float:
            self._set_prior(prior, weights)
            total = 0.0
            for logits, features, labels in held_out_outputs:
                log_probs = to_float64(self._with_uncertainty(logits, features)).log_softmax(-1)
                ensemble_log_probs = log_probs.logsumexp(0) - math.log(len(log_probs))
                total -= float(
                    ensemble_log_probs.gather(-1, labels.to(ensemble_log_probs.device)[:, None]).sum()
                )
            return total

        return min(GRID, key=cost)

    def _see(self, layer: nn.Linear, inputs: tuple[torch.Tensor, ...], outputs: torch.Tensor) -> None:
        # one entry: only the last layer matters, and older activations would fill the memory
        self._seen = [(layer, inputs[0], outputs)]

    def _logits_and_features(self, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor, nn.Linear]:
        """Return logits (B, C), the input (B, D) of the last linear layer, and this layer."""
        self._seen = []
        logits, *others = super().member_logits(inputs)
        if others:
            raise self._unfit("it has several models")
        fits = [layer_call for layer_call in self._seen if layer_call[2].shape == logits.shape]
        if not fits:
            raise self._unfit("it has no linear layer that computes the logits")
        ((layer, features, _),) = fits
        return logits, features, layer

    def _unfit(self, why: str) -> UnsupportedModelError:
        return UnsupportedModelError(
            f"{self.name}: `laplace:` needs a single linear last layer, but {why}",
            hint="give a base or a member with a trained classifier",
        )

    def _fit(self, batches: Iterable[Inputs]) -> tuple[Kron | Full, torch.Tensor]:
        """Return the distribution, and the weights (C, D + 1) divided by the temperature, biases last."""
        sums: list[torch.Tensor] = []
        layer = None
        for inputs in batches:
            with torch.inference_mode():
                logits, features, layer = self._logits_and_features(inputs)
                layer_logits = layer(features) / self.temperature
                if not torch.allclose(layer_logits, logits, rtol=1e-2, atol=1e-3):
                    raise self._unfit("its logits have other inputs")
                size = logits.shape[1] * (features.shape[1] + 1)
                if self.options.hessian == FULL and size > MAX_FULL_WEIGHTS:
                    raise UnsupportedModelError(
                        f"{self.name}: its last layer has {size} weights, too many for `hessian={FULL}`",
                        hint="leave it out to use `kron`",
                    )
                probs = to_float64(logits).softmax(-1)
                batch_sums = self._sums(probs, to_float64(features))
            sums = [old + new for old, new in zip(sums, batch_sums, strict=True)] if sums else batch_sums
            self.count += len(probs)
        if layer is None:
            raise ValueError("there are no batches")
        # clones, because autograd refuses tensors of inference mode
        sums = [factor_sum.clone() for factor_sum in sums]
        posterior = Full(sums[0]) if self.options.hessian == FULL else Kron(sums[0], sums[1], self.count)
        weight = to_float64(layer.weight.detach())
        bias = cast("torch.Tensor | None", layer.bias)
        bias = weight.new_zeros(len(weight)) if bias is None else to_float64(bias.detach())
        return posterior, torch.cat([weight, bias[:, None]], 1) / self.temperature

    def _sums(self, probs: torch.Tensor, features: torch.Tensor) -> list[torch.Tensor]:
        """Return the sums of a batch for `Full` or `Kron`, float64.

        Args:
            probs: Probabilities, (B, C).
            features: Features without the constant 1, (B, D).

        Returns:
            For `hessian=full` the Hessian (C, D + 1, C, D + 1). For `kron` the sum of L, (C, C), and of x x',
            (D, D).
        """
        if self.options.hessian == FULL:
            biased_features = with_bias(features)
            across = torch.einsum("bc,bd,be->cde", probs, biased_features, biased_features)
            hessian = -torch.einsum("bc,bd,bk,be->cdke", probs, biased_features, probs, biased_features)
            hessian.diagonal(dim1=0, dim2=2).add_(across.permute(1, 2, 0))
            return [hessian]
        return [probs.sum(0).diag() - probs.T @ probs, features.T @ features]


def max_likelihood_prior(curvatures: torch.Tensor, squares: float) -> float:
    """Return the prior precision that maximizes the marginal likelihood.

    Args:
        curvatures: Eigenvalues of the Hessian without the prior, (P,).
        squares: Sum of squares of the trained weights.
    """

    def cost(log_prior: float) -> float:
        prior = math.exp(log_prior)
        return float((curvatures / prior).log1p().sum()) + prior * squares

    return cheapest_prior(cost)


def cheapest_prior(cost: Callable[[float], float]) -> float:
    """Return the precision between `LOWEST` and `HIGHEST` with the lowest cost.

    `cost` is a function of the logarithm of the precision.
    """
    bounds = (math.log(LOWEST), math.log(HIGHEST))
    minimum = minimize_scalar(cost, bounds=bounds, method="bounded", options={"xatol": 1e-6})
    return math.exp(float(minimum.x))


def to_float64(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor in float64; on the CPU for MPS devices, which do not support float64."""
    return (x.cpu() if x.device.type == "mps" else x).double()


def with_bias(features: torch.Tensor) -> torch.Tensor:
    """Append a constant feature 1 to features (B, D)."""
    return torch.cat([features, features.new_ones(len(features), 1)], 1)


def _eigen(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return eigenvalues and eigenvectors of a positive semidefinite matrix; rounding below 0 is clamped."""
    values, vectors = torch.linalg.eigh(matrix)
    return values.clamp(min=0), vectors


def _normal(*shape: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def check(options: LaplaceOptions, files: Sequence[OpenModel], _: Classes | None) -> None:
    """Check that a model has a single linear last layer. The call loads the weights.

    Raises:
        UnsupportedModelError: If the model has several members, no linear last layer, or too many weights for
            `hessian=full`.
    """
    LastLayer(load_any(files[0]), options, [probe_inputs(files[0].header)], name=files[0].reference)


def build(options: LaplaceOptions, inputs: BaselineInputs) -> tuple[Towers, dict[str, float]]:
    """Fit the baseline.

    Returns:
        The model with a distribution over its last layer, and the prior precision for the record.
    """
    sources, preprocess = inputs.fitted_on, inputs.files[0].header.preprocess
    items = sources[str(options.data_ref)].items
    progress.step(f"Fitting the last layer of {inputs.name} on {counted(len(items), 'sample')}")
    fitting = (batch for batch, _ in inputs.batches(items, preprocess))
    held_out, labelled = None if options.val is None else sources[str(options.val)], None
    if held_out is not None:
        labelled = ((x, held_out.labels[places]) for x, places in inputs.batches(held_out.items, preprocess))
    fitted = LastLayer(inputs.models[0], options, fitting, held_out=labelled, name=inputs.name)
    if held_out is not None:
        _report_prior(fitted.prior, inputs.name, counted(len(held_out.items), "sample"))
    return fitted, {"prior": fitted.prior}


def _report_prior(prior: float, name: str, count: str) -> None:
    progress.step(f"{name}: prior precision {prior:.4g}, with the lowest NLL on {count}")
    lowest, *_, highest = GRID
    if prior in {lowest, highest}:
        doubt = "little" if prior == highest else "much"
        progress.warn(
            f"{name}: the prior precision is {prior:g}, a bound of the search ({lowest:g} to {highest:g}): on "
            f"{count}, NLL is lowest with as {doubt} uncertainty of the last layer as possible"
        )
