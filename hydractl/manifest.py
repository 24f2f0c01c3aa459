"""The JSON documents: scores, head masks, reports, and what a checkpoint's header says of itself.

Every document is strict: an unknown key, a missing key, a wrong type or a duplicate key is refused with its JSON
path. A document is dumped with sorted keys, two spaces and a final newline, so equal documents are equal bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, ClassVar, Literal, NamedTuple, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from hydractl.errors import ManifestError
from hydractl.jsonfile import NotJSONError, compact, parse, read_text
from hydractl.runtime import digest_text

Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
Option = str | int | float | bool | None | tuple[str, ...] | tuple[int, ...] | tuple[float, ...]
Heads = tuple[Annotated[int, Field(ge=0)], ...]


class Strict(BaseModel):
    """A frozen, strict piece of a document."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Document(Strict):
    """A whole JSON file of ours; `schema` says which."""

    kind_of_file: ClassVar[str]

    def to_json(self) -> str:
        """Return the canonical text: sorted keys, two spaces, final newline."""
        return (
            json.dumps(
                self.model_dump(mode="json", by_alias=True), indent=2, sort_keys=True, ensure_ascii=False
            )
            + "\n"
        )

    def digest(self) -> str:
        """Return `sha256:...` of the canonical text."""
        return digest_text(self.to_json())

    @classmethod
    def from_json(cls, text: str, *, where: str) -> Self:
        """Parse and validate a document.

        Args:
            text: JSON text.
            where: What to call the file in errors.

        Raises:
            ManifestError: With the JSON path of the first thing that is wrong.
        """
        try:
            raw = parse(text, keys_once=True)
        except NotJSONError as error:
            raise ManifestError(
                f"{where}: is not JSON: {error}", hint=f"expected a {cls.kind_of_file} file"
            ) from error
        if isinstance(raw, dict) and raw.get("schema") != (schema := cls.schema_name()):
            raise ManifestError(
                f"{where}: schema is {json.dumps(raw.get('schema'))}, expected `{schema}`",
                hint=f"this command reads a {cls.kind_of_file} file; see `hydractl schema {cls.kind_of_file}`",
            )
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise ManifestError(
                f"{where}: {first_problem(error)}", hint=f"see `hydractl schema {cls.kind_of_file}`"
            ) from error

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a document from `path`; `-` is standard input.

        Raises:
            ManifestError: If the file cannot be read or is not a valid document.
        """
        return cls.from_json(read_text(path), where=str(path))

    @classmethod
    def schema_name(cls) -> str:
        """Return the `schema` value that marks this kind of document."""
        return str(cls.model_fields["schema_"].default)


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


class TowerHeads(Strict):
    """How many heads each layer of a tower has before pruning, and their width."""

    layers: int = Field(ge=1)
    num_heads: int = Field(ge=1)
    head_dim: int = Field(ge=1)


class Architecture(Strict):
    """Which model class this is: everything that is needed to build it again, without weights.

    `num_classes` is 0 where classes are not part of the model but named by texts (zero-shot).
    """

    library: str
    name: str
    family: str
    config: dict[str, JsonValue]
    towers: dict[str, TowerHeads]
    num_classes: int = Field(ge=0)


class Fingerprint(Strict):
    """A data set or model that was used: how it was named and what it held."""

    reference: str
    sha256: Digest
    count: int | None = None


class TowerScores(Strict):
    """Scores of one tower; row `l`, column `h` is head `(l, h)`. Higher means more important."""

    scores: tuple[tuple[float, ...], ...]

    @model_validator(mode="after")
    def _rectangular(self) -> Self:
        if not self.scores or len({len(row) for row in self.scores}) != 1 or not self.scores[0]:
            raise ValueError("scores must be a layers by heads table")
        return self


class HeadName(Strict):
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


class HeadScores(Document):
    """How much each head matters, `hydractl.scores/1`.

    A method that groups heads has `clusters`: each one's heads, the one that stands for it first. `results` are what else
    it found out.
    """

    kind_of_file: ClassVar[str] = "scores"

    schema_: Literal["hydractl.scores/1"] = Field(default="hydractl.scores/1", alias="schema")
    method: str
    objective: str | None
    options: dict[str, Option]
    model: Fingerprint
    architecture: str
    data: dict[str, Fingerprint]
    towers: dict[str, TowerScores]
    baseline: float | None = None
    removals: tuple[Removal, ...] | None = None
    clusters: tuple[Annotated[tuple[HeadName, ...], Field(min_length=1)], ...] | None = Field(
        default=None, exclude_if=lambda value: value is None
    )
    results: dict[str, Option] = Field(default={}, exclude_if=lambda value: not value)
    tool: str

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
        seen: set[HeadId] = set()
        for where, named in heads:
            tower, layer, head = named.id
            table = self.towers.get(tower)
            if table is None or layer >= len(table.scores) or head >= len(table.scores[0]):
                raise ValueError(
                    f"{where} names head ({tower}, {layer}, {head}), which the scores do not have"
                )
            if named.id in seen:
                raise ValueError(f"{where} names head {tuple(named.id)} a second time")
            seen.add(named.id)


class TowerKeep(Strict):
    """The heads that stay in one tower: one increasing list a layer, an empty one where no head is left."""

    num_heads: int = Field(ge=1)
    keep: tuple[Heads, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        for layer, kept in enumerate(self.keep):
            if list(kept) != sorted(set(kept)):
                raise ValueError(f"keep[{layer}] must be strictly increasing, got {list(kept)}")
            if kept and kept[-1] >= self.num_heads:
                raise ValueError(
                    f"keep[{layer}] has head {kept[-1]}, but there are {self.num_heads} heads (0..{self.num_heads - 1})"
                )
        return self

    @property
    def layers(self) -> int:
        """How many layers there are."""
        return len(self.keep)

    @property
    def kept(self) -> int:
        """How many heads stay."""
        return sum(map(len, self.keep))

    @property
    def removed(self) -> int:
        """How many heads go."""
        return self.layers * self.num_heads - self.kept

    @property
    def drop(self) -> tuple[Heads, ...]:
        """For each layer the heads that go, increasing: the complement of `keep`."""
        return tuple(
            tuple(head for head in range(self.num_heads) if head not in heads) for heads in self.keep
        )


Mask: TypeAlias = Mapping[str, TowerKeep]
Shape: TypeAlias = Mapping[str, TowerShape | TowerHeads | TowerKeep]
Tables: TypeAlias = Mapping[str, Sequence[Sequence[float]]]
"""For each tower L x H scores."""


class MaskOrigin(Strict):
    """Where a mask came from. A mask written by hand has none."""

    strategy: str
    method: str | None = None
    scores: tuple[Digest, ...] = ()
    budget: dict[str, Option] = {}
    seed: int | None = None
    member: int | None = None
    tool: str | None = None


class HeadMask(Document):
    """Which heads a member keeps, `hydractl.head-mask/1`."""

    kind_of_file: ClassVar[str] = "head-mask"

    schema_: Literal["hydractl.head-mask/1"] = Field(default="hydractl.head-mask/1", alias="schema")
    towers: dict[str, TowerKeep] = Field(min_length=1)
    architecture: str | None = None
    base: Digest | None = None
    origin: MaskOrigin | None = None


class Value(Strict):
    """One measured number: its 95 % interval, and how many samples (of a time: how many runs) it rests on."""

    value: float
    low: float | None = None
    high: float | None = None
    count: int | None = None


class Row(Strict):
    """What was measured of one model or ensemble.

    `values` are on the ID set, and costs; `ood` has them for each OOD set; `means` over the sets `near`, `far`, `all`.
    """

    name: str
    models: tuple[Fingerprint, ...]
    members: int = Field(ge=1)
    values: dict[str, Value]
    ood: dict[str, dict[str, Value]] = {}
    means: dict[str, dict[str, float]] = {}


class Check(Strict):
    """A `--fail-if` condition and what came of it."""

    condition: str
    failed: bool
    found: float


class Report(Document):
    """Every number that `eval` prints, `hydractl.report/1`."""

    kind_of_file: ClassVar[str] = "report"

    schema_: Literal["hydractl.report/1"] = Field(default="hydractl.report/1", alias="schema")
    rows: tuple[Row, ...] = Field(min_length=1)
    data: dict[str, Fingerprint]
    near: tuple[str, ...] = ()
    far: tuple[str, ...] = ()
    definitions: dict[str, str]
    options: dict[str, Option]
    checks: tuple[Check, ...] = ()
    versions: dict[str, str]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        sets = (*self.near, *self.far)
        if len(set(sets)) != len(sets) or not {*sets} <= self.data.keys():
            raise ValueError("near, far: must name data sets of `data`, each once")
        if len({row.name for row in self.rows}) != len(self.rows):
            raise ValueError("rows: two rows have one name")
        for i, row in enumerate(self.rows):
            if row.ood.keys() != {*sets}:
                raise ValueError(
                    f"rows[{i}].ood: has {sorted(row.ood)}, but near and far name {sorted(sets)}"
                )
            if not row.means.keys() <= {"near", "far", "all"}:
                raise ValueError(f"rows[{i}].means: has {sorted(row.means)}; expected near, far or all")
            for metric in (*row.values, *(m for values in row.ood.values() for m in values)):
                if metric not in self.definitions:
                    raise ValueError(f"rows[{i}]: `{metric}` has no definition")
        return self


DOCUMENTS: dict[str, type[Document]] = {cls.kind_of_file: cls for cls in (HeadScores, HeadMask, Report)}


class Kind(StrEnum):
    """What a checkpoint holds."""

    BASE = "base"
    MEMBER = "member"
    HYDRA = "hydra"


class Fate(StrEnum):
    """What `fuse` did with a tensor."""

    SHARED = "shared"
    MERGED = "merged"
    GROUPED = "grouped"


class Preprocess(Strict):
    """How an image becomes a model's input.

    Attributes:
        input_size: (channels, height, width); 1 channel is grey, 3 are RGB.
        mean: One a channel, on the scale where white is 1.
        std: One a channel, positive.
        interpolation: How images are resized.
        crop_pct: How much of the resized image's side the crop keeps.
        crop_mode: As timm defines them.
        crop_offset: Where a margin is odd, whether a crop begins at the nearest pixel (half to even, as torchvision and
            timm have it) or at the one before (transformers).
    """

    input_size: tuple[Literal[1, 3], Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]]
    mean: tuple[float, ...]
    std: tuple[Annotated[float, Field(gt=0)], ...]
    interpolation: Literal["nearest", "bilinear", "bicubic", "box", "hamming", "lanczos"] = "bicubic"
    crop_pct: float = Field(default=1.0, gt=0, le=1)
    crop_mode: Literal["center", "squash", "border"] = "center"
    crop_offset: Literal["nearest", "before"] = Field(
        default="nearest", exclude_if=lambda value: value == "nearest"
    )

    @model_validator(mode="after")
    def _one_a_channel(self) -> Self:
        if len(self.mean) != self.input_size[0] or len(self.std) != self.input_size[0]:
            raise ValueError(f"mean and std must be {self.input_size[0]} numbers each, one a channel")
        return self


class Tokenization(Strict):
    """How a text becomes a model's input.

    Attributes:
        tokenizer: The text of a `tokenizer.json`, as the tokenizers library reads it; None where a model has none yet.
        names: What the model takes besides `input_ids`.
        max_length: Tokens at most, special ones included; longer texts are cut.
        pad_id: The token that fills a batch up to its longest text.
        vocab_size: How many tokens the model knows.
        padding: Whether a batch is filled up to its longest text, or always to `max_length`, as some models were trained.
        padding_side: Where it is filled; on the left, the first token of a shorter text is one that pads.
        truncation_side: Where longer texts are cut.
    """

    tokenizer: str | None = None
    names: tuple[Literal["attention_mask", "token_type_ids"], ...] = ("attention_mask",)
    max_length: int = Field(ge=1)
    pad_id: int = Field(ge=0)
    vocab_size: int = Field(ge=1)
    padding: Literal["longest", "max_length"] = "longest"
    padding_side: Literal["right", "left"] = Field(default="right", exclude_if=lambda value: value == "right")
    truncation_side: Literal["right", "left"] = Field(
        default="right", exclude_if=lambda value: value == "right"
    )


class Prompting(Strict):
    """How the names of classes become texts, for a model that compares images with texts.

    Attributes:
        tokenization: Of the text tower.
        templates: Texts with `{label}`; a class's embedding is the mean over them. Empty while no classes are named.
    """

    tokenization: Tokenization
    templates: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _hold_a_label(self) -> Self:
        for template in self.templates:
            if "{label}" not in template:
                raise ValueError(f"templates: `{template}` does not hold {{label}}")
        return self


class InputFile(Strict):
    """A file that a step read: its base name, its digest, and the step that made it."""

    name: str
    sha256: Digest
    made_by: Step | None = None


class Step(Strict):
    """One stage that led here. No clock, no host, no path: equal work gives equal steps."""

    command: str
    options: dict[str, Option]
    inputs: tuple[InputFile, ...] = ()
    seed: int | None = None
    results: dict[str, Option] = {}
    versions: dict[str, str] = {}


class FusePlan(Strict):
    """How members were fused: each tensor's fate, and how many leading blocks run once."""

    fates: dict[str, Fate]
    trunk: int = Field(ge=0)
    mlp: Literal["merge", "keep"]


