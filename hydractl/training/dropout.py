"""Dropout whose mask hangs on the seed and the step alone: not on the processes, the pieces, or what ran before.

Dropout of attention weights is not of it: fused kernels draw that themselves, for the rows they are given.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from hydractl.data.preprocess import sample_seed
from hydractl.families.attention import SharedDropout
from hydractl.families.tower import Tower

NOT_DROPPED = ("attn_drop", "head_drop")
"""Dropout layers that are set. Attention weights and the classifier's input keep the architecture's rates, as
in Dosovitskiy et al. (2021).
"""
_STREAM = -1
"""Offset that separates the seeds of steps from those of epochs and samples."""


class StepNoise:
    """Which rows of which batch are computed now, as tensors: a compiled model takes other ones without being compiled again.

    Attributes:
        rows: Their places in the batch, (B,), int64.
        batch: The whole batch, (N, 0).
    """

    def __init__(self) -> None:
        self.rows, self.batch = torch.arange(0), torch.empty(0, 0)

    @contextlib.contextmanager
    def at(self, *, seed: int, step: int, rows: range, total: int, device: torch.device) -> Iterator[None]:
        """Seed torch's generators for one piece of a step's batch, and put them back afterwards.

        Args:
            seed: Of the run.
            step: Counted from 0.
            rows: The piece's rows in the batch.
            total: Rows of the whole batch.
            device: Where the piece is computed.
        """
        self.rows = torch.arange(rows.start, rows.stop, device=device)
        self.batch = torch.empty(total, 0, device=device)
        devices = [] if device.type == "cpu" else [self.rows.device.index]  # `cuda` has none of its own
        with torch.random.fork_rng(devices, device_type="cuda" if device.type == "cpu" else device.type):
            torch.manual_seed(sample_seed(_STREAM, seed, step))
            yield


class BatchDropout(nn.Module):
    """Dropout that draws for the whole batch and applies the rows that are computed here.

    Where members of a hydra run side by side, the batch axis holds the rows of each, and each has draws of its own.

    Attributes:
        p: The share dropped.
        whole: Whether a sample is dropped as a whole: stochastic depth (Huang et al. 2016).
        shared: Whether its input has no axis of samples.
    """

    def __init__(self, p: float, noise: StepNoise, *, per_sample: bool = False, shared: bool = False) -> None:
        super().__init__()
        self.p = p
        self.noise = noise
        self.whole, self.shared = per_sample, shared

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x (M B, ...) with a share `p` of its elements or samples zero and the others scaled by 1 / (1 - p)."""
        if not self.training or self.p == 0:
            return x
        if self.shared:
            return x * torch.empty_like(x).bernoulli_(1 - self.p) / (1 - self.p)
        members = max(len(x) // len(self.noise.rows), 1)
        sample = (1,) * (x.ndim - 1) if self.whole else x.shape[1:]
        keep = torch.empty(members, len(self.noise.batch), *sample, dtype=x.dtype, device=x.device)
        keep = keep.bernoulli_(1 - self.p).index_select(1, self.noise.rows).flatten(0, 1)
        return x * keep / (1 - self.p)


class BatchPatchDropout(nn.Module):
    """timm's `PatchDropout` (Liu et al. 2023) that draws for the whole batch, as `BatchDropout` does.

    Attributes:
        p: The share of patches dropped.
        prefix: How many tokens before them stay.
        ordered: Whether patches that stay keep their order.
    """

    def __init__(self, theirs: Mapping[str, Any], noise: StepNoise) -> None:
        super().__init__()
        self.p, self.prefix = float(theirs["prob"]), int(theirs["num_prefix_tokens"])
        self.ordered = bool(theirs["ordered"])
        self.noise = noise

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x (M B, T, D) with the prefix and as many patches of each sample, at least one."""
        if not self.training or self.p == 0:
            return x
        prefix, patches = x[:, : self.prefix], x[:, self.prefix :]
        count = patches.shape[1]
        members = max(len(x) // len(self.noise.rows), 1)
        noise = torch.randn(members, len(self.noise.batch), count, device=x.device)
        kept_patches = noise.argsort(dim=-1)[..., : max(1, int(count * (1.0 - self.p)))]
        if self.ordered:
            kept_patches = kept_patches.sort(dim=-1)[0]
        patch_index = kept_patches.index_select(1, self.noise.rows).flatten(0, 1).unsqueeze(-1)
        return torch.cat((prefix, patches.gather(1, patch_index.expand(-1, -1, x.shape[-1]))), dim=1)


def dropout_layers(model: nn.Module) -> list[tuple[nn.Module, str, nn.Dropout]]:
    """Return a model's dropout layers but those of attention weights, each with its module and its name there."""
    return [
        (module, name, child)
        for module in model.modules()
        for name, child in module.named_children()
        if isinstance(child, nn.Dropout) and name != "attn_drop"
    ]


def _path_layers(model: nn.Module) -> list[tuple[nn.Module, str, nn.Module, float]]:
    """Return where samples skip a block's residuals: the block, the layer's name there, the layer, and its share of the last's."""
    return [
        (block, name, child, i / max(len(blocks) - 1, 1))
        for blocks in (tower.layers() for tower in model.modules() if isinstance(tower, Tower))
        for i, block in enumerate(blocks)
        for name, child in block.named_children()
        if name.startswith("drop_path")  # where there is none stands an identity
    ]


HAS_LAYERS_FOR: Mapping[str, Callable[[nn.Module], bool]] = MappingProxyType(
    {
        "dropout": lambda model: any(name not in NOT_DROPPED for _, name, _ in dropout_layers(model)),
        "drop_path": lambda model: any(share > 0 for *_, share in _path_layers(model)),
    }
)
"""For each dropout setting of a recipe, whether a model has a layer that it changes; call it before `set_dropout`."""


def set_dropout(model: nn.Module, p: float | None, *, path: float | None = None) -> StepNoise:
    """Put layers whose draws hang on the step alone in the place of the model's own: dropout, its blocks' `drop_path`, patches.

    Args:
        model: Changed in place; its state dict stays as it is.
        p: The share dropped, None for each layer's own.
        path: The share of samples that skip what the last block's residuals go around, 0 for those of the first and in a
            line between them; None for each block's own.

    Returns:
        What the loop must tell where it is.
    """
    noise = StepNoise()
    for module, name, layer in dropout_layers(model):
        keeps_rate = p is None or name in NOT_DROPPED
        share = layer.p if keeps_rate or p is None else p
        module.add_module(name, BatchDropout(share, noise, shared=isinstance(layer, SharedDropout)))
    for block, name, child, part in _path_layers(model):
        # the libraries' own layers call it so
        theirs = float(vars(child).get("drop_prob") or 0.0)
        block.add_module(name, BatchDropout(theirs if path is None else path * part, noise, per_sample=True))
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if name == "patch_drop" and "num_prefix_tokens" in vars(child):  # timm's; else an identity
                module.add_module(name, BatchPatchDropout(vars(child), noise))
    return noise
