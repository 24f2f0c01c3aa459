"""Training methods with computed weights: allowed changes of a model, and trained weights in files."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - the field's own name

from hydractl.families.base import position_of
from hydractl.families.head_slicing import TensorRole
from hydractl.research.methods.adapters import (
    ORIGINAL,
    PARAMETRIZED,
    LowRank,
    Outer,
    Spectrum,
    computed_weights,
    sites_of,
)
from hydractl.research.methods.options import (
    METHODS,
    BatchEnsemble,
    LoraEnsemble,
    Mimo,
    Oba,
    SingularValues,
    method_reference,
    parse_method,
)
from hydractl.training.optimizers import decays
from support.adapters import adapter_of
from support.builders import Sample, base
from support.variants import BERT, TIMM_VIT, TINY, TINY_TEXT, TINY_VISION_TOWER, VISION_TOWER, Variant

BASES = {
    "fused": Variant("timm-vit", "class-token", TIMM_VIT["class-token"][0], TINY),
    "apart": Variant("transformers-bert", "plain", BERT["plain"][0], TINY_TEXT),
    "tower": Variant("transformers-vision-tower", "clip", VISION_TOWER["clip"][0], TINY_VISION_TOWER),
}


def made(sample, method, *, noise=0.3, seed=0):
    """Return a model with changed parameters after training by a method."""
    model = Sample(sample.header, {name: tensor.clone() for name, tensor in sample.state.items()}).model()
    state = model.library_state()
    sites = sites_of(sample.family, model, state)
    names = tuple(state)
    adapter = adapter_of(method, sample.header)
    told = adapter.select(sample.family, model, state, names)
    for name, tensor in state.items():
        tensor.requires_grad_(name in told)
    adapter.look(
        {name: sites[name].layer.weight for name in adapter.computed_names(sites, told)},
        [lambda: model.eval()(sample.inputs()).logsumexp(-1).sum()],
    )
    adapter.attach(sites, told, torch.Generator().manual_seed(seed))
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for _, parameter in trained(model):
            parameter.add_(noise * torch.randn(parameter.shape, generator=generator))
    return model, dict(state) | computed_weights(sites), told


def trained(model):
    return [(name, p) for name, p in model.named_parameters() if p.requires_grad]


def of_attention(sample, name):
    heads = position_of(sample.family, name).heads
    return heads is not None and heads.role in {TensorRole.INPUT, TensorRole.OUTPUT}


@pytest.fixture(params=BASES)
def sample(request) -> Sample:
    return base(BASES[request.param])


@pytest.mark.spread(cases=4)
@pytest.mark.parametrize(
    "method", [LoraEnsemble(), SingularValues(), Oba(keep=0.5), BatchEnsemble()], ids=lambda m: m.KIND
)
def test_what_is_written_answers_as_what_was_trained(sample, method):
    model, state, _ = made(sample, method)
    written = Sample(sample.header, {name: tensor.detach() for name, tensor in state.items()}).model()
    inputs = sample.inputs()

    with torch.no_grad():
        found, expected, before = written(inputs), model.eval()(inputs), sample.model()(inputs)
    torch.testing.assert_close(found, expected)
    assert not torch.allclose(before, expected, atol=1e-2)


def test_lora_changes_attention_and_the_classifier_by_so_low_a_rank(sample):
    """Queries, keys and values have that rank each, also if one matrix concatenates them."""
    _, state, told = made(sample, LoraEnsemble(rank=2))
    others = {name for name, tensor in sample.state.items() if not torch.equal(tensor, state[name])}

    assert others == set(told)
    assert {name for name in others if not of_attention(sample, name)} == {
        name for name in sample.state if position_of(sample.family, name).part == "head"
    }
    for name in filter(lambda n: of_attention(sample, n), others):
        change = state[name].detach() - sample.state[name]
        parts = change.chunk(position_of(sample.family, name).heads.copies)
        assert [torch.linalg.matrix_rank(part, rtol=1e-4) for part in parts] == [2] * len(parts)
        assert torch.linalg.matrix_rank(change, rtol=1e-4) == 2 * len(parts)


def test_a_method_begins_where_the_model_is(sample):
    inputs = sample.inputs()
    for method in (LoraEnsemble(), SingularValues(spread=0)):
        model, _, _ = made(sample, method, noise=0)
        with torch.no_grad():
            torch.testing.assert_close(model.eval()(inputs), sample.model()(inputs))


def test_what_a_lora_trains_is_what_its_pairs_and_the_classifier_hold(sample):
    model, _, told = made(sample, LoraEnsemble(rank=3))
    width, layers = 32, 3
    heads = sum(sample.state[n].numel() for n in told if position_of(sample.family, n).part == "head")

    assert sum(p.numel() for _, p in trained(model)) == layers * 4 * 3 * 2 * width + heads
    assert all(PARAMETRIZED in name or "head" in name or "classifier" in name for name, _ in trained(model))


def decayed(model):
    return {name for name, parameter in trained(model) if decays(name, parameter)}


@pytest.mark.parametrize("method", [Oba(keep=0.5), BatchEnsemble()], ids=lambda m: m.KIND)
def test_a_weight_that_trains_decays_as_if_nothing_were_made_of_it(sample, method):
    """Shared weights decay as without a method. Vectors of members do not decay, as in the authors' code."""
    model, _, _ = made(sample, method)
    found = decayed(model)

    assert any(PARAMETRIZED in name for name in found)
    assert {name.replace(f"{PARAMETRIZED}weight{ORIGINAL}", ".weight") for name in found} == {
        name for name, parameter in sample.model().named_parameters() if decays(name, parameter)
    }


