"""The safetensors files: lazy keyed reads, a canonical header, streamed writes.

The reader takes one file or the shards of one model, checks every header strictly (format specification of
safetensors: 8 bytes of length, JSON, data without holes) and hands out tensors one at a time; nothing is unpickled.
The writer is our own because the bytes must be a function of the content: safetensors 0.8 orders its metadata
at random. Keys are sorted, tensors lie by element size and then by name, the header is padded to 8 bytes.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from hydractl.errors import CheckpointError, ManifestError
from hydractl.jsonfile import MAX_BYTES, parse
from hydractl.manifest import Header
from hydractl.publish import Sink, is_stream
from hydractl.runtime import CHUNK_BYTES, digest_file, digest_text

if TYPE_CHECKING:
    import io

    import torch

METADATA_KEY = "hydractl"
ITEM_BYTES = {
    "F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2,
    "I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1,
}  # fmt: skip
TORCH_NAMES = {
    "F64": "float64", "I64": "int64", "F32": "float32", "I32": "int32", "F16": "float16", "BF16": "bfloat16",
    "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
}  # fmt: skip
DTYPE_NAMES = {value: key for key, value in TORCH_NAMES.items()}
Chunks = Iterable["bytes | memoryview | Span"]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor's safetensors dtype (`F32`, `BF16`, ...) and shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """The bytes that its elements take."""
        return ITEM_BYTES[self.dtype] * prod(self.shape)


@dataclass(frozen=True, slots=True)
class Span:
    """A tensor's bytes within a file."""

    name: str
    path: Path
    begin: int
    size: int

    def pieces(self) -> Iterator[memoryview]:
        """Yield the bytes in pieces of `CHUNK_BYTES`; a piece is valid until the next one is asked for."""
        buffer = memoryview(bytearray(min(self.size, CHUNK_BYTES)))
        with self.path.open("rb", buffering=0) as file:
            file.seek(self.begin)
            for done in range(0, self.size, CHUNK_BYTES):
                piece = buffer[: min(self.size - done, CHUNK_BYTES)]
                self._fill(piece, file)
                yield piece

    def parts(self, size: int) -> list[Span]:
        """Return the spans of at most `size` bytes that make up this one, in order."""
        return [
            Span(self.name, self.path, self.begin + done, min(self.size - done, size))
            for done in range(0, self.size, size)
        ]

    def read(self) -> bytearray:
        """Return all bytes."""
        buffer = bytearray(self.size)
        with self.path.open("rb", buffering=0) as file:
            file.seek(self.begin)
            self._fill(memoryview(buffer), file)
        return buffer

    def copy_to(self, file: Sink) -> None:
        """Append the bytes to a file: within the kernel where it can, which spares two copies."""
        if not self._copied_by_kernel(file):
            for piece in self.pieces():
                file.write(piece)

    def _copied_by_kernel(self, file: Sink) -> bool:
        """Copy everything and return True, or nothing and return False: pipes and some file systems cannot."""
        if not hasattr(os, "copy_file_range"):
            return False
        done = 0
        with self.path.open("rb", buffering=0) as source:
            try:
                file.flush()
                while done < self.size:
                    copied = os.copy_file_range(
                        source.fileno(), file.fileno(), self.size - done, self.begin + done
                    )
                    if not copied:
                        raise self._ends_early()
                    done += copied
            except OSError as error:
                if done or error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}:
                    raise
                return False
        return True

    def _fill(self, buffer: memoryview, file: io.FileIO) -> None:
        filled = 0
        while filled < len(buffer):
            read = file.readinto(buffer[filled:])
            if not read:
                raise self._ends_early()
            filled += read

    def _ends_early(self) -> CheckpointError:
        return CheckpointError(
            f"{self.path}: tensor `{self.name}` ends early; was the file changed while it was read?"
        )


@dataclass(frozen=True, slots=True)
class _Place:
    path: Path
    begin: int


