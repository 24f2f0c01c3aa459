"""What is written of a base as one member: which tensors, in which dtype, and their bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch

from hydractl.families.load import OpenModel
from hydractl.fusion.slicing import prune_tensor, pruned_spec, zero_dropped
from hydractl.manifest.head_mask import HeadMask
from hydractl.manifest.header import InputFile
from hydractl.stages.shared.finite import as_stored
from hydractl.tensor_spec import Chunks, TensorSpec, tensor_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A member to be.

    Attributes:
        opened: The base.
        mask: The heads that stay.
        path: Where it goes.
        sources: What the mask came from.
        specs: Its tensors, as they are stored.
    """

    opened: OpenModel
    mask: HeadMask
    path: Path
    sources: tuple[InputFile, ...]
    specs: Mapping[str, TensorSpec]

    @classmethod
    def of(
        cls,
        opened: OpenModel,
        mask: HeadMask,
        specs: Mapping[str, TensorSpec],
        *,
        path: Path,
        sources: tuple[InputFile, ...],
    ) -> Self:
        """Plan a member of a base that would be stored with `specs` as a whole."""
        family, architecture = opened.family, opened.header.architecture
        return cls(
            opened=opened,
            mask=mask,
            path=path,
            sources=sources,
            specs={n: pruned_spec(family, architecture, mask.towers, n, spec) for n, spec in specs.items()},
        )

    def tensor(self, name: str) -> torch.Tensor:
        """Return a tensor as it is stored.

        Raises:
            CheckFailed: If its dtype is too small for a number.
        """
        opened, spec = self.opened, self.specs[name]
        base_tensor = opened.checkpoint.tensor(name)
        member_tensor = prune_tensor(
            opened.family, opened.header.architecture, self.mask.towers, name, base_tensor
        )
        larger = spec.dtype == "F16" and "`--dtype bf16` or `--dtype fp32` can represent larger numbers"
        return as_stored(
            name, member_tensor, spec, hint=larger or "leave `--dtype` out to keep the stored numbers"
        )

    def masked(self, name: str) -> torch.Tensor:
        """Return the base's tensor that the member's must equal: heads zeroed, numbers rounded as they are stored, in fp32.

        What that dtype is too small for stays: it is in a head that goes, or `tensor` refuses it.
        """
        opened, spec = self.opened, self.specs[name]
        base_tensor = opened.checkpoint.tensor(name)
        if spec.is_floating:
            rounded, base_tensor = base_tensor.to(spec.torch_dtype).float(), base_tensor.float()
            base_tensor = torch.where(rounded.isfinite(), rounded, base_tensor)
        return zero_dropped(opened.family, opened.header.architecture, self.mask.towers, {name: base_tensor})[
            name
        ]

    def chunks(self, name: str) -> Chunks:
        """Return a tensor's bytes, those of the base where nothing changes; raises as `tensor`."""
        stored = self.opened.checkpoint
        if stored.specs[name] == self.specs[name]:
            return [stored.spans[name]]
        return [tensor_bytes(self.tensor(name))]
