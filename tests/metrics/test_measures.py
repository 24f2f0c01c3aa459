"""What `measure` makes of predictions, in whatever parts they are gone through."""

from __future__ import annotations

import pytest
import torch

from hydractl.metrics import measures
from hydractl.metrics.measures import measure
from hydractl.metrics.resampling import Resampling
from hydractl.metrics.table import METRICS


def found(samples=50):
    source = torch.Generator().manual_seed(0)
    log_probs = (2 * torch.randn(3, samples, 4, generator=source, dtype=torch.float64)).log_softmax(-1)
    ood = {"near": log_probs[:, :21].roll(1, 2), "far": log_probs[:, 30:].flip(0) / 3}
    return measure(
        log_probs,
        torch.randint(4, (samples,), generator=source),
        {name: other.log_softmax(-1) for name, other in ood.items()},
        metrics=tuple(METRICS),
        groups={"all": ("near", "far"), "far": ("far",)},
        resampling=Resampling(resamples=0),
    )


def numbers(measured):
    own = {name: value.value for name, value in measured.values.items()}
    return own | {(name, m): v.value for name, values in measured.ood.items() for m, v in values.items()}


@pytest.mark.parametrize("at_once", [1, 20, 49])
def test_the_parts_do_not_matter(at_once, monkeypatch):
    whole = numbers(found())
    monkeypatch.setattr(measures, "SAMPLES_AT_ONCE", at_once)

    assert numbers(found()) == pytest.approx(whole, abs=1e-12)


def test_a_mean_is_over_the_sets_of_its_group():
    measured = found()

    for name, mean in measured.means["all"].items():
        assert mean == pytest.approx((measured.ood["near"][name].value + measured.ood["far"][name].value) / 2)
    assert measured.means["far"] == {name: value.value for name, value in measured.ood["far"].items()}
