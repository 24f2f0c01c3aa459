"""timm's vision transformers: supported models, model folders, and families."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import io
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError

from hydractl.errors import UnsupportedModelError
from hydractl.families.base import (
    COMMON_RULES,
    PROBLEM_RULE,
    Family,
    ModelDescription,
    ModelFolder,
    Rule,
    class_names_of,
    num_classes_of,
    problem_type_of,
)
from hydractl.families.config_checks import (
    accepts_images,
    building,
    check_options,
    check_patches,
    check_values,
)
from hydractl.families.head_slicing import HeadTensor, TensorRole, TowerLayout, projections_apart
from hydractl.manifest.document import first_error_text
from hydractl.manifest.head_mask import TowerHeads, TowerKeep
from hydractl.manifest.header import Architecture, Preprocess
from hydractl.messages import did_you_mean
from hydractl.strict_json import compact, plain

if TYPE_CHECKING:
    import torch

    from hydractl.families.tower import Model


LIBRARY = "timm"
TOWER = "vision"
SUPPORTED = (
    "supported: timm's VisionTransformer, VisionTransformerDistilled, VisionTransformerRelPos, Beit and Eva"
)
SOURCE = frozenset({"default_cfg", "feature_info", "pretrained_cfg", "pretrained_model_args"})
"""Attributes of a timm model that describe the source of its weights."""
SUB_LN = "sub-LN attention: a norm over all heads, whose statistics change when a head is removed"
REASONS = {
    "Cait": "its talking heads mix the heads with one another",
    "ParallelScalingBlock": "attention and MLP share one matrix, in parallel",
    "DiffParallelScalingBlock": "attention and MLP share one matrix, and each value head has two query heads",
    "ParallelThingsBlock": "a block holds several attentions in parallel",
    "DiffAttention": "each value head has two query and two key heads",
}
"""Why heads cannot be removed, by class name in timm."""
TRAINING_ONLY: Mapping[str, object] = MappingProxyType(
    {
        **dict.fromkeys(
            ("attn_drop_rate", "drop_path_rate", "drop_rate", "patch_drop_rate", "pos_drop_rate", "proj_drop_rate"), 0.5
        ),
        **dict.fromkeys(("rope_jitter_coords", "rope_rescale_coords"), 2.0),
        "rope_shift_coords": 0.5,
        **dict.fromkeys(("fix_init", "head_init_scale", "init_values"), 0.5),
        "weight_init": "jax",
    }
)  # fmt: skip
"""Options that do not change the outputs of trained weights, each with a value for comparison.

