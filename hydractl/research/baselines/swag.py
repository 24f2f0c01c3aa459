"""SWAG: weights drawn from a normal distribution fitted to checkpoints of one training (Maddox et al. 2019).

The distribution (Algorithm 1 of the paper) has the mean of the checkpoints, the variance of each weight, and
the deviations D of the last K checkpoints, each from the mean of all checkpoints up to it. A draw is mean +
sqrt(scale) (sqrt(variance) z1 + D z2 / sqrt(K - 1)) with standard normal z1 and z2. All weights share z2. The
paper has scale 1/2. K is the rank, or the number of checkpoints if there are fewer.

Axes: T checkpoints, K deviations, S draws.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from typing_extensions import override

from hydractl import progress
from hydractl.data.preprocess import reading_differences, sample_seed
from hydractl.errors import UnsupportedModelError
from hydractl.families.open_model import OpenModel
from hydractl.families.registry import architecture_differences
from hydractl.families.tower import Contrast, Towers
from hydractl.messages import counted, quoted
from hydractl.model_inputs import Inputs
from hydractl.prediction.class_names import Classes
from hydractl.research.baselines.laplace import to_float64
from hydractl.research.baselines.options import SwagOptions
from hydractl.research.baselines.rows import BaselineInputs, BaselineModel, without_weights

ONE_TRAINING = "the checkpoints of `swag:` must come from one training, with the same architecture and heads"


@dataclass(frozen=True, slots=True)
class SwagMoments:
    """Moments of one parameter over checkpoints, each of the parameter's shape.

    Attributes:
        mean: Mean over all checkpoints.
        deviation: Standard deviation.
        last: Deviation of each of the last K checkpoints from the mean of all checkpoints up to it, in order.
    """

    mean: Tensor
    deviation: Tensor
    last: tuple[Tensor, ...]

    @classmethod
    def of(cls, steps: Sequence[Tensor], rank: int) -> SwagMoments:
        """Compute the moments of T checkpoints.

        Args:
            steps: Values of the parameter in the order of the training.
            rank: Number of deviations K, at least 2 for draws.
        """
        mean = torch.zeros_like(steps[0])
        last: list[Tensor] = []
        for count, weights in enumerate(steps, start=1):
            mean = mean + (weights - mean) / count
            last = [*last, weights - mean][-rank:]
        squares = sum(((weights - mean).square() for weights in steps), torch.zeros_like(mean))
        return cls(mean, (squares / len(steps)).sqrt(), tuple(last))

    def sample(self, z1: Tensor, z2: Tensor, scale: float) -> Tensor:
        """Return a draw of the parameter from standard normal `z1` (its shape) and `z2` (K,)."""
        along = sum((z * x for z, x in zip(z2, self.last, strict=True)), torch.zeros_like(self.mean))
        spread = self.deviation * z1 + along / math.sqrt(len(self.last) - 1)
        return self.mean + math.sqrt(scale) * spread


class Swag(BaselineModel):
    """Models with drawn weights, each a member."""

    def __init__(self, models: Sequence[Towers], options: SwagOptions, *, names: Sequence[str]) -> None:
        """Draw weights for copies of the first model.

        Args:
            models: Checkpoints in the order of the training, on their device.
            options: Options of the baseline.
            names: Names of the checkpoints in errors.

        Raises:
            UnsupportedModelError: If architecture, heads or temperature differ, if all weights are equal, or
                if the models are zero-shot.
        """
        check_one_training(models, names)
        copies = [copy.deepcopy(models[0]) for _ in range(options.samples)]
        _draw(models, copies, options, name=names[0])
        super().__init__(copies[0])
        self.others = nn.ModuleList(copies[1:])

    @override
    def member_logits(self, inputs: Inputs) -> Tensor:
        """Return the logits (S, B, C) of all draws. Members of a hydra are adjacent within each draw."""
        others = [
            other_model.member_logits(inputs)
            for other_model in self.others
            if isinstance(other_model, Towers)
        ]
        return torch.cat([super().member_logits(inputs), *others])


@torch.no_grad()
def _draw(models: Sequence[Towers], copies: Sequence[Towers], options: SwagOptions, *, name: str) -> None:
    rank = min(options.rank, len(models))
    common = [_normal((rank,), sample_seed(options.seed, number)) for number in range(options.samples)]
    targets = [list(copied.parameters()) for copied in copies]
    changed = False
    for place, weights in enumerate(zip(*(model.parameters() for model in models), strict=True)):
        steps = [to_float64(weight) for weight in weights]
        if all(torch.equal(step, steps[0]) for step in steps[1:]):
            continue  # frozen: keep the value of the copy
        changed = True
        moments = SwagMoments.of(steps, rank)
        for number, z2 in enumerate(common):
            z1 = _normal(steps[0].shape, sample_seed(options.seed, number, place)).to(steps[0].device)
            targets[number][place].copy_(moments.sample(z1, z2.to(z1.device), options.scale))
    if not changed:
        raise UnsupportedModelError(
            f"{name}: the checkpoints of `swag:` are equal, so every sample would be equal too",
            hint="give checkpoints from different steps of one training",
        )


def check_one_training(models: Sequence[Towers], names: Sequence[str]) -> None:
    """Check shapes, heads and temperatures, which agree for checkpoints of one training.

    Raises:
        UnsupportedModelError: If shapes, heads or temperatures differ, or if the models are zero-shot.
    """
    first, name = models[0], names[0]
    if any(isinstance(answer, Contrast) for answer in first.answers):
        raise UnsupportedModelError(
            f"{name}: `swag:` samples weights, but a zero-shot model keeps the outputs of its text tower",
            hint="give models with a classifier",
        )
    shapes = {n: p.shape for n, p in first.named_parameters()}
    for model, other_name in zip(models[1:], names[1:], strict=True):
        model_shapes = {n: p.shape for n, p in model.named_parameters()}
        odd = next((n for n in (*shapes, *model_shapes) if shapes.get(n) != model_shapes.get(n)), None)
        if odd is not None:
            raise UnsupportedModelError(
                f"{other_name}: differs from {name} in the shape of `{odd}`, or has none",
                hint=ONE_TRAINING,
            )
        heads = _heads_of(first)
        differing = next(
            (place for place, kept_heads in _heads_of(model).items() if kept_heads != heads[place]), None
        )
        if differing is not None:
            raise UnsupportedModelError(
                f"{other_name}: keeps other heads than {name} in layer {differing[1]} of `{differing[0]}`",
                hint=ONE_TRAINING,
            )
        if model.temperature != first.temperature:
            raise UnsupportedModelError(
                f"{other_name}: stores the temperature {model.temperature:g}, but {name} stores {first.temperature:g}",
                hint="give checkpoints without a temperature; `eval --temperature` fits one for all samples",
            )


def _heads_of(model: Towers) -> dict[tuple[str, int], list[tuple[int, ...]]]:
    """Return the head numbers of each layer's groups, by (tower, layer)."""
    return {
        (name, layer): [tuple(group.head_numbers) for group in block.attn.groups()]
        for name in model.towers
        for layer, block in enumerate(model.tower(name).layers())
    }


