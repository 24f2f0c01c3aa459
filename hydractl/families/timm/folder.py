"""Folders in timm's layout: `config.json` is read by timm's own call, held against rules, and written."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from hydractl.errors import UnsupportedModelError
from hydractl.families.base import Described
from hydractl.families.config_checks import check_values
from hydractl.families.model_folder import (
    COMMON_RULES,
    PROBLEM_RULE,
    ModelFolder,
    Rule,
    class_names_of,
    problem_type_of,
)
from hydractl.families.timm import models
from hydractl.manifest.header import Preprocess
from hydractl.strict_json import compact

DEFAULT_CLASSES = 1000
"""timm's number of classes if `config.json` has none."""
TO_THE_MODEL = ("input_size", "num_classes")
"""Fields of `pretrained_cfg` that timm passes to a constructor."""


def read_config(row: models.TimmRow, config: Mapping[str, object], folder: Path) -> Described:
    """Read a timm `config.json` as `timm.create_model("local-dir:FOLDER")` and `resolve_data_config` do.

    Raises:
        UnsupportedModelError: If it is not a timm configuration, or not of a supported model, or contradicts itself.
    """
    where = f"{folder}/config.json"
    options, pretrained = _sections(config, where)
    lacks = "" if _num_classes(options, pretrained) != 0 else "has no classifier: `num_classes` is 0"
    if lacks:  # one class and the usual pooling stand in for those of a classifier to come
        options = {k: v for k, v in options.items() if (k, v) != ("global_pool", "")} | {"num_classes": 1}
        pretrained = {k: v for k, v in pretrained.items() if k != "label_names"}
    name = models.untagged(str(config["architecture"]))  # a tag names settings, which the folder itself has
    library = _created(name, options, pretrained)
    models.check_covered(row, name, library)
    options |= {
        "num_classes": library.num_classes,
        "in_chans": library.in_chans,
        "img_size": list(library.patch_embed.img_size),
    }
    _check_pooling(where, config, library, lacks=bool(lacks))
    preprocess = _preprocess(where, library, stated=pretrained.get("input_size") is not None)
    try:
        labels = class_names_of(_class_names(options, pretrained))
    except ValueError:  # which the rules refuse, unless the classifier is replaced
        labels = ()
    return Described(
        architecture=models.architecture_of(row, name, options, library),
        preprocess=preprocess,
        labels=labels,
        lacks=lacks,
    )


def write_config(described: Described) -> dict[str, Mapping[str, object]] | None:
    """Return a timm `config.json`; `num_classes` is no part of `model_args`, which transformers' wrapper gives it itself."""
    architecture, how = described.architecture, cast("Preprocess", described.preprocess)
    logits = cast("int", architecture.config["num_classes"])
    arguments = {k: v for k, v in architecture.config.items() if k != "num_classes"}
    if None in arguments.values():  # timm drops those, and has its default instead
        return None
    config: dict[str, object] = {
        "architecture": architecture.name,
        "num_classes": logits,
        **({"label_names": list(described.labels[-logits:])} if described.labels else {}),
        **problem_type_of(architecture),
        **({"model_args": arguments} if arguments else {}),
        "pretrained_cfg": {
            "input_size": list(how.input_size),
            "fixed_input_size": True,
            "interpolation": how.interpolation,
            "crop_pct": how.crop_pct,
            "crop_mode": how.crop_mode,
            "mean": list(how.mean),
            "std": list(how.std),
            "num_classes": logits,
        },
    }
    return {"config.json": config}


