"""The one gate for folders of other libraries: each field and file that changes answers is honoured, or refused with its reason.

`check_folder` runs for every folder, whichever command opens it, before a library reads it. Each family has its rules; the
table of them in docs/models.md is generated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydractl.errors import CheckpointError, UnsupportedModelError
from hydractl.messages import quoted
from hydractl.strict_json import parse, read_object
from hydractl.tasks import SINGLE_LABEL, TASKS, Task
from hydractl.tensor_spec import ITEM_BYTES, TensorSpec

if TYPE_CHECKING:
    from hydractl.manifest.header import Architecture

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
