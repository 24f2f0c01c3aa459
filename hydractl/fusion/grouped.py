"""Parts that differ between members, run side by side on the batch axis."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from hydractl.families.attention import Attention
from hydractl.families.tower import Block, Stream, Tower, joined
from hydractl.inputs import Inputs, split_inputs

if TYPE_CHECKING:
    from collections.abc import Sequence


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
