"""Dropout with masks that depend only on seed and step, not on processes or pieces.

Dropout of attention weights is not covered: fused attention kernels draw masks for the computed rows only.
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
"""Names of dropout layers that a recipe does not set. Attention weights and the input of the classifier keep
the rates of the architecture (Dosovitskiy et al. 2021)."""
_STREAM = -1
"""First part of the seeds of steps. It separates them from the seeds of epochs and samples."""


class StepNoise:
    """State of the dropout layers of a model: the rows of the batch in the current forward pass.

    Tensors avoid recompilation of a compiled model for other rows.

    Attributes:
        rows: Rows of the current piece in the batch, shape (B,), int64.
        batch: Empty tensor of shape (N, 0), with N rows of the whole batch.
    """

    def __init__(self) -> None:
        self.rows, self.batch = torch.arange(0), torch.empty(0, 0)

    @contextlib.contextmanager
    def at(self, *, seed: int, step: int, rows: range, total: int, device: torch.device) -> Iterator[None]:
        """Seed torch's generators for a piece of a batch, and restore the generators at the end of the block.

        Args:
            seed: Seed of the run.
            step: Number of the step, from 0.
            rows: Rows of the piece in the batch.
            total: Number of rows of the whole batch.
            device: Device of the computation.
        """
        self.rows = torch.arange(rows.start, rows.stop, device=device)
        self.batch = torch.empty(total, 0, device=device)
        # `torch.device("cuda")` has no index; the device of a tensor has.
        devices = [] if device.type == "cpu" else [self.rows.device.index]
        with torch.random.fork_rng(devices, device_type="cuda" if device.type == "cpu" else device.type):
            torch.manual_seed(sample_seed(_STREAM, seed, step))
            yield


class BatchDropout(nn.Module):
    """Dropout that draws a mask for the whole batch and applies the rows of the current piece.

    If members of a hydra run together, the batch axis has the rows of member after member. Masks of members
    differ.

    Attributes:
        p: Fraction of elements or samples that are set to 0.
        whole: Whether whole samples are dropped: stochastic depth (Huang et al. 2016).
        shared: Whether the input has no sample axis.
    """

    def __init__(self, p: float, noise: StepNoise, *, per_sample: bool = False, shared: bool = False) -> None:
        super().__init__()
        self.p = p
        self.noise = noise
        self.whole, self.shared = per_sample, shared

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x (M B, ...) with a fraction `p` set to 0 and the rest scaled by 1 / (1 - p).

        x is unchanged in evaluation mode.
        """
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
    """timm's `PatchDropout` (Liu et al. 2023), with draws for the whole batch like `BatchDropout`.

    Attributes:
        p: Fraction of patches that are dropped.
        prefix: Number of tokens before the patches, which are kept.
        ordered: Whether kept patches stay in order.
    """

    def __init__(self, theirs: Mapping[str, Any], noise: StepNoise) -> None:
        super().__init__()
        self.p, self.prefix = float(theirs["prob"]), int(theirs["num_prefix_tokens"])
        self.ordered = bool(theirs["ordered"])
        self.noise = noise

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x (M B, T, D) with the prefix and the same number of patches of each sample, at least one.

        x is unchanged in evaluation mode.
        """
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
    """Return the dropout layers of a model except for attention weights, as (parent, name, layer)."""
    return [
        (module, name, child)
        for module in model.modules()
        for name, child in module.named_children()
        if isinstance(child, nn.Dropout) and name != "attn_drop"
    ]


def _path_layers(model: nn.Module) -> list[tuple[nn.Module, str, nn.Module, float]]:
    """Return the stochastic-depth layers as (block, name, layer, fraction of the last block's rate)."""
    return [
        (block, name, child, i / max(len(blocks) - 1, 1))
        for blocks in (tower.layers() for tower in model.modules() if isinstance(tower, Tower))
        for i, block in enumerate(blocks)
        for name, child in block.named_children()
        if name.startswith("drop_path")  # A block without stochastic depth has an identity of this name.
    ]


HAS_LAYERS_FOR: Mapping[str, Callable[[nn.Module], bool]] = MappingProxyType(
    {
        "dropout": lambda model: any(name not in NOT_DROPPED for _, name, _ in dropout_layers(model)),
        "drop_path": lambda model: any(share > 0 for *_, share in _path_layers(model)),
    }
)
"""For each dropout setting of a recipe, a function that returns whether a model has a layer which the setting
changes. Call it before `set_dropout`."""


def set_dropout(model: nn.Module, p: float | None, *, path: float | None = None) -> StepNoise:
    """Replace a model's layers of dropout, stochastic depth and patch dropout by layers of this module.

    Args:
        model: The model, changed in place. Its state dict stays the same.
        p: Dropout rate; None keeps the rate of each layer.
        path: Stochastic-depth rate of the last block, which falls linearly to 0 at the first; None keeps the
            rate of each block.

    Returns:
        State of the layers. Each piece of a batch must run within its `at`.
    """
    noise = StepNoise()
    for module, name, layer in dropout_layers(model):
        keeps_rate = p is None or name in NOT_DROPPED
        share = layer.p if keeps_rate or p is None else p
        module.add_module(name, BatchDropout(share, noise, shared=isinstance(layer, SharedDropout)))
    for block, name, child, part in _path_layers(model):
        # timm and transformers store the rate as `drop_prob`.
        theirs = float(vars(child).get("drop_prob") or 0.0)
        block.add_module(name, BatchDropout(theirs if path is None else path * part, noise, per_sample=True))
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            # Models of timm without patch dropout have an identity of this name.
            if name == "patch_drop" and "num_prefix_tokens" in vars(child):
                module.add_module(name, BatchPatchDropout(vars(child), noise))
    return noise
