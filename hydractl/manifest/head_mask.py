"""Head masks and head importance: names of heads, and the two JSON documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import not_
from typing import Annotated, ClassVar, Literal, NamedTuple, Self, TypeAlias

from pydantic import Field, model_validator

from hydractl.manifest.document import (
    Argv,
    ConfigDigest,
    Digest,
    Document,
    Fingerprint,
    Key,
    OptionValue,
    Samples,
    StrictModel,
    Version,
    is_none,
)

Heads = tuple[Annotated[int, Field(ge=0)], ...]
MOST_HEADS = 2**16
"""Maximum number of heads of a tower. The largest published transformers have about 10,000 heads. The limit
bounds the memory for masks from untrusted files; doubling it doubles this memory."""
MAX_DIMENSION = 2**20
"""Maximum of every number in a model's shape, such as the head dimension. Chosen by hand, above published
models; twice the limit would allow files to request larger tensors."""


def _check_size(layers: int, num_heads: int) -> None:
    if layers * num_heads > MOST_HEADS:
        raise ValueError(f"{layers} layers of {num_heads} heads are more than {MOST_HEADS} heads")


class HeadId(NamedTuple):
    """Name of a head: tower, layer and head, both counted from 0."""

    tower: str
    layer: int
    head: int

    def __str__(self) -> str:
        """Return a text for messages: "head 3 in layer 0 of tower `vision`"."""
        return f"head {self.head} in layer {self.layer} of tower `{self.tower}`"


class TowerShape(NamedTuple):
    """Number of layers of a tower and number of heads per layer."""

    layers: int
    num_heads: int


class TowerHeads(StrictModel):
    """Attention heads of a tower before pruning.

    Attributes:
        layers: Number of layers.
        num_heads: Number of query heads per layer.
        head_dim: Dimension of a head.
        key_heads: Number of key and value heads in grouped-query attention. Consecutive query heads share a
            key head. `None` if every query head has its own.
    """

    layers: int = Field(ge=1, le=MOST_HEADS)
    num_heads: int = Field(ge=1, le=MOST_HEADS)
    head_dim: int = Field(ge=1, le=MAX_DIMENSION)
    key_heads: int | None = Field(default=None, ge=1, exclude_if=is_none)

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        _check_size(self.layers, self.num_heads)
        if self.key_heads is not None and self.num_heads % self.key_heads:
            raise ValueError(f"{self.num_heads} heads cannot share {self.key_heads} key heads evenly")
        return self

    @property
    def head_numbers(self) -> range:
        """Indices of the query heads of a layer."""
        return range(self.num_heads)

    @property
    def sharing(self) -> int:
        """Number of query heads per key head."""
        return self.num_heads // (self.key_heads or self.num_heads)


class TowerKeep(StrictModel):
    """Remaining heads of one tower.

    Attributes:
        num_heads: Number of heads per layer before pruning.
        keep: For each layer the remaining heads, strictly increasing; empty if the layer loses all heads.
    """

    num_heads: int = Field(ge=1, le=MOST_HEADS)
    keep: tuple[Heads, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        _check_size(self.layers, self.num_heads)
        for layer, kept_heads in enumerate(self.keep):
            if list(kept_heads) != sorted(set(kept_heads)):
                raise ValueError(f"keep[{layer}] must be strictly increasing, got {list(kept_heads)}")
            if kept_heads and kept_heads[-1] >= self.num_heads:
                raise ValueError(
                    f"keep[{layer}] has head {kept_heads[-1]}, but there are {self.num_heads} heads (0..{self.num_heads - 1})"
                )
        return self

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.keep)

    @property
    def num_kept(self) -> int:
        """Number of remaining heads, over all layers."""
        return sum(map(len, self.keep))

    @property
    def removed(self) -> int:
        """Number of removed heads, over all layers."""
        return self.layers * self.num_heads - self.num_kept

    @property
    def drop(self) -> tuple[Heads, ...]:
        """Removed heads of each layer, increasing: the complement of `keep`."""
        return tuple(
            tuple(head for head in range(self.num_heads) if head not in heads) for heads in self.keep
        )


Mask: TypeAlias = Mapping[str, TowerKeep]
Shape: TypeAlias = Mapping[str, TowerShape | TowerHeads | TowerKeep]
Tables: TypeAlias = Mapping[str, Sequence[Sequence[float]]]
"""Head importance of each tower, shape (L, H)."""


class HeadName(StrictModel):
    """A head of the base, by its index before pruning."""

    tower: str
    layer: int = Field(ge=0)
    head: int = Field(ge=0)

    @property
    def id(self) -> HeadId:
        """The name as a tuple, for sorting."""
        return HeadId(self.tower, self.layer, self.head)


class Removal(HeadName):
    """One step of a greedy method.

    Attributes:
        objective: Objective after the removal of this head.
    """

    objective: float


class TowerImportance(StrictModel):
    """Importance of the heads of one tower.

    Attributes:
        scores: Row l, column h is the importance of head h in layer l. Higher is more important.
    """

    scores: tuple[tuple[float, ...], ...]

    @model_validator(mode="after")
    def _rectangular(self) -> Self:
        if not self.scores or len({len(row) for row in self.scores}) != 1 or not self.scores[0]:
            raise ValueError("scores must be a rectangular table of layers by heads")
        return self


class HeadImportance(Document):
    """Importance of each head of a model, `hydractl.scores/1`.

    Attributes:
        method: Name of the method.
        objective: Objective of the method. `None` for methods without objective.
        options: Options of the method.
        model: The model.
        architecture: Name of the model's architecture.
        data: Data sets of the method.
        towers: Importance of the heads of each tower.
        baseline: Objective of the model without removals.
        removals: Heads in the order in which a greedy method removed them.
        clusters: Groups of similar heads, for methods with clusters. The first head of a group represents the
            group.
        results: Further results of the method.
        samples: Digests of the samples in `data`.
        tool: Name and version of the program.
        versions: As in the step of a checkpoint.
        config_digest: As in the step of a checkpoint.
        argv: As in the step of a checkpoint.
    """

    kind_of_file: ClassVar[str] = "scores"

    schema_: Literal["hydractl.scores/1"] = Field(default="hydractl.scores/1", alias="schema")
    method: Key
    objective: str | None
    options: dict[Key, OptionValue]
    model: Fingerprint
    architecture: str
    data: dict[str, Fingerprint]
    towers: dict[str, TowerImportance]
    baseline: float | None = None
    removals: tuple[Removal, ...] | None = None
    clusters: tuple[Annotated[tuple[HeadName, ...], Field(min_length=1)], ...] | None = Field(
        default=None, exclude_if=is_none
    )
    results: dict[Key, OptionValue] = Field(default={}, exclude_if=not_)
    samples: Samples = Field(default={}, exclude_if=not_)
    tool: str
    versions: dict[Key, Version] = Field(default={}, exclude_if=not_)
    config_digest: ConfigDigest = None
    argv: Argv = None

    @property
    def tables(self) -> dict[str, tuple[tuple[float, ...], ...]]:
        """Head importance of each tower, shape (L, H), by the tower's name."""
        return {name: table.scores for name, table in sorted(self.towers.items())}

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        clusters = self.clusters or ()
        self._check_heads([(f"removals[{i}]", step) for i, step in enumerate(self.removals or ())])
        self._check_heads(
            [(f"clusters[{i}][{j}]", h) for i, heads in enumerate(clusters) for j, h in enumerate(heads)]
        )
        return self

    def _check_heads(self, heads: list[tuple[str, HeadName]]) -> None:
        visited: set[HeadId] = set()
        for place, head_name in heads:
            tower, layer, head = head_name.id
            table = self.towers.get(tower)
            if table is None or layer >= len(table.scores) or head >= len(table.scores[0]):
                raise ValueError(
                    f"{place} names head ({tower}, {layer}, {head}), which the scores do not have"
                )
            if head_name.id in visited:
                raise ValueError(f"{place} names head {tuple(head_name.id)} twice")
            visited.add(head_name.id)


