"""The interface of a model family, and checks of model folders. Importing this module loads no model library.

Axes: B batch, T tokens, D width, H heads, K head width, L layers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hydractl.errors import CheckpointError, UnsupportedModelError
from hydractl.families.head_slicing import HeadTensor, TowerLayout
from hydractl.manifest.terms import DEFAULT_POOLING
from hydractl.messages import quoted
from hydractl.strict_json import parse, read_object
from hydractl.tasks import SINGLE_LABEL, TASKS, Task

if TYPE_CHECKING:
    import torch

    from hydractl.checkpoint import TensorSpec
    from hydractl.families.tower import Model
    from hydractl.manifest.head_mask import TowerKeep
    from hydractl.manifest.header import Architecture, Preprocess, Prompting, Tokenization


QUANTIZED = frozenset(
    {
        "SCB", "absmax", "bias_scale", "g_idx", "input_scale", "nested_absmax", "quant_map", "qweight", "qzeros", "scales",
        "weight_format", "weight_packed", "weight_scale", "weight_scale_inv", "weight_shape", "weight_zero_point", "zero_point",
    }
)  # fmt: skip
"""Last parts of tensor names under which libraries store quantized weights or their scales."""
REPARAMETRIZED = (
    ".weight_orig",
    ".weight_mask",
    ".weight_g",
    ".weight_v",
    ".original0",
    ".original1",
    ".original",
)
"""Suffixes of tensors from which PyTorch's pruning and parametrizations compute a weight."""
DEQUANTIZE = (
    "store plain floating-point weights: in transformers `model.dequantize().save_pretrained(FOLDER)`; "
    "after PyTorch's pruning `torch.nn.utils.prune.remove`"
)
"""Hint for folders with quantized or reparametrized weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFolder:
    """A model folder in the layout of a library.

    Attributes:
        path: The folder.
        config: Content of its `config.json` or `open_clip_config.json`.
        specs: Dtypes and shapes of the stored tensors, by name on disk. Empty if only the configuration is
            read.
    """

    path: Path
    config: Mapping[str, object]
    specs: Mapping[str, TensorSpec] = field(default_factory=dict)

    @property
    def model_classes(self) -> tuple[str, ...]:
        """Class names in `architectures`; empty without a list."""
        names = self.config.get("architectures")
        return tuple(map(str, names)) if isinstance(names, list) else ()

    @property
    def classifies(self) -> bool:
        """Whether the model is a classifier. True without `architectures`."""
        return not self.model_classes or any("Classification" in name for name in self.model_classes)

    @property
    def sentence_modules(self) -> tuple[Mapping[str, Any], ...]:
        """Entries of sentence-transformers' `modules.json`. Empty without the file.

        Empty also if `architectures` names a classifier, because no library reads `modules.json` of a
        classifier.

        Raises:
            CheckpointError: If the file is not a list of objects.
        """
        path = self.path / "modules.json"
        if not path.is_file() or ("architectures" in self.config and self.classifies):
            return ()
        try:
            modules = parse(path.read_bytes())
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path}: cannot be read as JSON: {error}") from error
        if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
            raise CheckpointError(f"{path}: is not a list of objects")
        return tuple(modules)

    def read(self, name: str) -> Mapping[str, Any]:
        """Return the JSON object in a file of the folder, or an empty mapping if the file does not exist.

        Raises:
            CheckpointError: If the file is not a JSON object.
        """
        path = self.path / name
        return read_object(path) if path.is_file() else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Treatment of a field or file in a library's folder.

    Attributes:
        library: The library whose folders have the field, or `all`.
        name: The field or file, for the table in the documentation.
        effect: The treatment in words, for the same table.
        problem: Function from a folder to the reason for a refusal, or None. The attribute is None if
            `check_folder` has nothing to check.
        hint: Next step for the user if the folder is refused.
        as_backbone: Whether `finetune` accepts a folder with this problem as a backbone for a new classifier.
    """

    library: str
    name: str
    effect: str
    problem: Callable[[ModelFolder], str | None] | None = None
    hint: str | None = None
    as_backbone: bool = False


def check_folder(folder: ModelFolder, rules: Sequence[Rule]) -> str:
    """Check a folder against all rules.

    Returns:
        The first problem among the rules with `as_backbone`, or an empty text. With a problem, the folder can
        only be a backbone for a new classifier.

    Raises:
        UnsupportedModelError: If a rule without `as_backbone` has a problem. The message has the reason.
    """
    reason = ""
    for rule in rules:
        problem = None if rule.problem is None else rule.problem(folder)
        if problem and not rule.as_backbone:
            raise UnsupportedModelError(f"{folder.path}: {problem}", hint=rule.hint)
        reason = reason or problem or ""
    return reason