Exception: `init_values` decides about layer scales, so None and a number make different tensors.
"""
LAYER_SCALE = re.compile(r"\bgamma_\d")
LAYOUT = TowerLayout(
    block="blocks.{layer}.",
    heads=(
        HeadTensor(name="attn.qkv.weight", axis=0, copies=3, role=TensorRole.INPUT),
        HeadTensor(name="attn.qkv.bias", axis=0, copies=3, role=TensorRole.BIAS),
        *projections_apart("attn.{part}_proj", "qkv"),
        HeadTensor(name="attn.q_bias", axis=0, copies=1, role=TensorRole.BIAS),
        HeadTensor(name="attn.v_bias", axis=0, copies=1, role=TensorRole.BIAS),
        HeadTensor(name="attn.gate.weight", axis=0, copies=1, role=TensorRole.GATE),
        HeadTensor(name="attn.gate.bias", axis=0, copies=1, role=TensorRole.BIAS),
        *(
            HeadTensor(name=f"attn.{name}", axis=axis, copies=1, role=TensorRole.BIAS, one_entry=True)
            for name, axis in (
                ("relative_position_bias_table", 1),
                ("rel_pos.relative_position_bias_table", 1),
                ("rel_pos.mlp.fc2.weight", 0),
                ("rel_pos.mlp.fc2.bias", 0),
            )
        ),
        HeadTensor(name="attn.proj.weight", axis=1, copies=1, role=TensorRole.OUTPUT),
    ),
    attention=("attn.",),
    mlp=("mlp.",),
    readout=("norm.", "fc_norm.", "attn_pool."),
    last_norm=("norm.",),
    head=("head.", "head_dist."),
)
"""Tensor names of all timm models. Each model has a part of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimmRow:
    """The models of timm in a family.

    Attributes:
        name, covers, refuses, on_disk: See `Family`.
        module: Module of `timm.models` with the family's architectures. Empty for the family of other names.
        classes: Class names of the models, from any module.
        blocks: Class names of their blocks.
        attentions: Class names of their attentions.
        otherwise: Reason to refuse a model of another class.
        refusal: Function that returns why heads cannot be removed from a model of these classes, or None.
        build_options: Options that only make construction faster.
        adopts: Whether timm's filter translates folders with tensor names of the original authors.
    """

    name: str
    covers: str
    refuses: str
    module: str
    classes: tuple[str, ...]
    blocks: tuple[str, ...]
    attentions: tuple[str, ...]
    otherwise: str
    refusal: Callable[[Any], str | None] = lambda _: None
    build_options: Mapping[str, object] = field(default_factory=dict)
    adopts: bool = False
    on_disk: tuple[tuple[str, str], ...] = ()

    def claims(self, name: str) -> bool:
        """Return whether an architecture name belongs to the family."""
        if not self.module:
            return True
        from timm.models import is_model, is_model_in_modules

        return bool(is_model(name) and is_model_in_modules(name, self.module))


def check_known(name: str, others: Iterable[str] = ()) -> None:
    """Raise UnsupportedModelError for a name unknown to timm. The hint has similar names, also from `others`."""
    import timm

    if not timm.is_model(name):
        hint = did_you_mean(name, {*timm.list_models(), *others}) or "see `timm.list_models()`"
        raise UnsupportedModelError(f"timm has no architecture `{name}`", hint=hint)


def untagged(name: str) -> str:
    """Return an architecture name without timm's tag of pretrained weights, like `.augreg_in1k`."""
    return name.partition(".")[0]


def create(
    name: str, options: Mapping[str, object], *, device: str = "meta", source: str | None = None
) -> Any:  # noqa: ANN401 - timm is untyped
    """Build a model of timm with random weights.

    Args:
        name: Name of the architecture.
        options: Options of the constructor.
        device: Device of the weights.
        source: `local-dir:FOLDER`. timm then reads architecture and options from the folder instead.

    Raises:
        UnsupportedModelError: If timm lacks the architecture, or cannot build the model with these options.
    """
    import timm
    import torch

    check_known(name)
    check_options(name, options, _known_options())
    # Buffers are on the device too: a convolutional stem runs once to determine its output size.
    with building(LIBRARY, name), torch.device(device):
        return timm.create_model(source or name, pretrained=False, **plain({} if source else options))


@cache
def _known_options() -> frozenset[str]:
    """Return the constructor parameters of the supported classes, without parameters of timm's loaders."""
    from timm.models import beit, eva, vision_transformer, vision_transformer_relpos

    classes = (
        beit.Beit,
        eva.Eva,
        vision_transformer.VisionTransformer,
        vision_transformer_relpos.VisionTransformerRelPos,
    )
    return frozenset().union(*(inspect.signature(cls).parameters for cls in classes)) - {"device", "dtype"}


