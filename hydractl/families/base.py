"""Data that every family declares, and the files of a model's folder. Importing this module loads no library.

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
"""Suffixes of tensors with quantized weights or their scales."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFolder:
    """A folder in a library's layout.

    Attributes:
        path: The folder.
        config: Its `config.json` or `open_clip_config.json`.
        specs: The tensors of its weights, by the names on disk; empty where only the configuration is read.
    """

    path: Path
    config: Mapping[str, object]
    specs: Mapping[str, TensorSpec] = field(default_factory=dict)

    @property
    def model_classes(self) -> tuple[str, ...]:
        """The classes in `architectures`; empty where there are none."""
        names = self.config.get("architectures")
        return tuple(map(str, names)) if isinstance(names, list) else ()

    @property
    def classifies(self) -> bool:
        """Whether the model is a classifier, as a folder without `architectures` is taken to be."""
        return not self.model_classes or any("Classification" in name for name in self.model_classes)

    @property
    def sentence_modules(self) -> tuple[Mapping[str, Any], ...]:
        """The entries of sentence-transformers' `modules.json`; empty for a classifier, of which no library reads it.

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
        """Return the JSON object in a file of the folder; empty where there is no such file."""
        path = self.path / name
        return read_object(path) if path.is_file() else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How one field or file of a library's folder is treated.

    Attributes:
        library: The library whose folders have it.
        name: The field or file.
        effect: What the tool does with it, for the table.
        problem: Returns why the folder is refused, or None; None for what is honoured.
        hint: What to type next where the folder is refused.
        as_backbone: Whether `finetune` takes a refused folder as a backbone, and gives it a new classifier.
    """

    library: str
    name: str
    effect: str
    problem: Callable[[ModelFolder], str | None] | None = None
    hint: str | None = None
    as_backbone: bool = False


def check_folder(folder: ModelFolder, rules: Sequence[Rule]) -> str:
    """Check a folder against every rule.

    Returns:
        Why the folder is no classifier of one label out of several, although `finetune` takes it as a backbone; empty where
        it is one.

    Raises:
        UnsupportedModelError: If the folder has what cannot be honoured, with the reason.
    """
    reason = ""
    for rule in rules:
        problem = None if rule.problem is None else rule.problem(folder)
        if problem and not rule.as_backbone:
            raise UnsupportedModelError(f"{folder.path}: {problem}", hint=rule.hint)
        reason = reason or problem or ""
    return reason


def check_weights(where: str, specs: Mapping[str, TensorSpec]) -> None:
    """Refuse weights that are not stored as they were trained.

    Raises:
        UnsupportedModelError: Naming the first tensor.
    """
    if problem := weights_problem(specs):
        raise UnsupportedModelError(f"{where}: {problem}", hint=DEQUANTIZE)


def weights_problem(specs: Mapping[str, TensorSpec]) -> str | None:
    """Return why weights cannot be read as they are, or None."""
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


def answer_problem(config: Mapping[str, object], supported: Iterable[Task] = (SINGLE_LABEL,)) -> str | None:
    """Return why a model's answer is not what is supported, or None, as its configuration has it."""
    problem_type, names = config.get("problem_type"), [task.problem_type for task in supported]
    if problem_type is None or problem_type in names:
        return None
    return f"its `problem_type` is `{problem_type}`; what is supported: {quoted(names)}"


def problem_type_of(architecture: Architecture) -> dict[str, object]:
    """Return what a library's configuration says of a task; empty where that is usual, or told by the class of the model."""
    return {"problem_type": architecture.problem_type} if architecture.task.by_label else {}


def logits_of(architecture: Architecture) -> int:
    """Return how many logits a classifier has; 0 where classes are named by texts."""
    number = architecture.config.get("num_classes", architecture.config.get("num_labels", 0))
    return number if isinstance(number, int) else 0


