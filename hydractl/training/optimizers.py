"""Trained tensors, optimizers, optimizer state in named tensors, and learning-rate schedules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import cos, pi
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hydractl.errors import UsageError
from hydractl.families.base import Family, position_of
from hydractl.training.accelerator import is_sharded, like
from hydractl.training.recipe import BLOCKLESS, Recipe

if TYPE_CHECKING:
    from hydractl.manifest.header import Architecture


PEAK = "peak"
"""Key of the peak learning rate of a parameter group, if it differs from the recipe's."""
SCALE = "scale"
"""Key of the factor of the peak learning rate of a parameter group."""


def make_optimizer(
    parameters: Mapping[str, nn.Parameter],
    recipe: Recipe,
    *,
    rates: Mapping[str, float] = MappingProxyType({}),
    scales: Mapping[str, float] = MappingProxyType({}),
) -> torch.optim.Optimizer:
    """Return the optimizer of a recipe. Weight decay applies to matrices only.

    Args:
        parameters: Parameters that train, by name; at least one.
        recipe: Selects optimizer, momentum and weight decay.
        rates: Peak learning rates by name, for parameters that do not train at the rate of the recipe. Such
            parameters have no weight decay. Parameters with equal rates form a group, and `PEAK` stores the
            rate.
        scales: Factors of the recipe's peak learning rate by name; 1 for other names. Parameters in `rates`
            have no factor. `SCALE` stores the factor of each group.
    """
    usual = {n: p for n, p in parameters.items() if n not in rates}
    groups: list[dict[str, Any]] = [
        {
            "params": [p for n, p in usual.items() if (scales.get(n, 1.0), decays(n, p)) == (scale, matrix)],
            "weight_decay": recipe.weight_decay if matrix else 0.0,
            SCALE: scale,
        }
        for scale in sorted({scales.get(n, 1.0) for n in usual})
        for matrix in (True, False)
    ]
    groups += [
        {
            "params": [p for n, p in parameters.items() if rates.get(n) == rate],
            "weight_decay": 0.0,
            PEAK: rate,
            SCALE: 1.0,
        }
        for rate in sorted(set(rates.values()))
    ]
    groups = [group for group in groups if group["params"]]
    # A fused update of many small tensors takes half the time. It is not used on mps, or for sharded tensors.
    fused = True if all(p.device.type != "mps" and not is_sharded(p) for p in parameters.values()) else None
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=recipe.lr[0], momentum=recipe.momentum, fused=fused)
    return torch.optim.AdamW(groups, lr=recipe.lr[0], fused=fused)


def decays(name: str, parameter: nn.Parameter) -> bool:
    """Return whether weight decay applies to a parameter: weights with at least two axes.

    The name may end with `.original`, the suffix of torch's parametrizations.
    """
    return parameter.ndim >= 2 and name.removesuffix(".original").endswith("weight")


def optimizer_tensors(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter]
) -> dict[str, torch.Tensor]:
    """Return the tensors of the optimizer state by name, for example `exp_avg.head.weight`."""
    return {
        f"{key}.{name}": value
        for name, parameter in parameters.items()
        for key, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, torch.Tensor)
    }


