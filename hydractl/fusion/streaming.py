"""Runs models without holding them in memory: each step is loaded from the files while it runs, and freed again.

A step is the embedding, a block or the readout of a tower, or the classification after the towers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TypeAlias, cast

import torch
from torch import nn

from hydractl.families.load import OpenModel, build_checked
from hydractl.families.tower import Model, Tower, Towers
from hydractl.fusion.build import members_of
from hydractl.fusion.hydra import Hydra
from hydractl.fusion.plan import Fusion, split_members
from hydractl.manifest.header import Fate, Header
from hydractl.model_inputs import Inputs
from hydractl.tensor_spec import TensorSpec

Read: TypeAlias = "Callable[[str], Sequence[torch.Tensor]]"
"""Returns the tensor of that name of each member."""


def hollow(specs: Mapping[str, TensorSpec]) -> dict[str, torch.Tensor]:
    """Return tensors with these shapes that take no memory; floating-point ones are fp32.

    Each is one repeated NaN, so that computing with a tensor that was not loaded gives NaN.
    """
    number = torch.tensor(float("nan"))
    return {
        n: (number if s.is_floating else torch.zeros((), dtype=s.torch_dtype)).expand(s.shape)
        for n, s in specs.items()
    }


def member_logits(opened: OpenModel, inputs: Inputs) -> torch.Tensor:
    """Return the logits (1, B, C) of an open base or member."""
    model = build_checked(
        opened.family, opened.header, hollow(opened.checkpoint.specs), where=opened.reference
    )
    return streamed_logits(model, lambda name: [opened.checkpoint.tensor(name)], inputs)


def hydra_logits(fusion: Fusion, header: Header, inputs: Inputs, *, where: str) -> torch.Tensor:
    """Return the logits (M, B, C) of the hydra that a fusion would write with this header; `where` is for errors."""
    states = [hollow(checkpoint.specs) for checkpoint in fusion.checkpoints]
    shared = {name: states[0][name] for name, fate in fusion.fates.items() if fate != Fate.GROUPED}
    members = members_of(header, [member_state | shared for member_state in states], where=where)

    def read(name: str) -> list[torch.Tensor]:
        return [part[name] for part in split_members(fusion.family, header, {name: fusion.tensor(name)})]

    return streamed_logits(Hydra(members).eval(), read, inputs, members=members)


def streamed_logits(
    model: Towers, read: Read, inputs: Inputs, *, members: Sequence[Model] = ()
) -> torch.Tensor:
    """Return the members' logits (M, B, C) of a model in fp32; memory holds the weights of one step at a time.

    Args:
        model: Model built from `hollow` tensors.
        read: Returns its tensors by name.
        inputs: Inputs of the model.
        members: Members of a hydra.
    """
    member_states = [m.library_state() for m in members or [cast("Model", model)]]
    places = {
        id(t): (name, m)
        for m, member_state in reversed([*enumerate(member_states)])
        for name, t in member_state.items()
    }
    with torch.inference_mode(), ExitStack() as hooks:
        for step in _steps(model):
            filled = _Filled(step, places, read)
            hooks.enter_context(step.register_forward_pre_hook(filled.fill))
            hooks.enter_context(step.register_forward_hook(filled.empty))
        return model.member_logits(inputs)


def _steps(model: Towers) -> Iterator[nn.Module]:
    for tower in cast("list[Tower]", list(model.towers.values())):
        yield from (tower.embed, *tower.layers(), tower.readout)
    yield from model.answers


class _Filled:
    """A step that holds its tensors only while it runs."""

    def __init__(self, step: nn.Module, places: Mapping[int, tuple[str, int]], read: Read) -> None:
        """Find the tensors of the step.

        Args:
            step: Step of a model built from `hollow` tensors.
            places: Name of each tensor, and the first member that has it.
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
        """Replace the tensors by hollow ones."""
        for table, key, tensor, _name, _m in self.slots:
            cast("dict[str, torch.Tensor | None]", table)[key] = tensor