def _sections(config: Mapping[str, object], where: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return `model_args`, and `pretrained_cfg` with what the top level says in its place, without nulls.

    An older `config.json` has no `pretrained_cfg`: all of it is one.

    Raises:
        UnsupportedModelError: If one is no object, or has a field that timm does not know or that cannot be written down.
    """
    from timm.models import PretrainedCfg

    flat = "pretrained_cfg" not in config
    options = {} if flat else config.get("model_args") or {}
    pretrained = config if flat else config["pretrained_cfg"] or {}
    if not isinstance(options, dict) or not isinstance(pretrained, dict):
        raise UnsupportedModelError(f"{where}: `model_args` and `pretrained_cfg` must be objects")
    pretrained = {**pretrained}
    for name in ("num_classes", "label_names"):
        if name in config:
            pretrained[name] = config[name]
    if "labels" in config:  # the name of `label_names` in older files
        pretrained.setdefault("label_names", config["labels"])
    if flat:
        pretrained = {
            k: v for k, v in pretrained.items() if k not in {"num_features", "labels", "problem_type"}
        }
    field_names = {field.name for field in dataclasses.fields(PretrainedCfg)}
    if unknown := sorted(pretrained.keys() - field_names):
        raise UnsupportedModelError(
            f"{where}: `{unknown[0]}` is not a field of timm's `pretrained_cfg`"
            + (", which is the whole file if it has no such key" if flat else ""),
            hint='add `"pretrained_cfg": {...}` with the preprocessing of the model' if flat else None,
        )
    if None in options.values():
        key = next(k for k, v in options.items() if v is None)
        raise UnsupportedModelError(
            f"{where}: `model_args.{key}` is null, which is not supported",
            hint="leave it out for the architecture's default",
        )
    return {**options}, {k: v for k, v in pretrained.items() if v is not None}


def _created(name: str, options: Mapping[str, object], pretrained: Mapping[str, object]) -> Any:  # noqa: ANN401 - timm is untyped
    """Return the model that timm makes of a folder, on the meta device."""
    for key in TO_THE_MODEL:
        check_values(name, f"pretrained_cfg.{key}", pretrained.get(key))
    # without the row's `build_options`: the class is not known before the model is there, and others do not take them
    config = {"architecture": name, "model_args": {**options}, "pretrained_cfg": {**pretrained}}
    with tempfile.TemporaryDirectory() as place:  # timm reads such a file from a folder alone
        (Path(place) / "config.json").write_text(compact(config), encoding="utf-8")
        return models.create(name, options, source=f"local-dir:{place}")


def _num_classes(options: Mapping[str, Any], pretrained: Mapping[str, Any]) -> object:
    return options.get("num_classes", pretrained.get("num_classes", DEFAULT_CLASSES))


def _class_names(options: Mapping[str, Any], pretrained: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the classes in the order of the logits; none where the folder has none.

    Raises:
        ValueError: If they do not fit the classes, with the reason.
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


def _check_pooling(where: str, config: Mapping[str, object], library: Any, *, lacks: bool) -> None:  # noqa: ANN401 - as above
    """Refuse a pooling at the top level, which timm does not read, if the model has another."""
    stated = config.get("global_pool")
    if stated and not lacks and stated != library.global_pool:
        raise UnsupportedModelError(
            f"{where}: `global_pool` is `{stated}`, but timm builds a model with "
            f"`{library.global_pool}`, because it reads `global_pool` only in `model_args`",
            hint=f'write `"model_args": {{"global_pool": "{stated}", ...}}` if the model was trained with it',
        )


def _preprocess(where: str, library: Any, *, stated: bool) -> Preprocess:  # noqa: ANN401 - as above
    """Return how timm makes an input for a model of a folder.

    Args:
        where: The file, for messages.
        library: The model.
        stated: Whether the file says the size of inputs; if not, the size of a model that takes no other is taken.

    Raises:
        UnsupportedModelError: If the model does not take inputs of the stated size.
    """
    import timm

    data = timm.data.resolve_data_config(model=library)
    size, built = tuple(data["input_size"]), (library.in_chans, *library.patch_embed.img_size)
    if size != built and not _accepts_images(library, size):
        if stated:
            raise UnsupportedModelError(
                f"{where}: `input_size` is {size}, but timm builds a model for {built}",
                hint="correct `input_size`, or `img_size` in `model_args`",
            )
        size = built
    return models.preprocess_of(data, size)


def _accepts_images(library: Any, size: Sequence[int]) -> bool:  # noqa: ANN401 - as above
    import torch

    try:
        with torch.inference_mode():
            library(torch.zeros(1, *size, device="meta"))
    except (AssertionError, IndexError, RuntimeError, ValueError):  # classes differ in what they raise
        return False
    return True


def _number_problem(folder: ModelFolder) -> str | None:
    options, pretrained = _sections(folder.config, f"{folder.path}/config.json")
    number, stored = options.get("num_classes"), pretrained.get("num_classes")
    if number is None or stored is None or number == stored:
        return None
    return f"`num_classes` is {stored}, but {number} in `model_args`"


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