def restore_optimizer(
    optimizer: torch.optim.Optimizer,
    parameters: Mapping[str, nn.Parameter],
    tensors: Mapping[str, torch.Tensor],
) -> None:
    """Restore the state of an optimizer from the tensors of `optimizer_tensors`.

    Raises:
        ValueError: If a tensor belongs to no parameter.
    """
    names = {id(parameter): name for name, parameter in parameters.items()}
    ordered = [names[id(p)] for group in optimizer.param_groups for p in group["params"]]
    number = {name: i for i, name in enumerate(ordered)}
    state: dict[int, dict[str, torch.Tensor]] = {}
    for label, tensor in tensors.items():
        key, _, name = label.partition(".")
        if name not in number:
            raise ValueError(f"optimizer state of an unknown parameter {name}")
        state.setdefault(number[name], {})[key] = like(parameters[name], tensor)
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def lr_factor(step: int, *, total: int, warmup: int, schedule: str, floor: float) -> float:
    """Return the learning rate of a step as a fraction of the peak, in (0, 1].

    The warm-up is linear and reaches the peak at step `warmup`. Then the rate is constant, or falls linearly
    or as half a cosine (Loshchilov and Hutter 2017, eq. 5). It would reach `floor` at step `total`.

    Args:
        step: Step from 0, below `total`.
        total: Number of steps, including the warm-up.
        warmup: Steps before the peak, 0 <= warmup < total.
        schedule: `constant`, `linear` or `cosine`.
        floor: Final fraction, in [0, 1].

    Raises:
        ValueError: If a number is out of range or the schedule is unknown.
    """
    if not (0 <= step < total and 0 <= warmup < total and 0 <= floor <= 1):
        raise ValueError(f"step {step} of {total}, warmup {warmup}, floor {floor}: out of range")
    if step < warmup:
        # The first step already has a positive rate: a rate of 0 would waste a batch.
        return (step + 1) / (warmup + 1)
    progress = (step - warmup) / (total - warmup)
    match schedule:
        case "constant":
            return 1.0
        case "linear":
            return floor + (1 - floor) * (1 - progress)
        case "cosine":
            return floor + (1 - floor) * (1 + cos(pi * progress)) / 2
        case _:
            raise ValueError(f"unknown schedule {schedule!r}")


def trainable(
    family: Family, architecture: Architecture, recipe: Recipe, state: Mapping[str, torch.Tensor]
) -> tuple[str, ...]:
    """Return the state-dict names of the tensors that train, sorted.

    A tensor trains if the recipe names the tensor's part. `trunk` and `last_blocks` restrict blocks
    and embedding, but never the readout and the head.

    Args:
        family: Maps a name to its tower, layer and part.
        architecture: Architecture of the model.
        recipe: Selects parts and blocks.
        state: State dict of the model. Tensors that do not require gradients are left out.

    Raises:
        UsageError: If the model has fewer blocks than the recipe names, or no tensor would train.
    """
    last, trunk = recipe.last_blocks, recipe.trunk
    depth = min(tower.layers for tower in architecture.towers.values())
    if trunk is not None and trunk > depth:
        raise UsageError(
            f"`--trunk {trunk}`: {architecture.name} has {depth} blocks", hint=f"add `--trunk {depth}`"
        )
    if last is not None and trunk is None and not 0 <= last <= depth:
        raise UsageError(
            f"the recipe trains the last {last} blocks, but {architecture.name} has {depth} blocks",
            hint="add `--trunk 0` to train all blocks",
        )
    chosen = []
    for name, tensor in state.items():
        place = position_of(family, name)
        layers = architecture.towers[place.tower].layers
        first = trunk if trunk is not None or last is None else layers - last
        late = first is None or (place.part in BLOCKLESS if place.layer is None else place.layer >= first)
        if tensor.requires_grad and place.part in recipe.parts and late:
            chosen.append(name)
    if not chosen:
        of_members = " of the members' own weights" if recipe.trains_own_parts else ""
        blocks = "" if trunk is None else f" after `--trunk {trunk}`"
        raise UsageError(
            f"nothing would train: {architecture.name} has no {', '.join(recipe.parts)} parameters{of_members}{blocks}",
            hint="train more with `--train-parts` or `--trunk`",
        )
    return tuple(sorted(chosen))


def rate_scales(
    family: Family, architecture: Architecture, decay: float, names: Iterable[str]
) -> dict[str, float]:
    """Return the learning-rate factor of each state-dict name under `Recipe.layer_decay`.

    The number of layers L is that of the tensor's tower.
    """
    scales = {}
    for name in names:
        place = position_of(family, name)
        layers = architecture.towers[place.tower].layers
        last = {"embed": -1, **dict.fromkeys(BLOCKLESS, layers)}
        if name.startswith(family.towers[place.tower].last_norm):
            last["readout"] = layers - 1
        scales[name] = decay ** (layers - (last[place.part] if place.layer is None else place.layer))
    return scales


def reset_head(family: Family, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return a state dict with a classifier of zeros. Training then starts with equal probabilities."""
    return {n: t.new_zeros(t.shape) if position_of(family, n).part == "head" else t for n, t in state.items()}
