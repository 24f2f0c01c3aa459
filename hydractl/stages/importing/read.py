"""The tensors and the metadata that a training script saved. Pickles are read as data: nothing in them is run."""

from __future__ import annotations

import argparse
import pickle
import re
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from hydractl.checkpoint import DTYPE_NAMES, Checkpoint
from hydractl.errors import CheckpointError, UsageError
from hydractl.messages import did_you_mean_path, quoted
from hydractl.model_source import PICKLES as SUFFIXES
from hydractl.model_source import is_index, locate
from hydractl.output.publish import is_stream
from hydractl.stages.importing.pickle_scan import (
    MOST_BYTES,
    PICKLES,
    TIMES,
    NeedsCodeError,
    TooMuchError,
    attributes,
    most,
    record_class,
    rehearse,
    to_plain,
)
from hydractl.strict_json import NOT_UTF8

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
"""Options of architectures that scripts save among their own, and that tensor shapes confirm."""
UNSHAPED = {"timm": ("num_heads", "global_pool"), "transformers": ("num_attention_heads",)}
"""Options of architectures that no tensor shape shows."""
FILES = ("tokenizer",)
"""Options that name files; a checkpoint may not set them."""
TEXTS = {"global_pool", "interpolation", "crop_mode"}
IMAGES = ("mean", "std", "interpolation", "crop_pct", "crop_mode")
OPEN_CLIP_RUN = re.compile(r"(?:^|-)model_(.+?)-lr_")
"""Pattern of the run name that open_clip saves in its checkpoints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """What a training script saved about its model; all of it may be missing.

    Attributes:
        arch: What it calls the architecture, in the order of how likely each is the name of one.
        sizes: Options that the shapes of tensors bear out, found among those of the script, by library.
        options: Other options of the architecture, without the number of classes, by library.
        num_classes: How many classes it tells apart.
        images: Fields of a `Preprocess`.
        complete: Whether all options of the architecture are among these: what is not is as the architecture has it.
    """

    arch: tuple[str, ...] = ()
    sizes: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    options: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    num_classes: int | None = None
    images: Mapping[str, object] = field(default_factory=dict)
    complete: bool = False


def metadata_of(saved: Mapping[object, object]) -> Metadata:
    """Return what a file says besides its tensors."""
    holders = list(_holders(saved))
    option_sets = (attributes(h.get(key)) for h in holders for key in KWARGS)
    kwargs = {key: to_plain(item) for key, item in next(filter(None, option_sets), {}).items()}
    number = _first([kwargs, *holders], NUM_CLASSES)
    stated_options = {k: v for k, v in kwargs.items() if k not in {*NUM_CLASSES, *FILES} and v is not None}
    synonyms = _in_other_words(holders)
    return Metadata(
        arch=tuple(dict.fromkeys(_names(holders))),
        sizes={library: _values(holders, keys, synonyms) for library, keys in SIZES.items()},
        options={
            library: _values(holders, keys, synonyms) | stated_options for library, keys in UNSHAPED.items()
        },
        num_classes=number if isinstance(number, int) and number > 0 else None,
        images=_values(holders, IMAGES, {}),
        complete=any(key in h for h in holders for key in KWARGS),
    )


def _holders(saved: Mapping[object, object]) -> Iterator[Mapping[str, object]]:
    """Yield the file's own keys, the dictionaries and namespaces of options among them, and those within these."""
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
    """Return the first value that is a number, a text, or a list of numbers; None where there is none."""
    saved_options = (to_plain(h.get(key)) for h in holders for key in keys)
    return next(
        (
            option
            for option in saved_options
            if isinstance(option, int | float | str)
            or (isinstance(option, list) and all(isinstance(number, int | float) for number in option))
        ),
        None,
    )


def _values(
    holders: list[Mapping[str, object]], keys: tuple[str, ...], synonyms: Mapping[str, object]
) -> dict[str, object]:
    """Return what the keys hold, or what is said in other words: numbers, and texts where an option is one."""
    by_key = {key: _first(holders, (key,)) for key in keys}
    by_key = {key: synonyms.get(key) if value in (None, "", []) else value for key, value in by_key.items()}
    return {
        key: value
        for key, value in by_key.items()
        if value not in (None, "", [])
        and not isinstance(value, bool)
        and isinstance(value, str) == (key in TEXTS)
    }


def _in_other_words(holders: list[Mapping[str, object]]) -> dict[str, object]:
    """Return what scripts call a pooling (`gp`), and a size of inputs: a side, or channels, height and width."""
    synonyms: dict[str, object] = {"global_pool": _first(holders, ("gp",))}
    match _first(holders, ("input_size",)):
        case int(side):
            synonyms["img_size"] = side
        case [int(channels), int(height), int(width)]:
            synonyms |= {"in_chans": channels, "img_size": height if height == width else [height, width]}
        case _:
            pass
    return synonyms


