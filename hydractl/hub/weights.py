"""A model's weights as the Hub takes them: one file, or shards with an index."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from hydractl.checkpoint import Checkpoint, ScratchFolder, write_checkpoint
from hydractl.hub.layout import SHARD
from hydractl.manifest.header import Header
from hydractl.model_source import INDEX, WEIGHTS
from hydractl.strict_json import canonical
from hydractl.tensor_spec import TensorSpec


def weights_of(
    checkpoint: Checkpoint, header: Header, *, limit: int, scratch: ScratchFolder
) -> dict[str, Path | bytes]:
    """Return the files that hold a model's weights, by the name that they go by.

    A checkpoint of ours is taken as it lies; anything else is written anew, with its header, in each shard.

    Args:
        checkpoint: Its tensors.
        header: What the files say of themselves.
        limit: The most bytes of a file's tensors; a tensor is never cut.
        scratch: Where files are written that are not there yet.
    """
    specs = checkpoint.specs | checkpoint.beside
    total = sum(spec.size_bytes for spec in specs.values())
    fits_one_file = total <= limit
    if fits_one_file and checkpoint.header is not None and len(checkpoint.paths) == 1:
        return {WEIGHTS: checkpoint.paths[0]}
    parts = list(_parts(specs, limit))
    names = [WEIGHTS] if fits_one_file else [SHARD.format(i=i + 1, n=len(parts)) for i in range(len(parts))]
    for name, part in zip(names, parts, strict=True):
        with scratch.file(name) as file:
            write_checkpoint(
                file,
                {tensor: specs[tensor] for tensor in part},
                lambda tensor: [checkpoint.spans[tensor]],
                header=header,
            )
    files: dict[str, Path | bytes] = {name: scratch.path / name for name in names}
    if not fits_one_file:
        table = {tensor: name for name, part in zip(names, parts, strict=True) for tensor in part}
        index = {"metadata": {"total_size": total}, "weight_map": table}
        files[INDEX] = canonical(index).encode()
    return files


def _parts(specs: Mapping[str, TensorSpec], limit: int) -> Iterator[list[str]]:
    """Yield the names of a shard's tensors, as many in turn as fit."""
    part: list[str] = []
    room = limit
    for name, spec in sorted(specs.items()):
        if part and spec.size_bytes > room:
            yield part
            part, room = [], limit
        part.append(name)
        room -= spec.size_bytes
    if part:
        yield part
