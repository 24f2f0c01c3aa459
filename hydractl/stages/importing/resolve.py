"""What is typed and what a file says of its model become one architecture; where they contradict each other, that is refused."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from hydractl.errors import CheckpointError, HydraError, UsageError
from hydractl.families.classifier import CLASSES
from hydractl.families.registry import architecture_called, described_as, family_for_name
from hydractl.manifest.document import first_problem
from hydractl.manifest.header import Header, Preprocess
from hydractl.messages import quoted
from hydractl.model_source import parse_arch
from hydractl.stages.importing.config import ImportConfig
from hydractl.stages.importing.metadata import Metadata

SQUARES = {"img_size", "patch_size", "image_size"}
"""Options whose one number is height and width."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """Which architecture it is.

    Attributes:
        name: Its name; empty where a folder says it.
        options: Its options.
        images: Fields of a `Preprocess` that the file says.
        from_file: What of all that the file says and nobody typed, as it is shown.
    """

    name: str = ""
    options: Mapping[str, object] = field(default_factory=dict)
    images: Mapping[str, object] = field(default_factory=dict)
    from_file: tuple[str, ...] = ()


def resolve(config: ImportConfig, metadata: Metadata) -> Resolved:
    """Return the architecture of weights.

    Args:
        config: What is typed.
        metadata: What the file says.

    Raises:
        UsageError: If they contradict each other.
        CheckpointError: If neither says it.
    """
    if config.folder is not None:
        return Resolved()
    typed_name, option_values = ("", {}) if config.arch is None else parse_arch(config.arch)
    name = _name(config, metadata, typed_name)
    library = family_for_name(name).library
    sizes, file_options = dict(metadata.sizes.get(library, {})), metadata.options.get(library, {})
    images = dict(metadata.images)
    if file_options.get("dynamic_img_size") and (side := sizes.pop("img_size", None)) is not None:
        images["input_size"] = side
    for key, value in option_values.items():
        if key in file_options and _form(key, value) != _form(key, file_options[key]):
            raise _contradiction(
                config, f"--arch {name}::{key}={_as_text(value)}", f"{key}={_as_text(file_options[key])}"
            )
    options = {**sizes, **file_options, **option_values}
    _check_heads(config, metadata, name, option_values=option_values, file_options={**sizes, **file_options})
    key = CLASSES[library]
    counted = {"num_classes": config.num_classes, "labels": config.labels}
    if (
        metadata.num_classes
        and key not in options
        and set(counted.values()) == {None}
        and library in metadata.sizes
    ):
        options[key] = metadata.num_classes
    _check_images(config, images)
    if metadata.complete and library == "timm" and "crop_pct" not in images:
        images |= _published_crop(name)
    options = {k: v for k, v in options.items() if v is not None}
    from_file = [] if typed_name else [name]
    from_file += [f"{k}={_as_text(v)}" for k, v in {**options, **images}.items() if k not in option_values]
    return Resolved(name=name, options=options, images=images, from_file=tuple(from_file))


def with_images(header: Header, images: Mapping[str, object], *, where: str) -> Header:
    """Return a header of a model that reads images as a file says.

    Raises:
        CheckpointError: If they cannot be read so.
    """
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
            f"{where}: what it says of how its images are read is not supported: {first_problem(error)}",
            hint="save its weights alone, and name the rest: `torch.save(checkpoint['state_dict'], 'weights.pth')`",
        ) from error
    return header.model_copy(update={"preprocess": preprocess})


def _name(config: ImportConfig, metadata: Metadata, option_name: str) -> str:
    names = [name for text in metadata.arch if (name := architecture_called(text)) is not None]
    if option_name:
        if names and not {option_name, _untagged(option_name)} & {*names, *map(_untagged, names)}:
            raise _contradiction(config, f"--arch {option_name}", names[0])
        return option_name
    if names:
        return names[0]
    beside = Path(config.source).parent
    hint = "add `--arch NAME`, for example `--arch vit_small_patch16_224::num_classes=7`"
    if (beside / "config.json").is_file():
        hint = f"the folder it lies in does: add `--arch {shlex.quote(str(beside))}`"
    called = (
        f"; {quoted(metadata.arch, most=3)} is no architecture that is known here" if metadata.arch else ""
    )
    raise CheckpointError(f"{config.source}: does not say which architecture it is{called}", hint=hint)


def _untagged(name: str) -> str:
    """Return a name of timm's without the tag that says on what the model was trained."""
    return name.partition(".")[0]


def _form(key: str, value: object) -> object:
    """Return a value in one form, whichever it was written in."""
    if isinstance(value, tuple):
        value = list(value)
    return [value, value] if key in SQUARES and isinstance(value, int) else value


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str, separators=(",", ":"))


def _contradiction(config: ImportConfig, option_text: str, file_text: str) -> UsageError:
    return UsageError(
        f"`{option_text}`: {config.source} says `{file_text}`, as its training script saved it",
        hint="leave it out to take what the file says; where the file is wrong, save its state dict alone",
    )


def _check_heads(
    config: ImportConfig,
    metadata: Metadata,
    name: str,
    *,
    option_values: Mapping[str, object],
    file_options: Mapping[str, object],
) -> None:
    """Refuse options that make other heads, where a file says all options and has others.

    Raises:
        UsageError: With what the file says.
    """
    if not metadata.complete or option_values.keys() <= file_options.keys():
        return
    try:
        theirs = described_as(name, file_options).architecture.towers
        ours = described_as(name, {**file_options, **option_values}).architecture.towers
    except HydraError:  # what cannot be built is refused in its place
        return
    if theirs != ours:
        heads = ", ".join(f"{tower.num_heads} heads of {tower.head_dim}" for tower in theirs.values())
        raise _contradiction(config, f"--arch {config.arch}", heads)


def _check_images(config: ImportConfig, images: Mapping[str, object]) -> None:
    for key in ("mean", "std"):
        option_value, file_value = getattr(config.images, key), images.get(key)
        if option_value is None or file_value is None:
            continue
        numbers = file_value if isinstance(file_value, list) else [file_value]
        if {*option_value} != {*numbers} or (
            len(option_value) == len(numbers) and list(option_value) != numbers
        ):
            raise _contradiction(
                config, f"--{key} {','.join(f'{x:g}' for x in option_value)}", f"{key}={_as_text(file_value)}"
            )


def _published_crop(name: str) -> dict[str, object]:
    """Return the crop that timm's own scripts take where none was asked for: the published one, whatever the size of images."""
    with suppress(HydraError):
        how = described_as(name, {}).preprocess
        if isinstance(how, Preprocess):
            return {"crop_pct": how.crop_pct}
    return {}
