"""Which model a file's weights belong to, and which of its tensors is which of the model's."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Collection, KeysView, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from hydractl import progress
from hydractl.checkpoint import TensorSpec, spec_of
from hydractl.errors import CheckpointError, HydraError, UnsupportedModelError, UsageError
from hydractl.families.base import (
    COMPILED,
    DEFAULT_POOLING,
    Described,
    Family,
    is_replaceable,
    name_in_memory,
    place_of,
    with_pooling,
)
from hydractl.families.load import CLASSES, convert, encoder_of, resized
from hydractl.families.registry import (
    FAMILIES,
    architecture_called,
    base_header,
    describe_folder,
    describe_weights,
    described_as,
    family_for_name,
)
from hydractl.families.timm.models import untagged
from hydractl.manifest.document import first_problem
from hydractl.manifest.header import Architecture, Header, Preprocess, Tokenization
from hydractl.messages import counted, quoted
from hydractl.model_source import folder_config, parse_arch
from hydractl.prediction.open_inputs import check_takes, override_preprocessing
from hydractl.stages.importing.config import ImportConfig
from hydractl.stages.importing.read import Metadata

if TYPE_CHECKING:
    import torch


SQUARES = {"img_size", "patch_size", "image_size"}
"""Options in which a single number is both height and width."""


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


def describe(config: ImportConfig, metadata: Metadata, labels: tuple[str, ...]) -> tuple[Header, bool]:
    """Return the header of the base to be, and whether what says its architecture has no classifier.

    Args:
        config: What is typed.
        metadata: What the file says.
        labels: Names of the classes; none where none are typed.

    Raises:
        UsageError: If they contradict each other.
        CheckpointError: If neither says which architecture it is.
        UnsupportedModelError: If heads cannot be cut in it.
    """
    resolved = _resolve(config, metadata)
    if resolved.from_file:
        progress.step(f"{config.source} says: {', '.join(resolved.from_file)}")
    described = _described(config, resolved, len(labels) or None)
    where = config.arch or resolved.name
    header = _with_images(base_header(described), resolved.images, where=config.source)
    if config.folder is None:
        header = _with_assumed(header, config, resolved)
    header = override_preprocessing(header, config.images.options(), where=where)
    check_takes(header, where=where)
    return _labelled(header, labels), bool(described.lacks)


def _resolve(config: ImportConfig, metadata: Metadata) -> Resolved:
    """Return which architecture it is, of what is typed and what the file says.

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
    is_typed = config.num_classes is not None or config.labels is not None
    if metadata.num_classes and not is_typed and library in metadata.sizes:
        options.setdefault(CLASSES[library], metadata.num_classes)
    _check_images(config, images)
    options = {k: v for k, v in options.items() if v is not None}
    from_file = [] if typed_name else [name]
    from_file += [f"{k}={_as_text(v)}" for k, v in {**options, **images}.items() if k not in option_values]
    return Resolved(name=name, options=options, images=images, from_file=tuple(from_file))


def _with_assumed(header: Header, config: ImportConfig, resolved: Resolved) -> Header:
    """Return a header that records if the image preprocessing is assumed in part, after a warning with these values."""
    stated = resolved.images.keys() | config.images.options().keys()
    missing = [name for name in ("crop_pct", "interpolation", "mean", "std") if name not in stated]
    if not missing or not isinstance(header.preprocess, Preprocess):
        return header.model_copy(update={"assumed": False})
    values = header.preprocess.model_dump(mode="json")
    progress.warn(
        f"{config.source}: does not say how images are read; assumed: "
        f"{', '.join(f'{name}={_as_text(values[name])}' for name in missing)} (`--mean` and `--std` set these)"
    )
    return header


def _with_images(header: Header, images: Mapping[str, object], *, where: str) -> Header:
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
            f"{where}: its image preprocessing is not supported: {first_problem(error)}",
            hint=(
                "save only its weights, and give the rest as options: "
                "`torch.save(checkpoint['state_dict'], 'weights.pth')`"
            ),
        ) from error
    return header.model_copy(update={"preprocess": preprocess})


