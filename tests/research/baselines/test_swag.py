"""SWAG against the authors' numbers and the paper's covariance; members' weights; refused checkpoints."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hydractl.errors import UnsupportedModelError
from hydractl.fusion.hydra import Hydra
from hydractl.research.baselines.options import SwagOptions
from hydractl.research.baselines.swag import Swag, SwagMoments
from support.builders import base
from support.variants import TINY, Variant

GOLDEN = {
    "z1": (
        [1.5409961082440433, -0.2934289057609464, -2.1787893820745574],
        [0.5684312772806678, -1.084522342424021, -1.3985953953708767],
        [0.4033468476292993, 0.8380263329976598],
    ),
    "z2": [-0.7192575784693592, -0.40334352493217457, -0.5966353626151273],
    "weight": [
        [0.9674572198429603, 0.7172042066966486, -1.0477507554902685],
        [-0.6566259447487829, -1.1270759687245737, 0.24029451724967105],
    ],
    "bias": [1.0239387402847446, 0.5571209705606894],
}
"""Values of wjmaddox/swa_gaussian: a draw of a linear layer from five steps with `max_num_models=3`,
`scale=0.5` and covariance."""


def step(t):
    """Return the weights of a linear layer at step t of a training."""
    weight = torch.sin(torch.arange(6.0, dtype=torch.float64) * 1.3 + 0.7 * t).view(2, 3) * (1 + 0.1 * t)
    return weight, torch.cos(torch.arange(2.0, dtype=torch.float64) + 0.4 * t)


def test_a_draw_is_that_of_the_authors_code():
    z2 = torch.tensor(GOLDEN["z2"]).double()
    normal = (torch.tensor(GOLDEN["z1"][:2]).double(), torch.tensor(GOLDEN["z1"][2]).double())
    for i, name in enumerate(("weight", "bias")):
        found = SwagMoments.of([step(t)[i] for t in range(5)], rank=3)

        drawn = found.sample(normal[i], z2, 0.5)
        torch.testing.assert_close(drawn, torch.tensor(GOLDEN[name]).double(), rtol=1e-6, atol=1e-7)


@pytest.mark.spread(cases=2)
@pytest.mark.parametrize("rank", [2, 4, 9])
def test_draws_vary_as_the_paper_says(rank):
    """The covariance of all weights is half the diagonal plus half of D D' / (K - 1)."""
    steps = np.stack([step(t)[0].numpy().ravel() for t in range(4)])
    until = np.cumsum(steps, 0) / np.arange(1, 5)[:, None]
    last = (steps - until)[-rank:]
    covariance = 0.5 * (np.diag((steps**2).mean(0) - steps.mean(0) ** 2) + last.T @ last / (len(last) - 1))

    found = SwagMoments.of([*torch.tensor(steps)], rank)
    generator = torch.Generator().manual_seed(0)
    draws = torch.stack(
        [
            found.sample(*(torch.randn(n, generator=generator).double() for n in (6, len(last))), 0.5)
            for _ in range(6000)
        ]
    ).numpy()

    np.testing.assert_allclose(found.mean, steps.mean(0), rtol=1e-12)
    np.testing.assert_allclose(draws.mean(0), steps.mean(0), atol=0.03)
    np.testing.assert_allclose(np.cov(draws.T), covariance, atol=0.03)


def drawn(steps, **options):
    models = [one.model() for one in steps]
    return Swag(models, SwagOptions(checkpoints=len(models), **options), names=list("abcdef")[: len(models)])


def test_members_are_draws_and_frozen_weights_stay():
    samples = [base().tuned(seed, only=lambda name: name.startswith("blocks")) for seed in (1, 2, 3)]
    made = drawn(samples, samples=4, seed=5)
    each = [made, *made.others]
    found = [dict(one.towers.named_parameters()) for one in each]

    for name, mean in found[0].items():
        same = all(torch.equal(mean, other[name]) for other in found[1:])
        assert same == ("blocks" not in name), name
    spread = torch.stack([one["vision.blocks.0.norm1.weight"] for one in found]).double()
    # with the low-rank part alone, the draws would have rank 2
    assert torch.linalg.matrix_rank(spread[1:] - spread[0]) == 3
    inputs = samples[0].inputs(batch=4)
    with torch.no_grad():
        said = made.member_logits(inputs)
        assert said.shape == (4, 4, 7)
        torch.testing.assert_close(said[1:2], each[1].member_logits(inputs))
        assert torch.equal(drawn(samples, samples=4, seed=5).member_logits(inputs), said)
        assert not torch.equal(drawn(samples, samples=4, seed=6).member_logits(inputs), said)
        # fewer draws are a prefix of more draws
        assert torch.equal(drawn(samples, samples=1, seed=5).member_logits(inputs), said[:1])


def test_almost_without_scale_the_mean_answers():
    samples = [base().tuned(seed) for seed in (1, 2, 3)]
    mean = {name: sum(one.state[name] for one in samples) / 3 for name in samples[0].state}
    with torch.no_grad():
        found = drawn(samples, samples=2, scale=1e-18).member_logits(samples[0].inputs())
        expected = type(samples[0])(samples[0].header, mean).model().member_logits(samples[0].inputs())

    torch.testing.assert_close(found, expected.expand(2, -1, -1), rtol=1e-4, atol=1e-4)


def test_a_hydra_has_draws_times_members():
    hydras = [Hydra([base().tuned(a).model(), base().tuned(b).model()]) for a, b in ((1, 2), (3, 4))]
    hydras[0].lay_out("stacked")  # stacked copies of the weights must not be used
    made = Swag(hydras, SwagOptions(samples=2, scale=1e-18), names=("a", "b"))
    middle = Hydra([mixed(1, 3), mixed(2, 4)])
    with torch.no_grad():
        found = made.member_logits(base().inputs())
        expected = middle.member_logits(base().inputs())

    assert found.shape == (4, 2, 7)
    torch.testing.assert_close(found, expected.repeat(2, 1, 1), rtol=1e-4, atol=1e-4)


def mixed(one, other):
    a, b = base().tuned(one), base().tuned(other)
    return type(a)(a.header, {name: (a.state[name] + b.state[name]) / 2 for name in a.state}).model()


def test_what_is_no_training_is_refused():
    one, other = base(), base(Variant("timm-vit", "distilled", "deit_tiny_distilled_patch16_224", TINY))
    warm = one.tuned(1).model()
    warm.temperature = 2.0
    whole = one.header.masks[0]["vision"].keep
    pruned = one.pruned(whole[0][1:], *whole[1:])
    as_many = one.pruned(whole[0], whole[1][:-1], *whole[2:]), one.pruned(whole[0], whole[1][1:], *whole[2:])
    hydras = [Hydra([one.model(), pair.model()]) for pair in as_many]

    for models, said in (
        ([one.model(), other.model()], "b: differs from a in the shape of"),
        ([one.model(), pruned.model()], "b: differs from a in the shape of"),
        ([pair.tuned(1).model() for pair in as_many], "b: keeps other heads than a in layer 1 of `vision`"),
        (hydras, "b: keeps other heads than a in layer 1 of `vision`"),
        ([one.model(), one.model()], "a: the checkpoints of `swag:` are equal"),
        ([one.model(), warm], "b: stores the temperature 2, but a stores 1"),
    ):
        with pytest.raises(UnsupportedModelError, match=said):
            Swag(models, SwagOptions(), names=("a", "b"))