def class_names_of(logit_names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of a classifier's classes: of a single logit, the log odds of its class, `not NAME` and NAME, or 0 and 1."""
    if len(logit_names) != 1:
        return logit_names
    (name,) = logit_names
    return ("0" if name == "1" else f"not {name}", name)


def num_classes_of(logits: int) -> int:
    """Return the number of classes that so many logits tell apart: a single one, two."""
    return max(logits, 2)


PROBLEM_RULE = Rule(
    library="timm",
    name="`problem_type`",
    effect="`multi_label_classification` answers each label by a sigmoid; others than it and `single_label_classification` are "
    "refused, and `finetune` accepts the encoder",
    problem=lambda folder: (
        answer_problem(folder.config, [task for task in TASKS.values() if not task.by_word])
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
class Described:
    """A model as its headers tell it.

    Attributes:
        architecture: Of a model that `lacks` a classifier, the one with a classifier of any number of classes.
        preprocess: How its inputs are made.
        labels: Names of its classes, if it has any.
        prompting: How names of classes become texts, where the model is asked about them.
        assumed: Whether nothing says how images are read, and what is usual for such models stands in for it.
        lacks: What it is where it does not classify, for messages; empty where it does.
        may_classify: Whether it is a classifier after all where its weights hold one: its folder is of a class that has none,
            and transformers reads the classifier all the same.
        pools: What the classifier should read that it is given, where its folder says it.
        notes: What the user is told of how the folder is read.
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
    """The architectures that one adapter can read.

    Attributes:
        name: As stored in checkpoints.
        library: The distribution whose version matters.
        covers: Which classes or architectures, for a table.
        refuses: What of them is refused and why, for a table; empty where nothing is.
        towers: Layout of each tower.
        read_config: Turn the `config.json` of a library's folder, and what lies beside it, into an architecture, its
            preprocessing and its labels.
        write_config: The inverse, of a model with all its heads: what the library reads of such a folder besides weights and
            tokenizer, by file; None where it would make another model of it.
        names: The architecture names that it reads, where they are few.
        claims: Whether an architecture name is of this family; of several families the first in the table has it.
        describe: Turn an architecture name and its options into the same.
        build: Make the model with the given mask; on the meta device unless a state dict is given.
        initialise: Random weights by the library's own rules, from a seed.
        evaluation_config: What of an architecture changes the answers of trained weights, in one form: options that act in
            training alone are left out, defaults are filled in.
        matches: Whether a `config.json` is of this family.
        matches_encoder: Whether it is of a model, of whatever class, whose encoder one of the family's classifiers has.
        texts: How many tokens of a text, and how many different ones, a model takes; None where none are read.
        scalars: Tensors without an axis, which a hydra holds as a vector of M.
        exact: Tensors that are stored and loaded in float32 at least, whatever the others are: bf16 changes CLIP's scale by 1 %.
        adopt: Give a folder's tensors the names that they have in memory; None where a library never renames any. What can be
            drawn anew is left out where it is missing, and keeps a shape of its own. Takes what messages call the folder, the
            architecture, and the tensors.
        rules: How fields and files of a library's folder are treated.
        on_disk: Patterns in such names and what stands for them in memory, applied in turn; where a library also splits
            or joins tensors they tell no more than the part of the model. Headers are read with them, not tensors.
    """

    name: str
    library: str
    covers: str
    refuses: str
    towers: Mapping[str, TowerLayout]
    matches: Callable[[Mapping[str, object]], bool]
    matches_encoder: Callable[[Mapping[str, object]], bool]
    claims: Callable[[str], bool]
    read_config: Callable[[Mapping[str, object], Path], Described]
    write_config: Callable[[Described], dict[str, Mapping[str, object]] | None]
    describe: Callable[[str, Mapping[str, object]], Described]
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
class Place:
    """Where one tensor stands in a model: its tower, its layer (None outside the blocks) and what it belongs to."""

    tower: str
    layer: int | None
    part: str
    heads: HeadTensor | None = None


def with_pooling(architecture: Architecture, pooling: str) -> Architecture:
    """Return an architecture whose classifier reads what one of `POOLINGS` says."""
    return architecture.model_copy(update={"pooling": None if pooling == DEFAULT_POOLING else pooling})


def answering(described: Described, task: Task) -> Described:
    """Return a model that answers a task.

    Raises:
        UnsupportedModelError: If it is to answer words, but reads no texts, or has a single class.
    """
    from hydractl.manifest.header import Tokenization

    architecture, how = described.architecture, described.preprocess
    update: dict[str, object] = {"problem_type": None if task is SINGLE_LABEL else task.problem_type}
    if task.by_word:
        if not isinstance(how, Tokenization) or logits_of(architecture) == 1:
            raise UnsupportedModelError(
                f"{architecture.name}: only models of texts with several classes answer each word"
            )
        update["pooling"] = None
    if isinstance(how, Tokenization):
        how = how.model_copy(update={"by_word": task.by_word})
    return replace(described, architecture=architecture.model_copy(update=update), preprocess=how)


def is_replaceable(family: Family, name: str) -> bool:
    """Return whether a tensor belongs to a classifier, or to what may come with one, and can be drawn anew."""
    return name.startswith(
        tuple(p for layout in family.towers.values() for p in (*layout.head, *layout.pooler))
    )


def name_in_memory(family: Family, name: str) -> str:
    """Return what a tensor of a library's folder is called in memory, as far as its name alone tells."""
    for pattern, replacement in family.on_disk:
        name = re.sub(pattern, replacement, name)
    return name


def without_wrapper(family: Family, names: Iterable[str], expected: Collection[str]) -> dict[str, str] | None:
    """Return the names of a library's folder without what a wrapper put before or into all of them (`module.`, `_orig_mod.`).

    Args:
        family: The family that reads the folder.
        names: Of its tensors.
        expected: Those of the architecture in memory.

    Returns:
        Each name and what is left of it; None where what is left is not the architecture.
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


def place_of(family: Family, name: str) -> Place:
    """Return where the state-dict name `name` stands.

    `part` is `embed`, `readout`, `head`, `attention`, `mlp` or `norm` (anything else inside a block).
    """
    for tower, layout in family.towers.items():
        prefix, suffix = layout.block.split("{layer}")
        if name.startswith(prefix):
            number, _, parameter = name.removeprefix(prefix).partition(suffix)
            if not number.isdecimal():
                continue
            parts = (part for part in ("attention", "mlp") if parameter.startswith(getattr(layout, part)))
            heads = next((h for h in layout.heads if h.name == parameter), None)
            return Place(tower=tower, layer=int(number), part=next(parts, "norm"), heads=heads)
        for part in ("head", "readout", "embed"):
            if name.startswith(getattr(layout, part)):
                return Place(tower=tower, layer=None, part=part)
    return Place(tower=next(iter(family.towers)), layer=None, part="embed")


def place_on_disk(family: Family, name: str) -> Place:
    """Return where a tensor of a library's folder stands, be the folder of a classifier or of its encoder alone."""
    memory_name = name_in_memory(family, name)
    models = (layout.block.partition(".")[0] for layout in family.towers.values())
    places = [place_of(family, n) for n in (memory_name, *(f"{model}.{memory_name}" for model in models))]
    return next((place for place in places if place.layer is not None or place.part != "embed"), places[0])