class MaskOrigin(StrictModel):
    """Origin of a head mask. Masks written by hand have no origin.

    Attributes:
        strategy: Strategy that selected the heads.
        method: Method of the head importance. `None` for strategies without importance.
        scores: Digests of the scores files.
        budget: Options of the selection, such as the number of remaining heads.
        seed: Seed. `None` for strategies without random numbers.
        member: Index of the member.
        tool: Name and version of the program.
    """

    strategy: str
    method: str | None = None
    scores: tuple[Digest, ...] = ()
    budget: dict[Key, OptionValue] = Field(default={})
    seed: int | None = None
    member: int | None = None
    tool: str | None = None


class HeadMask(Document):
    """Remaining heads of one member, `hydractl.head-mask/1`.

    Attributes:
        towers: Remaining heads of each tower.
        architecture: Name of the architecture.
        base: Digest of the base checkpoint.
        origin: Origin of the mask. `None` for masks written by hand.
        samples: Digests of the samples that selected the heads.
    """

    kind_of_file: ClassVar[str] = "head-mask"

    schema_: Literal["hydractl.head-mask/1"] = Field(default="hydractl.head-mask/1", alias="schema")
    towers: dict[str, TowerKeep] = Field(min_length=1)
    architecture: str | None = None
    base: Digest | None = None
    origin: MaskOrigin | None = None
    samples: Samples = Field(default={}, exclude_if=not_)
