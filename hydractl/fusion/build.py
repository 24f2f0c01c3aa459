"""Models from the state dicts of checkpoints, and verification of a hydra against its members.

Verification loads the weights of a single step at a time from the files. A step is the embedding, a block or
the readout of a tower, or the classification after the towers. Axes: M members, B batch, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TypeAlias, cast

import torch
from torch import nn

from hydractl.checkpoint import TensorSpec
from hydractl.errors import EDITED, CheckFailed, CheckpointError
from hydractl.families.open_model import OpenModel, build_checked, in_one_dtype, load_model
from hydractl.families.registry import expected_specs, family_of
from hydractl.families.tower import TOLERANCE, Model, Tower, Towers, largest_difference, probe_inputs
from hydractl.fusion.hydra import Hydra
from hydractl.fusion.plan import Fusion, fused_spec, split_members
from hydractl.manifest.header import Fate, Header, Kind
from hydractl.metrics.per_sample import ensemble_log_probs
from hydractl.model_inputs import Inputs


def hydra_from_state(
    header: Header, state: Mapping[str, torch.Tensor], *, place: str, dtype: torch.dtype | None = None
) -> Hydra:
    """Build a hydra from its header and fused tensors; see `members_from_state`."""
    return Hydra(members_from_state(header, state, place=place, dtype=dtype)).eval()


def hydra_of(fusion: Fusion, *, place: str) -> Hydra:
    """Build the hydra of a fusion in memory, before it is written."""
    return hydra_from_state(fusion.header, {n: fusion.tensor(n) for n in fusion.specs}, place=place)


def members_from_state(
    header: Header, state: Mapping[str, torch.Tensor], *, place: str, dtype: torch.dtype | None = None
) -> list[Model]:
    """Build a hydra's members from its header and fused tensors. Shared tensors become shared parameters.

    Args:
        header: Header of a hydra.
        state: Fused tensors by name.
        place: Name of the file for errors.
        dtype: Dtype for floating-point weights; see `in_one_dtype`.

    Raises:
        CheckpointError: If the tensors do not fit plan, masks or architecture.
    """
    family = family_of(header.architecture)
    try:
        states = split_members(family, header, in_one_dtype(family, state, dtype))
    except ValueError as error:
        raise CheckpointError(f"{place}: {error}", hint=f"{EDITED}; fuse the members again") from error
    return members_of(header, states, place=place)


def members_of(header: Header, states: Sequence[Mapping[str, torch.Tensor]], *, place: str) -> list[Model]:
    """Build a hydra's members from their state dicts. Tensors of several members become shared parameters."""
    family = family_of(header.architecture)
    parameters_by_id: dict[int, torch.Tensor] = {}
    members = []
    for member_header, state in zip(member_headers(header), states, strict=True):
        # tensors of several members must be a single parameter object, because `Hydra` compares objects to
        # find shared parts
        parameters = {
            k: parameters_by_id.setdefault(id(v), nn.Parameter(v) if v.is_floating_point() else v)
            for k, v in state.items()
        }
        members.append(build_checked(family, member_header, parameters, place=place))
    return members


def member_headers(header: Header) -> list[Header]:
    """Return the header of each member of a hydra; for a base or a member, its own header."""
    if header.plan is None:
        return [header]
    return [
        header.model_copy(update={"kind": Kind.MEMBER, "plan": None, "masks": (mask,)})
        for mask in header.masks
    ]


def stored_specs(model_file: OpenModel) -> dict[str, TensorSpec]:
    """Return dtype and shape of each tensor required by a header, by name.

    Raises:
        CheckpointError: If the plan does not fit the architecture's tensors.
    """
    header, family = model_file.header, model_file.family
    member_specs = [expected_specs(family, member_header) for member_header in member_headers(header)]
    if header.plan is None:
        return member_specs[0]
    fates = header.plan.fates
    if odd := sorted(fates.keys() ^ member_specs[0].keys()):
        raise CheckpointError(
            f"{model_file.reference}: tensor {odd[0]} exists in only one of the fuse plan and the architecture",
            hint=f"{EDITED}; fuse the members again",
        )
    return {n: fused_spec(family, n, fate, [specs[n] for specs in member_specs]) for n, fate in fates.items()}


def load_any(model_file: OpenModel, *, dtype: torch.dtype | None = None) -> Model | Hydra:
    """Build the base, member or hydra of an open model in evaluation mode on the CPU.

    The logits are divided by the stored temperature.

    Raises:
        CheckpointError: If the tensors do not fit the header.
    """
    model: Model | Hydra
    if model_file.header.kind != Kind.HYDRA:
        model = load_model(model_file, dtype=dtype)
    else:
        model = hydra_from_state(
            model_file.header, model_file.checkpoint.tensors(), place=model_file.reference, dtype=dtype
        )
    model.set_temperature(model_file.header.scale)
    return model


Read: TypeAlias = "Callable[[str], Sequence[torch.Tensor]]"
"""Returns the tensor with a given name for each member."""


def placeholder_tensors(specs: Mapping[str, TensorSpec]) -> dict[str, torch.Tensor]:
    """Return tensors of the given shapes without allocating memory for them. Floating-point tensors are fp32.

    A tensor is a single NaN, expanded to the shape. A computation with a missing tensor therefore gives NaN.
    """
    number = torch.tensor(float("nan"))
    return {
        n: (number if s.is_floating else torch.zeros((), dtype=s.torch_dtype)).expand(s.shape)
        for n, s in specs.items()
    }