class ScratchFolder:
    """A temporary folder that lives as long as this object, at most until the process ends."""

    def __init__(self) -> None:
        self.path = Path(tempfile.gettempdir(), f"hydractl-{secrets.token_hex(8)}")
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)
        self.path.mkdir(mode=0o700)  # last: a signal at any instant leaves nothing behind


@dataclass
class Checkpoint:
    """One model's tensors in one file, or in several shards. Opening reads headers only.

    `scratch` is the folder that goes with the object, where the file is a copy of a stream. `stands_for` is the checkpoint
    whose tensors these are under other names; the digest is that one's.
    """

    name: str
    paths: tuple[Path, ...]
    specs: dict[str, TensorSpec]
    metadata: dict[str, str]
    _places: dict[str, _Place]
    scratch: ScratchFolder | None = None
    stands_for: Checkpoint | None = None
    _digest: str | None = None

    @classmethod
    def open(cls, path: Path, *, shards: Sequence[Path] = ()) -> Checkpoint:
        """Open a file, or the `shards` of a model that `path` names.

        A stream (`-`, a FIFO) is spooled to a temporary file first, since tensors are read by offset.

        Raises:
            CheckpointError: If a file is missing or is not well-formed safetensors.
        """
        spool = None
        files = tuple(shards) or (path,)
        if not shards and is_stream(path):
            spool, files = _spool(path)
        specs: dict[str, TensorSpec] = {}
        places: dict[str, _Place] = {}
        metadata: dict[str, str] = {}
        for file in files:
            found, begin_of, meta = _read_header(file, where=str(path if spool else file))
            if twice := specs.keys() & found.keys():
                raise CheckpointError(f"{file}: tensor `{min(twice)}` is in another shard too")
            specs |= found
            metadata |= meta
            places |= {name: _Place(file, begin) for name, begin in begin_of.items()}
        return cls(str(path), files, specs, metadata, places, spool)

    @cached_property
    def header(self) -> Header | None:
        """What the file says of itself, or None where hydractl did not write it.

        Raises:
            CheckpointError: If the entry is there but not valid.
        """
        text = self.metadata.get(METADATA_KEY)
        if text is None:
            return None
        try:
            return Header.from_json(text, where=f"{self.name}: metadata.{METADATA_KEY}")
        except ManifestError as error:
            raise CheckpointError(
                error.message, hint="was it written by another version of hydractl?"
            ) from error

    @property
    def digest(self) -> str:
        """`sha256:...` of the file, or of the shards' digests in order; computed once."""
        if (
            self._digest is None
        ):  # not a cached_property: before Python 3.12 those hold one lock for all objects
            parts = [digest_file(path) for path in self.paths]
            self._digest = parts[0] if len(parts) == 1 else digest_text("\n".join(parts))
        return self._digest

    @property
    def size_bytes(self) -> int:
        """The bytes of all tensors together."""
        return sum(spec.size_bytes for spec in self.specs.values())

    def joined(self, other: Checkpoint, *, scratch: ScratchFolder) -> Checkpoint:
        """Return a checkpoint with another's tensors too; it goes by its own name and digest still."""
        return Checkpoint(
            self.name,
            self.paths,
            {**self.specs, **other.specs},
            self.metadata,
            {**self._places, **other._places},
            scratch,
            stands_for=self,
        )

    def span(self, name: str) -> Span:
        """Return where a tensor's raw bytes lie."""
        place = self._places[name]
        return Span(name, place.path, place.begin, self.specs[name].size_bytes)

    def chunks(self, name: str) -> Iterator[memoryview]:
        """Yield a tensor's raw bytes in pieces of `CHUNK_BYTES`; a piece is valid until the next one is asked for."""
        return self.span(name).pieces()

    def tensor(self, name: str) -> torch.Tensor:
        """Read one tensor into memory of its own.

        Raises:
            CheckpointError: If it is not there, or torch has no such dtype.
        """
        spec = self.specs.get(name)
        if spec is None:
            raise CheckpointError(f"{self.name}: has no tensor `{name}`")
        if spec.dtype not in TORCH_NAMES:
            raise CheckpointError(
                f"{self.name}: tensor `{name}` has dtype {spec.dtype}, which torch cannot hold"
            )
        return tensor_of(spec, self.chunks(name))

    def tensors(self) -> dict[str, torch.Tensor]:
        """Read every tensor."""
        return {name: self.tensor(name) for name in self.specs}


