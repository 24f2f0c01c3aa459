"""The fused model, whose parts that differ run side by side on the batch axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import nn
from torch.utils._pytree import _register_namedtuple

from hydractl.errors import EDITED, CheckpointError
from hydractl.families.attention import Attention
from hydractl.families.opening import OpenModel, build_checked, expected_specs, in_one_dtype, load_model
from hydractl.families.registry import family_of
from hydractl.families.tower import Block, Model, Stream, Tower, Towers, joined
from hydractl.fusion.plan import fused_spec, split_members
from hydractl.inputs import Inputs, checked_inputs, split_inputs
from hydractl.manifest.header import Header, Kind
from hydractl.metrics.samples import ensemble_log_probs
from hydractl.tensors import TensorSpec


class Grouped(nn.Module):
    """One part of each member; member m's part sees member m's share of the batch axis.

    Equal to the members' parts run one by one, to the last bit: nothing is computed in another way.
    """

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, x: Inputs | Stream) -> torch.Tensor | Stream:
        """Return the members' outputs, member after member on the batch axis (M B, ...)."""
        count = len(self.members)
        parts = x.split(count) if isinstance(x, Stream) else split_inputs(x, count)
        outputs = [member(part) for member, part in zip(self.members, parts, strict=True)]
        return joined(outputs) if isinstance(outputs[0], Stream) else torch.cat(outputs)


def assemble(towers: Sequence[Tower]) -> Tower:
    """Return one tower that computes what `towers` compute in turn, parts that hold the same tensors once.

    Two members share a part when its tensors are the same objects. The stream is forked before the first block
    that has a part of which this is not so.
    """
    first = towers[0]
    steps: list[nn.Module] = []
    fork: int | None = None
    for i, members in enumerate(zip(*(_steps(t) for t in towers), strict=True)):
        step = _grouped_step(members)
        if step is not members[0] and fork is None:
            fork = i
        steps.append(step)
    blocks = [step for step in steps[1:-1] if isinstance(step, Block)]
    tower = Tower(embed=steps[0], blocks=blocks, readout=steps[-1], reads=first.reads, names=first.names)
    tower.members, tower.fork = len(towers), fork
    return tower.eval()


def _steps(tower: Tower) -> list[nn.Module]:
    return [tower.embed, *tower.layers(), tower.readout]


def _grouped_step(members: Sequence[nn.Module]) -> nn.Module:
    """Return the first member's step if all are the same, else one that groups what differs."""
    if _all_same(members):
        return members[0]
    if not isinstance(members[0], Block):
        return Grouped(members)
    parts: dict[str, nn.Module] = {}
    for name in dict(members[0].named_children()):
        children = [getattr(member, name) for member in members]
        if _all_same(children):
            continue
        if isinstance(children[0], Attention):
            parts[name] = Attention([group for child in children for group in child.groups()])
        else:
            parts[name] = Grouped(children)
    return members[0].with_parts(parts)


def _all_same(modules: Sequence[nn.Module]) -> bool:
    """Return whether the modules hold the very same tensors under the same names."""
    tables = [dict(module.state_dict(keep_vars=True)) for module in modules]
    return all(
        table.keys() == tables[0].keys() and all(table[name] is tables[0][name] for name in table)
        for table in tables[1:]
    )


class HydraOutput(NamedTuple):
    """What a hydra answers.

    Attributes:
        logits: `log mean_m softmax(z_m)`, shape (B, C): their softmax is the ensemble's mean probability.
        member_logits: Each member's own logits z_m, shape (M, B, C).
    """

    logits: torch.Tensor
    member_logits: torch.Tensor


# `torch.export.save` knows no other way to write down what a program returns
_register_namedtuple(HydraOutput, serialized_type_name="hydractl.fusion.hydra.HydraOutput")


