"""The header of a checkpoint: architecture, head masks, preprocessing, calibration and provenance."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from itertools import chain
from operator import not_
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
    is_none,
    merge_samples,
)
from hydractl.manifest.guarantees import (
    CHECK_SCORE,
    IS_FITTED,
    KnownTest,
    OpenShare,
    PredictionSets,
    Threshold,
)
from hydractl.manifest.head_mask import MAX_DIMENSION, MOST_HEADS, HeadMask, Mask, TowerHeads, TowerKeep
from hydractl.manifest.terms import LARGEST_TEMPERATURE, SMALLEST_TEMPERATURE, Temperature
from hydractl.model_inputs import LARGEST_SIDE
from hydractl.plugins import load
from hydractl.settings import LARGEST_SEED
from hydractl.strict_json import compact
from hydractl.tasks import SINGLE_LABEL, TASKS, Task

MOST_MEMBERS = 256
"""Maximum number of members of a hydra. Chosen by hand to bound the memory that an untrusted file can
request; doubling it doubles this memory."""
_OTHER_TASKS = tuple(name for name, task in TASKS.items() if task is not SINGLE_LABEL)


StoredTemperature = Annotated[float, Field(ge=SMALLEST_TEMPERATURE, le=LARGEST_TEMPERATURE)]


class Kind(StrEnum):
    """Role of the model in a checkpoint."""

    BASE = "base"
    MEMBER = "member"
    HYDRA = "hydra"


class Fate(StrEnum):
    """Storage of a tensor in a hydra: equal in all members, averaged, or concatenated over members."""

    SHARED = "shared"
    MERGED = "merged"
    GROUPED = "grouped"


class Architecture(StrictModel):
    """Description of a model class, sufficient to build the model without weights.

    Attributes:
        library: Library that builds the model.
        name: Name of the architecture in the library.
        family: Name of the architecture family in hydractl.
        config: Configuration of the library's model.
        towers: Heads of each tower.
        num_classes: Number of classes. 0 for a zero-shot model, whose classes are given as texts.
        pooling: `mean` if a text classifier applies dropout and its linear layer to the mean over all tokens
            except padding. `None` for the pooling of its family.
        problem_type: Name of a task in `TASKS`. `None` for single-label classification.
    """

    library: str = Field(pattern="^(timm|transformers|openclip)$")
    name: str
    family: Key
    config: dict[str, JsonValue]
    towers: dict[str, TowerHeads]
    num_classes: int = Field(ge=0, le=MAX_DIMENSION)
    pooling: Literal["mean"] | None = Field(default=None, exclude_if=is_none)
    problem_type: Literal[_OTHER_TASKS] | None = Field(  # type: ignore[valid-type]  # mypy takes no tuple
        default=None, exclude_if=is_none
    )

    @property
    def task(self) -> Task:
        """The task of the model, from `problem_type`."""
        return TASKS[self.problem_type or SINGLE_LABEL.problem_type]


def check_mask_fits(mask: Mask, architecture: Architecture, *, place: str) -> None:
    """Check that a mask has the towers, layers and heads of an architecture.

    Args:
        mask: Heads to keep, by tower.
        architecture: Architecture of the masked model.
        place: Path of the mask for error messages.

    Raises:
        ValueError: If they differ. The message has the tower and both numbers.
    """
    if mask.keys() != architecture.towers.keys():
        raise ValueError(
            f"{place}: has towers {sorted(mask)}, but {architecture.name} has {sorted(architecture.towers)}"
        )
    for name, tower in architecture.towers.items():
        if mask[name].layers != tower.layers:
            raise ValueError(
                f"{place}.{name}.keep: has {mask[name].layers} layers, but {architecture.name} has {tower.layers}"
            )
        if mask[name].num_heads != tower.num_heads:
            raise ValueError(
                f"{place}.{name}.num_heads: is {mask[name].num_heads}, but {architecture.name} has "
                f"{tower.num_heads} heads per layer"
            )


Side = Annotated[int, Field(ge=1, le=LARGEST_SIDE)]


class Preprocess(StrictModel):
    """Preprocessing of images.

    Attributes:
        input_size: (channels, height, width). 1 channel is greyscale, 3 channels are RGB.
        mean: Mean of each channel, in units where white is 1.
        std: Standard deviation of each channel. The lower bound keeps normalized pixels within float32.
        interpolation: Filter for resizing.
        crop_pct: Side of the crop divided by the side of the resized image, in (0, 1].
        crop_mode: Crop mode as defined by timm.
        crop_offset: Start of a crop with an odd margin: the nearest pixel, half to even, as in torchvision
            and timm; or the pixel before, as in transformers.
        resize_backend: Library that resizes: Pillow on images (timm, open_clip), or torchvision on uint8
            tensors (the default of transformers). Pixels differ by rounding. Headers without the field mean
            Pillow.
        transparency: Whether pixels of a single transparent colour become white, as in image processors with
            `do_convert_rgb` since transformers 5.21, or keep their colour. Alpha channels are dropped.
            Headers without the field mean `drop`.
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
    def _check_channels(self) -> Self:
        if len(self.mean) != self.input_size[0] or len(self.std) != self.input_size[0]:
            raise ValueError(f"mean and std must have {self.input_size[0]} numbers each, one per channel")
        if (resized := max(self.input_size[1:]) / self.crop_pct) > 2 * LARGEST_SIDE:
            raise ValueError(
                f"crop_pct {self.crop_pct:g} resizes images to {resized:.0f} pixels, more than {2 * LARGEST_SIDE}"
            )
        return self

    @property
    def resizes_tensors(self) -> bool:
        """Whether torchvision resizes uint8 tensors.

        False for the box and Hamming filters, which torchvision lacks, and for crops that image processors of
        transformers lack.
        """
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
    """Preprocessing of texts.

    Attributes:
        tokenizer: Content of a `tokenizer.json` for the tokenizers library. `None` if the model has no
            tokenizer yet.
        names: Model inputs besides `input_ids`.
        max_length: Maximum number of tokens, including special tokens. Longer texts are truncated.
        pad_id: Token id of the padding.
        vocab_size: Number of token ids that the model accepts.
        padding: Whether texts are padded to the longest text of the batch or always to `max_length`. Must
            match the model's training.
        padding_side: Side of the padding tokens. `left` requires `max_length`: with a length that depends on
            the batch, left padding would shift the positions of a text's tokens.
        truncation_side: Side from which longer texts lose tokens.
        by_word: Whether the model is a token classifier. Longer texts are then split into overlapping
            windows.
        pairs: Whether the model was trained on pairs of texts. `None` if unknown. The field does not change
            the inputs.
    """

    tokenizer: str | None = None
    names: tuple[InputName, ...] = ("attention_mask",)
    max_length: int = Field(ge=1, le=MAX_DIMENSION)
    pad_id: int = Field(ge=0, le=MAX_DIMENSION)
    vocab_size: int = Field(ge=1, le=MAX_DIMENSION)
    padding: Literal["longest", "max_length"] = "longest"
    padding_side: Literal["right", "left"] = Field(default="right", exclude_if=lambda value: value == "right")
    truncation_side: Literal["right", "left"] = Field(
        default="right", exclude_if=lambda value: value == "right"
    )
    by_word: bool = Field(default=False, exclude_if=not_)
    pairs: bool | None = Field(default=None, exclude_if=is_none)

    @field_validator("padding_side")
    @classmethod
    def _right_of_any_length(cls, value: str, info: ValidationInfo) -> str:
        """Return `right` unless texts are padded to `max_length`.

        Earlier versions stored the tokenizer's own side, without effect on the inputs.
        """
        return value if info.data.get("padding") == "max_length" else "right"