WRAPPERS = ("state_dict", "model_state_dict", "model", "module", "net")
EMA_WRAPPERS = ("state_dict_ema", "model_ema", "ema_state_dict")
ZIP_START = b"PK\x03\x04"
DEEPEST = 4
MAX_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """The tensors of a file.

    Attributes:
        tensors: By the names that the file has; those of an uncompressed archive stay on disk until they are used.
        wrapper: The keys beneath which they lie, joined by dots; empty for a plain state dict.
        ema: The key of an exponential moving average that was left aside, or None.
        metadata: What the file says of its model besides.
    """

    tensors: dict[str, torch.Tensor]
    wrapper: str = ""
    ema: str | None = None
    metadata: Metadata = field(default_factory=Metadata)


def files_of(source: str) -> tuple[Path, ...]:
    """Return the files of `source`: itself, or the shards that an index names.

    Raises:
        CheckpointError: If it is missing or a folder.
        UsageError: If it is a stream.
    """
    path = Path(source)
    if is_stream(path):
        raise UsageError(
            "`import` cannot read a stream: it reads tensors by their position in a file",
            hint="write it to a file first",
        )
    if path.is_dir():
        names = sorted(f for pattern in (*SUFFIXES, "*.index*.json") for f in path.glob(pattern))
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
        files: Pickles of torch, or safetensors; the content tells.
        ema: Take the exponential moving average.
        key: Keys, joined by dots, beneath which the weights lie, or what their names begin with.

    Raises:
        CheckpointError: If a file is not one of weights, or reading it needs code.
        UsageError: If there is no moving average to take, or no such key, or the file is one of ours.
    """
    weights_of_files = [_read_one(path, ema=ema, key=key) for path in files]
    tensors: dict[str, torch.Tensor] = {}
    for path, weights in zip(files, weights_of_files, strict=True):
        if twice := tensors.keys() & weights.tensors.keys():
            raise CheckpointError(f"{path}: tensor `{min(twice)}` is also in another shard")
        _check_plain(path, weights.tensors)
        tensors |= weights.tensors
    return replace(weights_of_files[0], tensors=tensors)


def _read_one(path: Path, *, ema: bool, key: str | None) -> Weights:
    try:
        with path.open("rb") as file:
            begin = file.read(9)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    if not begin:
        raise CheckpointError(f"{path}: is empty", hint="copy or download it again")
    if begin[8:] != b"{":
        return _unwrapped(path, _unpickled(path, begin), ema=ema, key=key)
    checkpoint = Checkpoint.open(path)
    if checkpoint.header is not None:
        raise UsageError(
            f"{path}: is already a checkpoint of hydractl", hint="use it directly with the other commands"
        )
    if ema:
        raise UsageError(f"{path}: has no exponential moving average of weights", hint="leave out `--ema`")
    tensors = checkpoint.tensors()
    return Weights(tensors=tensors if key is None else _named(path, tensors, key))


def _unpickled(path: Path, begin: bytes) -> object:
    """Read a pickle of torch without running anything in it.

    `argparse.Namespace` is let through, as timm does: most training scripts save their options, and it only holds values. In the
    place of other classes stand records.
    """
    is_archive = begin.startswith(ZIP_START)
    # torch maps no file whose name is not UTF-8
    on_disk = is_archive and _is_plain_archive(path) and not NOT_UTF8.search(str(path))
    try:
        classes = rehearse(*_pickles(path, is_archive=is_archive))
        records = [record_class(name, container) for name, container in classes.items()]
        with warnings.catch_warnings(), torch.serialization.safe_globals([argparse.Namespace, *records]):
            warnings.simplefilter("ignore")  # about forms of files; what matters is said by errors
            return torch.load(path, map_location="cpu", weights_only=True, mmap=on_disk)  # noqa: TID251 - data only
    except TooMuchError as error:
        raise CheckpointError(
            f"{path}: declares tensors that are larger than the file: {error}",
            hint="copy or download it again",
        ) from error
    except pickle.UnpicklingError as error:
        reason = f" (`{error}`)" if isinstance(error, NeedsCodeError) else ""
        raise CheckpointError(
            f"{path}: cannot be read without running code{reason}, or is not a torch file; no code in it was run",
            hint=(
                "if you trust the file, save its tensors again: `torch.save(model.state_dict(), 'weights.pth')`"
            ),
        ) from error
    except MemoryError:
        raise
    except Exception as error:  # a pickle is a program, and a broken one fails as it likes
        raise CheckpointError(
            f"{path}: is not a file of torch weights, or is truncated",
            hint="copy or download it again; `import` reads what `torch.save` writes, and safetensors",
        ) from error


def _is_plain_archive(path: Path) -> bool:
    """Return whether an archive's records lie in it as they are; refuse one that holds a program.

    Raises:
        CheckpointError: If it is TorchScript, or no archive.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            records = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise CheckpointError(
            f"{path}: is not a readable archive, or is truncated", hint="copy or download it again"
        ) from error
    if any(record.filename.endswith("/constants.pkl") for record in records):
        raise CheckpointError(
            f"{path}: is TorchScript, which contains a program",
            hint="if you trust the file: `torch.save(torch.jit.load(path).state_dict(), 'weights.pth')`",
        )
    names = [record.filename.casefold() for record in records]
    if len({*names}) != len(names):  # which of two is read is another reader's choice
        raise CheckpointError(f"{path}: has two records with the same name", hint="copy or download it again")
    if sum(record.file_size for record in records) > most(path.stat().st_size):
        raise CheckpointError(
            f"{path}: its records decompress to more than {TIMES} times the size of the file",
            hint="save it again without compression",
        )
    return all(record.compress_type == zipfile.ZIP_STORED for record in records)


