"""Every family, every variant: embed, blocks and readout in turn are the library's own forward pass."""

from __future__ import annotations

import pytest
import torch

from hydractl.families.probe import largest_difference
from hydractl.families.table import FAMILIES
from support.builders import base
from support.variants import PLAIN, VARIANTS

every_variant = pytest.mark.parametrize("variant", VARIANTS, ids=str)


def test_every_family_has_variants():
    assert {v.family for v in VARIANTS} == set(FAMILIES)


@every_variant
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)], ids=["fp32", "fp64"]
)
@torch.inference_mode()
def test_equals_the_library(variant, dtype, tolerance):
    sample = base(variant)
    inputs = sample.inputs(batch=3).to(dtype)

    found = sample.model(dtype)(inputs)

    expected = sample.library(dtype)(inputs)
    assert found.shape == (3, sample.header.architecture.num_classes)
    assert largest_difference(found, expected) <= tolerance


@every_variant
@torch.inference_mode()
def test_the_five_steps_in_turn_are_the_forward_pass(variant):
    """`heads`, `project` and `join` for all tokens: the view on which scoring rests."""
    sample = base(variant)
    model = sample.model(torch.float64)
    tower, inputs = model.tower(), sample.inputs().double()

    stream = tower.embed(inputs)
    for block in tower.layers():
        z = block.heads(stream)
        assert z.shape[-2:] == (4, 8)
        stream = block.join(stream, block.project(z))

    assert largest_difference(tower.readout(stream), model(inputs)) <= 1e-10


@every_variant
@torch.inference_mode()
def test_resuming_from_any_layer_is_the_forward_pass(variant):
    sample = base(variant)
    model = sample.model()
    tower, stream = model.tower(), model.tower().embed(sample.inputs())
    expected = model(sample.inputs())
    for layer, block in enumerate(tower.layers()):
        assert torch.equal(tower.resume(stream, layer), expected)
        stream = block.run(stream, tower.queries(layer))
    assert torch.equal(tower.finish(stream), expected)


@every_variant
@torch.inference_mode()
def test_projection_is_the_sum_of_the_heads_terms(variant):
    sample = base(variant)
    tower = sample.model(torch.float64).tower()
    block = tower.layers()[1]
    z = block.heads(tower.embed(sample.inputs().double()))
    (group,) = block.attn.groups()

    terms = sum(group.head_term(z, head) for head in range(group.heads))

    bias = 0 if group.proj.bias is None else group.proj.bias
    assert largest_difference(terms + bias, block.project(z)) <= 1e-12


@every_variant
@torch.inference_mode()
def test_last_block_computes_only_the_tokens_that_are_read(variant):
    sample = base(variant)
    model = sample.model()
    seen = []
    for block in model.tower().layers():
        block.mlp.register_forward_hook(lambda _m, _i, out: seen.append(out.shape[1]))

    model(sample.inputs())

    reads = {"class-token": 1, "distilled": 2, "distilled-dynamic": 2}
    pools = sample.library()
    tokens = seen[0]
    expected = reads.get(variant.name, 1 if pools.global_pool == "token" else tokens)
    assert seen == [tokens, tokens, expected]
    assert tokens > 2


@every_variant
def test_state_dict_names_are_the_library_s(variant):
    sample = base(variant)
    model = sample.model()
    found = model.library_state()
    assert set(found) == set(sample.library().state_dict())
    assert all(torch.equal(found[name], tensor) for name, tensor in sample.state.items())


def test_an_empty_batch_stays_empty():
    sample = base(PLAIN)
    with torch.inference_mode():
        assert sample.model()(sample.inputs()[:0]).shape == (0, 7)


@every_variant
def test_gradients_reach_every_parameter(variant):
    """What is built can be fine-tuned: no part is detached, none is left out of `parameters`."""
    model = base(variant).model()
    names = dict(model.named_parameters())
    model(base(variant).inputs()).logsumexp(dim=1).sum().backward()
    assert {n for n, p in names.items() if p.grad is None} == set()