def test_pairs_of_low_rank_decay_and_singular_values_do_not(sample):
    """peft and transformers also decay the low-rank matrices."""
    low, spectra = (made(sample, method)[0] for method in (LoraEnsemble(), SingularValues()))
    pairs = {name for name, _ in trained(low) if PARAMETRIZED in name}

    assert decayed(low) - pairs == decayed(spectra)
    assert pairs < decayed(low)
    assert not any(PARAMETRIZED in name for name in decayed(spectra))


def test_what_slots_see_images_with_decays():
    sample = base(BASES["fused"])
    plain = {name for name, parameter in sample.model().named_parameters() if decays(name, parameter)}
    slots = {name for name in decayed(made(sample, Mimo())[0]) if PARAMETRIZED in name}

    assert len(slots) == 1
    assert len(decayed(made(sample, Mimo())[0])) == len(plain)


def test_singular_vectors_stay(sample):
    _, state, told = made(sample, SingularValues())
    matrices = [n for n in told if n.endswith("weight") and position_of(sample.family, n).layer is not None]

    assert len(matrices) >= 3 * 4
    for name in matrices:
        u, _, v = torch.linalg.svd(sample.state[name], full_matrices=False)
        turned = u.T @ state[name].detach() @ v.T
        torch.testing.assert_close(turned, turned.diagonal().diag(), atol=1e-4, rtol=0)
        assert turned.diagonal().min() > -1e-5
    assert {n for n in told if n.endswith("bias")} >= {n.removesuffix("weight") + "bias" for n in matrices}


def test_members_of_two_seeds_begin_apart_and_of_one_alike():
    sample = base(BASES["fused"])
    for method in (LoraEnsemble(), SingularValues()):
        first, again, other = (dict(trained(made(sample, method, noise=0, seed=s)[0])) for s in (0, 0, 1))
        assert all(torch.equal(first[n], again[n]) for n in first)
        assert any(not torch.equal(first[n], other[n]) for n in first)


def test_the_spread_is_that_of_what_members_begin_with():
    weight = torch.randn(300, 400, generator=torch.Generator().manual_seed(0))
    layer, sample = nn.Linear(400, 300), base(BASES["fused"])
    layer.weight.data.copy_(weight)
    adapter = adapter_of(SingularValues(spread=0.05), sample.header)
    sites = sites_of(sample.family, layer, {"blocks.0.mlp.fc1.weight": layer.weight})
    adapter.attach(sites, [*sites], torch.Generator().manual_seed(0))
    ratio = torch.linalg.svdvals(weight) / layer.parametrizations.weight[0].values.detach() - 1

    assert abs(ratio.mean()) < 0.01
    assert abs(ratio.std() - 0.05) < 0.005


def test_a_product_of_low_rank_as_the_paper_has_it():
    """h = W x + (alpha / r) B A x. A is uniform within 1 / sqrt(D) and B zero, as in peft."""
    weight, x = torch.randn(6, 5), torch.randn(4, 5)
    low = LowRank(weight, rank=2, scale=8 / 2, projections=1, generator=torch.Generator().manual_seed(0))

    assert not low.b_weight.any()
    assert 0 < low.a_weight.abs().max() <= 5**-0.5
    low.b_weight.data.normal_()
    a, b = low.a_weight[0], low.b_weight[0]
    torch.testing.assert_close(F.linear(x, low(weight)), x @ weight.T + 4 * (x @ a.T) @ b.T)


def test_a_member_of_a_batch_ensemble_as_the_paper_has_it():
    """y = (W (x o r)) o s with a shared matrix W (equation 5)."""
    weight, x, r, s = torch.randn(6, 5), torch.randn(4, 5), torch.randn(5), torch.randn(6)

    torch.testing.assert_close(F.linear(x, Outer(r, s)(weight)), ((x * r) @ weight.T) * s)


def test_singular_values_below_zero_count_as_zero():
    u, _, v = torch.linalg.svd(torch.randn(4, 3), full_matrices=False)
    made_of = Spectrum(u, torch.tensor([2.0, -1.0, 0.5]), v)(torch.zeros(4, 3))

    torch.testing.assert_close(
        torch.linalg.svdvals(made_of), torch.tensor([2.0, 0.5, 0.0]), atol=1e-5, rtol=0
    )


def test_pruned_weights_are_zero_in_all_layers_together(sample):
    """The share of kept weights holds for all layers together, also after training."""
    _, state, told = made(sample, Oba(keep=0.4))
    matrices = [n for n in told if n.endswith("weight") and position_of(sample.family, n).layer is not None]
    kept = {n: state[n].count_nonzero().item() / state[n].numel() for n in matrices if state[n].ndim == 2}
    total = sum(state[n].numel() for n in kept)

    assert set(told) == {n for n, t in sample.state.items() if t.is_floating_point()} & set(told)
    assert sum(state[n].count_nonzero().item() for n in kept) == int(0.4 * total)
    assert max(kept.values()) - min(kept.values()) > 0.02


def test_options_of_methods():
    assert parse_method("lora-ensemble") == LoraEnsemble(rank=4, alpha=8.0)
    assert parse_method("lora-ensemble::alpha=2.5,rank=1") == LoraEnsemble(rank=1, alpha=2.5)
    assert parse_method("singular-values::spread=0") == SingularValues(spread=0.0)
    assert parse_method("oba::keep=0.891") == Oba(keep=0.891, batches=200)
    assert all(
        parse_method(method_reference(parse_method(kind.EXAMPLE))) == parse_method(kind.EXAMPLE)
        for kind in METHODS.values()
    )