def _normal(shape: Sequence[int], seed: int) -> Tensor:
    return torch.randn(
        tuple(shape), generator=torch.Generator().manual_seed(seed), dtype=torch.float64, device="cpu"
    )


def check(_: SwagOptions, files: Sequence[OpenModel], __: Classes | None) -> None:
    """Check headers: checkpoints must come from one training.

    Raises:
        UnsupportedModelError: If architecture, heads, preprocessing or temperature differ, or if the models
            are zero-shot.
    """
    check_one_training([without_weights(file) for file in files], [file.reference for file in files])
    _check_same_model(files)


def build(options: SwagOptions, inputs: BaselineInputs) -> tuple[Towers, dict[str, float]]:
    """Return the model with drawn weights; the dict of fitted values is empty."""
    progress.step(
        f"Drawing {counted(options.samples, 'model')} around {counted(len(inputs.models), 'checkpoint')}"
    )
    return Swag(inputs.models, options, names=[file.reference for file in inputs.files]), {}


def _check_same_model(files: Sequence[OpenModel]) -> None:
    """Check architecture settings and preprocessing, because copies of the first model run all drawn weights.

    Raises:
        UnsupportedModelError: The message names the differences.
    """
    first = files[0].header
    for file in files[1:]:
        header = file.header
        differences = architecture_differences(header.architecture, first.architecture)
        if differences := (*differences, *reading_differences(header.preprocess, first.preprocess)):
            raise UnsupportedModelError(
                f"{file.reference}: differs from {files[0].reference}: {quoted(differences)}",
                hint=ONE_TRAINING,
            )
