"""timm's `VisionTransformer` and `VisionTransformerDistilled` with plain attention.

Covered by the attention module: fused qkv with or without biases, q/k norms of one head's width, elementwise output
gates. Not covered, and refused by name: anything in which a head's share is not a slice of its own.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError

from hydractl.errors import UnsupportedModelError
from hydractl.families.base import Described, Family, HeadTensor, Role, TowerLayout
from hydractl.manifest import Architecture, Option, Preprocess, TowerHeads, TowerKeep, first_problem

if TYPE_CHECKING:
    import torch

    from hydractl.families.tower import Model

NAME = "timm-vit"
LAYOUT = TowerLayout(
    block="blocks.{layer}.",
    heads=(
        HeadTensor(name="attn.qkv.weight", axis=0, copies=3, role=Role.INPUT),
        HeadTensor(name="attn.qkv.bias", axis=0, copies=3, role=Role.BIAS),
        HeadTensor(name="attn.gate.weight", axis=0, copies=1, role=Role.GATE),
        HeadTensor(name="attn.gate.bias", axis=0, copies=1, role=Role.BIAS),
        HeadTensor(name="attn.proj.weight", axis=1, copies=1, role=Role.OUTPUT),
    ),
    attention=("attn.",),
    mlp=("mlp.",),
    readout=("norm.", "fc_norm.", "attn_pool."),
    head=("head.", "head_dist."),
)
REFUSED_MODELS = {
    "VisionTransformerRelPos": "its relative position bias has a row of its own for each head",
    "Beit": "its relative position bias has a column of its own for each head",
    "Eva": "its attention class is not covered yet",
    "Cait": "its talking heads mix the heads with one another",
}
REFUSED_BLOCKS = {
    "ParallelScalingBlock": "attention and MLP share one matrix, in parallel",
    "DiffParallelScalingBlock": "attention and MLP share one matrix, and each value head has two query heads",
    "ParallelThingsBlock": "a block holds several attentions in parallel",
}
REFUSED_ATTENTIONS = {"DiffAttention": "each value head has two query and two key heads"}


def matches(config: Mapping[str, object]) -> bool:
    """Return whether a `config.json` is timm's own; transformers' wrapper around timm has a `model_type`."""
    return "architecture" in config and "model_type" not in config


def read_config(config: Mapping[str, object], where: str) -> Described:
    """Read a timm `config.json`; `model_args` may be null and may repeat `num_classes`.

    Raises:
        UnsupportedModelError: If it is not a timm configuration, or not of a supported model.
    """
    given, pretrained = config.get("model_args") or {}, config.get("pretrained_cfg") or {}
    if not isinstance(given, dict) or not isinstance(pretrained, dict):
        raise UnsupportedModelError(f"{where}: model_args and pretrained_cfg of config.json must be objects")
    options: dict[str, object] = {
        k: config[k] for k in ("num_classes", "global_pool") if config.get(k) is not None
    }
    described = describe(str(config["architecture"]), options | given)
    names = config.get("label_names")
    names = names if names is not None else pretrained.get("label_names")
    labels = (
        tuple(str(n) for n in names) if isinstance(names, Sequence) and not isinstance(names, str) else ()
    )
    if labels and len(labels) != described.architecture.num_classes:
        raise UnsupportedModelError(
            f"{where}: has {len(labels)} label names for {described.architecture.num_classes} classes"
        )
    preprocess = _preprocess(
        {**described.preprocess.model_dump(), **{k: v for k, v in pretrained.items() if v is not None}},
        described.preprocess.input_size,
    )
    return Described(architecture=described.architecture, preprocess=preprocess, labels=labels)


def describe(name: str, options: Mapping[str, object]) -> Described:
    """Build the architecture on the meta device, check that it is covered, and describe it.

    Raises:
        UnsupportedModelError: If timm has no such architecture, or heads cannot be cut in it; with the reason.
    """
    import timm

    library = _create(name, options)
    reason = refusal(library)
    if reason is not None:
        raise UnsupportedModelError(
            f"`{name}` is not supported: {reason}",
            hint="supported: timm's VisionTransformer and VisionTransformerDistilled",
        )
    attention = library.blocks[0].attn
    architecture = Architecture(
        library="timm",
        name=name,
        family=NAME,
        config=cast(
            "dict[str, Option | dict[str, Option]]", {k: _frozen(v) for k, v in sorted(options.items())}
        ),
        towers={
            "vision": TowerHeads(
                layers=len(library.blocks), num_heads=attention.num_heads, head_dim=attention.head_dim
            )
        },
        num_classes=library.num_classes,
    )
    data = timm.data.resolve_data_config(model=library)
    size = (library.in_chans, *library.patch_embed.img_size)
    if tuple(data["input_size"][1:]) != size[1:]:
        data["crop_pct"] = 1.0  # the published crop belongs to the published size
    return Described(architecture=architecture, preprocess=_preprocess(data, size))


def refusal(library: Any) -> str | None:  # noqa: ANN401 - timm is untyped
    """Return why heads cannot be cut out of a timm model, or None if they can."""
    from timm.layers import Attention
    from timm.models.deit import VisionTransformerDistilled
    from timm.models.vision_transformer import Block, ResPostBlock, VisionTransformer
    from torch import nn

    kind = type(library).__name__
    if type(library) not in {VisionTransformer, VisionTransformerDistilled}:
        return f"class {kind}: {REFUSED_MODELS.get(kind, 'not a plain vision transformer')}"
    if not len(library.blocks):
        return "it has no blocks"
    if library.global_pool == "" or library.num_classes < 1:
        return "it has no classifier; give `num_classes` and a pooling"
    for block in library.blocks:
        if type(block) not in {Block, ResPostBlock}:
            name = type(block).__name__
            return f"{name}: {REFUSED_BLOCKS.get(name, 'an unknown block')}"
        if type(block.attn) is not Attention:
            name = type(block.attn).__name__
            return f"{name}: {REFUSED_ATTENTIONS.get(name, 'an unknown attention')}"
        if not isinstance(block.attn.norm, nn.Identity):
            return (
                "sub-LN attention: a norm over all heads together, whose statistics change when a head goes"
            )
    return None


def build(
    architecture: Architecture, mask: Mapping[str, TowerKeep], state: Mapping[str, torch.Tensor] | None
) -> Model:
    """Make the model with the masked heads left out; without `state` it stays on the meta device.

    Raises:
        UnsupportedModelError: If `state` does not have exactly the tensors, with the shapes, of the model.
    """
    from hydractl.families.surgery import cut_heads, fill
    from hydractl.families.timm_vit_modules import wrap

    # timm fills even meta tensors with random numbers, for most of the time that building takes
    library = _create(architecture.name, {**architecture.config, "weight_init": "skip"})
    cut_heads(library, TIMM_VIT.towers, architecture, mask)
    fill(library, state)
    return wrap(library, mask["vision"].keep).eval()


def initialise(architecture: Architecture, seed: int) -> dict[str, torch.Tensor]:
    """Return random weights by timm's own rules, a function of the seed alone."""
    import timm
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        library = timm.create_model(architecture.name, pretrained=False, **_thawed(architecture.config))
    return dict(library.state_dict())


