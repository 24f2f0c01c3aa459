"""Weights under foreign names: what a library itself does to read them."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

from hydractl.checkpoint import ScratchFolder, write_tensors
from hydractl.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

    from hydractl.families.base import Family
    from hydractl.manifest import Architecture

LAYER_SCALE = re.compile(r"\bgamma_\d")


def convert(
    family: Family, architecture: Architecture, state: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor] | None:
    """Return the tensors as the family's library reads those of an original repository, or of an older version of itself.

    Args:
        family: Who reads the architecture.
        architecture: What the tensors should become.
        state: Tensors whose names do not fit.

    Returns:
        Tensors that need not fit either, or None where the library has no way or makes nothing of them.
    """
    if family.library == "timm":
        return _filtered(architecture, state)
    return None if family.adopt is None else _adopted(family, architecture, state)


def _filtered(
    architecture: Architecture, state: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor] | None:
    """Return what timm's filter for pretrained weights of the model's module makes of them."""
    import timm
    import torch

    with torch.device("meta"):
        library = timm.create_model(architecture.name, pretrained=False, **architecture.config)
    found: Callable[..., Any] | None = getattr(
        sys.modules[type(library).__module__], "checkpoint_filter_fn", None
    )
    if found is None:
        return None
    # a flag of the filter that timm itself gives by model name
    options = {"adapt_layer_scale": True} if any(map(LAYER_SCALE.search, state)) else {}
    try:
        made: dict[str, torch.Tensor] = found(dict(state), library, **options)
    except Exception:  # noqa: BLE001 - a filter takes what it knows for granted; other names trip it anywhere
        return None
    # a tensor that it computes may come out on the device of the model that it was computed for
    return None if any(tensor.is_meta for tensor in made.values()) else made


def _adopted(
    family: Family, architecture: Architecture, state: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor] | None:
    """Return what the library makes of a folder with these weights, unless it leaves some of them out."""
    if family.adopt is None:
        return None
    scratch = ScratchFolder()
    with (scratch.path / "model.safetensors").open("wb") as file:
        write_tensors(file, state, header=None)
    try:
        made = family.adopt(scratch.path, architecture)
    except (CheckpointError, RuntimeError):  # some are missing, or of other shapes
        return None
    return made if _elements(made) == _elements(state) else None


def _elements(state: Mapping[str, torch.Tensor]) -> int:
    """Return how many weights there are; tables of indices do not count."""
    return sum(tensor.numel() for tensor in state.values() if tensor.is_floating_point())
