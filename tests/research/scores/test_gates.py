"""Gates in a model, initial values, and settings of methods that learn gates."""

from __future__ import annotations

import pytest
import torch

from hydractl.errors import UsageError
from hydractl.research.scores.gates import GatedModel, initial_draws, step_uniform, tables
from hydractl.research.scores.l0 import HardConcrete, hard_concrete
from hydractl.research.scores.options import DspSettings, L0Settings
from support.builders import base
from support.variants import variant

DOUBLE = torch.float64


def gated(sample, log_alpha):
    model = GatedModel(sample.model(DOUBLE), HardConcrete(log_alpha), sample.header.architecture.towers)
    return model.eval()


def test_open_gates_change_nothing():
    sample = base(variant("class-token"))
    inputs = sample.inputs(dtype=DOUBLE)

    found = gated(sample, torch.full((12,), 9.0, dtype=DOUBLE))(inputs)

    assert torch.allclose(found, sample.model(DOUBLE)(inputs), atol=1e-12)


def test_a_closed_gate_is_a_head_less():
    sample = base(variant("class-token"))
    inputs = sample.inputs(dtype=DOUBLE)
    log_alpha = torch.full((12,), 9.0, dtype=DOUBLE)
    log_alpha[[1, 4, 5, 11]] = -9.0

    found = gated(sample, log_alpha)(inputs)

    wanted = sample.pruned((0, 2, 3), (2, 3), (0, 1, 2)).model(DOUBLE)(inputs)
    assert torch.allclose(found, wanted, atol=1e-12)


def test_what_absorbs_its_open_gates_and_is_cut_to_them_is_the_gated_model():
    sample = base(variant("class-token"))
    inputs = sample.inputs(dtype=DOUBLE)
    log_alpha = torch.linspace(-4, 3, 12, dtype=DOUBLE)
    model = gated(sample, log_alpha)
    wanted = model(inputs)
    kept = (hard_concrete(log_alpha) > 0).reshape(3, 4)

    model.absorb(hard_concrete(log_alpha))

    state = {name: tensor.detach() for name, tensor in model.model.library_state().items()}
    member = type(sample)(sample.header, state).pruned(*(row.nonzero().flatten().tolist() for row in kept))
    assert torch.allclose(member.model(DOUBLE)(inputs), wanted, atol=1e-12)


def test_first_values_lie_in_the_bounds_of_their_group_and_hang_on_the_seed():
    found = initial_draws([4, 4, 100], seed=3)

    assert found[:8].abs().max() <= (6 / 5) ** 0.5
    assert found[8:].abs().max() <= (6 / 101) ** 0.5
    assert torch.equal(found, initial_draws([4, 4, 100], seed=3))
    assert not torch.equal(found, initial_draws([4, 4, 100], seed=4))


def test_draws_of_a_step_are_the_same_whenever_they_are_made():
    before = torch.random.get_rng_state()

    assert torch.equal(step_uniform(5, seed=1, step=7), step_uniform(5, seed=1, step=7))
    assert not torch.equal(step_uniform(5, seed=1, step=7), step_uniform(5, seed=1, step=8))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_values_are_laid_out_tower_after_tower():
    towers = base(variant("class-token")).header.architecture.towers

    assert tables(torch.arange(12.0), towers) == {
        "vision": [[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0], [8.0, 9.0, 10.0, 11.0]]
    }


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        (L0Settings, {"training": "both"}, "`--training both`: unknown"),
        (L0Settings, {"epochs": 0}, "`--epochs 0`: must be at least 1"),
        (L0Settings, {"gate_lr": 0.0}, "`--gate-lr 0`: must be above 0"),
        (L0Settings, {"gate_lr": float("nan")}, "must be above 0"),
        (L0Settings, {"penalty": -1.0}, "`--penalty -1`: must be at least 0"),
        (L0Settings, {"weights_lr": 1e-4}, "`--weights-lr` has no effect"),
        (DspSettings, {"training": "joint", "weights_lr": -1.0}, "`--weights-lr -1`: must be above 0"),
        (DspSettings, {"estimator": "hard"}, "`--estimator hard`: unknown"),
        (DspSettings, {"cooldown": 1.5}, "`--cooldown 1.5`: must be between 0 and 1"),
        (DspSettings, {"cooldown": 0.0}, "`--cooldown 0`: must be above 0"),
        (DspSettings, {"temperature": -1.0}, "`--gate-temperature -1`: must be above 0"),
        (
            DspSettings,
            {"estimator": "ste", "cooldown": 0.5},
            "`--cooldown` has no effect without `--estimator soft`",
        ),
        (DspSettings, {"estimator": "ste", "temperature": 1.0}, "`--gate-temperature` has no effect"),
    ],
)
def test_settings_that_make_no_sense_are_refused(kind, given, message):
    with pytest.raises(UsageError) as caught:
        kind(**given)
    assert message in caught.value.message


def test_defaults_hang_on_what_trains():
    joint = {"training": "joint"}

    assert [DspSettings().epochs, DspSettings(**joint).epochs, L0Settings().epochs] == [1, 3, 3]
    assert [L0Settings().weights_lr, L0Settings(**joint).weights_lr] == [None, 2e-5]
    assert "weights_lr" not in L0Settings().options()
    assert not {"temperature", "cooldown"} & DspSettings(estimator="ste").options().keys()
