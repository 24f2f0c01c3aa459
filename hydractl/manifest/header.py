"""What a checkpoint says of itself: architecture, masks, how it reads its inputs, and what led to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self, TypeAlias

from pydantic import Field, JsonValue, ValidationInfo, field_validator, model_validator

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
    union,
)
from hydractl.manifest.guarantees import CHECK_SCORE, IS_FITTED, OpenShare, PredictionSets, Threshold
from hydractl.manifest.head_mask import MOST_HEADS, WIDEST, HeadMask, Mask, TowerHeads, TowerKeep
from hydractl.manifest.terms import LARGEST_TEMPERATURE, SMALLEST_TEMPERATURE, Temperature
from hydractl.model_inputs import LARGEST_SIDE
from hydractl.plugins import load
from hydractl.settings import LARGEST_SEED
from hydractl.strict_json import compact
from hydractl.tasks import SINGLE_LABEL, TASKS, Task

MOST_MEMBERS = 256
_OTHER_TASKS = tuple(name for name, task in TASKS.items() if task is not SINGLE_LABEL)


StoredTemperature = Annotated[float, Field(ge=SMALLEST_TEMPERATURE, le=LARGEST_TEMPERATURE)]


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


class Architecture(StrictModel):
    """Which model class this is: everything that is needed to build it again, without weights.

    Attributes:
        num_classes: 0 where classes are not part of the model but named by texts (zero-shot).
        pooling: `mean` where a classifier of texts reads the mean over the tokens that are no padding, through dropout and its
            linear layer, in place of what its family reads.
        problem_type: Of a task in `TASKS`; None where an input has one of the classes.
    """

    library: str = Field(pattern="^(timm|transformers|openclip)$")
    name: str
    family: Key
    config: dict[str, JsonValue]
    towers: dict[str, TowerHeads]
    num_classes: int = Field(ge=0, le=WIDEST)
    pooling: Literal["mean"] | None = Field(default=None, exclude_if=lambda value: value is None)
    problem_type: Literal[_OTHER_TASKS] | None = Field(  # type: ignore[valid-type]  # mypy takes no tuple
        default=None, exclude_if=lambda value: value is None
    )

    @property
    def task(self) -> Task:
        """What it answers about an input."""
        return TASKS[self.problem_type or SINGLE_LABEL.problem_type]


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
                f"{where}.{name}.num_heads: is {mask[name].num_heads}, but {architecture.name} has "
                f"{tower.num_heads} heads per layer"
            )


Side = Annotated[int, Field(ge=1, le=LARGEST_SIDE)]


class Preprocess(StrictModel):
    """How an image becomes a model's input.

    Attributes:
        input_size: (channels, height, width); 1 channel is grey, 3 are RGB.
        mean: One a channel, on the scale where white is 1.
        std: One a channel, positive; float32 holds the inputs that it makes.
        interpolation: How images are resized.
        crop_pct: How much of the resized image's side the crop keeps.
        crop_mode: As timm defines them.
        crop_offset: Where a margin is odd, whether a crop begins at the nearest pixel (half to even, as torchvision and
            timm have it) or at the one before (transformers).
        resize_backend: Library that resizes: Pillow on images (timm, open_clip), or torchvision on uint8 tensors (default of
            transformers). Pixels differ by rounding. Headers without the field mean Pillow.
        transparency: Whether pixels of a single transparent colour become white, as image processors with `do_convert_rgb` make
            them since transformers 5.21, or keep their colour. Alpha channels are dropped. Headers without the field mean `drop`.
    """

    input_size: tuple[Literal[1, 3], Side, Side]
    mean: tuple[Annotated[float, Field(ge=-1e6, le=1e6)], ...]
    std: tuple[Annotated[float, Field(ge=1e-6, le=1e6)], ...]
    interpolation: Literal["nearest", "bilinear", "bicubic", "box", "hamming", "lanczos"] = "bicubic"
    crop_pct: float = Field(default=1.0, gt=0, le=1)
    crop_mode: Literal["center", "squash", "border"] = "center"
    crop_offset: Literal["nearest", "before"] = Field(
        default="nearest", exclude_if=lambda value: value == "nearest"
    )
    resize_backend: Literal["pillow", "torchvision"] = Field(
        default="pillow", exclude_if=lambda value: value == "pillow"
    )
    transparency: Literal["drop", "white"] = Field(default="drop", exclude_if=lambda fill: fill == "drop")

    @model_validator(mode="after")
    def _one_a_channel(self) -> Self:
        if len(self.mean) != self.input_size[0] or len(self.std) != self.input_size[0]:
            raise ValueError(f"mean and std must have {self.input_size[0]} numbers each, one per channel")
        if (resized := max(self.input_size[1:]) / self.crop_pct) > 2 * LARGEST_SIDE:
            raise ValueError(
                f"crop_pct {self.crop_pct:g} resizes images to {resized:.0f} pixels, more than {2 * LARGEST_SIDE}"
            )
        return self

    @property
    def resizes_tensors(self) -> bool:
        """Whether torchvision resizes uint8 tensors. It lacks two filters; image processors lack other crops."""
        return (
            self.resize_backend == "torchvision"
            and self.interpolation not in {"box", "hamming"}
            and (
                self.crop_mode == "squash"
                or (self.crop_mode == "center" and self.input_size[1] == self.input_size[2])
            )
        )


InputName: TypeAlias = Literal["attention_mask", "token_type_ids"]


class Tokenization(StrictModel):
    """How a text becomes a model's input.

    Attributes:
        tokenizer: The text of a `tokenizer.json`, as the tokenizers library reads it; None where a model has none yet.
        names: What the model takes besides `input_ids`.
        max_length: Tokens at most, special ones included; longer texts are cut.
        pad_id: The token that fills a batch up to its longest text.
        vocab_size: How many tokens the model knows.
        padding: Whether a batch is filled up to its longest text, or always to `max_length`, as some models were trained.
        padding_side: The side of the padding tokens. `left` is possible only with `max_length`: where the length depends on the
            batch, padding on the left would move the positions of a text's tokens.
        truncation_side: Where longer texts are cut.
        by_word: Whether the model answers each word of a text: longer texts are then read in several windows.
        pairs: Whether the model was trained on pairs of texts, None if unknown. It changes no input.
    """

    tokenizer: str | None = None
    names: tuple[InputName, ...] = ("attention_mask",)
    max_length: int = Field(ge=1, le=WIDEST)
    pad_id: int = Field(ge=0, le=WIDEST)
    vocab_size: int = Field(ge=1, le=WIDEST)
    padding: Literal["longest", "max_length"] = "longest"
    padding_side: Literal["right", "left"] = Field(default="right", exclude_if=lambda value: value == "right")
    truncation_side: Literal["right", "left"] = Field(
        default="right", exclude_if=lambda value: value == "right"
    )
    by_word: bool = Field(default=False, exclude_if=lambda value: not value)
    pairs: bool | None = Field(default=None, exclude_if=lambda value: value is None)

    @field_validator("padding_side")
    @classmethod
    def _right_of_any_length(cls, value: str, info: ValidationInfo) -> str:
        """Return `right` where a batch is padded to its longest text; earlier versions stored what the tokenizer said."""
        return value if info.data.get("padding") == "max_length" else "right"


class Prompting(StrictModel):
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
                raise ValueError(f"templates: `{template}` does not contain {{label}}")
        return self


class InputFile(StrictModel):
    """A file that a step read: its base name, its digest, and the step that made it."""

    name: str
    sha256: Digest
    made_by: Step | None = None


class SampledFile(InputFile):
    """A data set that a step read, with the digests of its samples, which only the record of a whole header stores.

    Attributes:
        samples: As `pack` writes them; empty if nothing records them.
    """

    samples: str = Field(exclude=True)


class Step(StrictModel):
    """The record of one stage: the only form in which files, lineage, `--if-changed` and cards have provenance.

    It has no time, host or path: equal work gives equal steps. `config_digest` is the digest of all settings that shape the output. `argv`
    is the command line without names of outputs and folders.
    """

    command: Key
    options: dict[Key, OptionValue]
    inputs: tuple[InputFile, ...] = ()
    seed: int | None = Field(default=None, ge=0, le=LARGEST_SEED)
    results: dict[Key, OptionValue] = Field(default={})
    versions: dict[Key, Version] = Field(default={})
    config_digest: ConfigDigest = None
    argv: Argv = None


def samples_of(inputs: Iterable[InputFile], *documents: Header | HeadMask) -> dict[str, str]:
    """Return the samples that steps of this run read, and the samples that documents record."""
    read = [file for i in inputs for file in (i, *chain.from_iterable(s.inputs for s in steps_to(i.made_by)))]
    files = (file for file in read if isinstance(file, SampledFile) and file.samples)
    return union(*(document.samples for document in documents), *({f.sha256: f.samples} for f in files))


def steps_to(step: Step | None) -> tuple[Step, ...]:
    """Return the steps that led to one and it, each once, those before others first; of none nothing."""
    steps: list[Step] = []

    def visit(step: Step | None) -> None:
        if step is None or step in steps:
            return
        for source in step.inputs:
            visit(source.made_by)
        steps.append(step)

    visit(step)
    return tuple(steps)


class Sidecar(Document):
    """Provenance of a file that cannot store its own, `hydractl.record/1`, in a file beside it.

    Attributes:
        sha256: Digest of the described file, as written.
        made_by: Step that wrote the described file.
    """

    kind_of_file: ClassVar[str] = "record"

    schema_: Literal["hydractl.record/1"] = Field(default="hydractl.record/1", alias="schema")
    sha256: Digest
    made_by: Step

    @staticmethod
    def path_of(path: Path) -> Path:
        """Return the path of a file's sidecar."""
        return path.with_name(f"{path.name}.lineage.json")


