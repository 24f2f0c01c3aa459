"""Metrics can be computed from the curves, and every point is on the exact curve."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_curve

from hydractl.manifest.report import MOST_POINTS
from hydractl.metrics.classification import ece
from hydractl.metrics.compute import sample_values
from hydractl.metrics.curves import curves_of, reliability, risk_coverage, roc
from hydractl.metrics.ood_ranking import auroc
from hydractl.metrics.per_sample import Responses, places


def drawn(seed, n, *, levels=None):
    """Return confidences and hits. `levels` gives many equal confidences."""
    generator = torch.Generator().manual_seed(seed)
    confidence = torch.rand(n, generator=generator, dtype=torch.float64)
    if levels:
        confidence = (confidence * levels).round() / levels
    return confidence, torch.rand(n, generator=generator, dtype=torch.float64) < confidence


@pytest.mark.parametrize("levels", [None, 4])
def test_ece_follows_from_the_bins(levels):
    confidence, hits = drawn(0, 500, levels=levels)
    found = reliability(confidence, hits)

    gaps = [n * abs(a - c) for n, c, a in zip(found.count, found.confidence, found.accuracy, strict=True)]
    assert sum(gaps) / 500 == pytest.approx(float(ece(confidence, hits)), abs=1e-12)
    assert sum(found.count) == 500


@pytest.mark.parametrize(("n", "levels"), [(40, None), (40, 5), (2000, None), (2000, 70)])
def test_roc_points_lie_on_sklearns_curve_and_span_the_auroc(n, levels):
    inside, outside = drawn(1, n, levels=levels)[0], drawn(2, n + 10, levels=levels)[0] ** 0.5
    found = roc(**places(inside, outside))
    x, y, _ = roc_curve(
        [0] * n + [1] * (n + 10), torch.cat([inside, outside]).numpy(), drop_intermediate=False
    )

    assert {*zip(found.x, found.y, strict=True)} <= {*zip(x.tolist(), y.tolist(), strict=True)}
    assert ((found.x[0], found.y[0]), (found.x[-1], found.y[-1])) == ((0, 0), (1, 1))
    area = np.trapezoid(found.y, found.x)
    exact = len(x) <= MOST_POINTS
    assert len(found.x) == len(x) if exact else MOST_POINTS // 2 < len(found.x) <= MOST_POINTS
    assert float(area) == pytest.approx(float(auroc(**places(inside, outside))), abs=1e-12 if exact else 5e-3)


@pytest.mark.parametrize(("n", "levels"), [(30, None), (30, 4), (3000, None)])
def test_risk_is_that_of_the_surest(n, levels):
    confidence, hits = drawn(3, n, levels=levels)
    found = risk_coverage(-confidence, hits)

    assert len(found.x) <= MOST_POINTS
    assert found.x[-1] == 1
    assert found.y[-1] == pytest.approx(1 - float(hits.double().mean()), abs=1e-12)
    for coverage, risk in zip(found.x, found.y, strict=True):
        bound = confidence.sort(descending=True).values[round(coverage * n) - 1]
        answered = confidence >= bound
        assert (int(answered.sum()), risk) == (round(coverage * n), float((~hits[answered]).double().mean()))


def test_what_is_looked_at_together_plays_no_part(monkeypatch):
    generator = torch.Generator().manual_seed(5)
    labels = torch.randint(0, 4, (50,), generator=generator)
    said, strange = (Responses(torch.randn(3, n, 4, generator=generator).log_softmax(-1)) for n in (50, 30))
    whole = curves_of(said, sample_values(said, labels), {"far": strange}, "mi")
    monkeypatch.setattr("hydractl.metrics.per_sample.SAMPLES_AT_ONCE", 7)

    assert curves_of(said, sample_values(said, labels), {"far": strange}, "mi") == whole
    assert whole.is_of(["far"])
    assert not whole.is_of([])
    assert (
        whole.roc["far"] != curves_of(said, sample_values(said, labels), {"far": strange}, "msp").roc["far"]
    )
