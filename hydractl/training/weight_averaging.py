"""Means of the weights that training passes through: exponential (`--ema`) and of epochs' ends (`--swa`)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from hydractl.processes.signals import signals_held
from hydractl.training.fsdp import copy_into, copy_tensors, like
from hydractl.training.recipes.recipe import Recipe

WARMUP_POWER = 2 / 3


def share_of(recipe: Recipe, step: int, *, total: int, steps_per_epoch: int) -> float:
    """Return what the weights after a step count in the mean, in [0, 1]; 1 where it begins.

    With `ema` that is 1 - d of `Recipe.ema`. With `swa` it is 1 / n for the n-th weights that are averaged, so that all
    count alike; 0 for those that are not, and before it begins.

    Args:
        recipe: Has one of the two.
        step: How many steps the weights have taken, 1 <= step <= total.
        total: All steps.
        steps_per_epoch: So many are an epoch.
    """
    if recipe.ema is not None:
        return max(1 - recipe.ema, float(step**-WARMUP_POWER))
    start = recipe.swa_start(total, steps_per_epoch)
    if step < start or (step % steps_per_epoch and step != total):
        return 0.0
    return 1 / (1 + -(-(step - start) // steps_per_epoch))


class Average:
    """The mean of a model's weights, beside those that train.

    Attributes:
        tensors: The mean by name, on the model's device; empty until it begins.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], tensors: Mapping[str, torch.Tensor]) -> None:
        """Take up a mean.

        Args:
            parameters: What trains, by name, where it trains.
            tensors: The mean so far; empty at the beginning.
        """
        self.parameters = parameters
        # in the order of the parameters: both are walked side by side, and a file has an order of its own
        self.tensors = {
            n: like(p, tensors[n]).to(p.device, copy=True) for n, p in parameters.items() if tensors
        }
        self._swapped = False

    def add(self, share: float) -> None:
        """Let the weights as they are now count a share of the mean, which begins with a share of 1."""
        current = {name: parameter.detach() for name, parameter in self.parameters.items()}
        if share == 1:
            self.tensors = copy_tensors(current)
        elif share:
            get_ema_multi_avg_fn(1 - share)(list(self.tensors.values()), list(current.values()), None)

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Give the model the mean for weights within the block; an interruption finds its own back."""
        try:
            with signals_held():
                self._swap()
            yield
        finally:
            with signals_held():
                if self._swapped:
                    self._swap()

    def _swap(self) -> None:
        weights = {name: parameter.detach() for name, parameter in self.parameters.items()}
        mean, self.tensors = self.tensors, copy_tensors(weights)
        copy_into(weights.values(), mean.values())
        self._swapped = not self._swapped
