"""Local files of MODEL references. Models are downloaded only here.

A MODEL is, in this order: `-` (standard input) · `arch:NAME[::key=value,...]` (random weights) · `hf-hub:ID`
· `local-dir:PATH` · a path that exists · a Hub id `org/name[@revision]`.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydractl.errors import CheckpointError, HubError, UsageError
from hydractl.hub_client import limited_client, unusable
from hydractl.messages import did_you_mean_path
from hydractl.output.publish import is_stream
from hydractl.strict_json import NotJSONError, parse, read_object

HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?$")
INDEX = "model.safetensors.index.json"
WEIGHTS = "model.safetensors"
OPEN_CLIP_CONFIG = "open_clip_config.json"
OPEN_CLIP_WEIGHTS = ("open_clip_model.safetensors", "open_clip_pytorch_model.safetensors")
NEEDED = ["*.safetensors", "*.st", "*.json", "*.txt", "*.model", "bpe.codes"]
IMPORT = (
    "`hydractl import {weights} --arch {arch} -o base.st` converts it to a base without running code in it"
)
BESIDE = (
    "*config.json",
    "*.index*.json",
    "tokenizer*.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "bpe.codes",
    "*.model",
)
"""Files that libraries read in addition to weights."""
INNER = ("0_Transformer", "checkpoint-*")
"""Sub-folders that contain a model: the older layout of sentence-transformers, and checkpoints of the Trainer
of transformers."""
ADAPTER, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""The files of peft."""
PICKLES = ("*.bin", "*.pth", "*.pth.tar", "*.pt", "*.ckpt")
INDEXES = re.compile(r"\.index(\.[\w-]+)?\.json$")
"""Suffix of index files of shards, with the optional variant of transformers (`fp16`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """Files of a model.

    Attributes:
        reference: Reference typed by the user.
        path: The file or folder, for messages.
        weights: The safetensors files, shards in order; empty for `arch:`.
        config: Content of the folder's `config.json` or `open_clip_config.json`, or None.
        arch: Architecture name of an `arch:` reference; None for other references.
        options: Options of the architecture.
        notes: Messages for the user about the choice of files.
    """

    reference: str
    path: Path
    weights: tuple[Path, ...] = ()
    config: dict[str, object] | None = None
    arch: str | None = None
    options: dict[str, object] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def locate(reference: str) -> Located:
    """Find the files of a MODEL reference. A Hub id is downloaded.

    Raises:
        CheckpointError: If the path does not exist or has no safetensors weights.
        HubError: If the Hub cannot be reached or does not have the model.
        UsageError: If the reference is malformed.
    """
    if reference.startswith("arch:"):
        name, options = parse_arch(reference.removeprefix("arch:"))
        return Located(reference=reference, path=Path(name), arch=name, options=options)
    if reference.startswith("hf-hub:"):
        return _in_folder(reference, download(reference.removeprefix("hf-hub:")))
    if not reference.removeprefix("local-dir:"):
        raise UsageError(
            "the model reference is empty",
            hint="a MODEL is a .st file, a folder (`.` for this one), or a Hub id `org/name[@revision]`",
        )
    path = Path(reference.removeprefix("local-dir:"))
    if reference == "-" or is_stream(path):
        return Located(reference=reference, path=path, weights=(path,))
    if path.is_dir():
        return _in_folder(reference, path)
    if path.is_file():
        return _in_index(reference, path) if is_index(path) else _one_file(reference, path)
    if _is_hub_id(reference):
        try:
            return _in_folder(reference, download(reference))
        except HubError as error:
            error.hint = did_you_mean_path(str(path)) or error.hint
            raise
    bare = not path.suffix and path.name == reference
    architecture = f"; `arch:{reference}` for random weights of that architecture" if bare else ""
    raise CheckpointError(
        f"{reference}: no such file or folder",
        hint=did_you_mean_path(str(path))
        or f"a MODEL is a .st file, a folder, or a Hub id `org/name[@revision]`{architecture}",
    )


def is_index(path: Path) -> bool:
    """Return whether the name of a file is that of an index of shards."""
    return INDEXES.search(path.name) is not None


def named(path: Path) -> Path:
    """Return a path with a name at the end: `.` and `..` are resolved."""
    return path if path.name not in {"", ".."} else path.resolve()


def of_hub(reference: str) -> bool:
    """Return whether `locate` would download the model."""
    return reference.startswith("hf-hub:") or (not Path(reference).exists() and _is_hub_id(reference))


def _is_hub_id(reference: str) -> bool:
    return bool(HUB_ID.match(reference)) and Path(reference).suffix not in {".st", ".safetensors"}


def parse_arch(text: str) -> tuple[str, dict[str, object]]:
    """Split `NAME::key=value,...` into name and options. Values without JSON syntax are strings.

    Raises:
        UsageError: If an option has no `=`, appears twice, or has an unclosed bracket.
    """
    name, _, options_text = text.partition("::")
    options: dict[str, object] = {}
    for item in filter(None, split_options(options_text)):
        key, equals, value = item.partition("=")
        if unclosed(item):
            raise UsageError(
                f"`{item}` in `arch:{text}`: a bracket is not closed",
                hint="for example `'arch:vit_tiny_patch16_224::img_size=[96,128]'`, in quotes for the shell",
            )
        if not equals or not key:
            raise UsageError(
                f"`{item}` in `arch:{text}`: expected key=value",
                hint="for example `arch:vit_tiny_patch16_224::num_classes=10`",
            )
        if key in options:
            raise UsageError(f"`arch:{text}`: the option `{key}` appears twice")
        try:
            options[key] = parse(value)
        except NotJSONError:
            options[key] = value
    return name, options


def arch_folder(arch: str | None) -> Path | None:
    """Return the folder named by `--arch`, or None for an architecture name or a missing option."""
    if arch is None:
        return None
    try:
        return Path(arch) if Path(arch).is_dir() else None
    except OSError:  # The name is too long for a path.
        return None


def split_options(text: str) -> list[str]:
    """Split `key=value,...` at commas outside of brackets; see `unclosed`."""
    options: list[str] = []
    for part in text.split(","):
        if options and unclosed(options[-1]):
            options[-1] += f",{part}"
        else:
            options.append(part)
    return options


def unclosed(option: str) -> bool:
    """Return whether the value of an option is a list or table with an open bracket."""
    value = option.partition("=")[2]
    return value.startswith(("[", "{")) and sum(map(value.count, "[{")) > sum(map(value.count, "]}"))


def download(identifier: str, **place: Any) -> Path:  # noqa: ANN401 - as the Hub's client takes them
    """Return the folder with the local snapshot of a Hub model: safetensors, configuration and tokenizer.

    Pickles are not downloaded.

    Args:
        identifier: `org/name[@revision]`.
        place: Other arguments of the Hub's client: cache, token, revision.

    Raises:
        HubError: With the reason, for every failure of the client.
    """
    import httpx2  # noqa: PLC0415 - the network stack is slow to load
    from huggingface_hub import errors, snapshot_download  # noqa: PLC0415 - as above

    name, _, revision = identifier.partition("@")
    try:
        with limited_client(identifier):
            return Path(
                snapshot_download(name, **{"revision": revision or None, **place}, allow_patterns=NEEDED)
            )
    except (errors.GatedRepoError, errors.RepositoryNotFoundError) as error:
        hint = "check the spelling; a private or gated model needs `hf auth login`"
        raise HubError(
            f"{identifier}: the Hub has no such model, or you have no access to it", hint=hint
        ) from error
    except errors.RevisionNotFoundError as error:
        raise HubError(f"{identifier}: the model has no revision `{revision}`") from error
    except (errors.OfflineModeIsEnabled, errors.LocalEntryNotFoundError) as error:
        hint = "check the connection, unset HF_HUB_OFFLINE, or use a local path"
        reason = f": {error.__cause__}" if error.__cause__ else ""
        raise HubError(
            f"{identifier}: is not in the local cache and the Hub cannot be reached{reason}", hint=hint
        ) from error
    except (
        errors.HFValidationError,
        errors.HfUriError,
        errors.EntryNotFoundError,
        errors.RevisionResolutionError,
        errors.CacheNotFound,
        errors.CorruptedCacheException,
        errors.CachedRepoTreeNotFoundError,
        errors.XetDownloadError,
        httpx2.HTTPError,
        httpx2.InvalidURL,
        OSError,  # HfHubHTTPError and a full disk are OSErrors.
    ) as error:
        raise HubError(f"{identifier}: reading from the Hub failed: {error}") from error
    except ValueError as error:
        raise unusable(identifier, error) from error


def _one_file(reference: str, path: Path) -> Located:
    if path.name == ADAPTER_WEIGHTS:
        check_no_adapter(path.parent)
    if any(path.match(pattern) for pattern in (*PICKLES, "*.pkl")):
        raise CheckpointError(
            f"{path}: is a pickle, which can run code when it is loaded; hydractl reads only safetensors",
            hint=IMPORT.format(weights=shlex.quote(str(path)), arch="NAME"),
        )
    return Located(reference=reference, path=path, weights=(path,))


def _in_folder(reference: str, folder: Path) -> Located:
    config = _config_in(folder)
    if config is not None and "model_cfg" in config:
        for name in OPEN_CLIP_WEIGHTS:
            if (folder / name).is_file():
                return Located(reference=reference, path=folder, weights=(folder / name,), config=config)
    if (folder / WEIGHTS).is_file():
        note = f"has `{WEIGHTS}` and an index of shards; using `{WEIGHTS}`, as transformers does"
        return Located(
            reference=reference,
            path=folder,
            weights=(folder / WEIGHTS,),
            config=config,
            notes=(note,) * (folder / INDEX).is_file(),
        )
    if (folder / INDEX).is_file():
        return _in_index(reference, folder / INDEX, config=config)
    variants = [path for path in sorted(folder.glob("model.safetensors.index.*.json")) if is_index(path)]
    if len(variants) == 1:
        return _in_index(reference, variants[0], config=config)
    weight_files = variants or sorted([*folder.glob("*.safetensors"), *folder.glob("*.st")])
    if len(weight_files) == 1:
        return Located(reference=reference, path=folder, weights=tuple(weight_files), config=config)
    if weight_files:
        names = ", ".join(f.name for f in weight_files[:4])
        raise CheckpointError(
            f"{folder}: has {len(weight_files)} "
            f"{'indexes of shards' if variants else 'safetensors files and no index'}: {names}",
            hint="give one of them",
        )
    raise _no_weights(folder, config)


def _no_weights(folder: Path, config: dict[str, object] | None) -> CheckpointError:
    """Return the error for a folder without safetensors, with a hint that depends on the folder's content."""
    pickles = sorted(
        {f.name for pattern in ("*.bin.index*.json", *PICKLES) for f in folder.glob(pattern)},
        key=lambda name: (not name.endswith(".json"), "model" not in name, name),
    )
    if pickles:
        return CheckpointError(
            f"{folder}: has only pickled weights (`{pickles[0]}`), which hydractl does not load",
            hint=IMPORT.format(
                weights=shlex.quote(str(folder / pickles[0])),
                arch="NAME" if config is None else shlex.quote(str(folder)),
            ),
        )
    if inner := [path.parent for pattern in INNER for path in folder.glob(f"{pattern}/config.json")]:
        last = max(inner, key=lambda path: int(re.sub(r"\D", "", path.name) or 0))
        return CheckpointError(
            f"{folder}: has no model, but its sub-folder `{last.name}` has one",
            hint=f"give that folder: `{shlex.quote(str(last))}`"
            + (
                (
                    "; its `1_Pooling/config.json` is then ignored: for the mean over tokens add "
                    "`--pooling mean` to `finetune`"
                )
                if (folder / "1_Pooling").is_dir()
                else ""
            ),
        )
    return CheckpointError(
        f"{folder}: the folder has no safetensors weights",
        hint=f"expected `{WEIGHTS}` or `{INDEX}`"
        + (
            f"; for a pickle, {IMPORT.format(weights='FILE', arch=shlex.quote(str(folder)))}"
            if config is not None
            else ""
        ),
    )


