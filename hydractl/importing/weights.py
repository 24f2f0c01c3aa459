"""Tensors and metadata saved by a training script."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import torch

from hydractl.checkpoint import DTYPE_NAMES, Checkpoint
from hydractl.errors import CheckpointError, UsageError
from hydractl.importing.pickle_file import attributes, read_pickle, to_plain
from hydractl.messages import did_you_mean_path, quoted
from hydractl.model_source import PICKLES, is_index, locate
from hydractl.output.publish import is_stream

HOLDERS = (
    "args", "hyper_parameters", "training_args", "hparams", "config", "cfg", "opt", "model_cfg", "model_config",
)  # fmt: skip
"""Keys under which training scripts save their options: timm and DeiT, Lightning, transformers, others."""
ARCH = ("arch", "model", "model_name", "architecture", "model_type", "backbone", "model_name_or_path")
KWARGS = ("model_kwargs", "model_args")
"""Keys under which timm and other scripts save the options of the architecture."""
NUM_CLASSES = ("num_classes", "nb_classes", "n_classes", "num_labels")
SIZES: Mapping[str, tuple[str, ...]] = {
    "timm": ("img_size", "in_chans", "patch_size", "embed_dim", "depth"),
    "transformers": (
        "hidden_size", "num_hidden_layers", "intermediate_size", "vocab_size", "max_position_embeddings",
    ),
}  # fmt: skip
"""Options of architectures that scripts save among their own options, and that tensor shapes confirm."""
UNSHAPED = {"timm": ("num_heads", "global_pool"), "transformers": ("num_attention_heads",)}
"""Options of architectures that tensor shapes do not reveal."""
FILES = ("tokenizer",)
"""Options that name files. A checkpoint may not set them."""
TEXTS = {"global_pool", "interpolation", "crop_mode"}
IMAGES = ("mean", "std", "interpolation", "crop_pct", "crop_mode")
OPEN_CLIP_RUN = re.compile(r"(?:^|-)model_(.+?)-lr_")
"""Pattern of the run name that open_clip saves in its checkpoints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """Options of the model, saved by a training script.

    Attributes:
        arch: Possible names of the architecture, the likeliest first; may be empty.
        sizes: Options of the architecture confirmed by tensor shapes, by library.
        options: Other options of the architecture, without the number of classes, by library.
        num_classes: Number of classes; None if unknown.
        images: Fields of a `Preprocess`, for example `mean`.
        complete: Whether the script saved all options of the architecture. If True, missing options have the
            default.
    """

    arch: tuple[str, ...] = ()
    sizes: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    options: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    num_classes: int | None = None
    images: Mapping[str, object] = field(default_factory=dict)
    complete: bool = False


def metadata_of(saved: Mapping[object, object]) -> Metadata:
    """Return the options in a loaded file."""
    holders = list(_holders(saved))
    option_sets = (attributes(h.get(key)) for h in holders for key in KWARGS)
    kwargs = {key: to_plain(item) for key, item in next(filter(None, option_sets), {}).items()}
    number = _first([kwargs, *holders], NUM_CLASSES)
    stated_options = {k: v for k, v in kwargs.items() if k not in {*NUM_CLASSES, *FILES} and v is not None}
    known_keys = [*holders, _synonyms(holders)]
    return Metadata(
        arch=tuple(dict.fromkeys(_names(holders))),
        sizes={library: _values(known_keys, keys) for library, keys in SIZES.items()},
        options={library: _values(known_keys, keys) | stated_options for library, keys in UNSHAPED.items()},
        num_classes=number if isinstance(number, int) and number > 0 else None,
        images=_values(holders, IMAGES),
        complete=any(key in h for h in holders for key in KWARGS),
    )


def _holders(saved: Mapping[object, object]) -> Iterator[Mapping[str, object]]:
    """Yield the mappings to search for options: the file, the values of `HOLDERS`, and nested mappings."""
    outer = attributes(saved)
    yield outer
    for key in HOLDERS:
        if holder := attributes(outer.get(key)):
            yield holder
            yield from filter(None, (attributes(holder.get(inner)) for inner in (*HOLDERS, "model")))


def _names(holders: list[Mapping[str, object]]) -> Iterator[str]:
    for h in holders:
        yield from (name for key in ARCH if isinstance(name := to_plain(h.get(key)), str) and name)
    for h in holders:
        if isinstance(run := h.get("name"), str):
            yield from OPEN_CLIP_RUN.findall(run)
            yield run


def _first(holders: list[Mapping[str, object]], keys: tuple[str, ...]) -> object:
    """Return the first number, non-empty string or non-empty list of numbers among the values, or None."""
    values = (to_plain(h.get(key)) for h in holders for key in keys)
    return next(
        (
            value
            for value in values
            if (isinstance(value, int | float | str) and value != "")
            or (
                isinstance(value, list) and value and all(isinstance(number, int | float) for number in value)
            )
        ),
        None,
    )


