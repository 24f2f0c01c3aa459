"""What all families of timm have in common: configurations, preprocessing, refusals, building, random weights.

A family of this library is a row that states which architectures are its own and what it refuses.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from hydractl.errors import UnsupportedModelError
from hydractl.families.base import Described, TowerLayout
from hydractl.families.config_checks import building, check_options, check_patches
from hydractl.families.head_tensors import HeadTensor, TensorRole, projections_apart
from hydractl.families.model_folder import num_classes_of
from hydractl.manifest.document import first_problem
from hydractl.manifest.head_mask import TowerHeads
from hydractl.manifest.header import Architecture, Preprocess
from hydractl.messages import did_you_mean
from hydractl.strict_json import plain

if TYPE_CHECKING:
    import torch


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
"""Why heads cannot be cut where a class of timm's is found."""
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
"""Options that change no answer of trained weights, each with a value that it may have.

Whether `init_values` is None does change it; then tensors are other ones, too.
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
"""All of timm's models have the same names, and each has some of these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimmRow:
    """The models of timm that one family reads.

    Attributes:
        name: The family's.
        covers: See `Family`.
        refuses: See `Family`.
        module: The module of `timm.models` whose architectures are its own; empty for all that no other family has.
        classes: The models' classes, of any module.
        blocks: Their blocks' classes.
        attentions: Their attentions' classes.
        otherwise: What a model of another class is not.
        refusal: Why else heads cannot be cut out of a model of these classes, or None if they can.
        build_options: Options that change nothing but how long building takes.
        adopts: Whether a folder may have the names of those who trained the model, which timm's own filter translates.
        on_disk: See `Family.on_disk`.
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
        """Return whether an architecture is of this family."""
        if not self.module:
            return True
        from timm.models import is_model, is_model_in_modules

        return bool(is_model(name) and is_model_in_modules(name, self.module))


def check_known(name: str, others: Iterable[str] = ()) -> None:
    """Refuse a name that is none of timm's.

    Args:
        name: Of an architecture.
        others: Names that may have been meant, of other libraries' architectures.

    Raises:
        UnsupportedModelError: With the nearest name.
    """
    import timm

    if not timm.is_model(name):
        hint = did_you_mean(name, {*timm.list_models(), *others}) or "see `timm.list_models()`"
        raise UnsupportedModelError(f"timm has no architecture `{name}`", hint=hint)


def untagged(name: str) -> str:
    """Return an architecture's name without timm's tag of pretrained weights, which is no part of the architecture."""
    return name.partition(".")[0]


def create(
    name: str, options: Mapping[str, object], *, device: str = "meta", source: str | None = None
) -> Any:  # noqa: ANN401 - timm is untyped
    """Return timm's model, on a device where its weights cost nothing if none is said.

    Args:
        name: Of its architecture.
        options: For its constructor.
        device: Where its weights are.
        source: Where timm reads the architecture and its options, in place of both: `local-dir:FOLDER`.

    Raises:
        UnsupportedModelError: If timm has no such architecture, or cannot build it with these options.
    """
    import timm
    import torch

    check_known(name)
    check_options(name, options, _known_options())
    with (
        building(LIBRARY, name),
        torch.device(device),
    ):  # buffers too: a convolutional stem runs to find out its size
        return timm.create_model(source or name, pretrained=False, **plain({} if source else options))


@cache
def _known_options() -> frozenset[str]:
    """Return what the constructors of the covered classes take, of which those of timm's that load and wrap models are none."""
    from timm.models import beit, eva, vision_transformer, vision_transformer_relpos

    classes = (
        beit.Beit,
        eva.Eva,
        vision_transformer.VisionTransformer,
        vision_transformer_relpos.VisionTransformerRelPos,
    )
    return frozenset().union(*(inspect.signature(cls).parameters for cls in classes)) - {"device", "dtype"}


def initialise(architecture: Architecture, seed: int) -> dict[str, torch.Tensor]:
    """Return random weights by timm's own rules, a function of the seed alone."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return dict(create(architecture.name, architecture.config, device="cpu").state_dict())


def covered(row: TimmRow, name: str, options: Mapping[str, object]) -> Any:  # noqa: ANN401 - timm is untyped
    """Return timm's model on the meta device, one that heads can be cut in; see `create` and `check_covered`."""
    library = create(name, options)
    check_covered(row, name, library)
    return library


