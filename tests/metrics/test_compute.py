"""Results of `measure` do not depend on the chunks of the predictions."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hydractl.metrics.compute import means, measure
from hydractl.metrics.ood_scores import SCORES
from hydractl.metrics.per_sample import Responses
from hydractl.metrics.registry import METRICS
from hydractl.metrics.resampling import Resampling

GROUPS = {"near": ("near",), "all": ("near", "far"), "far": ()}


def found(samples=50, scores=tuple(SCORES), resamples=0, scale=2):
    source = torch.Generator().manual_seed(0)
    logits = scale * torch.randn(3, samples, 4, generator=source, dtype=torch.float64)
    ood = {"near": logits[:, :21].roll(1, 2) + 1, "far": logits[:, 30:].flip(0) / 3}
    return measure(
        said(logits),
        torch.randint(4, (samples,), generator=source),
        {name: said(other) for name, other in ood.items()},
        metrics=tuple(METRICS),
        scores=scores,
        resampling=Resampling(resamples=resamples),
    )


def said(logits):
    return Responses(logits.log_softmax(-1), logits.logsumexp(-1))


def numbers(measured):
    own = {name: value.value for name, value in measured.values.items()}
    return own | {(name, m): v.value for name, values in measured.ood.items() for m, v in values.items()}


@pytest.mark.parametrize("at_once", [1, 20, 49])
def test_the_parts_do_not_matter(at_once, monkeypatch):
    whole = numbers(found())
    monkeypatch.setattr("hydractl.metrics.per_sample.SAMPLES_AT_ONCE", at_once)

    assert numbers(found()) == pytest.approx(whole, abs=1e-12)


def test_a_mean_is_over_the_sets_of_its_group():
    ood = found().ood

    over = means(ood, {"all": ("near", "far"), "far": ("far",), "near": ()})

    assert over.keys() == {"all", "far"}
    for name, mean in over["all"].items():
        assert mean == pytest.approx((ood["near"][name].value + ood["far"][name].value) / 2)
    assert over["far"] == {name: value.value for name, value in ood["far"].items()}


def test_a_mean_has_the_interval_of_its_resamples():
    """Means over OOD sets are computed for each resample of the ID set."""
    one, other = (replace(found(scores=("msp",), resamples=40, scale=s), groups=GROUPS) for s in (2, 3))
    value = one.ood["near"]["auroc"]

    assert one.mean_intervals["near"]["auroc"] == (value.low, value.high)
    drawn = torch.stack([one.ood_sets[name]["auroc"].low for name in ("near", "far")]).double().mean(0)
    low, high = torch.quantile(drawn, torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    assert one.mean_intervals["all"]["auroc"] == (pytest.approx(low), pytest.approx(high))
    assert "mutual_information" not in one.mean_intervals["all"]
    assert found(scores=("msp",)).mean_intervals == {}
    gap = one.difference(other).means["all"]["auroc"]
    paired = drawn - torch.stack(
        [other.ood_sets[name]["auroc"].low for name in ("near", "far")]
    ).double().mean(0)
    assert gap.low == pytest.approx(float(torch.quantile(paired, 0.025)))
    assert gap.value == pytest.approx(
        sum(one.ood[n]["auroc"].value - other.ood[n]["auroc"].value for n in ("near", "far")) / 2
    )


def test_a_score_ranks_alike_wherever_it_stands():
    """The order of the OOD scores changes only the names of metrics: the first score has no suffix."""
    alone = {score: found(scores=(score,)).ood for score in SCORES}
    together = found(scores=("mi", "msp", "energy")).ood

    for name, own in together.items():
        assert {m for m in own if "@" not in m} == alone["mi"][name].keys()
        assert {m: v for m, v in own.items() if "@" not in m} == alone["mi"][name]
        for score in ("msp", "energy"):
            by_score = {m.partition("@")[0]: v for m, v in own.items() if m.endswith(f"@{score}")}
            assert by_score == {m: v for m, v in alone[score][name].items() if m in by_score}
            assert {"auroc", "fpr95", "aupr"} <= by_score.keys()


def test_log_probabilities_alone_do_not_tell_logits():
    own = Responses(torch.zeros(1, 3, 2).log_softmax(-1))

    with pytest.raises(
        ValueError, match=("the predictions are log-probabilities, from which logits cannot be recovered")
    ):
        measure(
            own,
            torch.tensor([0, 1, 0]),
            {"x": own},
            metrics=("auroc",),
            scores=("energy",),
            resampling=Resampling(),
        )