class FusePlan(StrictModel):
    """How members were fused.

    Attributes:
        fates: Each tensor's.
        trunk: How many leading blocks run once, over all towers.
        mlp: Whether MLPs that differ were averaged, wherever they stand.
        merge_trunk: Before this block of each tower all that differs was averaged, the embedding too; 0: nothing was.
        own_from: From this block of each tower on, and after the blocks, members have a tensor each even where all were equal.
    """

    fates: dict[str, Fate]
    trunk: int = Field(ge=0, le=MOST_HEADS)
    mlp: Literal["merge", "keep"]
    merge_trunk: int = Field(default=0, ge=0, le=MOST_HEADS, exclude_if=lambda value: value == 0)
    own_from: int | None = Field(default=None, ge=0, le=MOST_HEADS, exclude_if=lambda value: value is None)


class FittedScores(StrictModel):
    """OOD scores of features that a checkpoint holds as they were fitted, in tensors beside the weights.

    Attributes:
        scores: Their names.
        data: What they were fitted on.
        temperature: What the model's logits were divided by then.
        version: Of what they mean, `ood_scores.VERSION`.
    """

    scores: tuple[str, ...] = Field(min_length=1)
    data: Fingerprint
    temperature: StoredTemperature = 1.0
    version: int = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _check_scores(self) -> Self:
        if len({*self.scores}) < len(self.scores):
            raise ValueError("scores: repeats a score")
        for score in self.scores:
            load(CHECK_SCORE)(score, self.version, is_fitted=True)
        return self


