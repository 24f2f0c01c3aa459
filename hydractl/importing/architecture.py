"""The architecture of imported weights: typed with `--arch`, or saved by the training script."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import ValidationError

from hydractl import progress
from hydractl.errors import CheckpointError, HydraError, UnsupportedModelError, UsageError
from hydractl.families.base import ModelDescription, with_pooling
from hydractl.families.open_model import CLASSES, resized
from hydractl.families.registry import (
    FAMILIES,
    ambiguity_hint,
    architecture_called,
    describe_architecture,
    describe_folder,
    describe_weights,
    family_for_name,
)
from hydractl.families.timm.models import untagged
from hydractl.importing.weights import Metadata
from hydractl.manifest.document import first_error_text
from hydractl.manifest.header import Header, Preprocess, Tokenization
from hydractl.manifest.terms import DEFAULT_POOLING
from hydractl.messages import quoted
from hydractl.model_source import arch_folder, folder_config, parse_arch
from hydractl.prediction.open_inputs import check_image_size, override_preprocessing

SQUARES = {"img_size", "patch_size", "image_size"}
"""Options in which a single number is both height and width."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """Architecture of a weight file, with options from the command line and from the file.

    Attributes:
        reference: `--arch` of the user, or the saved name.
        folder: Folder that defines the architecture; None if the architecture has a name.
        name: Name of the architecture; empty for a folder.
        options: Options of the named architecture.
        images: Fields of a `Preprocess` that the file states.
        from_file: Values of the file for options that the user did not type, in text form.
    """

    reference: str
    folder: Path | None = None
    name: str = ""
    options: Mapping[str, object] = field(default_factory=dict)
    images: Mapping[str, object] = field(default_factory=dict)
    from_file: tuple[str, ...] = ()


def resolve(
    arch: str | None,
    metadata: Metadata,
    *,
    place: str,
    image_options: Mapping[str, object],
    sets_classes: bool,
) -> Resolved:
    """Combine typed options with options saved in the file. For a folder, saved options are ignored.

    Args:
        arch: `NAME[::K=V,...]` or a folder; None for the saved architecture.
        metadata: Options saved by the training script.
        place: Name of the file in messages.
        image_options: Typed image options by name, for example `mean`.
        sets_classes: Whether the user typed the number or names of the classes.

    Raises:
        UsageError: If typed and saved options contradict each other.
        CheckpointError: If neither `arch` nor the file names a known architecture.
        UnsupportedModelError: If heads of the architecture cannot be pruned.
    """
    if arch is not None and (folder := arch_folder(arch)) is not None:
        return Resolved(reference=arch, folder=folder)
    typed_name, arch_options = ("", {}) if arch is None else parse_arch(arch)
    name = _name(typed_name, metadata, place=place)
    library = family_for_name(name).library
    sizes, saved = dict(metadata.sizes.get(library, {})), metadata.options.get(library, {})
    images = dict(metadata.images)
    if saved.get("dynamic_img_size") and (side := sizes.pop("img_size", None)) is not None:
        images["input_size"] = side
    for key, value in arch_options.items():
        if key in saved and _form(key, value) != _form(key, saved[key]):
            raise _contradiction(
                place, f"--arch {name}::{key}={_as_text(value)}", f"{key}={_as_text(saved[key])}"
            )
    options = {**sizes, **saved, **arch_options}
    if metadata.complete and arch_options.keys() - (sizes.keys() | saved.keys()):
        _check_heads(f"--arch {arch}", name, {**sizes, **saved}, options, place=place)
    if metadata.num_classes and not sets_classes and library in metadata.sizes:
        options.setdefault(CLASSES[library], metadata.num_classes)
    for key in ("mean", "std"):
        if key in image_options and key in images:
            _check_statistics(key, image_options[key], images[key], place=place)
    options = {k: v for k, v in options.items() if v is not None}
    from_file = [] if typed_name else [name]
    from_file += [f"{k}={_as_text(v)}" for k, v in {**options, **images}.items() if k not in arch_options]
    return Resolved(
        reference=arch or name, name=name, options=options, images=images, from_file=tuple(from_file)
    )


def _name(typed_name: str, metadata: Metadata, *, place: str) -> str:
    names = [name for text in metadata.arch if (name := architecture_called(text)) is not None]
    if typed_name:
        if names and not {typed_name, untagged(typed_name)} & {*names, *map(untagged, names)}:
            raise _contradiction(place, f"--arch {typed_name}", names[0])
        return typed_name
    if names:
        return names[0]
    beside = Path(place).parent
    hint = "add `--arch NAME`, for example `--arch vit_small_patch16_224::num_classes=7`"
    if (beside / "config.json").is_file():
        hint = f"its folder does: add `--arch {shlex.quote(str(beside))}`"
    called = f"; {quoted(metadata.arch, most=3)} is not a known architecture" if metadata.arch else ""
    raise CheckpointError(f"{place}: does not name its architecture{called}", hint=hint)


def _form(key: str, value: object) -> object:
    """Return a value in a comparable form: lists for tuples, [side, side] for the side of a square."""
    if isinstance(value, tuple):
        value = list(value)
    return [value, value] if key in SQUARES and isinstance(value, int) else value


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str, separators=(",", ":"))


def _contradiction(place: str, arch_options: str, file_text: str) -> UsageError:
    return UsageError(
        f"`{arch_options}`: the training script saved `{file_text}` in {place}",
        hint="leave the option out to use the saved value; if that is wrong, save only the state dict",
    )


def _check_heads(
    arch_options: str,
    name: str,
    saved: Mapping[str, object],
    options: Mapping[str, object],
    *,
    place: str,
) -> None:
    """Raise if typed options change the heads of an architecture for which the file states all options."""
    try:
        theirs = describe_architecture(name, saved).architecture.towers
        ours = describe_architecture(name, options).architecture.towers
    except HydraError:  # `describe` reports architectures that cannot be built.
        return
    if theirs != ours:
        heads = ", ".join(f"{tower.num_heads} heads of {tower.head_dim}" for tower in theirs.values())
        raise _contradiction(place, arch_options, heads)


def _check_statistics(key: str, statistics_given: object, saved: object, *, place: str) -> None:
    """Raise if a typed mean or standard deviation differs from the saved one.

    A single number applies to all channels.
    """
    numbers, saved_numbers = ([*x] if isinstance(x, list | tuple) else [x] for x in (statistics_given, saved))
    same_length = len(numbers) == len(saved_numbers)
    if {*numbers} != {*saved_numbers} or (same_length and numbers != saved_numbers):
        typed_text = ",".join(f"{x:g}" for x in numbers)
        raise _contradiction(place, f"--{key} {typed_text}", f"{key}={_as_text(saved)}")


def describe(
    resolved: Resolved,
    *,
    num_classes: int | None = None,
    label_count: int | None = None,
    tokenizer: Path | None = None,
    pooling: str | None = None,
) -> ModelDescription:
    """Describe the architecture.

    Args:
        resolved: Folder, or name and options.
        num_classes: Typed number of classes.
        label_count: Number of typed class names, used if nothing else states the number of classes.
        tokenizer: Tokenizer of a text model.
        pooling: Typed pooling of a text classifier; None for the pooling of the folder.

    Raises:
        UsageError: If an option does not apply, or contradicts another option.
        CheckpointError: If a folder is malformed, or has no classifier and no number of classes is given.
        UnsupportedModelError: If heads of the architecture cannot be pruned.
    """
    if resolved.folder is None:
        described = _of_name(resolved, num_classes, label_count, tokenizer)
    else:
        try:
            described = _of_folder(resolved.folder, num_classes or label_count)
        except (CheckpointError, UnsupportedModelError) as error:
            error.hint = "; ".join(filter(None, (error.hint, ambiguity_hint(resolved.reference)))) or None
            raise
    architecture, pooling = described.architecture, pooling or described.pools
    if pooling is None:
        return described
    if pooling != DEFAULT_POOLING and (
        described.prompting is not None or not isinstance(described.preprocess, Tokenization)
    ):
        raise UsageError(
            f"`--pooling {pooling}` is for texts, which `{architecture.name}` does not read",
            hint="leave it out",
        )
    if pooling != DEFAULT_POOLING and architecture.task.by_word:
        raise UsageError(
            f"`--pooling {pooling}`: `{architecture.name}` gives each word a class, so its classifier pools nothing",
            hint="leave it out",
        )
    return replace(described, architecture=with_pooling(architecture, pooling))


def _of_name(
    resolved: Resolved, num_classes: int | None, label_count: int | None, tokenizer: Path | None
) -> ModelDescription:
    name, options = resolved.name, dict(resolved.options)
    key = CLASSES[family_for_name(name).library]
    if num_classes is not None and options.get(key, num_classes) != num_classes:
        raise UsageError(f"`--num-classes {num_classes}` and `{key}={options[key]}` of `--arch` differ")
    if number := num_classes or label_count:
        options.setdefault(key, number)
    described = describe_weights(name, options)
    if described.prompting is not None and number:
        raise UsageError(
            f"`{name}` has no classifier: it compares images with class names",
            hint="leave out `--num-classes` and `--labels`",
        )
    if tokenizer is None:
        return described
    if not isinstance(described.preprocess, Tokenization) and described.prompting is None:
        raise UsageError(f"`--tokenizer` is for texts, which `{name}` does not read")
    return describe_weights(name, options | {"tokenizer": str(tokenizer)})


def _of_folder(folder: Path, num_classes: int | None) -> ModelDescription:
    described = describe_folder(folder, folder_config(folder), {}, backbone=num_classes is not None)
    if described.lacks and num_classes is None:
        raise CheckpointError(
            f"{folder}: {described.lacks}",
            hint="add `--num-classes N` or `--labels a,b,c` for a random classifier",
        )
    architecture = described.architecture
    if num_classes in {None, architecture.num_classes} or described.prompting is not None:
        return described
    library = FAMILIES[architecture.family].library
    return replace(described, architecture=resized(architecture, num_classes, library), labels=())


def with_preprocessing(
    header: Header, resolved: Resolved, image_options: Mapping[str, object], *, place: str
) -> Header:
    """Set the image preprocessing stated by the file or the user, and warn if the rest is assumed.

    Args:
        header: Header of the base.
        resolved: Architecture of the base, with the preprocessing of the file.
        image_options: Typed image options by name.
        place: Name of the file in messages.

    Raises:
        CheckpointError: If the file's preprocessing is not supported.
        UsageError: If a typed option does not fit the model.
    """
    header = _with_saved_images(header, resolved.images, place=place)
    if resolved.folder is None:
        stated = resolved.images.keys() | image_options.keys()
        missing = [name for name in ("crop_pct", "interpolation", "mean", "std") if name not in stated]
        if not missing or not isinstance(header.preprocess, Preprocess):
            header = header.model_copy(update={"assumed": False})
        else:
            values = header.preprocess.model_dump(mode="json")
            progress.warn(
                f"{place}: does not say how images are read; assumed: "
                f"{', '.join(f'{name}={_as_text(values[name])}' for name in missing)} (`--mean` and `--std` set these)"
            )
    header = override_preprocessing(header, image_options, place=resolved.reference)
    check_image_size(header, place=resolved.reference)
    return header


def _with_saved_images(header: Header, images: Mapping[str, object], *, place: str) -> Header:
    how = header.preprocess
    if not images or not isinstance(how, Preprocess):
        return header
    channels = how.input_size[0]
    update = dict(images)
    for key, value in images.items():
        if key in {"mean", "std"}:
            numbers = value if isinstance(value, list) else [value]
            update[key] = tuple(numbers * channels if len(numbers) == 1 else numbers)
        elif key == "input_size":
            update[key] = (channels, *(value if isinstance(value, list) else (value, value)))
    try:
        preprocess = Preprocess.model_validate({**how.model_dump(), **update})
    except ValidationError as error:
        raise CheckpointError(
            f"{place}: its image preprocessing is not supported: {first_error_text(error)}",
            hint=(
                "save only its weights, and give the rest as options: "
                "`torch.save(checkpoint['state_dict'], 'weights.pth')`"
            ),
        ) from error
    return header.model_copy(update={"preprocess": preprocess})
