"""Positions of heads and other parts in the tensors of a model, and removal of heads.

Importing this module loads no torch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from hydractl.runtime import on_device

if TYPE_CHECKING:
    import torch
    from torch import nn


class HeadSizes(Protocol):
    """Heads of a layer: all heads of a tower before pruning, or the kept heads of a member.

    Attributes:
        head_numbers: Numbers of the query heads, counted before pruning.
        head_dim: K, the head width.
        sharing: Number of query heads per key head before pruning (grouped-query attention); 1 without
            sharing.
    """

    @property
    def head_numbers(self) -> Sequence[int]: ...  # noqa: D102
    @property
    def head_dim(self) -> int: ...  # noqa: D102
    @property
    def sharing(self) -> int: ...  # noqa: D102


def shared_keys(heads: Iterable[int], sharing: int) -> list[int]:
    """Return the numbers of the key heads used by query heads, in order, without repetition.

    Args:
        heads: Numbers of the query heads.
        sharing: Number of query heads per key head.
    """
    return list(dict.fromkeys(head // sharing for head in heads))


class TensorRole(StrEnum):
    """Role of a tensor with a head axis."""

    INPUT = "input"  # q, k or v, separate or fused: Taylor importance uses these weights
    BIAS = "bias"
    GATE = "gate"
    OUTPUT = "output"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadTensor:
    """A tensor of a block with a head axis.

    The head axis is `(copies H K)`: contiguous heads of width K, repeated `copies` times. A fused qkv weight
    has axis 0 and three copies. The weight of an output projection has axis 1 and a single copy. With
    `one_entry` the axis is `(copies H)`, for example axis 1 of a table of position biases with a column per
    head.

    Attributes:
        name: Name relative to the block.
        axis: The head axis.
        copies: How often the heads follow each other along the axis.
        role: Role of the tensor in attention.
        one_entry: Whether a head has a single entry along the axis instead of K.
        shared: Whether the heads are key or value heads, possibly shared by several query heads. A shared
            head is removed together with its last query head.
    """

    name: str
    axis: int
    copies: int
    role: TensorRole
    one_entry: bool = False
    shared: bool = False

    def numbers(self, heads: Iterable[int], tower: HeadSizes) -> list[int]:
        """Return the numbers of the heads along the axis, in order, for a layer with these query heads."""
        return shared_keys(heads, tower.sharing if self.shared else 1)

    def size(self, heads: Iterable[int], tower: HeadSizes) -> int:
        """Return the length of the axis for a layer with these query heads."""
        return len(self.numbers(heads, tower)) * self.copies * self.width(tower)

    def index(self, heads: Iterable[int], tower: HeadSizes) -> list[int]:
        """Return the indices of some heads along the axis, copy after copy.

        Args:
            heads: Numbers of the query heads to select.
            tower: Heads that the tensor has.
        """
        present, width = self.numbers(tower.head_numbers, tower), self.width(tower)
        places = {head: width * place for place, head in enumerate(present)}
        starts = [places[head] for head in self.numbers(heads, tower)]
        return [
            copy * len(present) * width + start + entry
            for copy in range(self.copies)
            for start in starts
            for entry in range(width)
        ]

    def select(self, tensor: torch.Tensor, heads: Iterable[int], tower: HeadSizes) -> torch.Tensor:
        """Return the tensor with only the given heads. All pruning uses this function.

        Removing a head removes K rows of q, k and v (weights and biases) and K columns of the output
        projection. The bias of the output projection stays (Hydra Ensembles, Algorithm 1). Shared rows of k
        and v are removed with the last query head.
        """
        import torch

        index = torch.tensor(self.index(heads, tower), dtype=torch.long)
        return tensor.index_select(self.axis, on_device(index, tensor.device))

    def width(self, tower: HeadSizes) -> int:
        """Return the number of entries of a head along the axis, per copy: K, or 1 with `one_entry`."""
        return 1 if self.one_entry else tower.head_dim


def projections_apart(
    name: str, parts: Sequence[str], *, copies: int = 1, shared: Collection[str] = ()
) -> tuple[HeadTensor, ...]:
    """Return weights and biases of separate projections, with heads along the first axis.

    Args:
        name: Name of a layer, with the placeholder `{part}`.
        parts: Values of `{part}`, for example `q`, `k` and `v`.
        copies: Number of copies; see `HeadTensor`.
        shared: The parts with shared heads; see `HeadTensor`.
    """
    return tuple(
        HeadTensor(
            name=f"{name.format(part=part)}.{kind}", axis=0, copies=copies, role=role, shared=part in shared
        )
        for part in parts
        for kind, role in (("weight", TensorRole.INPUT), ("bias", TensorRole.BIAS))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerLayout:
    """Prefixes of a tower's parts in the state dict.

    Attributes:
        block: Prefix of a block's tensors, with the placeholder `{layer}`.
        heads: Tensors with a head axis, relative to the block. A model may lack tensors of this list.
        attention: Prefixes of the attention, relative to the block.
        mlp: Prefixes of the MLP, relative to the block. The Hydra Ensembles paper averages these tensors over
            members.
        readout: Prefixes of the layers between the blocks and the classifier.
        head: Prefixes of the classifier.
        pooler: Prefixes of the part of the readout which a model without a classifier may lack.
        embed: Prefixes of the embedding. In a model with a single tower, all other tensors count as embedding
            too.
        last_norm: The prefixes in `readout` of the norm after pre-norm blocks.
    """

    block: str
    heads: tuple[HeadTensor, ...]
    attention: tuple[str, ...]
    mlp: tuple[str, ...]
    readout: tuple[str, ...]
    head: tuple[str, ...]
    pooler: tuple[str, ...] = ()
    embed: tuple[str, ...] = ()
    last_norm: tuple[str, ...] = ()

    def under(self, prefix: str) -> TowerLayout:
        """Return the layout with `prefix` before all names of the tower."""
        outside = {
            name: tuple(prefix + path for path in getattr(self, name))
            for name in ("readout", "head", "pooler", "embed", "last_norm")
        }
        return replace(self, block=prefix + self.block, **outside)


def select_heads(
    library: nn.Module, prefix: str, tensor: HeadTensor, head_numbers: Sequence[int], heads: HeadSizes
) -> None:
    """Remove heads from a parameter. Does nothing if the module lacks the parameter.

    Args:
        library: The module.
        prefix: Prefix of the parameter's name.
        tensor: The parameter.
        head_numbers: Numbers of the heads to keep.
        heads: Heads that the parameter has.
    """
    from torch import nn

    path, _, name = (prefix + tensor.name).rpartition(".")
    try:
        module = library.get_submodule(path)
    except AttributeError:
        return
    if (old := getattr(module, name, None)) is not None:
        new = nn.Parameter(tensor.select(old.detach(), head_numbers, heads))
        setattr(module, name, new)
        if isinstance(module, nn.Linear) and name == "weight":
            module.out_features, module.in_features = new.shape