def check_weights(place: str, specs: Mapping[str, TensorSpec]) -> None:
    """Raise if weights are quantized or reparametrized.

    Args:
        place: Name of the model, for messages.
        specs: Dtypes and shapes of the tensors, by name.

    Raises:
        UnsupportedModelError: With the name of the first tensor.
    """
    if problem := weights_problem(specs):
        raise UnsupportedModelError(f"{place}: {problem}", hint=DEQUANTIZE)


def weights_problem(specs: Mapping[str, TensorSpec]) -> str | None:
    """Return why stored tensors are not plain floating-point weights, or None."""
    from hydractl.checkpoint import ITEM_BYTES

    for name, spec in sorted(specs.items()):
        *_, last = name.split(".")
        if last in QUANTIZED or ".quant_state." in name:
            return f"its weights are quantized: the tensor `{name}` is a scale or packed weights"
        eight_bits = ITEM_BYTES[spec.dtype] == 1 and spec.dtype != "BOOL"
        if eight_bits or (last in {"weight", "bias"} and not spec.is_floating):
            return f"its weights are quantized: the tensor `{name}` has dtype {spec.dtype}"
        if name.endswith(REPARAMETRIZED):
            return f"the tensor `{name}` is one of several from which PyTorch computes a weight"
    return None


def task_problem(config: Mapping[str, object], supported: Iterable[Task] = (SINGLE_LABEL,)) -> str | None:
    """Return why the `problem_type` of a configuration is not supported, or None."""
    problem_type, names = config.get("problem_type"), [task.problem_type for task in supported]
    if problem_type is None or problem_type in names:
        return None
    return f"its `problem_type` is `{problem_type}`; what is supported: {quoted(names)}"


def problem_type_of(architecture: Architecture) -> dict[str, object]:
    """Return the `problem_type` field for a library's `config.json`. Empty except for multi-label models.

    A missing field means a single label, and transformers derives token classification from the model class.
    """
    return {"problem_type": architecture.problem_type} if architecture.task.by_label else {}


def logits_of(architecture: Architecture) -> int:
    """Return the number of logits of a classifier, or 0 if classes are given as texts (zero-shot)."""
    number = architecture.config.get("num_classes", architecture.config.get("num_labels", 0))
    return number if isinstance(number, int) else 0


def class_names_of(logit_names: tuple[str, ...]) -> tuple[str, ...]:
    """Return class names from the names of logits.

    A single logit, the log odds of class NAME, yields two classes: `not NAME` and `NAME`, or `0` and `1` for
    the name `1`.
    """
    if len(logit_names) != 1:
        return logit_names
    (name,) = logit_names
    return ("0" if name == "1" else f"not {name}", name)


def num_classes_of(logits: int) -> int:
    """Return the number of classes of a classifier with `logits` logits: 2 for a single logit."""
    return max(logits, 2)


PROBLEM_RULE = Rule(
    library="timm",
    name="`problem_type`",
    effect="`multi_label_classification` answers each label by a sigmoid; others than it and `single_label_classification` are "
    "refused, and `finetune` accepts the encoder",
    problem=lambda folder: (
        task_problem(folder.config, [task for task in TASKS.values() if not task.by_word])
        if folder.classifies
        else None
    ),
    as_backbone=True,
)
COMMON_RULES = (
    Rule(
        library="all",
        name="`adapter_config.json` of peft",
        effect="refused, with or without full weights in the folder",
    ),
    Rule(
        library="all",
        name="`model.safetensors` beside `model.safetensors.index.json`",
        effect="the file is used, as in transformers, with a warning",
    ),
    Rule(
        library="all",
        name="`metadata` of `model.safetensors.index.json`",
        effect="ignored; refused if it is not an object",
    ),
    Rule(
        library="all",
        name="quantized weights: 8-bit tensors, integers, scales",
        effect="refused",
        problem=lambda folder: weights_problem(folder.specs),
        hint=DEQUANTIZE,
    ),
)
"""Rules that apply to folders of every library."""