def _pickles(path: Path, *, is_archive: bool) -> tuple[bytes, int, int]:
    """Return an archive's pickle, or what a file of the older form begins with; and how many bytes there are; see `rehearse`."""
    if not is_archive:
        with path.open("rb") as file:
            return file.read(MOST_BYTES), path.stat().st_size, PICKLES
    with zipfile.ZipFile(path) as archive:
        records = archive.infolist()
        name = next((r.filename for r in records if r.filename.endswith("/data.pkl")), "data.pkl")
        with archive.open(name) as file:
            return file.read(MOST_BYTES), sum(record.file_size for record in records), 1


def _unwrapped(path: Path, saved: object, *, ema: bool, key: str | None) -> Weights:
    """Find the state dict in what was saved."""
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
    at = averages[0] if ema else key
    beneath = None if at is None else _beneath(saved, at)
    wrapper, inner = _descend(saved, "") if beneath is None else _descend(beneath, at or "")
    tensors = _tensors_of(inner)
    if key is not None and beneath is None:
        tensors = _named(path, tensors, key, saved)
    if not tensors:
        raise CheckpointError(
            f"{path}: has no state dict; {f'`{wrapper}` holds' if wrapper else 'its keys are'} "
            f"{quoted(inner, most=MAX_SHOWN) or 'none'}",
            hint=_where_weights_are(inner, wrapper, averages=bool(averages) and not ema),
        )
    return Weights(
        tensors=tensors,
        wrapper=wrapper,
        ema=averages[0] if averages and not ema and key is None else None,
        metadata=metadata_of(saved),
    )


def _tensors_of(saved: Mapping[object, object]) -> dict[str, torch.Tensor]:
    return {str(k): v for k, v in saved.items() if isinstance(v, torch.Tensor)}


def _beneath(saved: Mapping[object, object], key: str) -> Mapping[object, object] | None:
    """Return what lies beneath keys that are joined by dots, None where that is no dictionary."""
    nested: object = saved
    for part in key.split("."):
        nested = nested.get(part) if isinstance(nested, Mapping) else None
    return nested if isinstance(nested, Mapping) else None


def _named(
    path: Path, tensors: Mapping[str, torch.Tensor], key: str, saved: Mapping[object, object] | None = None
) -> dict[str, torch.Tensor]:
    """Return the tensors that have `key` among what stands before their names.

    Raises:
        UsageError: If none has.
    """
    matching = {name: tensor for name, tensor in tensors.items() if f".{key}." in f".{name}"}
    if not matching:
        raise UsageError(
            f"`--weights-key {key}`: {path} has no weights under this key; its keys are "
            f"{quoted(tensors if saved is None else saved, most=MAX_SHOWN)}",
            hint=_where_weights_are(saved or {}, "", averages=False),
        )
    return matching


def _where_weights_are(saved: Mapping[object, object], wrapper: str, *, averages: bool) -> str:
    """Return a hint that names the keys beneath which there are tensors, or those that are expected."""
    if averages:
        return "it has an exponential moving average: add `--ema` to import it"
    keys = [
        f"{wrapper}.{key}".lstrip(".")
        for key, item in saved.items()
        if isinstance(item, Mapping) and _tensors_of(_descend(item, "")[1])
    ]
    if keys:
        return f"there are tensors under {quoted(keys, most=MAX_SHOWN)}: add `--weights-key {keys[-1]}` to import those"
    return f"expected a state dict, at the top level or under one of {quoted(WRAPPERS)}"


def _descend(saved: Mapping[object, object], wrapper: str) -> tuple[str, Mapping[object, object]]:
    """Follow known keys to the innermost mapping; return their path and what lies there."""
    for _ in range(DEEPEST):
        key, inner = next(
            ((key, inner) for key in WRAPPERS if isinstance(inner := saved.get(key), Mapping)), ("", None)
        )
        if inner is None:
            break
        saved, wrapper = inner, f"{wrapper}.{key}".lstrip(".")
    return wrapper, saved


def _check_plain(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Refuse tensors that are not rows of numbers in memory.

    Raises:
        CheckpointError: Naming the first.
    """
    for name, tensor in tensors.items():
        dtype = str(tensor.dtype).removeprefix("torch.")
        if (
            tensor.layout != torch.strided
            or tensor.is_quantized
            or tensor.is_meta
            or dtype not in DTYPE_NAMES
        ):
            raise CheckpointError(
                f"{path}: tensor `{name}` is not a dense tensor ({dtype}, {tensor.layout})",
                hint=(
                    "quantized, sparse and empty weights cannot be pruned; import dense floating-point weights"
                ),
            )
