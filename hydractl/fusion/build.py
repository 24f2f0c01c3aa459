"""Builds hydras and their members from headers and tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from hydractl.errors import EDITED, CheckpointError
from hydractl.families.load import OpenModel, build_checked, in_one_dtype, load_model
from hydractl.families.registry import expected_specs, family_of
from hydractl.families.tower import Model
from hydractl.fusion.hydra import Hydra
from hydractl.fusion.plan import fused_spec, split_members
from hydractl.manifest.header import Header, Kind
from hydractl.tensor_spec import TensorSpec


def hydra_from_state(
    header: Header, state: Mapping[str, torch.Tensor], *, where: str, dtype: torch.dtype | None = None
) -> Hydra:
    """Build a hydra from its header and fused tensors; see `members_from_state`."""
    return Hydra(members_from_state(header, state, where=where, dtype=dtype)).eval()


def members_from_state(
    header: Header, state: Mapping[str, torch.Tensor], *, where: str, dtype: torch.dtype | None = None
) -> list[Model]:
    """Build a hydra's members from its header and fused tensors; shared tensors become shared parameters.

    Args:
        header: Header of a hydra.
        state: Fused tensors by name.
        where: Name of the file for errors.
        dtype: Convert floating-point weights; see `in_one_dtype`.

    Raises:
        CheckpointError: If the tensors do not fit plan, masks or architecture.
    """
    family = family_of(header.architecture)
    try:
        states = split_members(family, header, in_one_dtype(family, state, dtype))
    except ValueError as error:
        raise CheckpointError(f"{where}: {error}", hint=f"{EDITED}; fuse the members again") from error
    return members_of(header, states, where=where)


def members_of(header: Header, states: Sequence[Mapping[str, torch.Tensor]], *, where: str) -> list[Model]:
    """Build a hydra's members, each from its own tensors; a tensor of several members becomes a shared parameter."""
    family = family_of(header.architecture)
    parameters_by_id: dict[int, torch.Tensor] = {}
    members = []
    for member_header, state in zip(member_headers(header), states, strict=True):
        # one parameter object for a tensor that several members hold: that is how `Hydra` finds what to run once
        parameters = {k: parameters_by_id.setdefault(id(v), _parameter(v)) for k, v in state.items()}
        members.append(build_checked(family, member_header, parameters, where=where))
    return members


def member_headers(header: Header) -> list[Header]:
    """Return the header of each member of a hydra; for a base or a member, its own header."""
    if header.plan is None:
        return [header]
    return [
        header.model_copy(update={"kind": Kind.MEMBER, "plan": None, "masks": (mask,)})
        for mask in header.masks
    ]


def stored_specs(opened: OpenModel) -> dict[str, TensorSpec]:
    """Return dtype and shape by name of every tensor that a checkpoint's header requires, also for a hydra.

    Raises:
        CheckpointError: If the plan does not fit the architecture's tensors.
    """
    header, family = opened.header, opened.family
    member_specs = [expected_specs(family, member_header) for member_header in member_headers(header)]
    if header.plan is None:
        return member_specs[0]
    fates = header.plan.fates
    if odd := sorted(fates.keys() ^ member_specs[0].keys()):
        raise CheckpointError(
            f"{opened.reference}: tensor {odd[0]} exists in only one of the fuse plan and the architecture",
            hint=f"{EDITED}; fuse the members again",
        )
    return {n: fused_spec(family, n, fate, [specs[n] for specs in member_specs]) for n, fate in fates.items()}


def load_any(opened: OpenModel, *, dtype: torch.dtype | None = None) -> Model | Hydra:
    """Build the base, member or hydra of an open model, in evaluation mode on the CPU; its logits are divided by its temperature.

    Raises:
        CheckpointError: If its tensors are not those that its header requires.
    """
    model: Model | Hydra
    if opened.header.kind != Kind.HYDRA:
        model = load_model(opened, dtype=dtype)
    else:
        model = hydra_from_state(
            opened.header, opened.checkpoint.tensors(), where=opened.reference, dtype=dtype
        )
    model.set_temperature(opened.header.scale)
    return model


def _parameter(tensor: torch.Tensor) -> torch.Tensor:
    return nn.Parameter(tensor) if tensor.is_floating_point() else tensor
