"""What `inspect` is told to look at: local files alone, opened by their content."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hydractl.checkpoint import Checkpoint
from hydractl.errors import CheckpointError, UsageError
from hydractl.source import HUB_ID, Located, locate
from hydractl.stages.inspect.sniff import open_any

if TYPE_CHECKING:
    from hydractl.manifest import Document, Header


def check_local(file: str) -> None:
    """Refuse a reference to what is no local file.

    Raises:
        UsageError: If it is an `arch:` or `hf-hub:` reference.
    """
    if file.startswith(("arch:", "hf-hub:")):
        raise UsageError(
            f"{file}: `inspect` reads local files",
            hint="fetch a Hub model with `hf download ID --local-dir FOLDER` and inspect the folder",
        )


def open_local(file: str) -> tuple[Checkpoint | Document, Located]:
    """Open a file or folder, and say where it was found.

    Raises:
        CheckpointError: If a checkpoint is missing or malformed.
        ManifestError: If a JSON file is none of ours, or malformed.
        InputError: If it is neither, or cannot be read.
    """
    path = Path(file.removeprefix("local-dir:"))
    is_id = HUB_ID.match(file) and path.suffix not in {".st", ".safetensors", ".json"}
    if is_id and not path.exists():
        raise CheckpointError(
            f"{file}: no such file or folder",
            hint="if it is a Hub id: `hf download ID --local-dir FOLDER`, then inspect the folder",
        )
    located = locate(file)
    if located.path.is_dir():
        return Checkpoint.open(located.path, shards=located.weights), located
    return open_any(located.path), located


def member_names(header: Header) -> tuple[str, ...]:
    """Return what the members of a hydra were called, or `member 0`, ... where its lineage does not say."""
    count = len(header.masks)
    inputs = header.made_by.inputs if header.made_by else ()
    return (
        tuple(i.name for i in inputs) if len(inputs) == count else tuple(f"member {i}" for i in range(count))
    )