def check_covered(row: TimmRow, name: str, library: Any) -> None:  # noqa: ANN401 - timm is untyped
    """Refuse a model that heads cannot be cut in.

    Raises:
        UnsupportedModelError: With the reason.
    """
    reason = refusal(row, library)
    if reason is not None:
        raise UnsupportedModelError(f"`{name}` is not supported: {reason}", hint=SUPPORTED)


def evaluation_config(row: TimmRow, name: str, options: Mapping[str, object]) -> dict[str, object]:
    """Return the settings of every module that options make, by path, which answers of trained weights depend on.

    timm has no table of the values that an architecture sets; modules hold them, defaults and all.
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
    """Return a module's setting in a form that can be compared: objects by their class, functions by name."""
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
    """Return why heads cannot be cut out of a classifier, or None if they can."""
    reason = refusal_of_trunk(row, library)
    if reason is None and (library.global_pool == "" or library.num_classes < 1):
        return "it has no classifier; give `num_classes` and a pooling"
    return reason


def refusal_of_trunk(row: TimmRow, library: Any) -> str | None:  # noqa: ANN401 - as above
    """Return why heads cannot be cut out of a model, whatever it answers with, or None if they can."""
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
    """Return how many heads there are, and how wide."""
    from hydractl.families.timm.modules import head_width

    attention = library.blocks[0].attn
    return TowerHeads(
        layers=len(library.blocks), num_heads=attention.num_heads, head_dim=head_width(attention)
    )


def filtered(architecture: Architecture, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor] | None:
    """Return what timm's filter for pretrained weights of the model's module makes of tensors, None where it fails."""
    library = create(architecture.name, architecture.config)
    filter_fn: Callable[..., Any] | None = vars(sys.modules[type(library).__module__]).get(
        "checkpoint_filter_fn"
    )
    if filter_fn is None:
        return None
    # a flag of the filter that timm itself gives by model name
    scaled = "adapt_layer_scale" in inspect.signature(filter_fn).parameters and any(
        map(LAYER_SCALE.search, state)
    )
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # it may print what it leaves out
            filtered_state = filter_fn(
                dict(state), library, **({"adapt_layer_scale": True} if scaled else {})
            )
    except Exception:  # noqa: BLE001 - a filter takes what it knows for granted; other names trip it anywhere
        return None
    # a tensor that it computes may come out on the device of the model that it was computed for
    tensors: dict[str, torch.Tensor] = {name: tensor.contiguous() for name, tensor in filtered_state.items()}
    return None if any(tensor.is_meta for tensor in tensors.values()) else tensors


def describe(row: TimmRow, name: str, options: Mapping[str, object]) -> Described:
    """Build the architecture on the meta device, check that it is covered, and describe it.

    Raises:
        UnsupportedModelError: If timm has no such architecture, or heads cannot be cut in it; with the reason.
    """
    import timm

    library = covered(row, name, options)
    data = timm.data.resolve_data_config(model=library)
    size = (library.in_chans, *library.patch_embed.img_size)
    if tuple(data["input_size"][1:]) != size[1:]:
        data["crop_pct"] = 1.0  # the published crop belongs to the published size
    return Described(
        architecture=architecture_of(row, name, options, library), preprocess=preprocess_of(data, size)
    )


def architecture_of(
    row: TimmRow,
    name: str,
    options: Mapping[str, object],
    library: Any,  # noqa: ANN401 - as above
) -> Architecture:
    """Return the architecture of timm's model, which these options make again.

    Raises:
        UnsupportedModelError: If its images hold no patch, or it has no such number of classes.
    """
    embed = library.patch_embed
    if 0 in embed.grid_size:  # which a stem of convolutions makes smaller than the sizes alone do
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
    """Read the fields of a timm `pretrained_cfg` that say how an image becomes an input of `size`.

    The size itself is the model's: what a `pretrained_cfg` says of it may be older.

    Raises:
        UnsupportedModelError: If a field has a value that no preprocessing of ours has.
    """
    named = ("mean", "std", "interpolation", "crop_pct", "crop_mode")
    fields = {k: cfg[k] for k in named if cfg.get(k) is not None}
    try:
        for key in ("mean", "std"):
            values = tuple(float(v) for v in fields[key])
            # one number for a model of other channels than its statistics, as timm does
            fits = len(values) == size[0]
            fields[key] = values if fits else (sum(values) / len(values),) * size[0]
        return Preprocess.model_validate({**fields, "input_size": tuple(size)})
    except ValidationError as error:
        raise UnsupportedModelError(f"its preprocessing is not supported: {first_problem(error)}") from error
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise UnsupportedModelError(f"its preprocessing has invalid mean or std: {error}") from error