class Prompting(StrictModel):
    """Conversion of class names to texts for a zero-shot model.

    Attributes:
        tokenization: Preprocessing for the text tower.
        templates: Texts that contain `{label}`. The embedding of a class is the mean over all templates.
            Empty if the model has no class names yet.
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
    """A file that a step read.

    Attributes:
        name: Base name of the file.
        sha256: Digest of the file.
        made_by: Step that wrote the file. `None` if unknown.
    """

    name: str
    sha256: Digest
    made_by: Step | None = None


class SampledFile(InputFile):
    """A data set that a step read, with the digests of its samples.

    Attributes:
        samples: Digests in the format of `pack_digests`; empty if unknown. Excluded from the JSON of a step,
            because the header stores the samples of all its steps together.
    """

    samples: str = Field(exclude=True)


class Step(StrictModel):
    """Record of one command run. Files, lineages, `--if-changed` and model cards all use this record.

    A step contains no time, host or path, so equal runs give equal records.

    Attributes:
        command: Name of the command.
        options: Options of the command.
        inputs: Files that the command read.
        seed: Seed of all random numbers. `None` for commands without random numbers.
        results: Numbers measured by the command.
        versions: Versions of the packages with an effect on the result.
        config_digest: Digest of all settings with an effect on the output.
        argv: Command line without the names of outputs and folders.
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
    """Return the sample digests recorded in documents and in data sets that the inputs' lineages read.

    The keys are the fingerprints of the data sets.
    """
    read = [
        file for i in inputs for file in (i, *chain.from_iterable(s.inputs for s in lineage_to(i.made_by)))
    ]
    files = (file for file in read if isinstance(file, SampledFile) and file.samples)
    return merge_samples(
        *(document.samples for document in documents), *({f.sha256: f.samples} for f in files)
    )


