"""Dropout whose mask hangs on the seed and the step alone: not on the processes, the pieces, or what ran before."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import nn

from hydractl.data.preprocess import sample_seed

NOT_DROPPED = ("attn_drop", "head_drop")
"""Attention weights and the classifier's input keep what the architecture says, as in Dosovitskiy et al. (2021)."""
_STREAM = -1
"""Keeps the seeds of steps apart from those of epochs and samples."""


class StepNoise:
    """Which rows of which batch are computed now."""

    def __init__(self) -> None:
        self.first, self.total = 0, 0

    @contextlib.contextmanager
    def at(self, *, seed: int, step: int, first: int, total: int, device: torch.device) -> Iterator[None]:
        """Seed torch's generators for one piece of a step's batch, and put them back afterwards.

        Args:
            seed: Of the run.
            step: Counted from 0.
            first: The piece's first row in the batch.
            total: Rows of the whole batch.
            device: Where the piece is computed.
        """
        self.first, self.total = first, total
        devices = [] if device.type == "cpu" else [device.index or 0]
        with torch.random.fork_rng(devices, device_type="cuda" if device.type == "cpu" else device.type):
            torch.manual_seed(sample_seed(_STREAM, seed, step))
            yield


class BatchDropout(nn.Module):
    """Dropout that draws for the whole batch and applies the rows that are computed here."""

    def __init__(self, p: float, noise: StepNoise) -> None:
        super().__init__()
        self.p = p
        self.noise = noise

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x (B, ...) with a share `p` of its elements zero and the others scaled by 1 / (1 - p)."""
        if not self.training or self.p == 0:
            return x
        keep = torch.empty(self.noise.total, *x.shape[1:], dtype=x.dtype, device=x.device)
        keep = keep.bernoulli_(1 - self.p)[self.noise.first : self.noise.first + len(x)]
        return x * keep / (1 - self.p)


def set_dropout(model: nn.Module, p: float | None) -> StepNoise:
    """Put `BatchDropout` in the place of the model's dropout layers.

    Args:
        model: Changed in place; its state dict stays as it is.
        p: The share dropped, None for each layer's own.

    Returns:
        What the loop must tell where it is.
    """
    noise = StepNoise()
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Dropout and name != "attn_drop":
                own = p is None or name in NOT_DROPPED
                module.add_module(name, BatchDropout(child.p if own or p is None else p, noise))
    return noise
