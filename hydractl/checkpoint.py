"""Safetensors files: reading of single tensors, the canonical header, and streamed writing.

The reader takes a file or the shards of a model, and checks every header strictly against the specification
(8 bytes of length, JSON, data without gaps). `safetensors.safe_open` (0.8) is not used: the function hides
the positions of tensors (prune and fuse copy bytes by position without loading tensors), accepts duplicate
names, and memory-maps the file: tensors change if another process writes to the file, and a truncated file
ends the process with a bus error. The writer is separate because equal content must give equal bytes, but
safetensors 0.8 writes metadata in random order. Keys are sorted, tensors are ordered by element size and then
by name, and the header is padded to 8 bytes.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import secrets
import shlex
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from hydractl.errors import CheckpointError, ManifestError, OutputError
from hydractl.manifest.header import Header
from hydractl.messages import did_you_mean_path
from hydractl.output.publish import FULL, Sink, is_stream, lock_new, remove_dead
from hydractl.runtime import CHUNK_BYTES, digest_files, on_cpu
from hydractl.strict_json import MAX_BYTES, compact, open_binary, parse
from hydractl.version import UPGRADE

if TYPE_CHECKING:
    import torch


ITEM_BYTES = {
    "F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2,
    "I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1,
}  # fmt: skip
TORCH_NAMES = {
    "F64": "float64", "I64": "int64", "F32": "float32", "I32": "int32", "F16": "float16", "BF16": "bfloat16",
    "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
}  # fmt: skip
DTYPE_NAMES = {value: key for key, value in TORCH_NAMES.items()}
COPIED_AT_ONCE = 1 << 26
"""Bytes per copy from a device, with a single wait per copy. Chosen by hand; twice the size halves the waits
and doubles the buffer on the CPU."""
Chunks = Iterable["bytes | memoryview | Span"]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor's dtype, in the notation of safetensors (`F32`, `BF16`, ...), and shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Size of the elements in bytes."""
        return ITEM_BYTES[self.dtype] * prod(self.shape)

    @property
    def is_floating(self) -> bool:
        """Whether the dtype is floating-point."""
        return self.dtype.startswith(("F", "BF"))

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype in torch. The dtype must be in `TORCH_NAMES`."""
        import torch  # noqa: PLC0415 - inspecting a file must not load torch

        return cast("torch.dtype", getattr(torch, TORCH_NAMES[self.dtype]))


def common_dtype(tensors: Iterable[torch.Tensor]) -> torch.dtype:
    """Return the smallest dtype that can represent all floating-point tensors; float32 if there are none.

    8-bit dtypes count like float32, because torch does not compute in 8 bits.
    """
    import torch  # noqa: PLC0415 - as above

    dtypes = [t.dtype if t.itemsize > 1 else torch.float32 for t in tensors if t.is_floating_point()]
    return reduce(torch.promote_types, dtypes or [torch.float32])


@dataclass(frozen=True, slots=True)
class Span:
    """A tensor's bytes in a file. Reading raises a CheckpointError if the file ends early.

    Attributes:
        name: Name of the tensor.
        path: The file.
        begin: Position of the first byte.
        size: Number of bytes.
    """

    name: str
    path: Path
    begin: int
    size: int

    def pieces(self) -> Iterator[memoryview]:
        """Yield the bytes in pieces of `CHUNK_BYTES`.

        All pieces share a buffer: each is valid until the next.
        """
        buffer = memoryview(bytearray(min(self.size, CHUNK_BYTES)))
        with self.path.open("rb", buffering=0) as file:
            file.seek(self.begin)
            for offset in range(0, self.size, CHUNK_BYTES):
                piece = buffer[: min(self.size - offset, CHUNK_BYTES)]
                self._fill(piece, file)
                yield piece

    def parts(self, size: int) -> list[Span]:
        """Split the span into consecutive spans of at most `size` bytes."""
        return [
            Span(self.name, self.path, self.begin + offset, min(self.size - offset, size))
            for offset in range(0, self.size, size)
        ]

    def read(self) -> bytearray:
        """Return all bytes."""
        buffer = bytearray(self.size)
        with self.path.open("rb", buffering=0) as file:
            file.seek(self.begin)
            self._fill(memoryview(buffer), file)
        return buffer

    def copy_to(self, file: Sink) -> None:
        """Append the bytes to a file.

        If possible, the kernel copies them without two copies through memory.
        """
        if not self._copied_by_kernel(file):
            for piece in self.pieces():
                file.write(piece)

    def _copied_by_kernel(self, file: Sink) -> bool:
        """Copy everything and return True, or copy nothing and return False, for example for pipes."""
        if not hasattr(os, "copy_file_range"):
            return False
        copied_bytes = 0
        with self.path.open("rb", buffering=0) as source:
            try:
                file.flush()
                while copied_bytes < self.size:
                    copied = os.copy_file_range(
                        source.fileno(), file.fileno(), self.size - copied_bytes, self.begin + copied_bytes
                    )
                    if not copied:
                        raise self._ends_early()
                    copied_bytes += copied
            except OSError as error:
                if copied_bytes or error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}:
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
            f"{self.path}: tensor `{self.name}` ends early; the file may have changed while it was read"
        )


def spec_of(tensor: torch.Tensor) -> TensorSpec:
    """Return the spec of a tensor in memory."""
    return TensorSpec(DTYPE_NAMES[str(tensor.dtype).removeprefix("torch.")], tuple(tensor.shape))


def tensor_of(spec: TensorSpec, chunks: Chunks) -> torch.Tensor:
    """Return a new tensor from chunks of raw bytes."""
    import torch  # noqa: PLC0415 - as above

    raw = torch.empty(spec.size_bytes, dtype=torch.uint8)
    view, offset = raw.numpy().data, 0
    for chunk in chunks:
        for piece in chunk.pieces() if isinstance(chunk, Span) else (chunk,):
            view[offset : offset + len(piece)] = piece
            offset += len(piece)
    return raw.view(spec.torch_dtype).reshape(spec.shape)


def in_file_order(specs: Mapping[str, TensorSpec]) -> list[str]:
    """Return tensor names in the order of a file: large elements first, for alignment."""
    return sorted(specs, key=lambda name: (-ITEM_BYTES[specs[name].dtype], name))


def bytes_in_order(tensors: Iterable[torch.Tensor]) -> Iterator[memoryview | bytes]:
    """Yield each tensor's raw bytes, row-major.

    Tensors are copied from a device in groups of `COPIED_AT_ONCE` bytes.
    """
    group: list[torch.Tensor] = []
    for tensor in (*tensors, None):
        if group and (tensor is None or sum(t.nbytes for t in group) >= COPIED_AT_ONCE):
            yield from map(tensor_bytes, on_cpu(*group))
            group.clear()
        if tensor is not None:
            group.append(tensor)


def tensor_bytes(tensor: torch.Tensor) -> memoryview | bytes:
    """Return a tensor's raw bytes, row-major."""
    import torch  # noqa: PLC0415 - as above

    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else b""