def digest_together(checkpoints: Sequence[Checkpoint]) -> None:
    """Fill the digests of several checkpoints at once, one thread a core (hashing releases the GIL)."""
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        list(pool.map(lambda checkpoint: checkpoint.digest, checkpoints))


def spec_of(tensor: torch.Tensor) -> TensorSpec:
    """Return the spec of a tensor in memory."""
    return TensorSpec(DTYPE_NAMES[str(tensor.dtype).removeprefix("torch.")], tuple(tensor.shape))


def tensor_of(spec: TensorSpec, chunks: Chunks) -> torch.Tensor:
    """Return the tensor whose raw bytes come as chunks, in memory of its own."""
    import torch  # noqa: PLC0415 - inspecting a file must not load torch

    raw = torch.empty(spec.size_bytes, dtype=torch.uint8)
    view, done = raw.numpy().data, 0
    for chunk in chunks:
        for piece in chunk.pieces() if isinstance(chunk, Span) else (chunk,):
            view[done : done + len(piece)] = piece
            done += len(piece)
    dtype: torch.dtype = getattr(torch, TORCH_NAMES[spec.dtype])
    return raw.view(dtype).reshape(spec.shape)


def tensor_bytes(tensor: torch.Tensor) -> memoryview | bytes:
    """Return a tensor's elements as raw bytes, row-major."""
    import torch  # noqa: PLC0415 - as above

    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else b""


def write_checkpoint(
    file: Sink,
    specs: Mapping[str, TensorSpec],
    data: Callable[[str], Chunks],
    *,
    header: Header | None,
    final: Callable[[], Header] | None = None,
) -> None:
    """Write a canonical safetensors file, one tensor at a time.

    Equal content gives equal bytes. `data` is asked for each tensor in file order, so memory holds one at a time.

    Args:
        file: Where to write; need not be seekable, unless `final` is given.
        specs: Every tensor's dtype and shape.
        data: Returns a tensor's raw bytes as chunks.
        header: What the file says of itself.
        final: Asked, when all tensors are written, for what it should say instead, in just as many bytes.

    Raises:
        ValueError: If `data` yields another number of bytes than the spec says, or `final` a longer or shorter header.
    """
    names = sorted(specs, key=lambda name: (-ITEM_BYTES[specs[name].dtype], name))
    head = _head(names, specs, header)
    file.write(head)
    for name in names:
        written = 0
        for chunk in data(name):
            if isinstance(chunk, Span):
                chunk.copy_to(file)
            else:
                file.write(chunk)
            written += chunk.size if isinstance(chunk, Span) else len(chunk)
        if written != specs[name].size_bytes:
            raise ValueError(
                f"tensor {name}: {written} bytes were written, its spec says {specs[name].size_bytes}"
            )
    if final is not None:
        last = _head(names, specs, final())
        if len(last) != len(head):
            raise ValueError(f"the final header takes {len(last)} bytes, {len(head)} are there for it")
        file.flush()
        os.pwrite(file.fileno(), last, 0)