class Header(Document):
    """What the `hydractl` entry of a checkpoint's safetensors metadata says, `hydractl.checkpoint/1`."""

    kind_of_file: ClassVar[str] = "checkpoint"

    schema_: Literal["hydractl.checkpoint/1"] = Field(default="hydractl.checkpoint/1", alias="schema")
    kind: Kind
    architecture: Architecture
    masks: tuple[dict[str, TowerKeep], ...] = Field(min_length=1)
    base: Digest | None = None
    plan: FusePlan | None = None
    preprocess: Preprocess | Tokenization
    labels: tuple[str, ...] = ()
    prompting: Prompting | None = Field(default=None, exclude_if=lambda value: value is None)
    made_by: Step | None = None

    @property
    def num_classes(self) -> int:
        """How many classes the model tells apart; 0 while a zero-shot model has no names of any."""
        return self.architecture.num_classes or len(self.labels)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.kind == Kind.HYDRA) != (self.plan is not None):
            raise ValueError("plan: a hydra has one, and only a hydra")
        if self.kind != Kind.HYDRA and len(self.masks) != 1:
            raise ValueError(f"masks: a {self.kind} has one mask, found {len(self.masks)}")
        for i, mask in enumerate(self.masks):
            check_mask_fits(mask, self.architecture, where=f"masks[{i}]")
        if (self.prompting is None) != (self.architecture.num_classes > 0):
            raise ValueError("prompting: a model without classes of its own has one, and only such a model")
        if self.prompting and bool(self.prompting.templates) != bool(self.labels):
            raise ValueError("prompting.templates: there are some if there are labels, and only then")
        if self.labels and len(self.labels) != self.num_classes:
            raise ValueError(f"labels: {len(self.labels)} names for {self.architecture.num_classes} classes")
        return self

    def to_metadata(self) -> str:
        """Return the compact text that goes into the header."""
        return compact(self.model_dump(mode="json", by_alias=True), sort_keys=True)