def _values(holders: list[Mapping[str, object]], keys: tuple[str, ...]) -> dict[str, object]:
    """Return the first value of each key in the holders, without missing keys and values of the wrong type.

    Values are strings for keys in `TEXTS`, else numbers or lists of numbers.
    """
    by_key = {key: _first(holders, (key,)) for key in keys}
    return {
        key: value
        for key, value in by_key.items()
        if not isinstance(value, bool | None) and isinstance(value, str) == (key in TEXTS)
    }


def _synonyms(holders: list[Mapping[str, object]]) -> dict[str, object]:
    """Return the pooling from `gp` and the input size from `input_size` (side, or channels, height, width)."""
    synonyms: dict[str, object] = {"global_pool": _first(holders, ("gp",))}
    match _first(holders, ("input_size",)):
        case int(side):
            return synonyms | {"img_size": side}
        case [int(channels), int(height), int(width)]:
            size = height if height == width else [height, width]
            return synonyms | {"in_chans": channels, "img_size": size}
        case _:
            return synonyms


WRAPPERS = ("state_dict", "model_state_dict", "model", "module", "net")
EMA_WRAPPERS = ("state_dict_ema", "model_ema", "ema_state_dict")
DEEPEST = 4
"""Maximum number of nested wrappers. Chosen by hand; twice the number has no effect on files with fewer
nested wrappers."""
MAX_SHOWN = 5
"""Maximum number of keys in a message. Chosen by hand; twice the number doubles the list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Tensors of a file, or of the shards of a model.

    Attributes:
        tensors: Tensors by the names in the file. Tensors of an uncompressed archive stay on disk until the
            first use.
        wrapper: Keys above the state dict, joined by dots; empty for a plain state dict.
        ema: Key of an unread exponential moving average, or None.
        metadata: Options of the model in the file.
    """

    tensors: dict[str, torch.Tensor]
    wrapper: str = ""
    ema: str | None = None
    metadata: Metadata = field(default_factory=Metadata)


def weight_files(source: str) -> tuple[Path, ...]:
    """Return the file itself, or the shards of an index.

    Raises:
        CheckpointError: If the file is missing or a folder.
        UsageError: If the file is a stream.
    """
    path = Path(source)
    if is_stream(path):
        raise UsageError(
            "`import` cannot read a stream: it reads tensors by their position in a file",
            hint="write it to a file first",
        )
    if path.is_dir():
        names = sorted(
            f for pattern in (*PICKLES, "*.index*.json", "*model.safetensors") for f in path.glob(pattern)
        )
        example = names[0] if names else path / "weights.pth"
        raise CheckpointError(
            f"{path}: is a folder", hint=f"give a file in it, for example `hydractl import {example}`"
        )
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file", hint=did_you_mean_path(str(path)) or "check the path")
    return locate(source).weights if is_index(path) else (path,)


def read_weights(files: tuple[Path, ...], *, ema: bool, key: str | None = None) -> Weights:
    """Read the tensors of a file, or of the shards of one model.

    Args:
        files: Pickles of torch or safetensors files, recognized by their content.
        ema: Whether to read the exponential moving average.
        key: Keys above the weights, joined by dots, or a prefix of tensor names. None searches the usual
            keys.

    Raises:
        CheckpointError: If a file has no weights, reading it needs code, a tensor is quantized or sparse, or
            two shards have the same tensor.
        UsageError: If the moving average or the key is missing, or hydractl wrote the file.
    """
    weights_of_files = [_read_one(path, ema=ema, key=key) for path in files]
    tensors: dict[str, torch.Tensor] = {}
    for path, weights in zip(files, weights_of_files, strict=True):
        if twice := tensors.keys() & weights.tensors.keys():
            raise CheckpointError(f"{path}: tensor `{min(twice)}` is also in another shard")
        for name, tensor in weights.tensors.items():
            _check_dense(path, name, tensor)
        tensors |= weights.tensors
    return replace(weights_of_files[0], tensors=tensors)


def rename_tensors(weights: Weights, renames: Iterable[tuple[str, str]], *, place: str) -> Weights:
    """Replace the beginnings of tensor names.

    Args:
        weights: Weights of a file.
        renames: Pairs of an old and a new beginning. Both consist of whole parts between dots.
        place: Name of the file in messages.

    Raises:
        UsageError: If no tensor has the old beginning, or two tensors would have the same name.
    """
    tensors = weights.tensors
    for old, new in renames:
        names = {name: new + name.removeprefix(old) for name in tensors if f"{name}.".startswith(f"{old}.")}
        if not names:
            raise UsageError(
                f"`--rename {old}={new}`: {place} has no tensor with a name that begins with `{old}.`",
                hint=f"its tensors begin with {quoted(sorted({n.partition('.')[0] for n in tensors}), most=MAX_SHOWN)}",
            )
        if twice := tensors.keys() & names.values() - names.keys():
            raise UsageError(f"`--rename {old}={new}`: {place} already has `{min(twice)}`")
        tensors = {names.get(name, name): tensor for name, tensor in tensors.items()}
    return replace(weights, tensors=tensors)