COMPILED = "_orig_mod."
"""Prefix that torch.compile adds to tensor names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDescription:
    """Description of a model from its configuration, before any weight is read.

    Attributes:
        architecture: For a model with `lacks`, the architecture with a classifier of any number of classes.
        preprocess: Preprocessing of its images or texts.
        labels: Class names; empty if the configuration has none.
        prompting: Prompts and tokenization of class names, for zero-shot models; else None.
        assumed: Whether the folder lacks a preprocessing, and the default of the model type is used.
        lacks: Why the model does not classify, for messages. Empty for a classifier.
        may_classify: Whether a classifier in the weights makes a model with `lacks` a classifier.
            transformers loads the classifier too, although the class in `architectures` has no classifier.
        pools: Pooling for a new classifier if the folder defines mean pooling; else None.
        notes: Remarks about the folder, for the user.
    """

    architecture: Architecture
    preprocess: Preprocess | Tokenization
    labels: tuple[str, ...] = ()
    prompting: Prompting | None = None
    assumed: bool = False
    lacks: str = ""
    may_classify: bool = False
    pools: Literal["mean"] | None = None
    notes: tuple[str, ...] = ()


SCALE = ("logit_scale", "logit_bias")
"""Tensors that turn cosines into logits in models of images and texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A group of architectures read by a common adapter.

    Attributes:
        name: Name stored in checkpoints.
        library: Python distribution whose version is recorded.
        covers: Supported classes or architectures, for a table.
        refuses: Refused related models with reasons, for a table; may be empty.
        towers: Layout of each tower, by `text` or `vision`.
        read_config: Function from a folder's configuration and path to the description of the model.
        write_config: Inverse of `read_config` for a model with all heads. Returns the library's configuration
            files (JSON objects by file name), or None if the library would build another model from the
            files.
        names: Names of the architectures, for families with few.
        claims: Whether an architecture name belongs to the family. The first claim in the table of families
            counts.
        describe: Function from an architecture name and options to the description of a model.
        build: Function from architecture, head mask and state dict to a model. Without a state dict (None),
            parameters are on the meta device.
        initialise: Function from an architecture and a seed to random weights, drawn by the library's own
            rules.
        evaluation_config: Function from an architecture to normalized options with effect on the outputs of
            trained weights: without options for training, with defaults.
        matches: Whether a configuration belongs to a model of the family.
        matches_encoder: Whether a configuration belongs to a model of any class whose encoder a classifier of
            the family has.
        texts: Function from an architecture to the maximum number of tokens and the vocabulary size. None if
            the family reads no texts.
        scalars: Tensors without axes, stored in a hydra as vectors of M.
        exact: Tensors stored and loaded in float32 at least, for any dtype of the model. In bf16 CLIP's scale
            would change by 1 %.
        adopt: Function from the folder's name (for messages), the architecture and the stored tensors to
            tensors under their names in memory. Replaceable tensors may be missing or of another shape. None
            for libraries without renamed tensors.
        rules: Treatment of fields and files of the library's folders.
        on_disk: Regular expressions and replacements, applied in order, from a tensor name on disk to the
            name in memory. If the library also splits or joins tensors, the result only names the right part
            of the model. Used for headers, not for loading.
    """

    name: str
    library: str
    covers: str
    refuses: str
    towers: Mapping[str, TowerLayout]
    matches: Callable[[Mapping[str, object]], bool]
    matches_encoder: Callable[[Mapping[str, object]], bool]
    claims: Callable[[str], bool]
    read_config: Callable[[Mapping[str, object], Path], ModelDescription]
    write_config: Callable[[ModelDescription], dict[str, Mapping[str, object]] | None]
    describe: Callable[[str, Mapping[str, object]], ModelDescription]
    build: Callable[[Architecture, Mapping[str, TowerKeep], Mapping[str, torch.Tensor] | None], Model]
    initialise: Callable[[Architecture, int], dict[str, torch.Tensor]]
    evaluation_config: Callable[[Architecture], Mapping[str, object]]
    texts: Callable[[Architecture], tuple[int, int]] | None = None
    adopt: Callable[[str, Architecture, Mapping[str, torch.Tensor]], dict[str, torch.Tensor]] | None = None
    rules: tuple[Rule, ...] = ()
    on_disk: tuple[tuple[str, str], ...] = ()
    scalars: frozenset[str] = frozenset()
    exact: frozenset[str] = frozenset()
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPosition:
    """Position of a tensor in a model.

    Attributes:
        tower: Name of the tower.
        layer: Index of the block, or None outside the blocks.
        part: `embed`, `readout`, `head`, `attention`, `mlp` or `norm` (the rest of a block).
        heads: The head axis of the tensor, or None.
    """

    tower: str
    layer: int | None
    part: str
    heads: HeadTensor | None = None


def with_pooling(architecture: Architecture, pooling: str) -> Architecture:
    """Return an architecture with another pooling before the classifier, from `POOLINGS`."""
    return architecture.model_copy(update={"pooling": None if pooling == DEFAULT_POOLING else pooling})


def with_task(described: ModelDescription, task: Task) -> ModelDescription:
    """Return the description of the same model for another task.

    Raises:
        UnsupportedModelError: If the task labels words, and the model reads images or has a single logit.
    """
    from hydractl.manifest.header import Tokenization

    architecture, preprocess = described.architecture, described.preprocess
    update: dict[str, object] = {"problem_type": None if task is SINGLE_LABEL else task.problem_type}
    if task.by_word:
        if not isinstance(preprocess, Tokenization) or logits_of(architecture) == 1:
            raise UnsupportedModelError(
                f"{architecture.name}: only models of texts with several classes answer each word"
            )
        update["pooling"] = None
    if isinstance(preprocess, Tokenization):
        preprocess = preprocess.model_copy(update={"by_word": task.by_word})
    return replace(described, architecture=architecture.model_copy(update=update), preprocess=preprocess)


def is_replaceable(family: Family, name: str) -> bool:
    """Return whether a tensor belongs to the classifier or pooler, and random weights can replace it."""
    return name.startswith(
        tuple(p for layout in family.towers.values() for p in (*layout.head, *layout.pooler))
    )


def name_in_memory(family: Family, name: str) -> str:
    """Return the name in memory of a tensor on disk, as far as the name alone determines it."""
    for pattern, replacement in family.on_disk:
        name = re.sub(pattern, replacement, name)
    return name


def without_wrapper(family: Family, names: Iterable[str], expected: Collection[str]) -> dict[str, str] | None:
    """Remove the prefixes of wrappers (DataParallel, torch.compile) from tensor names.

    Args:
        family: The family that reads the folder.
        names: Names of the stored tensors.
        expected: Names of the architecture's tensors in memory.

    Returns:
        The name without prefixes, by stored name. None without a prefix, or if the remaining names do not fit
        the architecture.
    """
    plain = {name: name.replace(COMPILED, "") for name in names}
    first = next(iter(plain.values()), "")
    for end in (0, *(dot.end() for dot in re.finditer(r"\.", first))):
        if not all(name.startswith(first[:end]) for name in plain.values()):
            return None
        stripped = {name: short[end:] for name, short in plain.items()}
        in_memory = [name_in_memory(family, short) for short in stripped.values()]
        if len(in_memory) == len(expected) and {*in_memory} == {*expected}:
            return stripped if any(name != short for name, short in stripped.items()) else None
    return None


def position_of(family: Family, name: str) -> TensorPosition:
    """Return the position of a tensor, given by state-dict name.

    Unknown names belong to the embedding of the first tower.
    """
    for tower, layout in family.towers.items():
        prefix, suffix = layout.block.split("{layer}")
        if name.startswith(prefix):
            number, _, parameter = name.removeprefix(prefix).partition(suffix)
            if not number.isdecimal():
                continue
            parts = (part for part in ("attention", "mlp") if parameter.startswith(getattr(layout, part)))
            heads = next((h for h in layout.heads if h.name == parameter), None)
            return TensorPosition(tower=tower, layer=int(number), part=next(parts, "norm"), heads=heads)
        for part in ("head", "readout", "embed"):
            if name.startswith(getattr(layout, part)):
                return TensorPosition(tower=tower, layer=None, part=part)
    return TensorPosition(tower=next(iter(family.towers)), layer=None, part="embed")


def position_on_disk(family: Family, name: str) -> TensorPosition:
    """Return the position of a tensor in a folder of a classifier or of an encoder alone."""
    memory_name = name_in_memory(family, name)
    models = (layout.block.partition(".")[0] for layout in family.towers.values())
    # An encoder that was saved alone has names without the prefix of the encoder in a classifier (`bert.`).
    places = [position_of(family, n) for n in (memory_name, *(f"{model}.{memory_name}" for model in models))]
    return next((place for place in places if place.layer is not None or place.part != "embed"), places[0])