class Header(Document):
    """What the `hydractl` entry of a checkpoint's safetensors metadata says, `hydractl.checkpoint/1`.

    Every member's logits are divided by `temperature` before they become probabilities, or those of each of several labels by one of
    `label_temperatures`; the log odds of an entity's probability by `entity_temperature`. `threshold` says which inputs the model
    answers, so scaled, and `prediction_sets` sets of classes; `label_thresholds` the probability above which each of several labels is
    predicted, 0.5 if empty; `fitted` that OOD scores of features lie beside the weights. Whatever changes weights drops all of these.
    `assumed` says that nothing told how images are read, and `preprocess` is what is usual for such models. `samples` are the samples
    that the steps of `made_by` read.
    """

    kind_of_file: ClassVar[str] = "checkpoint"

    schema_: Literal["hydractl.checkpoint/1"] = Field(default="hydractl.checkpoint/1", alias="schema")
    kind: Kind
    architecture: Architecture
    masks: tuple[dict[str, TowerKeep], ...] = Field(min_length=1, max_length=MOST_MEMBERS)
    base: Digest | None = None
    plan: FusePlan | None = None
    preprocess: Preprocess | Tokenization
    assumed: bool = Field(default=False, exclude_if=lambda value: not value)
    labels: tuple[str, ...] = ()
    prompting: Prompting | None = Field(default=None, exclude_if=lambda value: value is None)
    temperature: StoredTemperature = Field(default=1.0, exclude_if=lambda value: value == 1)
    label_temperatures: tuple[StoredTemperature, ...] = Field(default=(), exclude_if=lambda value: not value)
    entity_temperature: StoredTemperature = Field(default=1.0, exclude_if=lambda value: value == 1)
    threshold: Threshold | None = Field(default=None, exclude_if=lambda value: value is None)
    label_thresholds: tuple[OpenShare, ...] = Field(default=(), exclude_if=lambda value: not value)
    prediction_sets: PredictionSets | None = Field(default=None, exclude_if=lambda value: value is None)
    fitted: FittedScores | None = Field(default=None, exclude_if=lambda value: value is None)
    samples: Samples = Field(default={}, exclude_if=lambda value: not value)
    made_by: Step | None = None

    def of_other_weights(self, update: Mapping[str, object]) -> Self:
        """Return the header of a model with other weights, and with `update`: what was found for these is dropped."""
        defaults: dict[str, object] = {**Temperature().fields, "label_thresholds": ()}
        defaults |= dict.fromkeys(("threshold", "prediction_sets", "fitted"))
        return self.model_copy(update=defaults | {**update})

    @property
    def scale(self) -> Temperature:
        """What divides the model's logits."""
        return Temperature(self.temperature, self.label_temperatures, self.entity_temperature)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes in the order of the logits; their numbers where there are no names."""
        return self.labels or tuple(map(str, range(self.num_classes)))

    @property
    def num_classes(self) -> int:
        """How many classes the model tells apart; 0 while a zero-shot model has no names of any."""
        return self.architecture.num_classes or len(self.labels)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.kind == Kind.HYDRA) != (self.plan is not None):
            raise ValueError("plan: required for a hydra and excluded otherwise")
        if self.kind != Kind.HYDRA and len(self.masks) != 1:
            raise ValueError(f"masks: a {self.kind} must have one mask, found {len(self.masks)}")
        for i, mask in enumerate(self.masks):
            check_mask_fits(mask, self.architecture, where=f"masks[{i}]")
        if (self.prompting is None) != (self.architecture.num_classes > 0):
            raise ValueError("prompting: required for a zero-shot model and excluded otherwise")
        if self.prompting and bool(self.prompting.templates) != bool(self.labels):
            raise ValueError("prompting.templates: required if there are labels and excluded otherwise")
        if self.labels and len(self.labels) != self.num_classes:
            raise ValueError(f"labels: {len(self.labels)} names for {self.architecture.num_classes} classes")
        if self.prediction_sets and len(self.prediction_sets.thresholds) not in {1, self.num_classes}:
            raise ValueError("prediction_sets.thresholds: must be one, or one for each class")
        return self

    @model_validator(mode="after")
    def _of_task(self) -> Self:
        for field in ("label_temperatures", "label_thresholds"):
            if len(getattr(self, field)) not in {0, self.num_classes * self.architecture.task.by_label}:
                raise ValueError(f"{field}: must be one for each label of a model for several")
        stored = self.fitted.scores if self.fitted else ()
        if self.threshold and self.threshold.score not in stored and load(IS_FITTED)(self.threshold.score):
            raise ValueError(f"threshold.score: `fitted` does not have `{self.threshold.score}`")
        if self.entity_temperature != 1 and not self.architecture.task.by_word:
            raise ValueError("entity_temperature: excluded unless the model answers words")
        by_word = isinstance(self.preprocess, Tokenization) and self.preprocess.by_word
        if by_word != self.architecture.task.by_word:
            raise ValueError("preprocess.by_word: required if the model answers words and excluded otherwise")
        return self

    def to_metadata(self) -> str:
        """Return the compact text that goes into the header."""
        return compact(self.model_dump(mode="json", by_alias=True), sort_keys=True)


for _model in (InputFile, Step, Sidecar, Header):
    _model.model_rebuild()