def lineage_to(step: Step | None) -> tuple[Step, ...]:
    """Return a step and all steps before it, each once, in order of execution; empty for `None`."""
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
    """Provenance of a file without room for metadata, `hydractl.record/1`.

    The sidecar is a second file in the same folder.

    Attributes:
        sha256: Digest of the described file.
        made_by: Step that wrote the described file.
    """

    kind_of_file: ClassVar[str] = "record"

    schema_: Literal["hydractl.record/1"] = Field(default="hydractl.record/1", alias="schema")
    sha256: Digest
    made_by: Step

    @staticmethod
    def path_of(path: Path) -> Path:
        """Return the path of a file's sidecar, `FILE.lineage.json`."""
        return path.with_name(f"{path.name}.lineage.json")


class FusePlan(StrictModel):
    """Storage of members' tensors in a hydra.

    Attributes:
        fates: Fate of each tensor.
        trunk: Number of leading blocks that run once for all members, summed over towers.
        mlp: `merge` if MLPs that differ are averaged, in all blocks; `keep` if each member has its own.
        merge_trunk: Tensors that differ before this block of each tower are averaged, including the
            embedding. 0 if no trunk is merged.
        own_from: Each member has its own copy of every tensor from this block of each tower on, and of every
            tensor after the blocks, even if all copies are equal. `None` if equal tensors are shared.
    """

    fates: dict[str, Fate]
    trunk: int = Field(ge=0, le=MOST_HEADS)
    mlp: Literal["merge", "keep"]
    merge_trunk: int = Field(default=0, ge=0, le=MOST_HEADS, exclude_if=lambda value: value == 0)
    own_from: int | None = Field(default=None, ge=0, le=MOST_HEADS, exclude_if=is_none)


