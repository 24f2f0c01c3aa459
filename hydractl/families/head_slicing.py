"""Where heads and other parts lie in a model's tensors, and the removal of heads. Importing this module loads no torch."""

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
    """Heads of a layer: those of a whole tower, or those that a member keeps.

    Attributes:
        head_numbers: Numbers of the query heads before pruning.
        head_dim: K.
        sharing: Query heads of each key head before pruning.
    """

    @property
    def head_numbers(self) -> Sequence[int]: ...  # noqa: D102
    @property
    def head_dim(self) -> int: ...  # noqa: D102
    @property
    def sharing(self) -> int: ...  # noqa: D102


def shared_keys(heads: Iterable[int], sharing: int) -> list[int]:
    """Return the numbers of the key heads of query heads, in their order, where `sharing` query heads share each."""
    return list(dict.fromkeys(head // sharing for head in heads))


class TensorRole(StrEnum):
    """What a tensor with a head axis does."""

    INPUT = "input"  # q, k or v, apart or fused: Taylor scores these weights
    BIAS = "bias"
    GATE = "gate"
    OUTPUT = "output"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadTensor:
    """A tensor of a block whose axis `axis` is `(copies H K)`: heads contiguous, `copies` times over.

    A fused qkv weight is axis 0 and three copies; an output projection's weight is axis 1 and one copy. Where a head has
    one entry and not K, the axis is `(copies H)`: a table of position biases with a column a head is axis 1 and one copy.
    A `shared` one has heads of keys or values, which several query heads may share: one goes when its last query head goes.
    """

    name: str
    axis: int
    copies: int
    role: TensorRole
    one_entry: bool = False
    shared: bool = False

    def numbers(self, heads: Iterable[int], tower: HeadSizes) -> list[int]:
        """Return the heads that the axis has where a layer keeps these query heads, in their order."""
        return shared_keys(heads, tower.sharing if self.shared else 1)

    def size(self, heads: Iterable[int], tower: HeadSizes) -> int:
        """Return how long the axis is where a layer keeps these query heads."""
        return len(self.numbers(heads, tower)) * self.copies * self.width(tower)

    def index(self, heads: Iterable[int], tower: HeadSizes) -> list[int]:
        """Return the places of some heads along the axis of a tensor that has the heads of `tower`: copy after copy."""
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
        """Return a tensor with only some heads of `tower`: all pruning is this function.

        Removing a head removes its K rows of q, k and v (weights and biases) and its K columns of the output projection, whose
        bias stays (Hydra Ensembles, Algorithm 1). Rows of k and v that several heads share go with the last of them.
        """
        import torch

        index = torch.tensor(self.index(heads, tower), dtype=torch.long)
        return tensor.index_select(self.axis, on_device(index, tensor.device))

    def width(self, tower: HeadSizes) -> int:
        """Return how many entries a head has along the axis in each copy."""
        return 1 if self.one_entry else tower.head_dim


def projections_apart(
    name: str, parts: Sequence[str], *, copies: int = 1, shared: Collection[str] = ()
) -> tuple[HeadTensor, ...]:
    """Return weight and bias of projections that are layers of their own, heads along the first axis.

    Args:
        name: Of a layer, with `{part}`.
        parts: What stands for it: queries, keys, values.
        copies: See `HeadTensor`.
        shared: Which parts are, see there.
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
    """Where a tower's blocks lie among the state-dict names.

    Attributes:
        block: Prefix of a block's tensors, with `{layer}`.
        heads: Tensors with a head axis, relative to the prefix; one that a model lacks is absent from its state dict.
        mlp: Prefixes, relative to the block's, of what the paper averages.
        attention: Prefixes, relative to the block's, of the attention and the norm before it.
        readout: Prefixes of what lies between the blocks and the classifier.
        last_norm: Those among them of the norm that ends the blocks, where they are pre-norm.
        head: Prefixes of the classifier.
        pooler: Prefixes of what belongs to the readout and a model without a classifier may lack.
        embed: Prefixes of the embedding; where a model has one tower, what fits nothing else is the embedding.
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
        """Return the layout of the same tower in a model whose names for it begin with `prefix`."""
        outside = {
            name: tuple(prefix + path for path in getattr(self, name))
            for name in ("readout", "head", "pooler", "embed", "last_norm")
        }
        return replace(self, block=prefix + self.block, **outside)


def select_heads(
    library: nn.Module, prefix: str, tensor: HeadTensor, head_numbers: Sequence[int], heads: HeadSizes
) -> None:
    """Replace a parameter by one with only some heads of `heads`, if the module has it.

    Args:
        library: The module.
        prefix: What the parameter's name begins with.
        tensor: The parameter.
        head_numbers: The heads that stay.
        heads: The heads that it has.
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
