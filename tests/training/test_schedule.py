"""Learning rate schedules."""

from __future__ import annotations

import pytest
import torch

from hydractl.settings import declared
from hydractl.training.optimizers import lr_factor
from hydractl.training.recipe import Recipe

SCHEDULES = declared(Recipe)["schedule"].choices


def factors(schedule, *, total=40, warmup=8, floor=0.0):
    return [lr_factor(s, total=total, warmup=warmup, schedule=schedule, floor=floor) for s in range(total)]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("floor", [0.0, 0.1])
def test_factors_rise_to_one_and_never_rise_again(schedule, floor):
    found = factors(schedule, floor=floor)

    assert found[8] == max(found) == 1.0
    assert found[:9] == sorted(found[:9])
    assert found[8:] == sorted(found[8:], reverse=True)
    assert all(0 < factor <= 1 for factor in found)


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_the_floor_is_where_the_step_after_the_last_would_be(schedule):
    nearly = lr_factor(9_999, total=10_000, warmup=0, schedule=schedule, floor=0.25)

    assert nearly == pytest.approx(0.25, abs=1e-4)


def test_cosine_equals_torchs():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    reference = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=40, eta_min=0.1)
    wanted = []
    for _ in range(40):
        wanted.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        reference.step()

    assert factors("cosine", warmup=0, floor=0.1) == pytest.approx(wanted)


@pytest.mark.parametrize(
    "bad", [{"step": 4}, {"step": -1}, {"warmup": 4}, {"floor": 2.0}, {"schedule": "steps"}]
)
def test_what_makes_no_sense_is_refused(bad):
    with pytest.raises(ValueError, match=r"out of range|unknown schedule"):
        lr_factor(**{"step": 0, "total": 4, "warmup": 0, "schedule": "cosine", "floor": 0.0, **bad})
