"""Access of scoring methods to attention: gates, hooks on attention weights, and removal of heads.

Heads have the numbers of the base.

Axes: B batch, T tokens, H remaining heads of a layer, K head width.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING

import torch
from typing_extensions import override

from hydractl.families.attention import NO_EXTRAS, Attention, AttentionExtras
from hydractl.families.stream import Product
from hydractl.families.tower import Model, Tower, Towers

if TYPE_CHECKING:
    from hydractl.manifest.head_mask import HeadId


class Gated(Attention):
    """Attention of a single model, with gates on the outputs of its heads before the output projection.

    Attributes:
        gate: Shape (H,), or (B, 1, H) for one gate per sample.
    """

    def __init__(self, attention: Attention, gate: torch.Tensor) -> None:
        super().__init__(attention.groups())
        self.gate = gate

    @override
    def project(self, z: torch.Tensor) -> torch.Tensor | Product:
        return super().project(z * self.gate.unsqueeze(-1).to(z.dtype))


class AttentionTap(Attention):
    """Attention of a single model with a callback for the attention weights of each forward pass."""

    def __init__(
        self, attention: Attention, see: Callable[[torch.Tensor, torch.Tensor | None], None]
    ) -> None:
        """Wrap an attention module.

        Args:
            attention: Module to wrap.
            see: Callback for the weights (B, H, T, T) and the padding mask (B, 1, 1 or T, T), True at visible
                tokens, or None.
        """
        super().__init__(attention.groups())
        self._see = see

    @override
    def heads(
        self, x: torch.Tensor, queries: slice | None = None, side: AttentionExtras = NO_EXTRAS
    ) -> torch.Tensor:
        self._see(self.groups()[0].weights(x, side), side.mask)
        return super().heads(x, queries, side)


@contextlib.contextmanager
def tapped(
    model: Towers, towers: Iterable[str], tap: Callable[[str, int, Attention], Attention]
) -> Iterator[None]:
    """Replace each attention module by `tap(tower, layer, attention)` within the block.

    Members run in turn within the block.
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
    """Return the remaining heads of a layer in increasing order."""
    return tower.layers()[layer].attn.groups()[0].head_numbers


def keep_heads(tower: Tower, layer: int, head_numbers: Collection[int]) -> None:
    """Remove all other heads of a layer by slicing its weights into new tensors."""
    attention = tower.layers()[layer].attn
    group = attention.groups()[0]
    attention.members[0] = group.select(
        [i for i, head in enumerate(group.head_numbers) if head in head_numbers]
    )


def write_out_keys(tower: Tower, layer: int) -> None:
    """Replace shared keys and values of a layer by a copy for each head.

    The weights of a shared key could not be attributed to a single head.
    """
    attention = tower.layers()[layer].attn
    attention.members[0] = attention.groups()[0].without_sharing()


def remove_head(model: Model, head: HeadId) -> None:
    """Remove one head from the model."""
    tower = model.tower(head.tower)
    keep_heads(tower, head.layer, set(heads_left(tower, head.layer)) - {head.head})