METADATA_KEY = "hydractl"
EXTRA_PREFIX = "hydractl.ood/"
"""Prefix of the names of tensors that are not weights."""
MOST_TENSORS = 50_000
"""Maximum number of tensors in a file. A large mixture of experts has about ten thousand. Twice the limit
doubles the memory that a crafted header can take."""
_SCRATCH = re.compile("hydractl-held-[0-9a-f]{16}")
"""Pattern of the names of locked temporary folders. Folders of earlier versions have other names and no lock,
and are kept."""


class ScratchFolder:
    """A temporary folder that is deleted with this object, at the latest when the process ends.

    The constructor also deletes the folders of killed processes.
    """

    def __init__(self) -> None:
        place = Path(tempfile.gettempdir())
        with contextlib.suppress(OSError):
            remove_dead(
                path
                for path in place.glob("hydractl-held-*")
                if _SCRATCH.fullmatch(path.name) and path.lstat().st_uid == os.geteuid()
            )
        while not self._made(place / f"hydractl-held-{secrets.token_hex(8)}"):
            # Another process saw the folder before the lock, assumed a killed process and deleted the folder.
            pass

    def _made(self, path: Path) -> bool:
        """Create and lock the folder. Return False if another process has deleted the folder."""
        self.path = path
        weakref.finalize(self, shutil.rmtree, path, ignore_errors=True)
        with self._translated():
            # Only after the finalizer is registered: a signal at any moment leaves no folder behind.
            path.mkdir(mode=0o700)
            try:
                descriptor = os.open(path, os.O_RDONLY)
            except FileNotFoundError:
                return False
        weakref.finalize(self, os.close, descriptor)
        return lock_new(descriptor, path)

    @contextlib.contextmanager
    def file(self, name: str) -> Iterator[BinaryIO]:
        """Open a new file in the folder for writing.

        Raises:
            OutputError: If the disk is full.
        """
        with self._translated(), (self.path / name).open("wb") as file:
            yield file

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in FULL and not str(error.filename).startswith(str(self.path)):
                raise  # The error concerns an input of the block.
            raise OutputError(
                f"{self.path}: cannot write a temporary file: {error.strerror}",
                hint="set TMPDIR to a folder on a disk with more space",
            ) from error


