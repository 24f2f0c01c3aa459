"""Which heads are kept: the plain data that scores, masks and models meet in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class HeadId(NamedTuple):
    """One head of a model; layer and head count from 0."""

    tower: str
    layer: int
    head: int


class TowerShape(NamedTuple):
    """How many layers a tower has, and how many heads each of them."""

    layers: int
    num_heads: int

    @property
    def total(self) -> int:
        """Every head of the tower."""
        return self.layers * self.num_heads


Shape: TypeAlias = Mapping[str, TowerShape]


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerMask:
    """The heads that one tower keeps.

    Attributes:
        num_heads: Heads of a layer of the base, at least 1.
        keep: For each layer, at least one, the kept heads: strictly increasing, in 0..num_heads-1. A layer may
            keep none.

    Raises:
        ValueError: If a number is out of its range or order; the message names layer and head.
    """

    num_heads: int
    keep: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if self.num_heads < 1:
            raise ValueError(f"a layer must have at least one head, got {self.num_heads}")
        if not self.keep:
            raise ValueError("a tower must have at least one layer")
        for layer, heads in enumerate(self.keep):
            self._check_layer(layer, heads)

    def _check_layer(self, layer: int, heads: tuple[int, ...]) -> None:
        previous = -1
        for head in heads:
            if not 0 <= head < self.num_heads:
                raise ValueError(
                    f"layer {layer} keeps head {head}, but has {self.num_heads} heads (0..{self.num_heads - 1})"
                )
            if head <= previous:
                raise ValueError(
                    f"layer {layer} keeps head {head} after head {previous}; heads must increase strictly"
                )
            previous = head

    @property
    def layers(self) -> int:
        """How many layers there are."""
        return len(self.keep)

    @property
    def total(self) -> int:
        """How many heads the base has."""
        return self.layers * self.num_heads

    @property
    def kept(self) -> int:
        """How many heads stay."""
        return sum(len(heads) for heads in self.keep)

    @property
    def removed(self) -> int:
        """How many heads go."""
        return self.total - self.kept

    @property
    def drop(self) -> tuple[tuple[int, ...], ...]:
        """For each layer the heads that go, increasing: the complement of `keep`."""
        return tuple(
            tuple(head for head in range(self.num_heads) if head not in heads) for heads in self.keep
        )


Mask: TypeAlias = Mapping[str, TowerMask]


def full_mask(shape: Shape) -> dict[str, TowerMask]:
    """Return the mask that keeps every head.

    Raises:
        ValueError: If a tower has no layer or no head.
    """
    return {
        tower: TowerMask(num_heads=size.num_heads, keep=(tuple(range(size.num_heads)),) * size.layers)
        for tower, size in shape.items()
    }


class Layered(Protocol):
    """A tower's mask, or what a header says of a tower."""

    @property
    def layers(self) -> int:
        """How many layers there are."""
        ...

    @property
    def num_heads(self) -> int:
        """Heads of a layer of the base."""
        ...


def shape_of(towers: Mapping[str, Layered]) -> dict[str, TowerShape]:
    """Return the shape of a model before any head was removed."""
    return {name: TowerShape(t.layers, t.num_heads) for name, t in towers.items()}


def total_heads(shape: Shape) -> int:
    """Return how many heads all towers have together."""
    return sum(size.total for size in shape.values())


def all_heads(shape: Shape) -> tuple[HeadId, ...]:
    """Return every head: by tower in the order of `shape`, then layer, then head."""
    return tuple(
        HeadId(tower, layer, head)
        for tower, size in shape.items()
        for layer in range(size.layers)
        for head in range(size.num_heads)
    )


def dropped(mask: Mask) -> tuple[HeadId, ...]:
    """Return the heads that a mask removes: by tower in the order of `mask`, then layer, then head."""
    return tuple(
        HeadId(tower, layer, head)
        for tower, part in mask.items()
        for layer, heads in enumerate(part.drop)
        for head in heads
    )


def drop_heads(mask: Mask, heads: Iterable[HeadId]) -> dict[str, TowerMask]:
    """Return a mask with more heads removed.

    Args:
        mask: Unchanged.
        heads: In any order, each kept by `mask`.

    Raises:
        ValueError: If a head is not in the model, is already removed or comes twice.
    """
    shape = shape_of(mask)
    left = {tower: [set(kept) for kept in part.keep] for tower, part in mask.items()}
    for head in heads:
        check_head(head, shape)
        kept = left[head.tower][head.layer]
        if head.head not in kept:
            raise ValueError(f"{describe(head)} cannot be removed twice")
        kept.remove(head.head)
    return {
        tower: TowerMask(num_heads=part.num_heads, keep=tuple(tuple(sorted(kept)) for kept in left[tower]))
        for tower, part in mask.items()
    }


def check_head(head: HeadId, shape: Shape) -> None:
    """Refuse a head that a model of this shape does not have.

    Raises:
        ValueError: If tower, layer or head is out of range.
    """
    if head.tower not in shape:
        known = ", ".join(f"`{tower}`" for tower in shape)
        raise ValueError(f"there is no tower `{head.tower}`, only {known}")
    size = shape[head.tower]
    if not (0 <= head.layer < size.layers and 0 <= head.head < size.num_heads):
        raise ValueError(
            f"there is no {describe(head)}: it has {size.layers} layers of {size.num_heads} heads, both counted from 0"
        )


def check_order(order: Sequence[HeadId], shape: Shape) -> None:
    """Refuse an order that has a head which the model lacks, or one head twice.

    Raises:
        ValueError: Naming the head.
    """
    drop_heads(full_mask(shape), order)


def describe(head: HeadId) -> str:
    """Return a head as messages name it."""
    return f"head {head.head} in layer {head.layer} of tower `{head.tower}`"
