"""The fused tensors of some members, one at a time and straight from their files."""

from __future__ import annotations

import math
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Literal

from hydractl.families.base import place_of
from hydractl.fusion.plan import fused_spec, group_axis
from hydractl.manifest.header import Fate
from hydractl.runtime import one_thread
from hydractl.tensors import TensorSpec, tensor_bytes, tensor_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch

    from hydractl.families.opening import OpenModel
    from hydractl.tensors import Chunks, Span


PIECE_BYTES = 1 << 18


class Fusion:
    """The fused tensors of some members: fates first, bytes when asked."""

    def __init__(self, members: Sequence[OpenModel], *, mlp: Literal["merge", "keep"]) -> None:
        self.family = members[0].family
        self.checkpoints = [m.checkpoint for m in members]
        self.mlp = mlp
        self.fates = {name: self._fate(name) for name in sorted(self.checkpoints[0].specs)}
        self.specs = {
            name: fused_spec(self.family, name, fate, self._specs(name)) for name, fate in self.fates.items()
        }

    def chunks(self, name: str) -> Chunks:
        """Return a fused tensor's bytes."""
        fate = self.fates[name]
        if fate == Fate.SHARED:
            return [self.checkpoints[0].spans[name]]
        if fate == Fate.MERGED:
            return self._mean(name)
        if group_axis(self.family, name) == 0:
            return [checkpoint.spans[name] for checkpoint in self.checkpoints]
        return [self._side_by_side(name)]

    def tensor(self, name: str) -> torch.Tensor:
        """Return a fused tensor in memory, from the same bytes that are written."""
        return tensor_of(self.specs[name], self.chunks(name))

    def _specs(self, name: str) -> list[TensorSpec]:
        return [c.specs[name] for c in self.checkpoints]

    def _fate(self, name: str) -> Fate:
        specs = self._specs(name)
        if all(s == specs[0] for s in specs) and self._identical(name):
            return Fate.SHARED
        return (
            Fate.MERGED if self.mlp == "merge" and place_of(self.family, name).part == "mlp" else Fate.GROUPED
        )

    def _identical(self, name: str) -> bool:
        """Compare bytes in lockstep and stop at the first difference."""
        streams = zip(
            *(map(bytes, c.spans[name].pieces()) for c in self.checkpoints), strict=True
        )  # bytes compare fastest
        return all(chunk == chunks[0] for chunks in streams for chunk in chunks[1:])

    def _mean(self, name: str) -> Iterator[memoryview | bytes]:
        """Average over members, summed in float64 in the order given, rounded once.

        In pieces that fit the caches, some of them at a time: the pieces and not torch's operators are what the
        cores share.
        """
        import torch  # noqa: PLC0415 - fusing without averages does not need torch

        dtype = self.specs[name].torch_dtype

        def mean_of(spans: tuple[Span, ...]) -> memoryview | bytes:
            first, *others = (torch.frombuffer(span.read(), dtype=dtype) for span in spans)
            total = first.double()
            for other in others:
                total += other
            return tensor_bytes((total / len(spans)).to(dtype))

        pieces = zip(*(c.spans[name].parts(PIECE_BYTES) for c in self.checkpoints), strict=True)
        with one_thread(), ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
            yield from pool.map(mean_of, pieces)

    def _side_by_side(self, name: str) -> bytes:
        """Concatenate along an inner axis: each row of the result is the members' rows, one after another."""
        axis = group_axis(self.family, name)
        parts = []
        for checkpoint in self.checkpoints:
            raw = checkpoint.spans[name].read()
            rows = math.prod(checkpoint.specs[name].shape[:axis])
            width = len(raw) // rows
            parts.append([raw[row * width : (row + 1) * width] for row in range(rows)])
        return b"".join(row for rows in zip(*parts, strict=True) for row in rows)