class Hydra(Towers):
    """M members of one architecture in a single forward pass (Hydra Ensembles, section 4.2).

    A plain `torch.nn.Module`: it works under `torch.compile` and `torch.export`.
    """

    def __init__(self, members: Sequence[Model]) -> None:
        """Fuse models in memory; tensors that are the same objects in all of them are held and run once.

        Args:
            members: Built by one family from one architecture, M >= 1.
        """
        names = list(members[0].towers)
        towers = {name: assemble([m.tower(name) for m in members]) for name in names}
        super().__init__(towers, [m.answer for m in members])
        self.members = len(members)

    def forward(self, inputs: Inputs | None = None, **named: torch.Tensor) -> HydraOutput:
        """Return the ensemble's log-probabilities and the members' logits.

        Args:
            inputs: Images (B, C, height, width), or a dict of named tensors (B, ...).
            named: The same by keyword: `input_ids`, `attention_mask`, `token_type_ids`, `pixel_values`.

        Raises:
            TypeError: If they are not what the model reads.
        """
        logits = self.member_logits(checked_inputs(inputs, named, self.towers.keys()))
        return HydraOutput(ensemble_log_probs(logits.log_softmax(dim=-1)), logits)


def hydra_from_state(
    header: Header, state: Mapping[str, torch.Tensor], *, where: str, dtype: torch.dtype | None = None
) -> Hydra:
    """Build a hydra from its header and fused tensors; see `members_from_state`."""
    return Hydra(members_from_state(header, state, where=where, dtype=dtype)).eval()


def members_from_state(
    header: Header, state: Mapping[str, torch.Tensor], *, where: str, dtype: torch.dtype | None = None
) -> list[Model]:
    """Build a hydra's members from its header and fused tensors; what they share are the same parameters in each.

    Args:
        header: Of a hydra.
        state: Fused tensors by name.
        where: What to call the file in errors.
        dtype: Convert floating-point weights; see `in_one_dtype`.

    Raises:
        CheckpointError: If the tensors do not fit plan, masks or architecture.
    """
    family = family_of(header.architecture)
    try:
        states = split_members(family, header, in_one_dtype(state, dtype))
    except ValueError as error:
        raise CheckpointError(f"{where}: {error}", hint=f"{EDITED} fuse the members again") from error
    return members_of(header, states, where=where)


def members_of(header: Header, states: Sequence[Mapping[str, torch.Tensor]], *, where: str) -> list[Model]:
    """Build a hydra's members, each from its own tensors; one that several hold is the same parameter in each."""
    family = family_of(header.architecture)
    held: dict[int, torch.Tensor] = {}
    members = []
    for alone, own in zip(member_headers(header), states, strict=True):
        # one parameter object for a tensor that several members hold: that is how `Hydra` finds what to run once
        parameters = {k: held.setdefault(id(v), _parameter(v)) for k, v in own.items()}
        members.append(build_checked(family, alone, parameters, where=where))
    return members


def member_headers(header: Header) -> list[Header]:
    """Return what each member of a hydra would say of itself; a base or a member says what it says."""
    if header.plan is None:
        return [header]
    alone = {"kind": Kind.MEMBER, "plan": None}
    return [header.model_copy(update={**alone, "masks": (mask,)}) for mask in header.masks]


def stored_specs(opened: OpenModel) -> dict[str, TensorSpec]:
    """Return the name and shape of every tensor that a checkpoint's header calls for, a hydra's too.

    Raises:
        CheckpointError: If the plan is not of the architecture's tensors.
    """
    header, family = opened.header, opened.family
    each = [expected_specs(family, alone) for alone in member_headers(header)]
    if header.plan is None:
        return each[0]
    fates = header.plan.fates
    if odd := sorted(fates.keys() ^ each[0].keys()):
        raise CheckpointError(
            f"{opened.reference}: tensor {odd[0]} is in the fuse plan or in the architecture, not in both",
            hint=f"{EDITED} fuse the members again",
        )
    return {n: fused_spec(family, n, fate, [specs[n] for specs in each]) for n, fate in fates.items()}


def load_any(opened: OpenModel, *, dtype: torch.dtype | None = None) -> Model | Hydra:
    """Build whatever an open model holds, its logits divided by its temperature, in evaluation mode on the CPU.

    Raises:
        CheckpointError: If its tensors are not those that its header calls for.
    """
    model: Model | Hydra
    if opened.header.kind != Kind.HYDRA:
        model = load_model(opened, dtype=dtype)
    else:
        state = opened.checkpoint.tensors()
        model = hydra_from_state(opened.header, state, where=opened.reference, dtype=dtype)
    model.temperature = opened.header.temperature
    return model


def _parameter(tensor: torch.Tensor) -> torch.Tensor:
    return nn.Parameter(tensor) if tensor.is_floating_point() else tensor
