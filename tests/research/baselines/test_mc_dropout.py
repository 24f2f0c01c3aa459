"""MC dropout: masks depend on seed, pass and layer; rates; refused models."""

from __future__ import annotations

import pytest
import torch

from hydractl.errors import UnsupportedModelError
from hydractl.families.attention import SharedDropout
from hydractl.fusion.hydra import Hydra
from hydractl.model_inputs import map_inputs
from hydractl.research.baselines.mc_dropout import McDropout, PassDropout
from hydractl.research.baselines.options import McDropoutOptions
from hydractl.training.dropout import dropout_layers
from support.builders import base
from support.variants import TINY, Variant

SOME = {**TINY, "proj_drop_rate": 0.3}


def thinned(model=None, **preprocess):
    return McDropout(
        base().model() if model is None else model,
        McDropoutOptions(**{"passes": 3, "rate": 0.2, **preprocess}),
        name="it",
    )


@torch.no_grad()
def said(made, inputs=None):
    return made.member_logits(base().inputs(batch=6) if inputs is None else inputs)


def test_a_pass_is_a_member_that_hangs_on_nothing_but_its_seed():
    made, inputs = thinned(), base().inputs(batch=6)
    found = said(made, inputs)

    assert found.shape == (3, 6, 7)
    assert torch.equal(found, said(made, inputs))
    assert torch.equal(found, said(thinned(), inputs))
    assert not torch.equal(found, said(thinned(seed=1), inputs))
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert not torch.allclose(found[a], found[b])
    for size in (1, 4):
        parts = [map_inputs(lambda x, i=i, n=size: x[i : i + n], inputs) for i in range(0, 6, size)]
        apart = torch.cat([said(thinned(), part) for part in reversed(parts)][::-1], 1)
        torch.testing.assert_close(apart, found, rtol=1e-5, atol=1e-5)


def test_fewer_passes_are_the_first_ones():
    assert torch.equal(said(thinned(passes=2)), said(thinned())[:2])


def test_a_mask_has_its_rate_and_keeps_the_mean():
    drop = PassDropout(0.3, 0, place=0)
    x = torch.ones(2, 200, 100)

    found = drop(x)

    assert torch.equal(found[0], found[1])
    assert float((found == 0).double().mean()) == pytest.approx(0.3, abs=0.01)
    assert {round(float(v), 4) for v in found.unique()} == {0.0, round(1 / 0.7, 4)}
    other = PassDropout(0.3, 0, place=1)(x)
    assert float(((found == 0) & (other == 0)).double().mean()) == pytest.approx(0.09, abs=0.01)


def test_what_has_no_axis_of_samples_has_one_mask():
    table = torch.ones(2, 200, 100)
    (layer,) = (d for _, _, d in dropout_layers(torch.nn.Sequential(SharedDropout(0.3))))

    found = PassDropout(layer.p, 0, place=0, shared=isinstance(layer, SharedDropout))(table)

    assert not torch.equal(found[0], found[1])
    assert float((found == 0).double().mean()) == pytest.approx(0.3, abs=0.01)


def test_a_longer_text_goes_on_where_a_shorter_one_ended():
    for lengths in ((7, 50), (50, 7)):
        drop = PassDropout(0.5, 3, place=2)
        first, second = (drop(torch.ones(1, length, 13)) for length in lengths)
        short, long = sorted((first, second), key=lambda x: x.shape[1])
        assert torch.equal(long[:, :7], short)


def test_rates_are_the_layers_own_where_none_is_given():
    own = base(Variant("timm-vit", "dropped", "vit_tiny_patch16_224", SOME))

    rates = {drop.rate for drop in thinned(own.model(), rate=None).drops}

    assert rates == {0.0, 0.3}
    assert {drop.rate for drop in thinned().drops} == {0.0, 0.2}  # dropout before the classifier stays off


def test_a_hydra_has_its_members_in_each_pass():
    """A hydra in the stacked layout must drop too, although stacked copies have no dropout."""
    hydras = [Hydra([base().model(), base().tuned(1).model()]) for _ in range(2)]
    hydras[0].lay_out("stacked")

    found, expected = (said(thinned(hydra, passes=2)) for hydra in hydras)

    assert found.shape == (4, 6, 7)
    assert not torch.allclose(found[0], found[2])
    torch.testing.assert_close(found, expected)


def test_nothing_to_drop_is_refused():
    with pytest.raises(UnsupportedModelError, match="only dropout layers with rate 0") as caught:
        thinned(rate=None)
    assert "rate=" in caught.value.hint

    bare = base().model()
    for module, name, _ in dropout_layers(bare):
        module.add_module(name, torch.nn.Identity())
    with pytest.raises(UnsupportedModelError, match="has no dropout layer"):
        thinned(bare)