def _create(name: str, options: Mapping[str, object]) -> Any:  # noqa: ANN401 - timm is untyped
    import timm
    import torch

    if not timm.is_model(name):
        near = timm.list_models(f"*{name.split('_', maxsplit=1)[0]}*")
        hint = f"timm has for example: {', '.join(near[:4])}" if near else "see `timm.list_models()`"
        raise UnsupportedModelError(f"timm has no architecture `{name}`", hint=hint)
    try:
        with torch.device("meta"):  # buffers too: a convolutional stem runs to find out its size
            return timm.create_model(name, pretrained=False, **_thawed(options))
    except Exception as error:  # whatever a constructor raises, these options make no model
        reason = str(error) or type(error).__name__
        raise UnsupportedModelError(f"timm cannot build `{name}` with {dict(options)}: {reason}") from error


def _frozen(value: object) -> object:
    return tuple(_frozen(v) for v in value) if isinstance(value, list | tuple) else copy.deepcopy(value)


def _thawed(options: Mapping[str, object]) -> dict[str, Any]:
    return {k: list(v) if isinstance(v, tuple) else v for k, v in options.items()}


def _preprocess(cfg: Mapping[str, Any], size: Sequence[int]) -> Preprocess:
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
        raise UnsupportedModelError(f"its preprocessing has no usable mean and std: {error}") from error


TIMM_VIT = Family(
    name=NAME,
    library="timm",
    towers={"vision": LAYOUT},
    matches=matches,
    read_config=read_config,
    describe=describe,
    build=build,
    initialise=initialise,
)
