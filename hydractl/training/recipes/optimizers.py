"""Optimisers by name, and their state as named tensors."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from hydractl.training.recipes.recipe import Recipe

PEAK = "peak"
"""Where a group of parameters holds a peak learning rate of its own."""


def make_optimizer(
    parameters: Mapping[str, nn.Parameter],
    recipe: Recipe,
    *,
    rates: Mapping[str, float] = MappingProxyType({}),
) -> torch.optim.Optimizer:
    """Return the recipe's optimiser over named parameters; only weight matrices decay.

    Args:
        parameters: What trains, by name; at least one.
        recipe: Says which optimiser.
        rates: Peak learning rates of parameters that do not train at the recipe's, by name; they do not decay. Those of
            one rate are a group, which holds it as `PEAK`.
    """
    usual = {n: p for n, p in parameters.items() if n not in rates}
    decayed = [p for n, p in usual.items() if decays(n, p)]
    others = [p for n, p in usual.items() if not decays(n, p)]
    groups: list[dict[str, Any]] = [
        {"params": decayed, "weight_decay": recipe.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    groups += [
        {
            "params": [p for n, p in parameters.items() if rates.get(n) == rate],
            "weight_decay": 0.0,
            PEAK: rate,
        }
        for rate in sorted(set(rates.values()))
    ]
    groups = [group for group in groups if group["params"]]
    # a fused update of many small tensors takes half the time; there is none on mps
    fused = True if all(p.device.type != "mps" for p in parameters.values()) else None
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=recipe.lr[0], momentum=recipe.momentum, fused=fused)
    return torch.optim.AdamW(groups, lr=recipe.lr[0], fused=fused)


def decays(name: str, parameter: nn.Parameter) -> bool:
    """Return whether weight decay applies: to matrices and kernels; not to biases, norms, tokens and positions."""
    return parameter.ndim >= 2 and name.endswith("weight")


def optimizer_tensors(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter]
) -> dict[str, torch.Tensor]:
    """Return the optimiser's state as `KEY.PARAMETER` tensors."""
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
    """Put back what `optimizer_tensors` took out.

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
            raise ValueError(f"optimiser state of an unknown parameter {name}")
        state.setdefault(number[name], {})[key] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
