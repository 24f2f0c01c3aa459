"""Which tensors of a model train."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hydractl.errors import UsageError
from hydractl.families.base import Family, place_of
from hydractl.training.recipes.recipe import Recipe

if TYPE_CHECKING:
    import torch

    from hydractl.manifest.header import Architecture


def trainable(
    family: Family, architecture: Architecture, recipe: Recipe, state: Mapping[str, torch.Tensor]
) -> tuple[str, ...]:
    """Return the state-dict names of what trains, sorted.

    With `last_blocks`, that is what the recipe's parts have in the last blocks, the readout and the head.

    Args:
        family: Says where a tensor stands.
        architecture: Says how many layers there are.
        recipe: Says which parts and blocks.
        state: The model's state dict; parameters among it are those that require gradients.

    Raises:
        UsageError: If there are fewer blocks than `last_blocks`, or nothing would train.
    """
    last = recipe.last_blocks
    depth = min(tower.layers for tower in architecture.towers.values())
    if last is not None and last > depth:
        raise UsageError(
            f"`--last-blocks {last}`: {architecture.name} has {depth} blocks",
            hint=f"add `--last-blocks {depth}`",
        )
    chosen = []
    for name, tensor in state.items():
        place = place_of(family, name)
        late = last is None or (
            place.part in {"readout", "head"}
            if place.layer is None
            else place.layer >= architecture.towers[place.tower].layers - last
        )
        if tensor.requires_grad and place.part in recipe.parts and late:
            chosen.append(name)
    if not chosen:
        own = " that members have as their own" if recipe.own else ""
        blocks = "" if last is None else f" in the last {last} blocks"
        raise UsageError(
            f"nothing would train: {architecture.name} has no {', '.join(recipe.parts)} parameters{own}{blocks}",
            hint="widen `--train` or `--last-blocks`",
        )
    return tuple(sorted(chosen))


def reset_head(family: Family, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return a state dict whose classifier is zero: every class equally likely, as the CIFAR-100 recipe begins."""
    return {n: t.new_zeros(t.shape) if place_of(family, n).part == "head" else t for n, t in state.items()}