class FittedScores(StrictModel):
    """Feature-based OOD scores stored in a checkpoint as additional tensors.

    Attributes:
        scores: Names of the scores.
        data: Data set that the scores were fitted on.
        temperature: Temperature of the logits at the time of the fit.
        version: Version of the score definitions, `ood_scores.VERSION`.
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
    """The `hydractl` entry of a checkpoint's safetensors metadata, `hydractl.checkpoint/1`.

    Operations that change weights drop temperatures, thresholds, prediction sets and fitted scores.

    Attributes:
        kind: Role of the model.
        architecture: Model class of the base.
        masks: Heads of each member, by tower.
        base: Digest of the base checkpoint. `None` for a base.
        plan: Storage of the members' tensors. `None` unless the model is a hydra.
        preprocess: Preprocessing of images or texts.
        assumed: Whether `preprocess` is the usual preprocessing of the architecture, because the model's
            source has no preprocessing settings.
        labels: Names of the classes; empty if unknown.
        prompting: Conversion of class names to texts. `None` unless the model is zero-shot.
        temperature: Divides the logits of every member before the softmax or sigmoid.
        label_temperatures: Divide the logits of a multi-label model instead of `temperature`, one per label;
            empty if unused.
        entity_temperature: Divides the log odds of an entity's probability.
        threshold: Threshold on an OOD score below which inputs are answered.
        known_test: Bound on an OOD score below which inputs are known. An input is accepted if it passes both.
        label_thresholds: Probability above which a label of a multi-label model is predicted, one per label;
            empty for 0.5.
        prediction_sets: Method and thresholds of prediction sets.
        fitted: Feature-based OOD scores stored with the weights.
        samples: Digests of the samples that the steps of `made_by` read.
        made_by: Step that wrote the model. `None` if unknown.
    """

    kind_of_file: ClassVar[str] = "checkpoint"

    schema_: Literal["hydractl.checkpoint/1"] = Field(default="hydractl.checkpoint/1", alias="schema")
    kind: Kind
    architecture: Architecture
    masks: tuple[dict[str, TowerKeep], ...] = Field(min_length=1, max_length=MOST_MEMBERS)
    base: Digest | None = None
    plan: FusePlan | None = None
    preprocess: Preprocess | Tokenization
    assumed: bool = Field(default=False, exclude_if=not_)
    labels: tuple[str, ...] = ()
    prompting: Prompting | None = Field(default=None, exclude_if=is_none)
    temperature: StoredTemperature = Field(default=1.0, exclude_if=lambda value: value == 1)
    label_temperatures: tuple[StoredTemperature, ...] = Field(default=(), exclude_if=not_)
    entity_temperature: StoredTemperature = Field(default=1.0, exclude_if=lambda value: value == 1)
    threshold: Threshold | None = Field(default=None, exclude_if=is_none)
    known_test: KnownTest | None = Field(default=None, exclude_if=is_none)
    label_thresholds: tuple[OpenShare, ...] = Field(default=(), exclude_if=not_)
    prediction_sets: PredictionSets | None = Field(default=None, exclude_if=is_none)
    fitted: FittedScores | None = Field(default=None, exclude_if=is_none)
    samples: Samples = Field(default={}, exclude_if=not_)
    made_by: Step | None = None

    def of_other_weights(self, update: Mapping[str, object]) -> Self:
        """Return the header of a model with other weights.

        Applies `update`, and drops all results fitted for the old weights.
        """
        defaults: dict[str, object] = {**Temperature().fields, "label_thresholds": ()}
        defaults |= dict.fromkeys(("threshold", "known_test", "prediction_sets", "fitted"))
        return self.model_copy(update=defaults | {**update})

    @property
    def scale(self) -> Temperature:
        """The stored temperatures."""
        return Temperature(self.temperature, self.label_temperatures, self.entity_temperature)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes in the order of the logits, or class numbers if the model has no names."""
        return self.labels or tuple(map(str, range(self.num_classes)))

    @property
    def num_classes(self) -> int:
        """Number of classes; 0 for a zero-shot model without class names."""
        return self.architecture.num_classes or len(self.labels)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.kind == Kind.HYDRA) != (self.plan is not None):
            raise ValueError("plan: required for a hydra and excluded otherwise")
        if self.kind != Kind.HYDRA and len(self.masks) != 1:
            raise ValueError(f"masks: a {self.kind} must have one mask, found {len(self.masks)}")
        for i, mask in enumerate(self.masks):
            check_mask_fits(mask, self.architecture, place=f"masks[{i}]")
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
        for field, test in {"threshold": self.threshold, "known_test": self.known_test}.items():
            if test and test.score not in stored and load(IS_FITTED)(test.score):
                raise ValueError(f"{field}.score: `fitted` does not have `{test.score}`")
        if self.entity_temperature != 1 and not self.architecture.task.by_word:
            raise ValueError("entity_temperature: excluded unless the model answers words")
        by_word = isinstance(self.preprocess, Tokenization) and self.preprocess.by_word
        if by_word != self.architecture.task.by_word:
            raise ValueError("preprocess.by_word: required if the model answers words and excluded otherwise")
        return self

    def to_metadata(self) -> str:
        """Return the compact JSON text for the safetensors metadata."""
        return compact(self.model_dump(mode="json", by_alias=True), sort_keys=True)


for _model in (InputFile, Step, Sidecar, Header):
    _model.model_rebuild()