def _described(config: ImportConfig, resolved: Resolved, labels: int | None) -> Described:
    """Describe the architecture; as many classes as `labels` where nothing else says how many."""
    num_classes = config.num_classes or labels
    if config.folder is not None:
        try:
            described = describe_folder(
                config.folder, folder_config(config.folder), {}, backbone=num_classes is not None
            )
            return _pooled(config, _with_classes(config, described, num_classes))
        except (CheckpointError, UnsupportedModelError) as error:
            if config.way_out is None:
                raise
            raise type(error)(
                error.message, hint="; ".join(filter(None, (error.hint, config.way_out)))
            ) from error
    name, options = resolved.name, dict(resolved.options)
    key = CLASSES[family_for_name(name).library]
    if config.num_classes is not None and options.get(key, config.num_classes) != config.num_classes:
        raise UsageError(
            f"`--num-classes {config.num_classes}` and `{key}={options[key]}` of `--arch` differ"
        )
    if num_classes is not None and key not in options:
        options[key] = num_classes
    described = _pooled(config, describe_weights(name, options))
    if described.prompting is not None and (config.num_classes or labels):
        raise UsageError(
            f"`{name}` has no classifier: it compares images with class names",
            hint="leave out `--num-classes` and `--labels`",
        )
    if config.tokenizer is None:
        return described
    if not isinstance(described.preprocess, Tokenization) and described.prompting is None:
        raise UsageError(f"`--tokenizer` is for texts, which `{name}` does not read")
    return _pooled(config, describe_weights(name, options | {"tokenizer": str(config.tokenizer)}))


def _with_classes(config: ImportConfig, described: Described, number: int | None) -> Described:
    """Return what a folder describes, with another number of classes where one was asked for."""
    if described.lacks and number is None:
        raise CheckpointError(
            f"{config.folder}: {described.lacks}",
            hint="add `--num-classes N` or `--labels a,b,c` for a random classifier",
        )
    if number is None or described.prompting is not None:
        return described
    architecture = described.architecture
    if number == architecture.num_classes:
        return described
    library = FAMILIES[architecture.family].library
    return replace(described, architecture=resized(architecture, number, library), labels=())


def _pooled(config: ImportConfig, described: Described) -> Described:
    """Return what is described, its classifier reading what was asked for, or what the folder says."""
    architecture, pooling = described.architecture, config.pooling or described.pools
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


def _labelled(header: Header, labels: tuple[str, ...]) -> Header:
    """Return a header with names of its classes, if there are any.

    Raises:
        UsageError: If there are more or fewer than classes.
    """
    number = header.architecture.num_classes
    if not labels:
        return header
    if len(labels) != number:
        raise UsageError(
            f"`--labels`: got {counted(len(labels), 'name')} for {counted(number, 'class', 'classes')}",
            hint=f"give {counted(number, 'label')}, one per class",
        )
    return header.model_copy(update={"labels": labels})


def _name(config: ImportConfig, metadata: Metadata, option_name: str) -> str:
    names = [name for text in metadata.arch if (name := architecture_called(text)) is not None]
    if option_name:
        if names and not {option_name, untagged(option_name)} & {*names, *map(untagged, names)}:
            raise _contradiction(config, f"--arch {option_name}", names[0])
        return option_name
    if names:
        return names[0]
    beside = Path(config.source).parent
    hint = "add `--arch NAME`, for example `--arch vit_small_patch16_224::num_classes=7`"
    if (beside / "config.json").is_file():
        hint = f"its folder does: add `--arch {shlex.quote(str(beside))}`"
    called = f"; {quoted(metadata.arch, most=3)} is not a known architecture" if metadata.arch else ""
    raise CheckpointError(f"{config.source}: does not name its architecture{called}", hint=hint)


def _form(key: str, value: object) -> object:
    """Return a value in one form, whichever it was written in."""
    if isinstance(value, tuple):
        value = list(value)
    return [value, value] if key in SQUARES and isinstance(value, int) else value


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str, separators=(",", ":"))


