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
from hydractl.fusion.build import placeholder_tensors, streamed_logits
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
        model_file: The base.
        mask: Kept heads.
        path: Output file.
        sources: Provenance entries of the mask.
        specs: Dtype and shape of each stored tensor.
    """

    model_file: OpenModel
    mask: HeadMask
    path: Path
    sources: tuple[InputFile, ...]
    specs: Mapping[str, TensorSpec]

    def tensor(self, name: str) -> torch.Tensor:
        """Return a pruned tensor in the stored dtype.

        Raises:
            CheckFailed: If a number is too large for the dtype.
        """
        model_file, spec = self.model_file, self.specs[name]
        member_tensor = prune_tensor(
            model_file.family,
            model_file.header.architecture,
            self.mask.towers,
            name,
            model_file.checkpoint.tensor(name),
        )
        larger = spec.dtype == "F16" and "`--dtype bf16` or `--dtype fp32` can represent larger numbers"
        return as_stored(
            name, member_tensor, spec, hint=larger or "leave `--dtype` out to keep the stored numbers"
        )

    def masked(self, name: str) -> torch.Tensor:
        """Return a tensor of the masked base in fp32, the reference for `verify_members`.

        The output projections of removed heads are zero. Queries, keys and values of removed heads are
        unchanged. Numbers are rounded to the stored dtype, except numbers too large for the dtype. Such
        numbers belong to removed heads, because `tensor` raises an error for numbers of kept heads. Integer
        tensors keep their dtype.
        """
        model_file, spec = self.model_file, self.specs[name]
        base_tensor = model_file.checkpoint.tensor(name)
        if spec.is_floating:
            rounded, base_tensor = base_tensor.to(spec.torch_dtype).float(), base_tensor.float()
            base_tensor = torch.where(rounded.isfinite(), rounded, base_tensor)
        return zero_dropped(
            model_file.family, model_file.header.architecture, self.mask.towers, {name: base_tensor}
        )[name]

    def chunks(self, name: str) -> Chunks:
        """Return the bytes of a tensor; raises the errors of `tensor`."""
        stored = self.model_file.checkpoint
        return (
            [stored.spans[name]]
            if stored.specs[name] == self.specs[name]
            else [tensor_bytes(self.tensor(name))]
        )


def stored_specs(
    model_file: OpenModel, mask: Mask, specs: Mapping[str, TensorSpec], dtype: str | None
) -> dict[str, TensorSpec]:
    """Return dtype and shape of each tensor of a member.

    Args:
        model_file: The base.
        mask: Kept heads.
        specs: Dtype and shape of each tensor of the base.
        dtype: Dtype of floating-point tensors, like `fp16`. Tensors in `Family.exact` have fp32 instead. None
            keeps the dtypes of `specs`.
    """
    if dtype is not None:
        name, exact = dtype.upper().replace("FP", "F"), model_file.family.exact
        specs = {
            k: TensorSpec("F32" if k in exact else name, s.shape) if s.is_floating else s
            for k, s in specs.items()
        }
    return {
        n: pruned_spec(model_file.family, model_file.header.architecture, mask, n, s)
        for n, s in specs.items()
    }


def verify_members(members: Sequence[Member]) -> list[float]:
    """Compare each member with the masked base on a random batch in fp32.

    Returns:
        Largest difference of the logits for each member; see `largest_difference`.

    Raises:
        CheckFailed: If a difference exceeds the tolerance.
    """
    model_file = members[0].model_file
    base_model = build_checked(
        model_file.family,
        model_file.header,
        placeholder_tensors(model_file.checkpoint.specs),
        place=model_file.reference,
    )
    inputs = probe_inputs(model_file.header)
    return [_verify(member, base_model, inputs, place=f"member {i}") for i, member in enumerate(members)]


def _verify(member: Member, base_model: Model, inputs: Inputs, *, place: str) -> float:
    header = member.model_file.header.model_copy(update={"kind": Kind.MEMBER, "masks": (member.mask.towers,)})
    pruned = build_checked(member.model_file.family, header, placeholder_tensors(member.specs), place=place)
    difference = largest_difference(
        streamed_logits(pruned, lambda name: [member.tensor(name)], inputs),
        streamed_logits(base_model, lambda name: [member.masked(name)], inputs),
    )
    # The negated comparison also catches NaN.
    if not difference <= TOLERANCE:
        raise CheckFailed(
            f"{place} differs from the masked base by {difference:.2g}, more than {TOLERANCE:g}; nothing was written",
            hint="very large weights may overflow; `--no-verify` skips the check",
        )
    return difference


def size_of(model_file: OpenModel, mask: Mask, specs: Mapping[str, TensorSpec]) -> Size:
    """Return the cost of a model with a head mask.

    Parameters and bytes are counted from the shapes. MACs are counted by a forward pass on the meta device,
    without data.

    Raises:
        CheckpointError: If the stored tensors and the model have different numbers of elements.
    """
    model = model_file.family.build(model_file.header.architecture, mask, None)
    parameters = sum(p.numel() for p in model.parameters())
    stored = sum(prod(spec.shape) for spec in specs.values())
    model_elements = sum(tensor.numel() for tensor in model.library_state().values())
    if stored != model_elements:
        raise CheckpointError(
            f"{model_file.reference}: the shapes of its tensors give {stored} elements, but the model has {model_elements}"
        )
    # the cost of a zero-shot model is the cost of its vision tower, for any number of classes
    model.answer.expect(1)
    return Size(
        parameters=parameters,
        macs=macs_of(model, blank_inputs(model_file.header.preprocess, 1, device="meta")),
        size_bytes=sum(s.size_bytes for s in specs.values()),
    )
