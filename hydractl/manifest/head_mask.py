"""Head masks and the scores that they are made of: names of heads, both kinds of file and their schemas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
)

Heads = tuple[Annotated[int, Field(ge=0)], ...]
MOST_HEADS = 2**16
"""Maximum number of heads of a tower; the largest published transformers have some ten thousand."""
WIDEST = 2**20
"""Upper bound of every number in a model's shape."""


def _check_size(layers: int, num_heads: int) -> None:
    if layers * num_heads > MOST_HEADS:
        raise ValueError(f"{layers} layers of {num_heads} heads are more than {MOST_HEADS} heads")


class HeadId(NamedTuple):
    """One head of a model; layer and head count from 0."""

    tower: str
    layer: int
    head: int

    def __str__(self) -> str:
        """Return the head as messages name it."""
        return f"head {self.head} in layer {self.layer} of tower `{self.tower}`"


class TowerShape(NamedTuple):
    """How many layers a tower has, and how many heads each of them."""

    layers: int
    num_heads: int


class TowerHeads(StrictModel):
    """How many heads each layer of a tower has before pruning, and their width.

    Heads are those of queries. `key_heads` is how many heads keys and values have, where several query heads share one: as many
    next to one another to each.
    """

    layers: int = Field(ge=1, le=MOST_HEADS)
    num_heads: int = Field(ge=1, le=MOST_HEADS)
    head_dim: int = Field(ge=1, le=WIDEST)
    key_heads: int | None = Field(default=None, ge=1, exclude_if=lambda value: value is None)

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        _check_size(self.layers, self.num_heads)
        if self.key_heads is not None and self.num_heads % self.key_heads:
            raise ValueError(f"{self.num_heads} heads cannot share {self.key_heads} key heads evenly")
        return self

    @property
    def head_numbers(self) -> range:
        """Numbers of the query heads of a layer."""
        return range(self.num_heads)

    @property
    def sharing(self) -> int:
        """How many query heads share each key head."""
        return self.num_heads // (self.key_heads or self.num_heads)


class TowerKeep(StrictModel):
    """The heads that stay in one tower: one increasing list a layer, an empty one where no head is left."""

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
        """How many layers there are."""
        return len(self.keep)

    @property
    def num_kept(self) -> int:
        """How many heads stay."""
        return sum(map(len, self.keep))

    @property
    def removed(self) -> int:
        """How many heads go."""
        return self.layers * self.num_heads - self.num_kept

    @property
    def drop(self) -> tuple[Heads, ...]:
        """For each layer the heads that go, increasing: the complement of `keep`."""
        return tuple(
            tuple(head for head in range(self.num_heads) if head not in heads) for heads in self.keep
        )


Mask: TypeAlias = Mapping[str, TowerKeep]
Shape: TypeAlias = Mapping[str, TowerShape | TowerHeads | TowerKeep]
Tables: TypeAlias = Mapping[str, Sequence[Sequence[float]]]
"""Scores of each tower, shape (L, H)."""


class HeadName(StrictModel):
    """A head of the base, by its original number."""

    tower: str
    layer: int = Field(ge=0)
    head: int = Field(ge=0)

    @property
    def id(self) -> HeadId:
        """The same as a tuple, which can be sorted."""
        return HeadId(self.tower, self.layer, self.head)


class Removal(HeadName):
    """One step of a greedy method: the head removed and the objective once it is gone."""

    objective: float


class TowerScores(StrictModel):
    """Scores of one tower; row `l`, column `h` is head `(l, h)`. Higher means more important."""

    scores: tuple[tuple[float, ...], ...]

    @model_validator(mode="after")
    def _rectangular(self) -> Self:
        if not self.scores or len({len(row) for row in self.scores}) != 1 or not self.scores[0]:
            raise ValueError("scores must be a rectangular table of layers by heads")
        return self


class HeadScores(Document):
    """How much each head matters, `hydractl.scores/1`.

    A method that groups heads has `clusters`: each one's heads, the one that stands for it first. `results` are what else
    it found out. `samples` are the samples of `data`. `config_digest`, `argv` and `versions` are as in a checkpoint's step.
    """

    kind_of_file: ClassVar[str] = "scores"

    schema_: Literal["hydractl.scores/1"] = Field(default="hydractl.scores/1", alias="schema")
    method: Key
    objective: str | None
    options: dict[Key, OptionValue]
    model: Fingerprint
    architecture: str
    data: dict[str, Fingerprint]
    towers: dict[str, TowerScores]
    baseline: float | None = None
    removals: tuple[Removal, ...] | None = None
    clusters: tuple[Annotated[tuple[HeadName, ...], Field(min_length=1)], ...] | None = Field(
        default=None, exclude_if=lambda value: value is None
    )
    results: dict[Key, OptionValue] = Field(default={}, exclude_if=lambda value: not value)
    samples: Samples = Field(default={}, exclude_if=lambda value: not value)
    tool: str
    versions: dict[Key, Version] = Field(default={}, exclude_if=lambda value: not value)
    config_digest: ConfigDigest = None
    argv: Argv = None

    @property
    def tables(self) -> dict[str, tuple[tuple[float, ...], ...]]:
        """The scores (L x H) of each tower, by its name."""
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
        for where, named in heads:
            tower, layer, head = named.id
            table = self.towers.get(tower)
            if table is None or layer >= len(table.scores) or head >= len(table.scores[0]):
                raise ValueError(
                    f"{where} names head ({tower}, {layer}, {head}), which the scores do not have"
                )
            if named.id in visited:
                raise ValueError(f"{where} names head {tuple(named.id)} twice")
            visited.add(named.id)


class MaskOrigin(StrictModel):
    """Where a mask came from. A mask written by hand has none."""

    strategy: str
    method: str | None = None
    scores: tuple[Digest, ...] = ()
    budget: dict[Key, OptionValue] = Field(default={})
    seed: int | None = None
    member: int | None = None
    tool: str | None = None


class HeadMask(Document):
    """Which heads a member keeps, `hydractl.head-mask/1`. `samples` are the samples that selected these heads."""

    kind_of_file: ClassVar[str] = "head-mask"

    schema_: Literal["hydractl.head-mask/1"] = Field(default="hydractl.head-mask/1", alias="schema")
    towers: dict[str, TowerKeep] = Field(min_length=1)
    architecture: str | None = None
    base: Digest | None = None
    origin: MaskOrigin | None = None
    samples: Samples = Field(default={}, exclude_if=lambda value: not value)