def check_mask_fits(mask: Mask, architecture: Architecture, *, where: str) -> None:
    """Check that a mask has the towers, layers and heads of an architecture.

    Raises:
        ValueError: Naming the tower and both numbers.
    """
    if mask.keys() != architecture.towers.keys():
        raise ValueError(
            f"{where}: has towers {sorted(mask)}, but {architecture.name} has {sorted(architecture.towers)}"
        )
    for name, tower in architecture.towers.items():
        if mask[name].layers != tower.layers:
            raise ValueError(
                f"{where}.{name}.keep: has {mask[name].layers} layers, but {architecture.name} has {tower.layers}"
            )
        if mask[name].num_heads != tower.num_heads:
            raise ValueError(
                f"{where}.{name}.num_heads: is {mask[name].num_heads}, but {architecture.name} has {tower.num_heads} heads a layer"
            )


def first_problem(error: ValidationError) -> str:
    """Return the first thing that is wrong with a document, with its JSON path, in one line."""
    problem = error.errors(include_url=False)[0]
    where = (
        "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in problem["loc"]).lstrip(".")
        or "document"
    )
    words = {"missing": "is missing", "extra_forbidden": "is not a key of this document"}
    message = words.get(problem["type"], problem["msg"].removeprefix("Value error, "))
    separator = " " if problem["type"] in words else ": "
    return f"{where}{separator}{message}"


for _model in (InputFile, Step, Header):
    _model.model_rebuild()