def initialise(architecture: Architecture, seed: int) -> dict[str, torch.Tensor]:
    """Return random weights by timm's own rules, determined by the seed."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return dict(create(architecture.name, architecture.config, device="cpu").state_dict())


def check_supported(row: TimmRow, name: str, library: Any) -> Any:  # noqa: ANN401 - timm is untyped
    """Return `library`, or raise UnsupportedModelError if heads cannot be removed."""
    if (reason := refusal(row, library)) is not None:
        raise UnsupportedModelError(f"`{name}` is not supported: {reason}", hint=SUPPORTED)
    return library


def evaluation_config(row: TimmRow, name: str, options: Mapping[str, object]) -> dict[str, object]:
    """Return all settings with effect on the outputs of trained weights.

    timm has no table of an architecture's settings, so the settings of modules are read, including defaults.
    Keys are tensor names (with shapes), module paths (with class names), and `PATH.ATTRIBUTE`.
    """
    library = create(
        name, {k: v for k, v in options.items() if k not in TRAINING_ONLY} | {**row.build_options}
    )
    settings: dict[str, object] = {name: tuple(t.shape) for name, t in library.state_dict().items()}
    for path, module in library.named_modules():
        settings[path] = type(module).__qualname__
        attributes = {k: v for k, v in vars(module).items() if not k.startswith("_") and k not in SOURCE}
        settings.update({f"{path}.{key}": _plain(value) for key, value in attributes.items()})
    return settings


def _plain(value: object) -> object:
    """Convert a module's setting to a comparable value: objects to class names, functions to names."""
    if isinstance(value, partial):
        return (_plain(value.func), _plain(value.args), _plain(value.keywords))
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return tuple(map(_plain, value))
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return getattr(value, "__qualname__", type(value).__qualname__)


def refusal(row: TimmRow, library: Any) -> str | None:  # noqa: ANN401 - timm is untyped
    """Return why heads cannot be removed from a classifier, or None."""
    reason = refusal_of_trunk(row, library)
    if reason is None and (library.global_pool == "" or library.num_classes < 1):
        return "it has no classifier; give `num_classes` and a pooling"
    return reason


def refusal_of_trunk(row: TimmRow, library: Any) -> str | None:  # noqa: ANN401 - as above
    """Return why heads cannot be removed from a model, with or without a classifier, or None."""
    from torch import nn

    name = type(library).__name__
    if name not in row.classes:
        return f"class {name}: {REASONS.get(name, row.otherwise)}"
    for block in library.blocks:
        if (name := type(block).__name__) not in row.blocks:
            return f"{name}: {REASONS.get(name, 'an unknown block')}"
        if (attention := type(block.attn).__name__) not in row.attentions:
            return f"{attention}: {REASONS.get(attention, 'an unknown attention')}"
        if not isinstance(block.attn._modules.get("norm", nn.Identity()), nn.Identity):
            return SUB_LN
    return row.refusal(library) if len(library.blocks) else "it has no blocks"


def tower_heads(library: Any) -> TowerHeads:  # noqa: ANN401 - as above
    """Return the number of layers and heads, and the head width."""
    from hydractl.families.timm.modules import head_width

    attention = library.blocks[0].attn
    return TowerHeads(
        layers=len(library.blocks), num_heads=attention.num_heads, head_dim=head_width(attention)
    )


def filtered(architecture: Architecture, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor] | None:
    """Apply timm's filter for pretrained weights to tensors. None if the filter is missing or fails."""
    library = create(architecture.name, architecture.config)
    filter_fn: Callable[..., Any] | None = vars(sys.modules[type(library).__module__]).get(
        "checkpoint_filter_fn"
    )
    if filter_fn is None:
        return None
    # timm passes this flag by model name (DeiT III).
    scaled = "adapt_layer_scale" in inspect.signature(filter_fn).parameters and any(
        map(LAYER_SCALE.search, state)
    )
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # the filter may print the names of dropped tensors
            filtered_state = filter_fn(
                dict(state), library, **({"adapt_layer_scale": True} if scaled else {})
            )
    except Exception:  # noqa: BLE001 - a filter may raise any error for unknown names
        return None
    # The filter may return tensors on the device of the model that it received.
    tensors: dict[str, torch.Tensor] = {name: tensor.contiguous() for name, tensor in filtered_state.items()}
    return None if any(tensor.is_meta for tensor in tensors.values()) else tensors


