"""A tensor as files have it: its dtype's names, its shape, and where its bytes lie."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, cast

from hydractl.errors import CheckpointError
from hydractl.output.publish import Sink
from hydractl.runtime import CHUNK_BYTES, on_cpu

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

    @property
    def is_floating(self) -> bool:
        """Whether its elements are floating-point numbers."""
        return self.dtype.startswith(("F", "BF"))

    @property
    def torch_dtype(self) -> torch.dtype:
        """What torch calls the dtype, one that it has."""
        import torch  # noqa: PLC0415 - inspecting a file must not load torch

        return cast("torch.dtype", getattr(torch, TORCH_NAMES[self.dtype]))


def common_dtype(tensors: Iterable[torch.Tensor]) -> torch.dtype:
    """Return the smallest dtype that holds every floating-point tensor; float32 for 8 bits, in which nothing is computed."""
    import torch  # noqa: PLC0415 - as above

    dtypes = [t.dtype if t.itemsize > 1 else torch.float32 for t in tensors if t.is_floating_point()]
    return reduce(torch.promote_types, dtypes or [torch.float32])


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
            for offset in range(0, self.size, CHUNK_BYTES):
                piece = buffer[: min(self.size - offset, CHUNK_BYTES)]
                self._fill(piece, file)
                yield piece

    def parts(self, size: int) -> list[Span]:
        """Return the spans of at most `size` bytes that make up this one, in order."""
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
        """Append the bytes to a file: within the kernel where it can, which spares two copies."""
        if not self._copied_by_kernel(file):
            for piece in self.pieces():
                file.write(piece)

    def _copied_by_kernel(self, file: Sink) -> bool:
        """Copy everything and return True, or nothing and return False: pipes and some file systems cannot."""
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
    """Return the tensor whose raw bytes come as chunks, in memory of its own."""
    import torch  # noqa: PLC0415 - as above

    raw = torch.empty(spec.size_bytes, dtype=torch.uint8)
    view, offset = raw.numpy().data, 0
    for chunk in chunks:
        for piece in chunk.pieces() if isinstance(chunk, Span) else (chunk,):
            view[offset : offset + len(piece)] = piece
            offset += len(piece)
    return raw.view(spec.torch_dtype).reshape(spec.shape)


def in_file_order(specs: Mapping[str, TensorSpec]) -> list[str]:
    """Return tensors' names as they follow one another in a file: those of large elements first, so that each lies aligned."""
    return sorted(specs, key=lambda name: (-ITEM_BYTES[specs[name].dtype], name))


def bytes_in_order(tensors: Iterable[torch.Tensor]) -> Iterator[memoryview | bytes]:
    """Yield each tensor's elements as raw bytes, row-major; a device is waited for once in `COPIED_AT_ONCE` bytes."""
    group: list[torch.Tensor] = []
    for tensor in (*tensors, None):
        if group and (tensor is None or sum(t.nbytes for t in group) >= COPIED_AT_ONCE):
            yield from map(tensor_bytes, on_cpu(*group))
            group.clear()
        if tensor is not None:
            group.append(tensor)


def tensor_bytes(tensor: torch.Tensor) -> memoryview | bytes:
    """Return a tensor's elements as raw bytes, row-major."""
    import torch  # noqa: PLC0415 - as above

    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else b""