@dataclass
class Checkpoint:
    """Tensors of a model, in a file or several shards. Opening reads headers only.

    Attributes:
        name: Name in messages.
        paths: The file, or the shards.
        specs: Specs of the weights.
        metadata: Metadata of the headers.
        spans: Position of each tensor, by name.
        scratch: Temporary folder of the file, for a copied stream or a file written for this run.
        source: Checkpoint named by the user, if this object renames or extends its tensors.
        beside: Specs of the tensors of stored OOD scores.
    """

    name: str
    paths: tuple[Path, ...]
    specs: dict[str, TensorSpec]
    metadata: dict[str, str]
    spans: dict[str, Span]
    scratch: ScratchFolder | None = None
    source: Checkpoint | None = None
    beside: dict[str, TensorSpec] = field(default_factory=dict)
    _digest: str | None = None

    @classmethod
    def open(cls, path: Path, *, shards: Sequence[Path] = ()) -> Checkpoint:
        """Open a file, or the `shards` of the model at `path`.

        A stream (`-`, a FIFO) is first copied to a temporary file, because tensors are read by position.

        Raises:
            CheckpointError: If a file is missing or is not well-formed safetensors.
        """
        spool = None
        files = tuple(shards) or (path,)
        if not shards and is_stream(path):
            spool, files = _spool(path)
        specs: dict[str, TensorSpec] = {}
        spans: dict[str, Span] = {}
        metadata: dict[str, str] = {}
        for file in files:
            file_specs, places, meta = _read_header(file, place=str(path if spool else file))
            if twice := specs.keys() & file_specs.keys():
                raise CheckpointError(f"{file}: tensor `{min(twice)}` is also in another shard")
            specs |= file_specs
            metadata |= meta
            spans |= places
        beside = {name: specs.pop(name) for name in [*specs] if name.startswith(EXTRA_PREFIX)}
        return cls(str(path), files, specs, metadata, spans, spool, beside=beside)

    @classmethod
    def of(cls, tensors: Mapping[str, torch.Tensor], *, header: Header | None = None) -> Checkpoint:
        """Return a checkpoint with these tensors, written to a temporary file.

        The file is deleted with the checkpoint.
        """
        folder = ScratchFolder()
        path = folder.path / "tensors.st"
        with folder.file(path.name) as file:
            write_tensors(file, tensors, header=header)
        return replace(cls.open(path), scratch=folder)

    @cached_property
    def header(self) -> Header | None:
        """The header written by hydractl, or None for files of other programs.

        Raises:
            CheckpointError: If the entry in the metadata is not valid.
        """
        text = self.metadata.get(METADATA_KEY)
        if text is None:
            return None
        try:
            return Header.from_json(text, place=f"{self.name}: metadata.{METADATA_KEY}")
        except ManifestError as error:
            raise CheckpointError(error.message, hint=UPGRADE) from error

    @property
    def original(self) -> Checkpoint:
        """The checkpoint named by the user; see `source`."""
        return self if self.source is None else self.source.original

    @property
    def digest(self) -> str:
        """`sha256:...` of the file named by the user, or of the digests of all shards in order.

        Computed once.
        """
        original = self.original
        # Not a cached_property: before Python 3.12, a cached_property holds a lock for all objects, and files
        # would be hashed in turn.
        if original._digest is None:
            original._digest = digest_files(original.paths)
        return original._digest

    @property
    def size_bytes(self) -> int:
        """Size of all weights in bytes."""
        return sum(spec.size_bytes for spec in self.specs.values())

    def joined(self, checkpoint: Checkpoint) -> Checkpoint:
        """Return a checkpoint with the tensors of both, and the scratch folder of `checkpoint`.

        Of two tensors with the same name, the result has the tensor of `checkpoint`. Name and digest stay.
        """
        return replace(
            self,
            specs={**self.specs, **checkpoint.specs},
            spans={**self.spans, **checkpoint.spans},
            scratch=checkpoint.scratch,
            source=self,
        )

    def tensor(self, name: str) -> torch.Tensor:
        """Read a tensor into new memory.

        Raises:
            CheckpointError: If the tensor does not exist, or torch lacks the dtype.
        """
        spec = self.specs.get(name) or self.beside.get(name)
        if spec is None:
            raise CheckpointError(f"{self.name}: has no tensor `{name}`")
        if spec.dtype not in TORCH_NAMES:
            raise CheckpointError(
                f"{self.name}: tensor `{name}` has dtype {spec.dtype}, which torch does not support"
            )
        return tensor_of(spec, [self.spans[name]])

    def tensors(self) -> dict[str, torch.Tensor]:
        """Read all weights, without the tensors of OOD scores.

        Raises:
            CheckpointError: If torch lacks the dtype of a tensor.
        """
        return {name: self.tensor(name) for name in self.specs}