def describe(row: TimmRow, name: str, options: Mapping[str, object]) -> ModelDescription:
    """Describe an architecture, after a check on the meta device.

    Raises:
        UnsupportedModelError: If timm lacks the architecture, or heads cannot be removed.
    """
    import timm

    library = check_supported(row, name, create(name, options))
    data = timm.data.resolve_data_config(model=library)
    size = (library.in_chans, *library.patch_embed.img_size)
    if tuple(data["input_size"][1:]) != size[1:]:
        data["crop_pct"] = 1.0  # the published crop fraction belongs to the published size
    return ModelDescription(
        architecture=architecture_of(row, name, options, library), preprocess=preprocess_of(data, size)
    )


def architecture_of(
    row: TimmRow,
    name: str,
    options: Mapping[str, object],
    library: Any,  # noqa: ANN401 - as above
) -> Architecture:
    """Return the architecture of a timm model, with the options to build the model again.

    Raises:
        UnsupportedModelError: If images are smaller than a patch, or the number of classes is invalid.
    """
    embed = library.patch_embed
    if 0 in embed.grid_size:  # a convolutional stem may reduce the grid to zero although the patch fits
        check_patches(name, image=embed.img_size, patch=embed.patch_size)
    with building(LIBRARY, name):
        return Architecture(
            library=LIBRARY,
            name=name,
            family=row.name,
            config=plain(options),
            towers={TOWER: tower_heads(library)},
            num_classes=num_classes_of(library.num_classes),
        )


def preprocess_of(cfg: Mapping[str, Any], size: Sequence[int]) -> Preprocess:
    """Read the preprocessing in a timm `pretrained_cfg`, for images of `size`: channels, height and width.

    The size is the model's, because the size in `pretrained_cfg` may be older.

    Raises:
        UnsupportedModelError: If a field has an unsupported value.
    """
    named = ("mean", "std", "interpolation", "crop_pct", "crop_mode")
    fields = {k: cfg[k] for k in named if cfg.get(k) is not None}
    try:
        for key in ("mean", "std"):
            values = tuple(float(v) for v in fields[key])
            # If the number of channels differs, use the mean over channels, as timm does.
            fits = len(values) == size[0]
            fields[key] = values if fits else (sum(values) / len(values),) * size[0]
        return Preprocess.model_validate({**fields, "input_size": tuple(size)})
    except ValidationError as error:
        raise UnsupportedModelError(
            f"its preprocessing is not supported: {first_error_text(error)}"
        ) from error
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise UnsupportedModelError(f"its preprocessing has invalid mean or std: {error}") from error


DEFAULT_CLASSES = 1000
"""timm's number of classes if `config.json` has none."""
CONSTRUCTOR_FIELDS = ("input_size", "num_classes")
"""Fields of `pretrained_cfg` that timm passes to a constructor."""


def read_config(row: TimmRow, config: Mapping[str, object], folder: Path) -> ModelDescription:
    """Read a timm `config.json` like `timm.create_model("local-dir:FOLDER")` and `resolve_data_config`.

    Raises:
        UnsupportedModelError: If the file is not a timm configuration, contradicts itself, or describes an
            unsupported model.
    """
    place = f"{folder}/config.json"
    options, pretrained = _sections(config, place)
    lacks = "" if _num_classes(options, pretrained) != 0 else "has no classifier: `num_classes` is 0"
    if lacks:  # one class and the usual pooling, until a classifier is added
        options = {k: v for k, v in options.items() if (k, v) != ("global_pool", "")} | {"num_classes": 1}
        pretrained = {k: v for k, v in pretrained.items() if k != "label_names"}
    name = untagged(str(config["architecture"]))  # a tag only selects settings, which the folder has itself
    library = check_supported(row, name, _created(name, options, pretrained))
    options |= {
        "num_classes": library.num_classes,
        "in_chans": library.in_chans,
        "img_size": list(library.patch_embed.img_size),
    }
    _check_pooling(place, config, library, lacks=bool(lacks))
    preprocess = _preprocess(place, library, stated=pretrained.get("input_size") is not None)
    try:
        labels = class_names_of(_class_names(options, pretrained))
    except ValueError:  # the rules refuse such a folder, unless the classifier is replaced
        labels = ()
    return ModelDescription(
        architecture=architecture_of(row, name, options, library),
        preprocess=preprocess,
        labels=labels,
        lacks=lacks,
    )


