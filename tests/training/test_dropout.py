"""Dropout that depends only on the seed and the step."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from timm.layers import DropPath, PatchDropout
from torch import nn

from hydractl.data.preprocess import sample_seed
from hydractl.families.attention import SharedDropout
from hydractl.training.dropout import BatchDropout, set_dropout
from support.builders import base
from support.variants import variant

CPU = torch.device("cpu")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.25)
        self.attn_drop = nn.Dropout(0.3)
        self.head_drop = nn.Dropout(0.35)
        self.inner = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.0))


def run(noise, layer, x, *, step=3, seed=5, first=0, total=None, count=None):
    rows = range(first, first + (count or len(x)))
    with noise.at(seed=seed, step=step, rows=rows, total=total or len(rows), device=CPU):
        return layer(x)


@pytest.fixture
def dropping():
    net = Net().train()
    return set_dropout(net, None), net.drop


def test_pieces_drop_what_the_whole_batch_drops(dropping):
    noise, layer = dropping
    x = torch.ones(7, 4, 3)

    whole = run(noise, layer, x)
    pieces = [run(noise, layer, x[a:b], first=a, total=7) for a, b in ((0, 3), (3, 4), (4, 7))]

    assert torch.equal(torch.cat(pieces), whole)


@pytest.mark.parametrize("tables", [1, 3])
def test_what_has_no_axis_of_samples_is_dropped_once(tables):
    """Position embeddings, of one model or of each member, are the same for every piece and keep their shape."""
    net = nn.Sequential(SharedDropout(0.25)).train()
    noise, x = set_dropout(net, None), torch.ones(tables, 50, 8)

    whole = run(noise, net, x, count=7)
    piece = run(noise, net, x, first=2, count=4, total=7)

    assert torch.equal(piece, whole)
    assert whole.unique().tolist() == pytest.approx([0, 1 / 0.75])
    assert (whole == 0).float().mean() == pytest.approx(0.25, abs=0.08)


def test_members_side_by_side_have_draws_of_their_own(dropping):
    """A part shared by members gets the rows of all members, one member after another."""
    noise, layer = dropping
    x = torch.ones(3, 7, 4, 3)

    whole = run(noise, layer, x.flatten(0, 1), count=7).unflatten(0, (3, 7))
    piece = run(noise, layer, x[:, 2:6].flatten(0, 1), first=2, count=4, total=7).unflatten(0, (3, 4))

    assert not torch.equal(whole[0], whole[1])
    assert not torch.equal(whole[1], whole[2])
    assert torch.equal(piece, whole[:, 2:6])


def test_another_step_or_seed_drops_others(dropping):
    noise, layer = dropping
    x = torch.ones(64, 8)

    assert torch.equal(run(noise, layer, x), run(noise, layer, x))
    assert not torch.equal(run(noise, layer, x), run(noise, layer, x, step=4))
    assert not torch.equal(run(noise, layer, x), run(noise, layer, x, seed=6))


def test_the_global_generator_stays_where_it_was(dropping):
    noise, layer = dropping
    before = torch.get_rng_state()

    run(noise, layer, torch.ones(4, 4))

    assert torch.equal(torch.get_rng_state(), before)


def test_a_share_p_is_dropped_and_the_mean_kept(dropping):
    noise, layer = dropping

    found = run(noise, layer, torch.ones(200, 100))

    assert (found == 0).float().mean() == pytest.approx(0.25, abs=0.02)
    assert found.mean() == pytest.approx(1, abs=0.02)
    assert found.unique().tolist() == pytest.approx([0.0, 4 / 3])


def test_evaluation_drops_nothing(dropping):
    noise, layer = dropping
    x = torch.ones(4, 4)

    assert run(noise, layer.eval(), x) is x


def test_p_is_set_where_it_belongs():
    net = Net()
    set_dropout(net, 0.1)

    assert net.drop.p == net.inner[1].p == 0.1
    assert net.head_drop.p == 0.35
    assert type(net.attn_drop) is nn.Dropout
    assert net.attn_drop.p == 0.3


def test_without_p_each_layer_keeps_its_own():
    net = Net()
    keys = list(net.state_dict())
    set_dropout(net, None)

    assert (net.drop.p, net.inner[1].p, net.head_drop.p) == (0.25, 0.0, 0.35)
    assert isinstance(net.inner[1], BatchDropout)
    assert list(net.state_dict()) == keys


@torch.no_grad()
def check_drops_as(library, noise, model):
    """Check dropout against the library with the same seed, for a whole batch and its pieces."""
    x = torch.randn(16, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    found = run(noise, model, x)
    with torch.random.fork_rng():
        torch.manual_seed(sample_seed(-1, 5, 3))
        wanted = library(x)
    pieces = [run(noise, model, x[a:b], first=a, total=16) for a, b in ((0, 3), (3, 16))]

    assert torch.allclose(found, wanted, atol=1e-5)
    assert not torch.allclose(found, model.eval()(x), atol=1e-3)
    assert torch.allclose(torch.cat(pieces), found, atol=1e-5)


@pytest.mark.parametrize(("name", "own"), [("timm-vit-class-token", 0.0), ("timm-eva-qkv-apart", 0.4)])
def test_paths_are_dropped_as_in_timm(name, own):
    """With the same seed. Without an option, the rate of the architecture applies."""
    plain = variant(name)
    sample = base(replace(plain, options=plain.options | {"drop_path_rate": own}))
    model, library = sample.model().train(), sample.library().train()
    noise = set_dropout(model, None, path=None if own else 0.4)
    if not own:
        for i, block in enumerate(library.blocks):
            block.drop_path1, block.drop_path2 = DropPath(0.2 * i), DropPath(0.2 * i)

    check_drops_as(library, noise, model)


def test_patches_are_dropped_as_in_timm_and_pieces_drop_the_same():
    plain = variant("timm-vit-registers")
    sample = base(replace(plain, options=plain.options | {"patch_drop_rate": 0.4}))
    model, library = sample.model().train(), sample.library().train()

    check_drops_as(library, set_dropout(model, None), model)


def test_patches_of_members_side_by_side_have_draws_of_their_own():
    net = nn.Module()
    net.patch_drop = PatchDropout(0.5, num_prefix_tokens=1, ordered=True)
    noise = set_dropout(net.train(), None)
    x = torch.arange(9.0).expand(3, 7, 9)[..., None]

    whole = run(noise, net.patch_drop, x.flatten(0, 1), count=7).unflatten(0, (3, 7))
    piece = run(noise, net.patch_drop, x[:, 2:6].flatten(0, 1), first=2, count=4, total=7).unflatten(
        0, (3, 4)
    )

    assert whole.shape == (3, 7, 5, 1)
    assert torch.equal(whole.sort(dim=2)[0], whole)
    assert (whole[:, :, 0] == 0).all()
    assert not torch.equal(whole[0], whole[1])
    assert torch.equal(piece, whole[:, 2:6])


@pytest.mark.parametrize("name", ["transformers-vit-plain", "transformers-bert-plain"])
def test_what_skips_the_last_block_hangs_on_none_of_its_attention_and_mlp(name):
    plain = variant(name)
    still = {"attention_probs_dropout_prob": 0.0}
    sample = base(replace(plain, options=plain.options | still))
    model, inputs = sample.model().train(), sample.inputs(batch=4)
    noise = set_dropout(model, 0.0, path=1 - 1e-7)
    first, _, last = model.tower().layers()
    with torch.no_grad():
        before = run(noise, model, inputs, count=4)
        for part in (*last.attn.parameters(), *last.mlp.parameters()):
            part.mul_(-3.0)

        assert torch.equal(run(noise, model, inputs, count=4), before)
        first.attn.members[0].proj.weight *= -3.0
        assert not torch.allclose(run(noise, model, inputs, count=4), before, atol=1e-3)