def _in_index(reference: str, index: Path, *, config: dict[str, object] | None = None) -> Located:
    says = read_object(index)
    table = says.get("weight_map")
    if not isinstance(says.get("metadata", {}), dict):
        raise CheckpointError(f"{index}: metadata is not an object")
    if not isinstance(table, dict) or not table or not all(isinstance(v, str) for v in table.values()):
        raise CheckpointError(f"{index}: weight_map is missing or is not a table of file names")
    shards = tuple(index.parent / name for name in sorted(set(table.values())))
    for shard in shards:
        if shard.parent != index.parent or not shard.is_file():
            raise CheckpointError(
                f"{index}: refers to the shard `{shard.name}`, which does not exist in its folder"
            )
    config = _config_in(index.parent) if config is None else config
    return Located(reference=reference, path=index.parent, weights=shards, config=config)


def folder_files(folder: Path) -> tuple[Path, ...]:
    """Return a folder's files for architecture and preprocessing, without weights, in the order of `BESIDE`."""
    return tuple(dict.fromkeys(path for pattern in BESIDE for path in sorted(folder.glob(pattern))))


def folder_config(folder: Path) -> dict[str, object]:
    """Return `config.json` or `open_clip_config.json` of a folder.

    Raises:
        CheckpointError: If neither exists, or the file is not a JSON object.
    """
    config = _config_in(folder)
    if config is None:
        raise CheckpointError(
            f"{folder}: has no config.json", hint="give the architecture instead: `--arch NAME`"
        )
    return config


def check_no_adapter(folder: Path) -> None:
    """Raise for a folder of peft, which has only changes to the weights of a base.

    Raises:
        CheckpointError: If the folder has an adapter.
    """
    if (folder / ADAPTER).is_file():
        raise CheckpointError(
            f"{folder}: contains an adapter (`{ADAPTER}`) without the weights of its base",
            hint="merge it into its base first, in Python with peft: `AutoPeftModelForSequenceClassification.from_pretrained("
            "FOLDER).merge_and_unload().save_pretrained(OTHER)`",
        )


def _config_in(folder: Path) -> dict[str, object] | None:
    """Return the configuration of a folder, or None.

    A folder with the layouts of open_clip and another library is read as the other library's, because
    open_clip is an optional dependency.
    """
    check_no_adapter(folder)
    config_file, open_clip = folder / "config.json", folder / OPEN_CLIP_CONFIG
    is_ambiguous = config_file.is_file() and ((folder / WEIGHTS).is_file() or (folder / INDEX).is_file())
    if open_clip.is_file() and not is_ambiguous:
        return read_object(open_clip)
    return read_object(config_file) if config_file.is_file() else None
