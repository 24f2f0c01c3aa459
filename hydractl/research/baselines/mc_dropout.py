"""MC dropout: several forward passes with active dropout (Gal and Ghahramani 2016).

A dropout mask depends on seed, pass and layer only, and is the same for all samples. Each pass is a draw of
the weights, in line with the Bayesian interpretation (consistent MC dropout; Kirsch et al. 2019, BatchBALD).
Predictions do not depend on the batch, its size or earlier calls.

Axes: M members, B batch, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn
from typing_extensions import override

from hydractl.data.preprocess import sample_seed
from hydractl.errors import UnsupportedModelError
from hydractl.families.attention import SharedDropout
from hydractl.families.open_model import OpenModel
from hydractl.families.tower import Towers
from hydractl.model_inputs import Inputs
from hydractl.prediction.class_names import Classes
from hydractl.research.baselines.options import McDropoutOptions
from hydractl.research.baselines.rows import BaselineInputs, BaselineModel, without_weights
from hydractl.training.dropout import NOT_DROPPED, dropout_layers


class McDropout(BaselineModel):
    """A model with active dropout and a member per pass. Dropout layers are replaced in place."""

    def __init__(self, model: Towers, options: McDropoutOptions, *, name: str) -> None:
        """Replace the dropout layers that `finetune --dropout` sets by layers with seeded masks.

        Args:
            model: A model, which may have several members.
            options: Options of the baseline.
            name: Name of the model in errors.

        Raises:
            UnsupportedModelError: If all dropout rates are 0.
        """
        super().__init__(model)
        self.passes = options.passes
        self.drops: list[PassDropout] = []
        for tower in model.towers:
            model.tower(tower).stack(on=False)  # the stacked layout applies no dropout
        for module, child, layer in dropout_layers(model):
            keeps_rate = options.rate is None or child in NOT_DROPPED
            rate = layer.p if keeps_rate or options.rate is None else options.rate
            drop = PassDropout(
                rate, options.seed, place=len(self.drops), shared=isinstance(layer, SharedDropout)
            )
            module.add_module(child, drop)
            self.drops.append(drop)
        if not any(drop.rate for drop in self.drops):
            places = "no dropout layers" if not self.drops else "only dropout layers with rate 0"
            raise UnsupportedModelError(
                f"{name}: has {places}, so every pass of `mc:` would give the same result",
                hint=f"add `rate=`: `{options.EXAMPLE}`" if self.drops and options.rate is None else None,
            )

    @override
    def member_logits(self, inputs: Inputs) -> torch.Tensor:
        """Return the logits (M, B, C) of all passes. Members of a hydra are adjacent within each pass."""
        logits = []
        for number in range(self.passes):
            for drop in self.drops:
                drop.number = number
            logits.append(super().member_logits(inputs))
        return torch.cat(logits)


class PassDropout(nn.Module):
    """Dropout with one mask per pass, the same for all samples.

    Attributes:
        number: Number of the current pass.
        shared: Whether the input has no batch axis.
    """

    def __init__(self, rate: float, seed: int, *, place: int, shared: bool = False) -> None:
        super().__init__()
        self.rate, self.seed, self.place, self.number, self.shared = rate, seed, place, 0, shared
        self._drawn: dict[int, torch.Tensor] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Drop entries of x (B, ...) and scale the others by 1 / (1 - rate), also in evaluation mode."""
        if self.rate == 0:
            return x
        shape = x.shape if self.shared else x.shape[1:]
        size = math.prod(shape)
        keep = self._drawn.get(self.number)
        if keep is None or len(keep) < size or keep.device != x.device:
            # A longer text continues the mask of a shorter text, so masks do not depend on the order of
            # batches.
            generator = torch.Generator().manual_seed(sample_seed(self.seed, self.number, self.place))
            keep = self._drawn[self.number] = (torch.rand(size, generator=generator) >= self.rate).to(
                x.device
            )
        return x * keep[:size].view(shape) / (1 - self.rate)


def check(options: McDropoutOptions, files: Sequence[OpenModel], _: Classes | None) -> None:
    """Check that dropout has an effect.

    Raises:
        UnsupportedModelError: If all dropout rates are 0.
    """
    McDropout(without_weights(files[0]), options, name=files[0].reference)


def build(options: McDropoutOptions, inputs: BaselineInputs) -> tuple[Towers, dict[str, float]]:
    """Return the model with active dropout; the dict of fitted values is empty."""
    return McDropout(inputs.models[0], options, name=inputs.name), {}
