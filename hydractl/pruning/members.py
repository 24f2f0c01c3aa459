"""Members pruned from a base: tensors, comparison with the masked base, and cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch

from hydractl.checkpoint import Chunks, TensorSpec, tensor_bytes
from hydractl.errors import CheckFailed, CheckpointError
from hydractl.families.finite import as_stored
from hydractl.families.open_model import OpenModel, build_checked
from hydractl.families.tower import TOLERANCE, Model, blank_inputs, largest_difference, probe_inputs
from hydractl.fusion.build import hollow, streamed_logits
from hydractl.fusion.plan import prune_tensor, pruned_spec, zero_dropped
from hydractl.manifest.head_mask import HeadMask, Mask
from hydractl.manifest.header import InputFile, Kind
from hydractl.metrics.cost import macs_of
from hydractl.model_inputs import Inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Cost of a model: parameters, multiply-accumulates per sample, and bytes of the stored tensors."""

    parameters: int
    macs: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A member before it is written to a file.

    Attributes:
        opened: The base.
        mask: Kept heads.
        path: Output file.
        sources: Provenance entries of the mask.
        specs: Dtype and shape of each stored tensor.
    """

    opened: OpenModel
    mask: HeadMask
    path: Path
    sources: tuple[InputFile, ...]
    specs: Mapping[str, TensorSpec]

    def tensor(self, name: str) -> torch.Tensor:
        """Return a pruned tensor in the stored dtype.

        Raises:
            CheckFailed: If a number is too large for the dtype.
        """
        opened, spec = self.opened, self.specs[name]
        member_tensor = prune_tensor(
            opened.family, opened.header.architecture, self.mask.towers, name, opened.checkpoint.tensor(name)
        )
        larger = spec.dtype == "F16" and "`--dtype bf16` or `--dtype fp32` can represent larger numbers"
        return as_stored(
            name, member_tensor, spec, hint=larger or "leave `--dtype` out to keep the stored numbers"
        )

    def masked(self, name: str) -> torch.Tensor:
        """Return a tensor of the masked base in fp32, the reference for `verify_members`.

        Removed heads are zero. Numbers are rounded to the stored dtype. Numbers too large for the dtype are
        not rounded: they belong to removed heads, or `tensor` raises an error.
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
        """Return the bytes of a tensor; raises the errors of `tensor`."""
        stored = self.opened.checkpoint
        return (
            [stored.spans[name]]
            if stored.specs[name] == self.specs[name]
            else [tensor_bytes(self.tensor(name))]
        )


def stored_specs(
    opened: OpenModel, mask: Mask, specs: Mapping[str, TensorSpec], dtype: str | None
) -> dict[str, TensorSpec]:
    """Return dtype and shape of each tensor of a member. If `dtype` is None, the dtypes of `specs` are kept."""
    if dtype is not None:
        name, exact = dtype.upper().replace("FP", "F"), opened.family.exact
        specs = {
            k: TensorSpec("F32" if k in exact else name, s.shape) if s.is_floating else s
            for k, s in specs.items()
        }
    return {n: pruned_spec(opened.family, opened.header.architecture, mask, n, s) for n, s in specs.items()}


def verify_members(members: Sequence[Member]) -> list[float]:
    """Compare each member with the masked base on a random batch in fp32.

    Returns:
        Largest difference of the logits for each member; see `largest_difference`.

    Raises:
        CheckFailed: If a difference exceeds the tolerance.
    """
    opened = members[0].opened
    base_model = build_checked(
        opened.family, opened.header, hollow(opened.checkpoint.specs), where=opened.reference
    )
    inputs = probe_inputs(opened.header)
    return [_verify(member, base_model, inputs, where=f"member {i}") for i, member in enumerate(members)]


def _verify(member: Member, base_model: Model, inputs: Inputs, *, where: str) -> float:
    header = member.opened.header.model_copy(update={"kind": Kind.MEMBER, "masks": (member.mask.towers,)})
    pruned = build_checked(member.opened.family, header, hollow(member.specs), where=where)
    difference = largest_difference(
        streamed_logits(pruned, lambda name: [member.tensor(name)], inputs),
        streamed_logits(base_model, lambda name: [member.masked(name)], inputs),
    )
    # The negated comparison also catches NaN.
    if not difference <= TOLERANCE:
        raise CheckFailed(
            f"{where} differs from the masked base by {difference:.2g}, more than {TOLERANCE:g}; nothing was written",
            hint="very large weights may overflow; `--no-verify` skips the check",
        )
    return difference


def size_of(opened: OpenModel, mask: Mask, specs: Mapping[str, TensorSpec]) -> Size:
    """Return the cost of a model with a head mask.

    Parameters and bytes are counted from the shapes. MACs are counted by a forward pass on the meta device,
    without data.

    Raises:
        CheckpointError: If the stored tensors and the model have different numbers of elements.
    """
    model = opened.family.build(opened.header.architecture, mask, None)
    parameters = sum(p.numel() for p in model.parameters())
    stored = sum(prod(spec.shape) for spec in specs.values())
    model_elements = sum(tensor.numel() for tensor in model.library_state().values())
    if stored != model_elements:
        raise CheckpointError(
            f"{opened.reference}: the shapes of its tensors give {stored} elements, but the model has {model_elements}"
        )
    # the cost of a zero-shot model is the cost of its vision tower, for any number of classes
    model.answer.expect(1)
    return Size(
        parameters=parameters,
        macs=macs_of(model, blank_inputs(opened.header.preprocess, 1, device="meta")),
        size_bytes=sum(s.size_bytes for s in specs.values()),
    )
