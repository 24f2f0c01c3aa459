"""Where methods reach into attention: a gate on each head's output, a look at it or at the attention weights, heads cut out.

Heads are named as the base counts them.

Axes: B batch, T tokens, H heads that are left in a layer, K head width.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING

import torch
from typing_extensions import override

from hydractl.families.attention import Attention
from hydractl.families.attention_bias import NOTHING, AttentionExtras
from hydractl.families.stream import Product
from hydractl.families.tower import Model, Tower, Towers

if TYPE_CHECKING:
    from hydractl.manifest.head_mask import HeadId


class Gated(Attention):
    """Attention of one member whose heads' outputs are multiplied before the output projection.

    Attributes:
        gate: Shape (H,), or (B, 1, H) for a gate a sample.
    """

    def __init__(self, attention: Attention, gate: torch.Tensor) -> None:
        super().__init__(attention.groups())
        self.gate = gate

    @override
    def project(self, z: torch.Tensor) -> torch.Tensor | Product:
        return super().project(z * self.gate.unsqueeze(-1).to(z.dtype))


class AttentionTap(Attention):
    """Attention of one member that shows its weights of all tokens, (B, H, T, T), each time it runs."""

    def __init__(
        self, attention: Attention, see: Callable[[torch.Tensor, torch.Tensor | None], None]
    ) -> None:
        """Take the place of an attention.

        Args:
            attention: Whose.
            see: Is given the weights, and the padding mask (B, 1, 1 or T, T), True at what may be looked at, or None.
        """
        super().__init__(attention.groups())
        self._see = see

    @override
    def heads(
        self, x: torch.Tensor, queries: slice | None = None, side: AttentionExtras = NOTHING
    ) -> torch.Tensor:
        self._see(self.groups()[0].weights(x, side), side.mask)
        return super().heads(x, queries, side)


class Heard(Attention):
    """Attention that shows what its heads say each time it runs, before the output projection."""

    def __init__(self, attention: Attention, hear: Callable[[torch.Tensor], None]) -> None:
        """Take the place of an attention, of one member or of several.

        Args:
            attention: Whose.
            hear: Is given it, as `Attention.heads` returns it in turn.
        """
        super().__init__(attention.groups())
        self._hear = hear

    @override
    def heads(
        self, x: torch.Tensor, queries: slice | None = None, side: AttentionExtras = NOTHING
    ) -> torch.Tensor:
        z = super().heads(x, queries, side)
        self._hear(z)
        return z


@contextlib.contextmanager
def tapped(
    model: Towers, towers: Iterable[str], tap: Callable[[str, int, Attention], Attention]
) -> Iterator[None]:
    """Put `tap(tower, layer, attention)` in the place of each attention module for as long as the context lasts.

    Members run in turn meanwhile.
    """
    tapped_towers = {name: model.tower(name) for name in towers}
    before = [
        (block, block.attn, name, layer)
        for name, tower in tapped_towers.items()
        for layer, block in enumerate(tower.layers())
    ]
    with contextlib.ExitStack() as contexts:
        for tower in tapped_towers.values():
            contexts.enter_context(tower.in_turn())
        try:
            for block, attention, name, layer in before:
                block.attn = tap(name, layer, attention)
            yield
        finally:
            for block, attention, _, _ in before:
                block.attn = attention


def heads_left(tower: Tower, layer: int) -> tuple[int, ...]:
    """Return a layer's heads that are still there, increasing."""
    return tower.layers()[layer].attn.groups()[0].head_numbers


def keep_heads(tower: Tower, layer: int, head_numbers: Collection[int]) -> None:
    """Cut out all of a layer's heads but these; weights are really sliced, and the tensors cut are new ones."""
    attention = tower.layers()[layer].attn
    group = attention.groups()[0]
    attention.members[0] = group.select(
        [i for i, head in enumerate(group.head_numbers) if head in head_numbers]
    )


def remove_head(model: Model, head: HeadId) -> None:
    """Cut out one head."""
    tower = model.tower(head.tower)
    keep_heads(tower, head.layer, set(heads_left(tower, head.layer)) - {head.head})
