"""Taking a library's model apart: built without weights, heads cut, split into an embedding, blocks and a readout."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from typing_extensions import override

from hydractl.errors import EDITED, CheckpointError
from hydractl.families.base import TowerLayout
from hydractl.families.head_tensors import select_heads

if TYPE_CHECKING:
    from hydractl.manifest.head_mask import TowerKeep
    from hydractl.manifest.header import Architecture

PRE_NORM = MappingProxyType({"norm1": "attn", "norm2": "mlp"})
"""`Block.feeds` of pre-norm blocks (Xiong et al. 2020)."""
HeadNumbers = Sequence[tuple[int, ...]]
"""Kept heads of a tower, by layer."""


def without_weights() -> AbstractContextManager[None]:
    """Return a context in which modules get parameters on the meta device, and buffers as they are.

    Buffers that no state dict has, such as rotary angles, are computed by constructors and nowhere else.
    """
    from accelerate import init_empty_weights

    return cast("AbstractContextManager[None]", init_empty_weights(include_buffers=False))


def cut_heads(
    library: nn.Module,
    layouts: Mapping[str, TowerLayout],
    architecture: Architecture,
    mask: Mapping[str, TowerKeep],
) -> None:
    """Give every tensor with a head axis the size that the mask leaves it, on the meta device.

    Raises:
        CheckpointError: If the library's towers have other numbers of layers.
    """
    for tower, layout in layouts.items():
        heads, kept_heads = architecture.towers[tower], mask[tower].keep
        last, beyond = (layout.block.format(layer=n)[:-1] for n in (heads.layers - 1, heads.layers))
        if _submodule(library, last) is None or _submodule(library, beyond) is not None:
            raise CheckpointError(
                f"its masks have {heads.layers} layers, but its configuration makes a "
                f"`{architecture.name}` with another number",
                hint=EDITED,
            )
        for layer, head_numbers in enumerate(kept_heads):
            for tensor in layout.heads:
                select_heads(library, layout.block.format(layer=layer), tensor, head_numbers, heads)


def fill(library: nn.Module, state: Mapping[str, torch.Tensor] | None) -> None:
    """Put the tensors of a state dict in place; without one the parameters stay on the meta device.

    Raises:
        RuntimeError: If names or shapes are not exactly the library's.
    """
    if state is None:
        return
    library.load_state_dict(state, strict=True, assign=True)
    for parameter in library.parameters():
        parameter.requires_grad_(parameter.is_floating_point() and parameter.numel() > 0)


def part(library: nn.Module, keep: Callable[[str], bool], path: str = "") -> Any:  # noqa: ANN401 - libraries are untyped
    """Return a library model with only the children, parameters and buffers whose dotted names `keep` accepts.

    Its methods run unchanged; what was left out belongs to another part. What is absent in the library (None) stays None.

    Args:
        library: The model, or a module in it.
        keep: Asked of tensors and of modules without children.
        path: What names begin with, of a module in a model.
    """
    copied = copy.copy(library)
    for kind in ("_parameters", "_buffers"):
        copied.__dict__[kind] = {
            n: v if v is None or keep(path + n) else None for n, v in getattr(library, kind).items()
        }
    copied.__dict__["_modules"] = {
        n: None if child is None else _kept_child(child, path + n, keep)
        for n, child in library._modules.items()
    }
    return copied


def _kept_child(child: nn.Module, path: str, keep: Callable[[str], bool]) -> nn.Module | None:
    """Return the child itself where all of it is kept, a copy with what is kept of it, or None."""
    inner = [
        *(n for n, m in child.named_modules() if n and not m._modules),
        *(n for n, _ in (*child.named_parameters(), *child.named_buffers())),
    ]
    keep_flags = [keep(f"{path}.{n}") for n in inner] or [keep(path)]
    if all(keep_flags):
        return child
    return part(child, keep, f"{path}.") if any(keep_flags) else None


def _submodule(library: nn.Module, path: str) -> nn.Module | None:
    try:
        return library.get_submodule(path)
    except AttributeError:
        return None


class Hosted(nn.Module):
    """A part of a library's model that runs its modules; they keep the library's state-dict names."""

    def __init__(self, host: nn.Module) -> None:
        super().__init__()
        self.host = host


class FunctionModule(Hosted):
    """One that a function runs: inputs to a stream, or a stream to the tower's output."""

    def __init__(self, host: nn.Module, run: Callable[[Any, Any], Any]) -> None:
        super().__init__(host)
        self.run = run

    @override
    def forward(self, x: Any) -> Any:
        """Return what the function makes of `x`."""
        return self.run(self.host, x)


class LayerScale(nn.Module):
    """A factor for each feature, where a library's block holds it itself."""

    def __init__(self, gamma: nn.Parameter) -> None:
        super().__init__()
        self.gamma = gamma

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x (N, T, D) scaled."""
        return self.gamma * x
