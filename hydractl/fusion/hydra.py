"""Hydras: the fused module of several members.

Different parts of members run on slices of the batch axis, a slice per member.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch
from torch import nn
from torch.utils._pytree import _register_namedtuple
from typing_extensions import override

from hydractl.families.attention import Attention
from hydractl.families.stream import MemberParallel, Stream, all_same, joined, stack_modules
from hydractl.families.tower import Block, Model, Tower, Towers
from hydractl.metrics.per_sample import opinions
from hydractl.model_inputs import Inputs, checked_inputs, split_inputs

Layout = Literal["auto", "in turn", "stacked"]


class Grouped(MemberParallel):
    """Corresponding parts of all members. Member m's part processes member m's slice of the batch.

    If the parts run in turn, the outputs are bit-identical to the outputs of the members.
    """

    @override
    def at_once(self) -> nn.Module | None:
        return stack_modules(list(self.members))

    def forward(self, x: Inputs | Stream) -> torch.Tensor | Stream:
        """Return the members' outputs, concatenated along the batch axis (M B, ...)."""
        if (stacked_part := self.stacked) is not None:
            member_outputs: torch.Tensor | Stream = stacked_part.forward(x)
            return member_outputs
        count = len(self.members)
        parts = x.split(count) if isinstance(x, Stream) else split_inputs(x, count)
        outputs = [member(part) for member, part in zip(self.members, parts, strict=True)]
        return joined(outputs) if isinstance(outputs[0], Stream) else torch.cat(outputs)


def assemble(towers: Sequence[Tower]) -> Tower:
    """Return one tower that computes the towers of all members. Parts with the same tensors run once.

    Two members share a part if the parts have the same tensor objects. The stream is forked before the first
    part with differences.

    Args:
        towers: The tower of each member.
    """
    first = towers[0]
    steps_of_members = [*zip(*([t.embed, *t.layers(), t.readout] for t in towers), strict=True)]
    steps = [_grouped_step(members) for members in steps_of_members]
    differ = [step is not members[0] for step, members in zip(steps, steps_of_members, strict=True)]
    blocks = [step for step in steps[1:-1] if isinstance(step, Block)]
    tower = Tower(
        embed=steps[0], blocks=blocks, readout=steps[-1], read_tokens=first.read_tokens, names=first.names
    )
    tower.members, tower.fork = len(towers), differ.index(True) if any(differ) else None
    return tower.eval()


def _grouped_step(members: Sequence[nn.Module]) -> nn.Module:
    """Return the first member's step if all steps are the same, else a step with grouped parts."""
    if all_same(members):
        return members[0]
    if not isinstance(members[0], Block):
        return Grouped(members)
    parts: dict[str, nn.Module] = {}
    for name in dict(members[0].named_children()):
        children = [getattr(member, name) for member in members]
        if all_same(children):
            continue
        if isinstance(children[0], Attention):
            parts[name] = Attention([group for child in children for group in child.groups()])
        else:
            parts[name] = Grouped(children)
    return members[0].with_parts(parts)


class HydraOutput(NamedTuple):
    """Output of a hydra.

    Attributes:
        logits: `log mean_m softmax(z_m)`, shape (B, C), at least float32. Their softmax is the mean of the
            members' probabilities.
        member_logits: Logits z_m of each member, shape (M, B, C), in the dtype of the weights.
    """

    logits: torch.Tensor
    member_logits: torch.Tensor


# `torch.export.save` can serialize a named tuple only if it is registered with a type name
_register_namedtuple(HydraOutput, serialized_type_name="hydractl.fusion.hydra.HydraOutput")


class Hydra(Towers):
    """Module with M members of an architecture in a single forward pass (Hydra Ensembles, section 4.2).

    It works under `torch.compile` and `torch.export`.
    """

    def __init__(self, members: Sequence[Model]) -> None:
        """Fuse models in memory. Tensors shared by all members as objects are stored and computed once.

        Args:
            members: M >= 1 models of the same architecture.
        """
        towers = {name: assemble([m.tower(name) for m in members]) for name in members[0].towers}
        super().__init__(towers, [m.answer for m in members])
        self.members = len(members)
        self.layout: Layout = "auto"
        self.register_load_state_dict_post_hook(_laid_out_again)  # type: ignore[no-untyped-call]

    def lay_out(self, layout: Layout) -> None:
        """Choose how different parts of members run without gradients: in turn, or stacked.

        Stacked: the members' weights of a part are copied into a single tensor, with heads padded to the
        largest member of the layer. One call of each operator computes all members, which is faster if kernel
        launches limit the speed. In turn: each member's part runs separately, without padding and copies.
        Parts without a stacking rule always run in turn.

        The next forward pass stacks changed weights again. It does not notice writes through `.data`, and
        compiled or captured hydras notice no changes: call this method again in these cases.

        Args:
            layout: `stacked`, `in turn` or `auto`. `auto` stacks on CUDA devices, and otherwise runs parts in
                turn.
        """
        self.layout = layout
        self._stack(on=False)
        self._stack(on=self._stacks)

    @property
    def _stacks(self) -> bool:
        return self.layout == "stacked" or (self.layout == "auto" and self.device.type == "cuda")

    def _stack(self, *, on: bool) -> None:
        for name in self.towers:
            self.tower(name).stack(on)

    @override
    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Hydra:
        # free the stacked copies first, because both copies may not fit into memory together
        self._stack(on=False)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._stack(on=self._stacks)
        return self

    @override
    def train(self, mode: bool = True) -> Hydra:
        super().train(mode)
        self._stack(on=self._stacks)
        return self

    def forward(self, inputs: Inputs | None = None, **named: torch.Tensor) -> HydraOutput:
        """Return the ensemble's log-probabilities and the members' logits.

        Args:
            inputs: Images (B, C, height, width), or a dict of named tensors (B, ...).
            named: The same inputs by keyword: `input_ids`, `attention_mask`, `token_type_ids`,
                `pixel_values`.

        Raises:
            TypeError: If the inputs do not fit the model.
        """
        logits = self.member_logits(checked_inputs(inputs, named, self.towers.keys()))
        return HydraOutput(opinions(logits).ensemble, logits)


def _laid_out_again(hydra: Hydra, _: object) -> None:
    hydra.lay_out(hydra.layout)
