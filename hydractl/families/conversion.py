"""Weights under foreign names: what a library itself does to read them."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from hydractl.errors import CheckpointError
from hydractl.families.base import Family, name_in_memory, place_of
from hydractl.manifest.header import Architecture
from hydractl.model_source import INDEX, Located
from hydractl.tensor_spec import TensorSpec

if TYPE_CHECKING:
    import torch


@contextmanager
def naming_import(
    located: Located, family: Family, names: Iterable[str], expected: Collection[str]
) -> Iterator[None]:
    """Name `import` in what is raised of a folder whose tensors have a prefix that its architecture has not.

    Raises:
        CheckpointError: What came, with another hint.
    """
    try:
        yield
    except CheckpointError as error:
        probe, memory_names = max(expected, key=len), {name_in_memory(family, name) for name in names}
        if probe not in memory_names and any(name.endswith(f".{probe}") for name in memory_names):
            error.hint = f"its tensors have a prefix, which `import` strips: {_import(located)}"
        raise


def trained_head_hint(
    located: Located, family: Family, specs: Mapping[str, TensorSpec], expected: Mapping[str, TensorSpec]
) -> str | None:
    """Return how to read a folder whose classifier has another name than the architecture's, or None.

    Args:
        located: The folder.
        family: The family that reads it.
        specs: Its tensors.
        expected: Those of the architecture in memory.
    """
    heads = [n for n in expected if n.endswith(".weight") and place_of(family, n).part == "head"]
    if len(heads) != 1 or heads[0] in map(partial(name_in_memory, family), specs):
        return None
    stems = [
        n.removesuffix(".weight")
        for n in specs.keys() - expected.keys()
        if n.endswith(".weight")
        and specs[n].shape == expected[heads[0]].shape
        and place_of(family, n).layer is None
    ]
    if len(stems) != 1:
        return None
    way = _import(located, f" --rename {shlex.quote(stems[0])}={heads[0].removesuffix('.weight')}")
    return f"if `{stems[0]}` is its classifier: {way}"


def _import(located: Located, options: str = "") -> str:
    """Return the command that makes a base of a folder."""
    index = located.path / INDEX
    file = index if len(located.weights) > 1 and index.is_file() else located.weights[0]
    return f"`hydractl import {shlex.quote(str(file))} --arch {shlex.quote(str(located.path))}{options} -o base.st`"


def convert(
    family: Family, architecture: Architecture, state: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor] | None:
    """Return the tensors as the family's library reads those of an original repository, or of an older version of itself.

    Args:
        family: Who reads the architecture.
        architecture: What the tensors should become.
        state: Tensors whose names do not fit.

    Returns:
        Tensors that need not fit either, or None where the library has no way, makes nothing of them or leaves some out.
    """
    if family.library == "timm":
        from hydractl.families.timm.models import filtered

        return filtered(architecture, state)
    adopted = _read(family, architecture, state)
    return adopted if adopted is not None and _elements(adopted) == _elements(state) else None


def encoder_of(
    family: Family, architecture: Architecture, state: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor] | None:
    """Return the tensors as `convert` does, be some of them left out: an encoder may come with what is no part of a classifier."""
    return convert(family, architecture, state) or _read(family, architecture, state)


def _read(
    family: Family, architecture: Architecture, state: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor] | None:
    """Return what the library makes of a folder with these weights, None where it fails."""
    if family.adopt is None:
        return None
    try:
        return family.adopt("weights", architecture, state)
    except (CheckpointError, RuntimeError):  # some are missing, or of other shapes
        return None


def _elements(state: Mapping[str, torch.Tensor]) -> int:
    """Return how many weights there are; tables of indices do not count."""
    return sum(tensor.numel() for tensor in state.values() if tensor.is_floating_point())