def _contradiction(config: ImportConfig, option_text: str, file_text: str) -> UsageError:
    return UsageError(
        f"`{option_text}`: the training script saved `{file_text}` in {config.source}",
        hint="leave the option out to use the saved value; if that is wrong, save only the state dict",
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


WRAPPER_PREFIXES = ("module.", "model.", "net.")
USUAL = {"module", "model", "net", "backbone", "encoder"}
"""Prefixes that DataParallel, Lightning and training scripts add to tensor names. They are stripped before
any other prefix.
"""
HEADS = {"fc", "classifier", "head", "heads", "linear"}
"""Names of classifiers in training scripts, whatever the number of classes."""
DEEPEST = 4
MAX_SHOWN = 3
FLOATS = {"F64", "F32", "F16", "BF16"}


class OtherClassesError(CheckpointError):
    """Weights whose classifier tells apart another number of classes than was thought."""

    def __init__(self, where: str, number: int, reason: str) -> None:
        super().__init__(
            f"{where}: has {counted(number, 'class', 'classes')}, {reason}",
            hint=f"add `--num-classes {number}`, or `num_classes={number}` to the options of `--arch`",
        )
        self.number = number


class TrainedHeadError(CheckpointError):
    """Weights with a trained classifier under a name that the architecture does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedTensors:
    """Tensors under the names of an architecture.

    Attributes:
        tensors: All of the architecture's, and no others.
        prefix: What stood before the names.
        left_out: Names without that prefix, which belong to something else.
        converted: The library that translated them, or None.
        drawn_names: Names of those that were not among the weights.
    """

    tensors: dict[str, torch.Tensor]
    prefix: str = ""
    left_out: tuple[str, ...] = ()
    converted: str | None = None
    drawn_names: tuple[str, ...] = ()


def fit(
    tensors: Mapping[str, torch.Tensor],
    expected: Mapping[str, TensorSpec],
    *,
    family: Family,
    architecture: Architecture,
    where: str,
) -> MatchedTensors:
    """Bring tensors under the names of an architecture.

    A prefix goes if exactly the architecture's tensors remain; failing that, the library's own conversion is asked.

    Raises:
        CheckpointError: If they do not fit; with counts, the first few names, and the likely cause.
    """
    plain = {name.replace(COMPILED, ""): tensor for name, tensor in tensors.items()}
    matched = _without_prefix(where, plain, expected, lambda names: names == expected.keys())
    if matched is None:
        matched = _on_disk(where, plain, expected, family, lambda names: names == expected.keys())
        converted = convert(family, architecture, matched.tensors)
        if converted is not None and len(converted.keys() ^ expected.keys()) < len(
            matched.tensors.keys() ^ expected.keys()
        ):
            matched = replace(matched, tensors=converted, converted=family.library)
    _check(where, {k: spec_of(v) for k, v in matched.tensors.items()}, expected, family, architecture)
    return matched


def fit_encoder(
    tensors: Mapping[str, torch.Tensor],
    expected: Mapping[str, TensorSpec],
    *,
    header: Header,
    where: str,
    new: bool,
) -> MatchedTensors:
    """Bring the tensors of an encoder under the names of an architecture, without a classifier and maybe a pooler.

    What the library's own model has besides, outside of blocks, is left out: other heads than a classifier's.

    Args:
        tensors: By the names that the file has.
        expected: What the architecture has.
        header: Of the base to be.
        where: What messages call the file.
        new: Whether a classifier is left out that is there; otherwise it is an error.

    Raises:
        CheckpointError: If they do not fit.
        TrainedHeadError: If a classifier under another name would be left out, and `new` is off.
    """
    architecture = header.architecture
    family = FAMILIES[architecture.family]
    plain = {name.replace(COMPILED, ""): tensor for name, tensor in tensors.items()}
    required = {n: s for n, s in expected.items() if not is_replaceable(family, n)}
    matched = _without_prefix(where, plain, required, lambda names: required.keys() <= names)
    if matched is None:
        matched = _on_disk(where, plain, expected, family, lambda names: required.keys() <= names)
        if (converted := encoder_of(family, architecture, matched.tensors)) is not None:
            matched = replace(matched, tensors=converted, converted=family.library)
    kept_tensors = {
        n: t for n, t in matched.tensors.items() if n in expected or place_of(family, n).layer is not None
    }
    if new:
        kept_tensors = {n: t for n, t in kept_tensors.items() if place_of(family, n).part != "head"}
    elif any(place_of(family, n).part == "head" for n in kept_tensors):
        raise CheckpointError(
            f"{where}: has a classifier, but its other tensors do not fit {architecture.name}"
        )
    specs = {n: s for n, s in expected.items() if n in required or n in kept_tensors}
    _check(where, {k: spec_of(v) for k, v in kept_tensors.items()}, specs, family, architecture)
    left_out = (
        ()
        if matched.converted
        else tuple(sorted(matched.prefix + n for n in matched.tensors.keys() - kept_tensors.keys()))
    )
    fitted = replace(matched, tensors=kept_tensors, left_out=(*matched.left_out, *left_out))
    if not new:
        _check_head(where, plain, fitted, expected, header)
    return fitted


def _on_disk(
    where: str,
    tensors: Mapping[str, torch.Tensor],
    expected: Mapping[str, TensorSpec],
    family: Family,
    fits: Callable[[KeysView[str]], bool],
) -> MatchedTensors:
    """Return the tensors without the prefix that leaves names as the library stores them, or else without a common one."""
    required = [name for name in expected if not is_replaceable(family, name)]
    in_memory = {name_in_memory(family, name): tensor for name, tensor in tensors.items()}
    matched = _without_prefix(where, in_memory, required, fits)
    if matched is None or not matched.prefix:
        return MatchedTensors(tensors=_without_common(tensors, expected))
    beneath = {k.removeprefix(matched.prefix): v for k, v in tensors.items() if k.startswith(matched.prefix)}
    return replace(matched, tensors=beneath)


def _without_prefix(
    where: str,
    tensors: Mapping[str, torch.Tensor],
    required: Collection[str],
    fits: Callable[[KeysView[str]], bool],
) -> MatchedTensors | None:
    """Return the tensors beneath the prefix that leaves names that fit, None where no prefix does.

    Raises:
        CheckpointError: If several do, and none of them is a usual one.
    """
    probe = max(required, key=len)
    prefixes = {name.removesuffix(probe) for name in tensors if name == probe or name.endswith(f".{probe}")}
    beneath = {p: {k.removeprefix(p): v for k, v in tensors.items() if k.startswith(p)} for p in prefixes}
    fitting = sorted(
        (p for p in prefixes if fits(beneath[p].keys())), key=lambda p: (not _is_usual(p), p.count("."), p)
    )
    if not fitting:
        return None
    prefix = fitting[0]
    if len(fitting) > 1 and not _is_usual(prefix):
        raise CheckpointError(
            f"{where}: has several sets of weights that fit, under {quoted(fitting)}",
            hint=f"`--weights-key {fitting[-1].rstrip('.')}` imports those",
        )
    return MatchedTensors(
        tensors=beneath[prefix],
        prefix=prefix,
        left_out=tuple(name for name in tensors if not name.startswith(prefix)),
    )


def _is_usual(prefix: str) -> bool:
    return set(filter(None, prefix.split("."))) <= USUAL


def _check_head(
    where: str,
    tensors: Mapping[str, torch.Tensor],
    fitted: MatchedTensors,
    expected: Collection[str],
    header: Header,
) -> None:
    """Refuse a trained classifier under another name, which a random one would replace.

    Args:
        where: What messages call the file.
        tensors: All of the file.
        fitted: Those that are taken.
        expected: Names of the architecture's.
        header: Of the base to be.

    Raises:
        TrainedHeadError: With how to name it.
    """
    family = FAMILIES[header.architecture.family]
    for name, tensor in tensors.items():
        stem, _, last = name.rpartition(".")
        if last != "weight" or tensor.ndim != 2 or not tensor.is_floating_point():
            continue
        if tensor.shape[0] != header.architecture.num_classes and stem.rpartition(".")[2] not in HEADS:
            continue
        if place_of(family, name.removeprefix(fitted.prefix)).layer is not None or any(
            t.shape == tensor.shape and bool((t == tensor).all()) for t in fitted.tensors.values()
        ):
            continue
        heads = {n.rpartition(".")[0] for n in expected if place_of(family, n).part == "head"}
        way = (
            f"`--rename {stem}={fitted.prefix}{next(iter(heads))}` imports it; "
            if len(heads) == 1 and not fitted.converted
            else ""
        )
        raise TrainedHeadError(
            f"{where}: `{name}` {tuple(tensor.shape)} looks like a trained classifier, but "
            f"{header.architecture.name} uses another name",
            hint=f"{way}`--head-seed 0` ignores it and makes a random classifier",
        )


def _without_common(
    tensors: Mapping[str, torch.Tensor], expected: Mapping[str, TensorSpec]
) -> dict[str, torch.Tensor]:
    """Return the tensors without a wrapper's prefix that all of them have and none that is expected."""
    unwrapped = dict(tensors)
    for _ in range(DEEPEST):
        for prefix in WRAPPER_PREFIXES:
            common = all(k.startswith(prefix) for k in unwrapped)
            if common and not any(k.startswith(prefix) for k in expected):
                unwrapped = {k.removeprefix(prefix): v for k, v in unwrapped.items()}
    return unwrapped


def _check(
    where: str,
    actual: Mapping[str, TensorSpec],
    expected: Mapping[str, TensorSpec],
    family: Family,
    architecture: Architecture,
) -> None:
    heads = tuple(prefix for layout in family.towers.values() for prefix in layout.head)
    missing, extra = sorted(expected.keys() - actual.keys()), sorted(actual.keys() - expected.keys())
    if missing or extra:
        parts = [
            f"{text} {len(names)} {'tensor' if len(names) == 1 else 'tensors'} ({quoted(names, most=MAX_SHOWN)})"
            for text, names in (("lacks", missing), ("has besides", extra))
            if names
        ]
        raise CheckpointError(
            f"{where}: does not fit {architecture.name}: {' and '.join(parts)}",
            hint="if it has no classifier, `--num-classes N` adds a random one, which `finetune` must train"
            if missing and all(name.startswith(heads) for name in missing)
            else (
                "check `--arch`: the weights may be of another architecture, or need other options "
                "(`--arch NAME::key=value`)"
            ),
        )
    if mismatched := [name for name in sorted(expected) if actual[name].shape != expected[name].shape]:
        _refuse_shapes(where, mismatched, actual, expected, architecture, heads=heads)
    for name, spec in expected.items():
        if spec.dtype in FLOATS and actual[name].dtype not in FLOATS:
            raise CheckpointError(
                f"{where}: tensor `{name}` is {actual[name].dtype}, but must be floating point",
                hint="quantized weights cannot be pruned; import the weights from before quantization",
            )


def _refuse_shapes(
    where: str,
    names: list[str],
    actual: Mapping[str, TensorSpec],
    expected: Mapping[str, TensorSpec],
    architecture: Architecture,
    *,
    heads: tuple[str, ...],
) -> None:
    first = names[0]
    theirs, ours = actual[first].shape, expected[first].shape
    if all(name.startswith(heads) for name in names) and theirs[1:] == ours[1:]:
        raise OtherClassesError(where, theirs[0], f"not {ours[0]} (`{first}` is {theirs})")
    raise CheckpointError(
        f"{where}: {len(names)} {'tensor has' if len(names) == 1 else 'tensors have'} a shape that "
        f"does not fit {architecture.name}, for example `{first}`: {theirs}, not {ours}",
        hint="the model may have been trained on another image size: `--arch NAME::img_size=N`"
        if all("pos" in name for name in names)
        else (
            "check `--arch`: the weights may be of another architecture, or need other options "
            "(`--arch NAME::key=value`)"
        ),
    )