def write_config(described: ModelDescription) -> dict[str, Mapping[str, object]] | None:
    """Return the content of a timm `config.json`, by file name, or None if an option is None.

    timm would replace None by the default. `num_classes` is not in `model_args`, because transformers'
    wrapper of timm passes it separately.
    """
    architecture, preprocess = described.architecture, cast("Preprocess", described.preprocess)
    logits = cast("int", architecture.config["num_classes"])
    arguments = {k: v for k, v in architecture.config.items() if k != "num_classes"}
    if None in arguments.values():  # timm drops null options and uses its default
        return None
    config: dict[str, object] = {
        "architecture": architecture.name,
        "num_classes": logits,
        **({"label_names": list(described.labels[-logits:])} if described.labels else {}),
        **problem_type_of(architecture),
        **({"model_args": arguments} if arguments else {}),
        "pretrained_cfg": {
            "input_size": list(preprocess.input_size),
            "fixed_input_size": True,
            "interpolation": preprocess.interpolation,
            "crop_pct": preprocess.crop_pct,
            "crop_mode": preprocess.crop_mode,
            "mean": list(preprocess.mean),
            "std": list(preprocess.std),
            "num_classes": logits,
        },
    }
    return {"config.json": config}


def _sections(config: Mapping[str, object], place: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return `model_args`, and `pretrained_cfg` merged with the fields at the top level, both without nulls.

    In an older `config.json` without `pretrained_cfg`, the whole file counts as `pretrained_cfg`.

    Args:
        config: Content of the file.
        place: Path of the file, for messages.

    Raises:
        UnsupportedModelError: If a section is not an object, or has an unknown field, or an option is null.
    """
    from timm.models import PretrainedCfg

    flat = "pretrained_cfg" not in config
    options = {} if flat else config.get("model_args") or {}
    pretrained = config if flat else config["pretrained_cfg"] or {}
    if not isinstance(options, dict) or not isinstance(pretrained, dict):
        raise UnsupportedModelError(f"{place}: `model_args` and `pretrained_cfg` must be objects")
    pretrained = {**pretrained}
    for name in ("num_classes", "label_names"):
        if name in config:
            pretrained[name] = config[name]
    if "labels" in config:  # name of `label_names` in older files
        pretrained.setdefault("label_names", config["labels"])
    if flat:
        pretrained = {
            k: v for k, v in pretrained.items() if k not in {"num_features", "labels", "problem_type"}
        }
    field_names = {field.name for field in dataclasses.fields(PretrainedCfg)}
    if unknown := sorted(pretrained.keys() - field_names):
        raise UnsupportedModelError(
            f"{place}: `{unknown[0]}` is not a field of timm's `pretrained_cfg`"
            + (", which is the whole file if it has no such key" if flat else ""),
            hint='add `"pretrained_cfg": {...}` with the preprocessing of the model' if flat else None,
        )
    if None in options.values():
        key = next(k for k, v in options.items() if v is None)
        raise UnsupportedModelError(
            f"{place}: `model_args.{key}` is null, which is not supported",
            hint="leave it out for the architecture's default",
        )
    return {**options}, {k: v for k, v in pretrained.items() if v is not None}


def _created(name: str, options: Mapping[str, object], pretrained: Mapping[str, object]) -> Any:  # noqa: ANN401 - timm is untyped
    for key in CONSTRUCTOR_FIELDS:
        check_values(name, f"pretrained_cfg.{key}", pretrained.get(key))
    # Without the row's `build_options`: the class is unknown before construction, and other classes reject
    # them.
    config = {"architecture": name, "model_args": {**options}, "pretrained_cfg": {**pretrained}}
    with tempfile.TemporaryDirectory() as place:  # timm reads such a file only from a folder
        (Path(place) / "config.json").write_text(compact(config), encoding="utf-8")
        return create(name, options, source=f"local-dir:{place}")


def _num_classes(options: Mapping[str, Any], pretrained: Mapping[str, Any]) -> object:
    return options.get("num_classes", pretrained.get("num_classes", DEFAULT_CLASSES))


def _class_names(options: Mapping[str, Any], pretrained: Mapping[str, Any]) -> tuple[str, ...]:
    """Return class names in the order of the logits. Empty if the folder has none.

    Raises:
        ValueError: If the names do not fit the classes. The message has the reason.
    """
    from timm.data import CustomDatasetInfo

    names, number = pretrained.get("label_names"), _num_classes(options, pretrained)
    if not names:
        return ()
    if isinstance(names, Sequence) and not isinstance(names, str):
        names = [str(name) for name in names]
    try:
        table = CustomDatasetInfo(names)
    except (TypeError, ValueError) as error:
        raise ValueError(f"`label_names` are not class names: {error}") from error
    if table.num_classes() != number:
        raise ValueError(f"has {table.num_classes()} label names for {number} classes")
    if absent := [i for i in range(table.num_classes()) if not table.has_label(i)]:
        raise ValueError(f"`label_names` has no name for class {absent[0]}")
    return tuple(table.index_to_label_name(i) for i in range(table.num_classes()))


def _check_pooling(place: str, config: Mapping[str, object], library: Any, *, lacks: bool) -> None:  # noqa: ANN401 - as above
    """Raise UnsupportedModelError if the pooling differs from the field at the top level, which timm ignores."""
    stated = config.get("global_pool")
    if stated and not lacks and stated != library.global_pool:
        raise UnsupportedModelError(
            f"{place}: `global_pool` is `{stated}`, but timm builds a model with "
            f"`{library.global_pool}`, because it reads `global_pool` only in `model_args`",
            hint=f'write `"model_args": {{"global_pool": "{stated}", ...}}` if the model was trained with it',
        )


def _preprocess(place: str, library: Any, *, stated: bool) -> Preprocess:  # noqa: ANN401 - as above
    """Return timm's preprocessing for the model of a folder.

    Args:
        place: Path of the file, for messages.
        library: The model.
        stated: Whether the file has the size of inputs. Without it, the size that timm built is used if the
            model does not accept timm's default.

    Raises:
        UnsupportedModelError: If the model does not accept inputs of the stated size.
    """
    import timm

    data = timm.data.resolve_data_config(model=library)
    size, built = tuple(data["input_size"]), (library.in_chans, *library.patch_embed.img_size)
    if size != built and not accepts_images(library, size):
        if stated:
            raise UnsupportedModelError(
                f"{place}: `input_size` is {size}, but timm builds a model for {built}",
                hint="correct `input_size`, or `img_size` in `model_args`",
            )
        size = built
    return preprocess_of(data, size)


def _number_problem(folder: ModelFolder) -> str | None:
    options, pretrained = _sections(folder.config, f"{folder.path}/config.json")
    number, stored = options.get("num_classes"), pretrained.get("num_classes")
    reason = f"`num_classes` is {stored}, but {number} in `model_args`"
    return None if number is None or stored is None or number == stored else reason


def _names_problem(folder: ModelFolder) -> str | None:
    options, pretrained = _sections(folder.config, f"{folder.path}/config.json")
    if _num_classes(options, pretrained) == 0:
        return None
    try:
        _class_names(options, pretrained)
    except ValueError as error:
        return str(error)
    return None


def _offset_problem(folder: ModelFolder) -> str | None:
    _, pretrained = _sections(folder.config, f"{folder.path}/config.json")
    offset = pretrained.get("label_offset")
    return (
        f"`label_offset` is {offset}: its classifier has classes that timm drops when it loads it"
        if offset
        else None
    )


RULES = (
    *COMMON_RULES,
    PROBLEM_RULE,
    Rule(
        library="timm",
        name="`architecture`, `model_args`",
        effect="passed to timm's `create_model`; unknown arguments are refused; a tag is ignored",
    ),
    Rule(
        library="timm",
        name="no `pretrained_cfg` (older form)",
        effect="the whole file counts as `pretrained_cfg`, as in timm, and `labels` as `label_names`",
    ),
    Rule(
        library="timm",
        name="`mean`, `std`, `interpolation`, `crop_pct`, `crop_mode`",
        effect=(
            "used; missing values are timm's defaults (ImageNet's mean and std, `bicubic`, 0.875, "
            "`center`), not the architecture's"
        ),
    ),
    Rule(
        library="timm",
        name="`input_size`, `fixed_input_size`",
        effect="used as in timm; refused if the model does not accept inputs of that size",
    ),
    Rule(
        library="timm",
        name="other fields of `pretrained_cfg`",
        effect=(
            "ignored, as they change no output in timm (`test_input_size`, `url`, ...); unknown fields are refused"
        ),
    ),
    Rule(
        library="timm",
        name="`global_pool` at the top level",
        effect="refused if timm builds a model with another pooling, because timm ignores it there",
    ),
    Rule(
        library="timm",
        name="`num_classes`",
        effect="a single logit is the log odds of its class; contradicting numbers are refused, and `finetune` accepts the encoder",
        problem=_number_problem,
        as_backbone=True,
    ),
    Rule(
        library="timm",
        name="`label_names`",
        effect=(
            "class names as a list or an object with all class numbers; others are refused, and "
            "repeated names give a warning"
        ),
        problem=_names_problem,
        as_backbone=True,
    ),
    Rule(
        library="timm",
        name="`label_offset`",
        effect="refused; `finetune` accepts the encoder",
        problem=_offset_problem,
        as_backbone=True,
    ),
)
"""Treatment of the fields of timm's `config.json`."""


# timm's default initialization fills even meta tensors with random numbers, which takes most of the
# construction time.
SKIP_INIT = MappingProxyType({"weight_init": "skip"})


def _odd_width(library: Any) -> str | None:  # noqa: ANN401 - timm is untyped
    """Return why the forward pass would fail although the constructor accepts the width, or None."""
    from hydractl.families.timm.modules import head_width

    attention = library.blocks[0].attn
    reason = f"its width {library.embed_dim} is not a multiple of its {attention.num_heads} heads"
    return reason if attention.num_heads * head_width(attention) != library.embed_dim else None


def _refusal_of_eva(library: Any) -> str | None:  # noqa: ANN401 - as above
    from hydractl.families.timm.modules import angles, head_width

    if library.patch_drop is not None:
        return "it drops patches and their rotary angles in training, separately for each sample"
    for attention in (block.attn for block in library.blocks):
        if getattr(attention, "num_kv_heads", attention.num_heads) != attention.num_heads:
            return "grouped-query attention: several query heads share one key and value head"
    if reason := _odd_width(library):
        return reason
    width = head_width(library.blocks[0].attn)
    if library.rope is not None and angles(library).shape[-1] != 2 * width:
        return f"its rotary embedding does not fit heads of width {width}"
    return None


def _family(row: TimmRow) -> Family:
    def matches(config: Mapping[str, object]) -> bool:
        # transformers' wrapper of timm has a `model_type`
        is_timm_config = "architecture" in config and "model_type" not in config
        return is_timm_config and row.claims(str(config["architecture"]))

    def build(
        architecture: Architecture, mask: Mapping[str, TowerKeep], state: Mapping[str, torch.Tensor] | None
    ) -> Model:
        from hydractl.families.timm.modules import wrap
        from hydractl.families.tower import cut_heads, load_tensors

        library = create(architecture.name, {**architecture.config, **row.build_options})
        check_supported(row, architecture.name, library)
        cut_heads(library, {TOWER: LAYOUT}, architecture, mask)
        load_tensors(library, state)
        model = wrap(library, mask[TOWER].keep).eval()
        model.answer.multi_label = architecture.task.by_label
        return model

    return Family(
        name=row.name,
        library=LIBRARY,
        covers=row.covers,
        refuses=row.refuses,
        towers={TOWER: LAYOUT},
        matches=matches,
        matches_encoder=matches,
        claims=row.claims,
        read_config=lambda config, folder: read_config(row, config, folder),
        write_config=write_config,
        describe=lambda name, options: describe(row, name, options),
        build=build,
        initialise=initialise,
        evaluation_config=lambda architecture: evaluation_config(row, architecture.name, architecture.config),
        # names unknown to timm's filter are reported unchanged
        adopt=(lambda _, architecture, state: filtered(architecture, state) or dict(state))
        if row.adopts
        else None,
        rules=RULES,
        on_disk=row.on_disk,
    )


VIT = TimmRow(
    name="timm-vit",
    covers="`VisionTransformer`, `VisionTransformerDistilled`: ViT, DeiT, DINOv2, SigLIP, CLIP, AIMv2, hybrids",
    refuses="talking heads; parallel blocks; differential attention; sub-LN (one norm over all heads)",
    module="",
    classes=("VisionTransformer", "VisionTransformerDistilled"),
    blocks=("Block", "ResPostBlock"),
    attentions=("Attention",),
    otherwise="not a plain vision transformer",
    build_options=SKIP_INIT,
)
ROWS = (
    TimmRow(
        name="timm-beit",
        covers="`Beit`: BEiT, BEiT v2",
        refuses="",
        module="beit",
        classes=("Beit",),
        blocks=("Block",),
        attentions=("Attention",),
        otherwise="not timm's Beit",
        refusal=_odd_width,
        adopts=True,
    ),
    TimmRow(
        name="timm-eva",
        covers="`Eva`: EVA, EVA-02, DINOv3, perception encoder, ViTs with rotary embeddings",
        refuses="sub-LN: one norm over all heads; grouped queries: heads share keys; patches dropped in training",
        module="eva",
        classes=("Eva",),
        blocks=("EvaBlock", "EvaBlockPostNorm"),
        attentions=("EvaAttention", "AttentionRope"),
        otherwise="not timm's Eva",
        refusal=_refusal_of_eva,
        adopts=True,
        on_disk=(  # names of OpenCLIP, the perception encoder and Sapiens
            (r"^visual\.(?:trunk\.)?", ""),
            (r"^transformer\.resblocks\.", "blocks."),
            (r"^ln_post\.", "norm."),
            (r"\.ffn\.", ".mlp."),
        ),
    ),
    TimmRow(
        name="timm-relpos",
        covers="`VisionTransformerRelPos`: ViTs with a table or a network of relative positions, one a layer or one for all",
        refuses="",
        module="vision_transformer_relpos",
        classes=("VisionTransformerRelPos",),
        blocks=("RelPosBlock", "ResPostRelPosBlock"),
        attentions=("RelPosAttention",),
        otherwise="not timm's VisionTransformerRelPos",
        build_options=SKIP_INIT,
    ),
    VIT,
)
TIMM_BEIT, TIMM_EVA, TIMM_RELPOS, TIMM_VIT = map(_family, ROWS)


def refusal_of_tower(library: Any) -> str | None:  # noqa: ANN401 - as above
    """Return why heads cannot be removed from a model of any class, with or without a classifier, or None."""
    row = next((row for row in ROWS if type(library).__name__ in row.classes), VIT)
    return refusal_of_trunk(row, library)
