"""What all families of timm have in common: configurations, preprocessing, building, random weights.

A family of this library states which architectures are its own, where heads lie, what it refuses, and how a model is
taken apart.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError

from hydractl.errors import UnsupportedModelError
from hydractl.families.base import Described, Family
from hydractl.families.options import check_known
from hydractl.manifest import Architecture, Preprocess, TowerHeads, first_problem

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import torch

    from hydractl.families.base import TowerLayout
    from hydractl.families.tower import Model
    from hydractl.manifest import TowerKeep

    Kept = Sequence[tuple[int, ...]]

LIBRARY = "timm"
TOWER = "vision"
SUPPORTED = "supported: timm's VisionTransformer, VisionTransformerDistilled and Eva"
SUB_LN = "sub-LN attention: a norm over all heads together, whose statistics change when a head goes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """The models of timm that one family reads.

    Attributes:
        name: The family's.
        covers: See `Family`.
        refuses: See `Family`.
        layout: Where heads and MLPs lie.
        claims: Whether an architecture name is of this family.
        refusal: Why heads cannot be cut out of a library model, or None if they can.
        wrap: Make the model out of the library's modules, given each layer's kept heads.
        build_options: Options that change nothing but how long building takes.
        adopt: See `Family.adopt`.
        on_disk: See `Family.on_disk`.
    """

    name: str
    covers: str
    refuses: str
    layout: TowerLayout
    claims: Callable[[str], bool]
    refusal: Callable[[Any], str | None]
    wrap: Callable[[Any, Kept], Model]
    build_options: Mapping[str, object] = field(default_factory=dict)
    adopt: Callable[[Path, Architecture], dict[str, torch.Tensor]] | None = None
    on_disk: tuple[tuple[str, str], ...] = ()


def family_of_kind(kind: Kind) -> Family:
    """Return the family."""

    def describe(name: str, options: Mapping[str, object]) -> Described:
        return _describe(kind, name, options)

    def build(
        architecture: Architecture, mask: Mapping[str, TowerKeep], state: Mapping[str, torch.Tensor] | None
    ) -> Model:
        from hydractl.families.dismantling import cut_heads, fill

        library = create(architecture.name, {**architecture.config, **kind.build_options})
        cut_heads(library, {TOWER: kind.layout}, architecture, mask)
        fill(library, state)
        return kind.wrap(library, mask[TOWER].keep).eval()

    return Family(
        name=kind.name,
        library=LIBRARY,
        covers=kind.covers,
        refuses=kind.refuses,
        towers={TOWER: kind.layout},
        matches=lambda config: is_own_config(config) and kind.claims(str(config["architecture"])),
        claims=kind.claims,
        read_config=lambda config, folder: _read_config(kind, config, folder),
        describe=describe,
        build=build,
        initialise=initialise,
        adopt=kind.adopt,
        on_disk=kind.on_disk,
    )


def is_own_config(config: Mapping[str, object]) -> bool:
    """Return whether a `config.json` is timm's own; transformers' wrapper around timm has a `model_type`."""
    return "architecture" in config and "model_type" not in config


def create(name: str, options: Mapping[str, object]) -> Any:  # noqa: ANN401 - timm is untyped
    """Return timm's model on the meta device.

    Raises:
        UnsupportedModelError: If timm has no such architecture, or cannot build it with these options.
    """
    import timm
    import torch

    if not timm.is_model(name):
        near = timm.list_models(f"*{name.split('_', maxsplit=1)[0]}*")
        hint = f"timm has for example: {', '.join(near[:4])}" if near else "see `timm.list_models()`"
        raise UnsupportedModelError(f"timm has no architecture `{name}`", hint=hint)
    try:
        with torch.device("meta"):  # buffers too: a convolutional stem runs to find out its size
            return timm.create_model(name, pretrained=False, **plain(options))
    except Exception as error:  # whatever a constructor raises, these options make no model
        check_known(name, error, [timm.models])
        reason = str(error) or type(error).__name__
        raise UnsupportedModelError(f"timm cannot build `{name}` with {dict(options)}: {reason}") from error


def initialise(architecture: Architecture, seed: int) -> dict[str, torch.Tensor]:
    """Return random weights by timm's own rules, a function of the seed alone."""
    import timm
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        library = timm.create_model(architecture.name, pretrained=False, **plain(architecture.config))
    return dict(library.state_dict())


def plain(options: Mapping[str, object]) -> dict[str, Any]:
    """Return options of their own, as JSON has them."""
    copied: dict[str, Any] = json.loads(json.dumps(dict(options), sort_keys=True))
    return copied


def no_classifier(library: Any) -> str | None:  # noqa: ANN401 - timm is untyped
    """Return why a model of the right class has nothing to prune or to answer with, or None."""
    if not len(library.blocks):
        return "it has no blocks"
    if library.global_pool == "" or library.num_classes < 1:
        return "it has no classifier; give `num_classes` and a pooling"
    return None


def _describe(kind: Kind, name: str, options: Mapping[str, object]) -> Described:
    """Build the architecture on the meta device, check that it is covered, and describe it.

    Raises:
        UnsupportedModelError: If timm has no such architecture, or heads cannot be cut in it; with the reason.
    """
    import timm

    library = create(name, options)
    reason = kind.refusal(library)
    if reason is not None:
        raise UnsupportedModelError(f"`{name}` is not supported: {reason}", hint=SUPPORTED)
    attention = library.blocks[0].attn
    architecture = Architecture(
        library=LIBRARY,
        name=name,
        family=kind.name,
        config=plain(options),
        towers={
            TOWER: TowerHeads(
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


def _read_config(kind: Kind, config: Mapping[str, object], folder: Path) -> Described:
    """Read a timm `config.json`; `model_args` may be null and may repeat `num_classes`.

    Raises:
        UnsupportedModelError: If it is not a timm configuration, or not of a supported model.
    """
    where = str(folder)
    given, pretrained = config.get("model_args") or {}, config.get("pretrained_cfg") or {}
    if not isinstance(given, dict) or not isinstance(pretrained, dict):
        raise UnsupportedModelError(f"{where}: model_args and pretrained_cfg of config.json must be objects")
    options: dict[str, object] = {
        k: config[k] for k in ("num_classes", "global_pool") if config.get(k) is not None
    }
    described = _describe(kind, str(config["architecture"]), options | given)
    names = config.get("label_names")
    names = names if names is not None else pretrained.get("label_names")
    labels = (
        tuple(str(n) for n in names) if isinstance(names, Sequence) and not isinstance(names, str) else ()
    )
    if labels and len(labels) != described.architecture.num_classes:
        raise UnsupportedModelError(
            f"{where}: has {len(labels)} label names for {described.architecture.num_classes} classes"
        )
    default = cast("Preprocess", described.preprocess)
    preprocess = _preprocess(
        {**default.model_dump(), **{k: v for k, v in pretrained.items() if v is not None}},
        default.input_size,
    )
    return Described(architecture=described.architecture, preprocess=preprocess, labels=labels)


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