def _read_one(path: Path, *, ema: bool, key: str | None) -> Weights:
    try:
        with path.open("rb") as file:
            begin = file.read(9)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    if not begin:
        raise CheckpointError(f"{path}: is empty", hint="copy or download it again")
    if begin[8:] != b"{":
        return _unwrapped(path, read_pickle(path), ema=ema, key=key)
    checkpoint = Checkpoint.open(path)
    if checkpoint.header is not None:
        raise UsageError(
            f"{path}: is already a checkpoint of hydractl", hint="use it directly with the other commands"
        )
    if ema:
        raise UsageError(f"{path}: has no exponential moving average of weights", hint="leave out `--ema`")
    tensors = checkpoint.tensors()
    return Weights(tensors=tensors if key is None else _selected(path, tensors, key, tensors))


def _unwrapped(path: Path, saved: object, *, ema: bool, key: str | None) -> Weights:
    """Find the state dict in a loaded pickle."""
    if not isinstance(saved, Mapping):
        raise CheckpointError(
            f"{path}: holds a {type(saved).__name__}, not a state dict",
            hint="`import` reads what `torch.save(model.state_dict(), path)` writes",
        )
    averages = [name for name in EMA_WRAPPERS if isinstance(saved.get(name), Mapping)]
    if ema and not averages:
        raise UsageError(
            f"{path}: has no exponential moving average of weights; its keys are {quoted(saved, most=MAX_SHOWN)}",
            hint="leave out `--ema`",
        )
    at = averages[0] if ema else key or ""
    beneath: object = saved
    for part in at.split(".") if at else ():
        beneath = beneath.get(part) if isinstance(beneath, Mapping) else None
    has_key = isinstance(beneath, Mapping)
    wrapper, inner = _descend(beneath, at) if isinstance(beneath, Mapping) else _descend(saved, "")
    tensors = _tensors_of(inner)
    if key is not None and not has_key:
        tensors = _selected(path, tensors, key, saved)
    if not tensors:
        raise CheckpointError(
            f"{path}: has no state dict; {f'`{wrapper}` holds' if wrapper else 'its keys are'} "
            f"{quoted(inner, most=MAX_SHOWN) or 'none'}",
            hint="it has an exponential moving average: add `--ema` to import it"
            if averages and not ema
            else _weights_hint(inner, wrapper),
        )
    return Weights(
        tensors=tensors,
        wrapper=wrapper,
        ema=averages[0] if averages and not ema and key is None else None,
        metadata=metadata_of(saved),
    )


def _tensors_of(saved: Mapping[object, object]) -> dict[str, torch.Tensor]:
    return {str(k): v for k, v in saved.items() if isinstance(v, torch.Tensor)}


def _selected(
    path: Path, tensors: Mapping[str, torch.Tensor], key: str, saved: Mapping[Any, object]
) -> dict[str, torch.Tensor]:
    """Return the tensors with `key` among the parts of their names.

    Raises:
        UsageError: If no tensor matches.
    """
    matching = {name: tensor for name, tensor in tensors.items() if f".{key}." in f".{name}"}
    if not matching:
        raise UsageError(
            f"`--weights-key {key}`: {path} has no weights under this key; its keys are "
            f"{quoted(saved, most=MAX_SHOWN)}",
            hint=_weights_hint(saved, ""),
        )
    return matching


def _weights_hint(saved: Mapping[Any, object], wrapper: str) -> str:
    """Return a hint with the keys that have tensors, or with the expected keys."""
    keys = [
        f"{wrapper}.{key}".lstrip(".")
        for key, item in saved.items()
        if isinstance(item, Mapping) and _tensors_of(_descend(item, "")[1])
    ]
    if keys:
        return f"there are tensors under {quoted(keys, most=MAX_SHOWN)}: add `--weights-key {keys[-1]}` to import those"
    return f"expected a state dict, at the top level or under one of {quoted(WRAPPERS)}"


def _descend(saved: Mapping[object, object], wrapper: str) -> tuple[str, Mapping[object, object]]:
    """Follow the keys in `WRAPPERS` to the innermost mapping. Return path and mapping."""
    for _ in range(DEEPEST):
        key = next((key for key in WRAPPERS if isinstance(saved.get(key), Mapping)), None)
        if key is None:
            break
        saved, wrapper = cast("Mapping[object, object]", saved[key]), f"{wrapper}.{key}".lstrip(".")
    return wrapper, saved


def _check_dense(path: Path, name: str, tensor: torch.Tensor) -> None:
    dtype = str(tensor.dtype).removeprefix("torch.")
    is_dense = tensor.layout == torch.strided and not (tensor.is_quantized or tensor.is_meta)
    if not is_dense or dtype not in DTYPE_NAMES:
        raise CheckpointError(
            f"{path}: tensor `{name}` is not a dense tensor ({dtype}, {tensor.layout})",
            hint="quantized, sparse and empty weights cannot be pruned; import dense floating-point weights",
        )