def digest_together(checkpoints: Sequence[Checkpoint]) -> None:
    """Compute the digests of several checkpoints in parallel, with a thread per core.

    Hashing releases the GIL.
    """
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        list(pool.map(lambda checkpoint: checkpoint.digest, checkpoints))


def write_checkpoint(
    file: Sink,
    specs: Mapping[str, TensorSpec],
    data: Callable[[str], Chunks],
    *,
    header: Header | None,
    final: Callable[[], Header] | None = None,
) -> None:
    """Write a canonical safetensors file, tensor by tensor.

    Equal content gives equal bytes. `data` is called for each tensor in file order, to keep only a single
    tensor in memory.

    Args:
        file: Output; must be seekable if `final` is given.
        specs: Dtype and shape of every tensor.
        data: Returns the raw bytes of a tensor in chunks.
        header: Header to write.
        final: Called after all tensors are written. Returns a header of equal size to replace the first.

    Raises:
        ValueError: If `data` yields another number of bytes than the spec, or the size of the header changes.
    """
    names = in_file_order(specs)
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
    table: dict[str, object] = {
        "__metadata__": {"format": "pt"} | ({METADATA_KEY: header.to_metadata()} if header else {})
    }
    offset = 0
    for name in names:
        end = offset + specs[name].size_bytes
        table[name] = {
            "dtype": specs[name].dtype,
            "shape": list(specs[name].shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = compact(table).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def write_tensors(file: Sink, tensors: Mapping[str, torch.Tensor], *, header: Header | None) -> None:
    """Write tensors from memory; see `write_checkpoint`."""
    specs = {name: spec_of(t) for name, t in tensors.items()}
    contents = bytes_in_order(tensors[name] for name in in_file_order(specs))
    write_checkpoint(file, specs, lambda _: [next(contents)], header=header)


def _spool(path: Path) -> tuple[ScratchFolder, tuple[Path, ...]]:
    folder, name = ScratchFolder(), "stdin.safetensors"
    try:
        with open_binary(path) as source, folder.file(name) as target:
            shutil.copyfileobj(source, target, CHUNK_BYTES)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    return folder, (folder.path / name,)


def _read_header(path: Path, *, place: str) -> tuple[dict[str, TensorSpec], dict[str, Span], dict[str, str]]:
    """Read the header of a file.

    Returns:
        Specs, positions of the tensors, and metadata.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            begin = file.read(8)
            # Of the first eight bytes, a length has zero bytes and JSON has none.
            if b"\0" not in begin and begin.lstrip()[:1] == b"{":
                raise CheckpointError(
                    f"{place}: is a JSON file, not a checkpoint",
                    hint=f"`hydractl inspect {shlex.quote(place)}` shows what it contains",
                )
            length = int.from_bytes(begin, "little")
            if size < 8 or length > MAX_BYTES or 8 + length > size:
                raise CheckpointError(
                    f"{place}: is not a safetensors file, or is truncated: {size} bytes are too few for its header",
                    hint="copy or download it again; convert a `.pth` or `.bin` file with `hydractl import`",
                )
            text = file.read(length)
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{place}: no such file", hint=did_you_mean_path(place) or "check the path"
        ) from error
    except OSError as error:
        raise CheckpointError(f"{place}: cannot be read: {error.strerror}") from error
    try:
        return _checked(text, Span("", path, 8 + length, size - 8 - length))
    except ValueError as error:
        raise CheckpointError(f"{place}: is not a valid safetensors file: {error}") from error


def _checked(text: bytes, data: Span) -> tuple[dict[str, TensorSpec], dict[str, Span], dict[str, str]]:
    """Parse and check a header; `data` is the span of all tensors. Return specs, positions and metadata."""
    if text.count(b'"data_offsets"') > MOST_TENSORS:
        raise ValueError(f"the header lists more than {MOST_TENSORS} tensors")
    table = parse(text, keys_once=True)
    if not isinstance(table, dict):
        raise ValueError("the header is not a JSON object")  # noqa: TRY004 - translated by the caller
    metadata = table.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise ValueError("__metadata__ must map names to strings")
    specs: dict[str, TensorSpec] = {}
    spans: dict[str, Span] = {}
    for name, entry in table.items():
        specs[name], begin = _check_entry(name, entry)
        spans[name] = Span(name, data.path, data.begin + begin, specs[name].size_bytes)
    end = data.begin
    for span in sorted(spans.values(), key=lambda span: (span.begin, span.size, span.name)):
        if span.begin != end:
            raise ValueError(
                f"tensor `{span.name}` begins at {span.begin - data.begin}, expected "
                f"{end - data.begin}: data overlaps or has a gap"
            )
        end += span.size
    if end != data.begin + data.size:
        raise ValueError(
            f"the header describes {end - data.begin} bytes of data, but the file has {data.size}; it may be truncated"
        )
    return specs, spans, metadata


def _check_entry(name: str, entry: object) -> tuple[TensorSpec, int]:
    """Return a tensor's spec and the position of its first byte."""
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
                    f"tensor `{name}` takes {end - begin} bytes, but its shape {shape} needs {spec.size_bytes}"
                )
            return spec, begin
        case _:
            raise ValueError(f"tensor `{name}` needs exactly dtype, shape and data_offsets")
