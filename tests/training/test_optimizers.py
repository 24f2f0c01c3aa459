"""Optimizers, with their state in named tensors."""

from __future__ import annotations

import pytest
import timm
import torch
from timm.optim import param_groups_weight_decay
from torch import nn
from transformers import BertConfig, BertModel, Trainer

from hydractl.training.optimizers import (
    PEAK,
    SCALE,
    decays,
    make_optimizer,
    optimizer_tensors,
    restore_optimizer,
)
from hydractl.training.recipe import Recipe
from support.variants import TINY


def parameters(seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = {"norm.weight": (3,), "fc.weight": (3, 3), "fc.bias": (3,), "pos_embed": (1, 2, 3)}
    return {n: nn.Parameter(torch.randn(s, generator=generator)) for n, s in shapes.items()}


def advance(optimizer, found, steps, *, start=0):
    for step in range(start, start + steps):
        for i, parameter in enumerate(found.values()):
            parameter.grad = torch.full_like(parameter, (step + 1) * (i + 1) / 10)
        optimizer.step()


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_a_restored_optimizer_goes_on_bit_for_bit(name):
    recipe = Recipe(optimizer=name, lr=(0.1,), weight_decay=0.1)
    through = parameters()
    advance(make_optimizer(through, recipe), through, 5)

    first = parameters()
    half = make_optimizer(first, recipe)
    advance(half, first, 3)
    taken = {k: v.clone() for k, v in optimizer_tensors(half, first).items()}
    second = {n: nn.Parameter(p.detach().clone()) for n, p in first.items()}
    other = make_optimizer(second, recipe)
    restore_optimizer(other, second, taken)
    advance(other, second, 2, start=3)

    assert all(torch.equal(through[n], second[n]) for n in through)


def test_state_of_an_unknown_parameter_is_refused():
    found = parameters()

    with pytest.raises(ValueError, match="gone"):
        restore_optimizer(make_optimizer(found, Recipe()), found, {"exp_avg.gone": torch.zeros(1)})


def test_only_matrices_decay():
    found = parameters()

    assert [n for n, p in found.items() if decays(n, p)] == ["fc.weight"]


def test_of_a_timm_model_decays_what_timm_lets_decay():
    model = timm.create_model("vit_tiny_patch16_224", qk_norm=True, init_values=1e-5, **TINY)
    groups = param_groups_weight_decay(model, 0.1, no_weight_decay_list=model.no_weight_decay())
    theirs = {id(p) for group in groups if group["weight_decay"] for p in group["params"]}

    for name, parameter in model.named_parameters():
        assert decays(name, parameter) == (id(parameter) in theirs), name


def test_of_a_text_encoder_decays_what_transformers_lets_decay():
    """This includes token and position embeddings."""
    size = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = BertModel(BertConfig(vocab_size=11, max_position_embeddings=7, **size))
    theirs = Trainer.get_decay_parameter_names(None, model)

    assert "embeddings.position_embeddings.weight" in theirs
    assert {n for n, p in model.named_parameters() if decays(n, p)} == set(theirs)


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_decay_shrinks_matrices_alone(name):
    found = parameters()
    before = {n: p.detach().clone() for n, p in found.items()}
    optimizer = make_optimizer(found, Recipe(optimizer=name, lr=(0.1,), weight_decay=0.5))
    for parameter in found.values():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()

    changed = [n for n in found if not torch.equal(found[n], before[n])]
    assert changed == ["fc.weight"]


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_a_rate_of_its_own_makes_a_group_that_does_not_decay(name):
    found = parameters()
    rates = {"fc.weight": 0.5, "fc.bias": 0.5}

    groups = make_optimizer(found, Recipe(optimizer=name, weight_decay=0.1), rates=rates).param_groups

    (own,) = [group for group in groups if PEAK in group]
    assert (own[PEAK], own["weight_decay"], len(own["params"])) == (0.5, 0.0, 2)
    assert sum(len(group["params"]) for group in groups) == len(found)


def test_nothing_changes_where_no_rate_is_its_own():
    recipe = Recipe(weight_decay=0.1)
    plain, other = parameters(), parameters()

    advance(make_optimizer(plain, recipe), plain, 3)
    advance(make_optimizer(other, recipe, rates={"elsewhere": 0.5}), other, 3)

    assert all(torch.equal(plain[n], other[n]) for n in plain)


def test_a_scaled_rate_is_beside_decay_and_beside_a_rate_of_its_own():
    found = parameters()
    scales = {"fc.weight": 0.25, "fc.bias": 0.25, "norm.weight": 0.25}

    groups = make_optimizer(
        found, Recipe(weight_decay=0.1), rates={"norm.weight": 0.5}, scales=scales
    ).param_groups

    told = {
        name: (group[SCALE], group["weight_decay"], group.get(PEAK))
        for group in groups
        for name, parameter in found.items()
        if any(parameter is p for p in group["params"])
    }
    assert told == {
        "fc.weight": (0.25, 0.1, None),
        "fc.bias": (0.25, 0.0, None),
        "pos_embed": (1.0, 0.0, None),
        "norm.weight": (1.0, 0.0, 0.5),
    }
