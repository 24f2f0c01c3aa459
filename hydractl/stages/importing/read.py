"""What a training script saved → its tensors. Pickles are read as data: nothing in them is run."""

from __future__ import annotations

import argparse
import pickle
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from hydractl.checkpoint import Checkpoint
from hydractl.errors import CheckpointError, UsageError
from hydractl.messages import did_you_mean_path, quoted
from hydractl.model_source import PICKLES as SUFFIXES
from hydractl.model_source import is_index, locate
from hydractl.output.publish import is_stream
from hydractl.stages.importing.metadata import Metadata, metadata_of
from hydractl.stages.importing.pickle_scan import (
    MOST_BYTES,
    PICKLES,
    TIMES,
    NeedsCodeError,
    TooMuchError,
    most,
    rehearse,
)
from hydractl.stages.importing.records import record_class
from hydractl.strict_json import NOT_UTF8
from hydractl.tensor_spec import DTYPE_NAMES

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
        key = next((key for key in WRAPPERS if isinstance(saved.get(key), Mapping)), None)
        if key is None:
            break
        inner = saved[key]
        if not isinstance(inner, Mapping):
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