def member_logits(model_file: OpenModel, inputs: Inputs) -> torch.Tensor:
    """Return the logits (1, B, C) of a base or member in fp32, with one step's weights in memory at a time."""
    model = build_checked(
        model_file.family,
        model_file.header,
        placeholder_tensors(model_file.checkpoint.specs),
        place=model_file.reference,
    )
    return streamed_logits(model, lambda name: [model_file.checkpoint.tensor(name)], inputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Difference between a hydra and its members on the same random batch.

    Attributes:
        logits: Largest difference of a member's logits, in units of max(1, largest logit).
        probabilities: Largest difference of the ensemble's probabilities.
    """

    logits: float
    probabilities: float


def verify(fusion: Fusion, *, seed: int, place: str) -> Gap:
    """Compare the hydra of a fusion with its members on a random batch in fp32.

    Args:
        fusion: The fusion.
        seed: Seed of the batch.
        place: Name of the hydra for errors.

    Raises:
        CheckFailed: If they differ although nothing is averaged, or the logits are not finite.
    """
    header = fusion.header
    inputs = probe_inputs(header, seed=seed)
    # members first: their errors name the member with the wrong header
    expected = torch.cat([member_logits(m, inputs) for m in fusion.members])
    logits = hydra_logits(fusion, inputs, place=place)
    difference = largest_difference(logits, expected)
    of_hydra, of_members = (ensemble_log_probs(z.log_softmax(-1)).exp() for z in (logits, expected))
    may_differ = fusion.averages and difference != float("inf")
    if not difference <= TOLERANCE and not may_differ:
        raise CheckFailed(
            f"the hydra differs from its members by {difference:.2g}, more than {TOLERANCE:g}; nothing was written",
            hint="very large weights may overflow; `--no-verify` skips the check",
        )
    return Gap(logits=difference, probabilities=(of_hydra - of_members).abs().max().item())


def hydra_logits(fusion: Fusion, inputs: Inputs, *, place: str) -> torch.Tensor:
    """Return the logits (M, B, C) of the hydra of a fusion. `place` names the hydra in errors."""
    header, states = (
        fusion.header,
        [placeholder_tensors(checkpoint.specs) for checkpoint in fusion.checkpoints],
    )
    shared = {name: states[0][name] for name, fate in fusion.fates.items() if fate != Fate.GROUPED}
    members = members_of(header, [member_state | shared for member_state in states], place=place)

    def read(name: str) -> list[torch.Tensor]:
        return [part[name] for part in split_members(fusion.family, header, {name: fusion.tensor(name)})]

    return streamed_logits(Hydra(members).eval(), read, inputs, members=members)


def streamed_logits(
    model: Towers, read: Read, inputs: Inputs, *, members: Sequence[Model] = ()
) -> torch.Tensor:
    """Return the members' logits (M, B, C) in fp32, with the weights of a single step in memory at a time.

    Args:
        model: Model built from `placeholder_tensors`.
        read: Returns the model's tensors by name.
        inputs: Inputs of the model.
        members: Members of a hydra; empty for a base or a member.
    """
    member_states = [m.library_state() for m in members or [cast("Model", model)]]
    # Reversed, so that a shared tensor belongs to the first member: later entries of a dict replace earlier
    # entries.
    places = {
        id(t): (name, m)
        for m, member_state in reversed([*enumerate(member_states)])
        for name, t in member_state.items()
    }
    with torch.inference_mode(), ExitStack() as hooks:
        for step in _steps(model):
            filled = _StepLoader(step, places, read)
            hooks.enter_context(step.register_forward_pre_hook(filled.fill))
            hooks.enter_context(step.register_forward_hook(filled.empty))
        return model.member_logits(inputs)


def _steps(model: Towers) -> Iterator[nn.Module]:
    for tower in cast("list[Tower]", list(model.towers.values())):
        yield from (tower.embed, *tower.layers(), tower.readout)
    yield from model.answers


class _StepLoader:
    """A step with tensors in memory only while it runs."""

    def __init__(self, step: nn.Module, places: Mapping[int, tuple[str, int]], read: Read) -> None:
        """Find the tensors of the step.

        Args:
            step: Step of a model built from `placeholder_tensors`.
            places: Name of each tensor, and the first member with the tensor.
            read: Returns the tensors of all members by name.
        """
        self.read = read
        self.slots = [
            (table, key, tensor, *places[id(tensor)])
            for module in step.modules()
            for table in (module._parameters, module._buffers)
            for key, tensor in table.items()
            if id(tensor) in places
        ]

    def fill(self, *_: object) -> None:
        """Load the step's tensors, each name once."""
        wide = {
            (name, m): t.float() if t.is_floating_point() else t
            for name in dict.fromkeys(slot[3] for slot in self.slots)
            for m, t in enumerate(self.read(name))
        }
        for table, key, _tensor, name, m in self.slots:
            cast("dict[str, torch.Tensor]", table)[key] = wide[name, m]

    def empty(self, *_: object) -> None:
        """Replace the tensors by placeholders."""
        for table, key, tensor, _name, _m in self.slots:
            cast("dict[str, torch.Tensor | None]", table)[key] = tensor