def _head(names: Sequence[str], specs: Mapping[str, TensorSpec], header: Header | None) -> bytes:
    """Return a file's first bytes: the length of the header, and the header."""
    metadata = {"format": "pt"} | ({METADATA_KEY: header.to_metadata()} if header else {})
    table: dict[str, object] = {"__metadata__": metadata}
    offset = 0
    for name in names:
        end = offset + specs[name].size_bytes
        table[name] = {
            "dtype": specs[name].dtype,
            "shape": list(specs[name].shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(table, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def write_tensors(file: Sink, tensors: Mapping[str, torch.Tensor], *, header: Header | None) -> None:
    """Write tensors that are in memory; see `write_checkpoint`."""
    write_checkpoint(
        file,
        {name: spec_of(t) for name, t in tensors.items()},
        lambda name: [tensor_bytes(tensors[name])],
        header=header,
    )


def _spool(path: Path) -> tuple[ScratchFolder, tuple[Path, ...]]:
    folder = ScratchFolder()
    copy = folder.path / "stdin.safetensors"
    with copy.open("wb") as target:
        if path == Path("-"):
            shutil.copyfileobj(sys.stdin.buffer, target, CHUNK_BYTES)
        else:
            with path.open("rb") as source:
                shutil.copyfileobj(source, target, CHUNK_BYTES)
    return folder, (copy,)


def _read_header(path: Path, *, where: str) -> tuple[dict[str, TensorSpec], dict[str, int], dict[str, str]]:
    """Parse one file's header into specs, data offsets within the file, and metadata."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            begin = file.read(8)
            if b"\0" not in begin and begin.lstrip()[:1] == b"{":  # a length has zero bytes, JSON has none
                raise CheckpointError(
                    f"{where}: is JSON, not a checkpoint", hint=f"`hydractl inspect {where}` says what it is"
                )
            length = int.from_bytes(begin, "little")
            if size < 8 or length > MAX_BYTES or 8 + length > size:
                raise CheckpointError(
                    f"{where}: is not a safetensors file, or is cut off: {size} bytes cannot hold its header",
                    hint="copy or download it again; a `.pth` or `.bin` file is for `hydractl import`",
                )
            text = file.read(length)
    except FileNotFoundError as error:
        raise CheckpointError(f"{where}: no such file", hint="check the path") from error
    except OSError as error:
        raise CheckpointError(f"{where}: cannot be read: {error.strerror}") from error
    try:
        table = parse(text, keys_once=True)
        return _check_table(table, data_begin=8 + length, data_bytes=size - 8 - length)
    except ValueError as error:
        raise CheckpointError(f"{where}: is not a well-formed safetensors file: {error}") from error


def _check_table(
    table: object, *, data_begin: int, data_bytes: int
) -> tuple[dict[str, TensorSpec], dict[str, int], dict[str, str]]:
    if not isinstance(table, dict):
        raise ValueError("the header is not a JSON object")  # noqa: TRY004 - translated by the caller
    metadata = table.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise ValueError("__metadata__ must map names to texts")
    specs: dict[str, TensorSpec] = {}
    spans: list[tuple[int, int, str]] = []
    for name, entry in table.items():
        specs[name], begin, end = _check_entry(name, entry)
        spans.append((begin, end, name))
    expected = 0
    for begin, end, name in sorted(spans):
        if begin != expected:
            raise ValueError(
                f"tensor `{name}` begins at {begin}, expected {expected}: data overlaps or has a hole"
            )
        expected = end
    if expected != data_bytes:
        raise ValueError(
            f"the header describes {expected} bytes of data, the file has {data_bytes}; is it cut off?"
        )
    return specs, {name: data_begin + begin for begin, _, name in spans}, metadata


def _check_entry(name: str, entry: object) -> tuple[TensorSpec, int, int]:
    match entry:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(begin), int(end)], **rest} if (
            not rest
        ):
            if dtype not in ITEM_BYTES:
                raise ValueError(f"tensor `{name}` has the unknown dtype {dtype}")
            if not all(type(n) is int and n >= 0 for n in shape):
                raise ValueError(f"tensor `{name}` has shape {shape}")
            spec = TensorSpec(dtype, tuple(shape))
            if type(begin) is not int or type(end) is not int:
                raise ValueError(f"tensor `{name}` has data_offsets {[begin, end]}")
            if begin < 0 or end - begin != spec.size_bytes:
                raise ValueError(
                    f"tensor `{name}` takes {end - begin} bytes, its shape {shape} needs {spec.size_bytes}"
                )
            return spec, begin, end
        case _:
            raise ValueError(f"tensor `{name}` is not described by dtype, shape and data_offsets")
