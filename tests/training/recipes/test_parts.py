"""Which tensors train."""

from __future__ import annotations

import pytest
import torch

from hydractl.errors import UsageError
from hydractl.families.base import place_of
from hydractl.training.recipes.parts import reset_head, trainable
from hydractl.training.recipes.recipe import PARTS, Recipe
from support.builders import base


def chosen(**options):
    sample = base()
    state = dict(sample.model().library_state())
    return trainable(sample.family, sample.header.architecture, Recipe(**options), state)


def test_all_parts_together_are_everything():
    assert set(chosen()) == set(base().state)


def test_parts_are_disjoint_and_complete():
    found = [set(chosen(train=(part,))) for part in PARTS]

    assert all(found)
    assert sum(map(len, found)) == len(base().state)
    assert set().union(*found) == set(base().state)


@pytest.mark.parametrize("last", [0, 1, 2, 3])
def test_last_blocks_train_with_readout_and_head(last):
    layers = [place_of(base().family, name).layer for name in chosen(last_blocks=last)]

    assert {layer for layer in layers if layer is not None} == set(range(3 - last, 3))
    assert {"head.weight", "norm.weight"} <= set(chosen(last_blocks=last))
    assert not {"cls_token", "pos_embed", "patch_embed.proj.weight"} & set(chosen(last_blocks=last))


def test_parts_and_blocks_go_together():
    assert all(n.startswith("blocks.2.attn.") for n in chosen(train=("attention",), last_blocks=1))


@pytest.mark.parametrize(("options", "said"), [
    ({"last_blocks": 4}, "has 3 blocks"),
    ({"train": ("mlp",), "last_blocks": 0}, "nothing would train"),
    ({"train": ("embed",), "last_blocks": 2}, "nothing would train"),
])  # fmt: skip
def test_refusals(options, said):
    with pytest.raises(UsageError, match=said):
        chosen(**options)


def test_a_tensor_without_gradient_never_trains():
    sample = base()
    state = {n: t.detach() for n, t in sample.state.items()}

    with pytest.raises(UsageError, match="nothing would train"):
        trainable(sample.family, sample.header.architecture, Recipe(), state)


def test_a_reset_head_is_zero_and_all_else_as_it_was():
    sample = base()
    found = reset_head(sample.family, sample.state)

    for name, tensor in sample.state.items():
        wanted = torch.zeros_like(tensor) if name.startswith("head.") else tensor
        assert torch.equal(found[name], wanted)
