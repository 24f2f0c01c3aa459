"""Which tensors of a model train."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from hydractl.errors import UsageError
from hydractl.families.base import Family, place_of
from hydractl.training.recipes.recipe import BLOCKLESS, Recipe

if TYPE_CHECKING:
    import torch

    from hydractl.manifest.header import Architecture


def trainable(
    family: Family, architecture: Architecture, recipe: Recipe, state: Mapping[str, torch.Tensor]
) -> tuple[str, ...]:
    """Return the state-dict names of what trains, sorted.

    With `last_blocks` or `freeze_blocks`, that is what the recipe's parts have in the last blocks, the readout and the head.

    Args:
        family: Says where a tensor stands.
        architecture: Says how many layers there are.
        recipe: Says which parts and blocks.
        state: The model's state dict; parameters among it are those that require gradients.

    Raises:
        UsageError: If there are fewer blocks than the recipe says, or nothing would train.
    """
    last, frozen = recipe.last_blocks, recipe.freeze_blocks
    option, count = ("--last-blocks", last) if frozen is None else ("--freeze-blocks", frozen)
    depth = min(tower.layers for tower in architecture.towers.values())
    if count is not None and count > depth:
        raise UsageError(
            f"`{option} {count}`: {architecture.name} has {depth} blocks", hint=f"add `{option} {depth}`"
        )
    chosen = []
    for name, tensor in state.items():
        place = place_of(family, name)
        first = architecture.towers[place.tower].layers - last if last is not None else frozen
        late = first is None or (place.part in BLOCKLESS if place.layer is None else place.layer >= first)
        if tensor.requires_grad and place.part in recipe.parts and late:
            chosen.append(name)
    if not chosen:
        of_members = " of the members' own weights" if recipe.trains_own_parts else ""
        blocks = "" if count is None else f" after `{option} {count}`"
        raise UsageError(
            f"nothing would train: {architecture.name} has no {', '.join(recipe.parts)} parameters{of_members}{blocks}",
            hint=f"train more with `--train` or `{option}`",
        )
    return tuple(sorted(chosen))


def rate_scales(
    family: Family, architecture: Architecture, decay: float, names: Iterable[str]
) -> dict[str, float]:
    """Return what `Recipe.layer_decay` multiplies the learning rate of each state-dict name by; each tower has its own L."""
    scales = {}
    for name in names:
        place = place_of(family, name)
        layers = architecture.towers[place.tower].layers
        last = {"embed": -1, **dict.fromkeys(BLOCKLESS, layers)}
        if name.startswith(family.towers[place.tower].last_norm):
            last["readout"] = layers - 1
        scales[name] = decay ** (layers - (last[place.part] if place.layer is None else place.layer))
    return scales


def reset_head(family: Family, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return a state dict whose classifier is zero: every class equally likely, as the CIFAR-100 recipe begins."""
    return {n: t.new_zeros(t.shape) if place_of(family, n).part == "head" else t for n, t in state.items()}
