"""Laplace approximation against laplace-torch and the exact Hessian; draws; refused models."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from hydractl.data.reference import DataRef
from hydractl.errors import UnsupportedModelError
from hydractl.evaluation.options import NamedModels
from hydractl.fusion.hydra import Hydra
from hydractl.model_inputs import map_inputs
from hydractl.research.baselines.laplace import GRID, Full, Kron, LastLayer, max_likelihood_prior, with_bias
from hydractl.research.baselines.options import LaplaceOptions
from hydractl.stages.evaluate.config import EvalConfig, SetOptions
from hydractl.stages.evaluate.run import run_eval
from support.builders import base
from support.progress_log import ProgressLog
from support.variants import TINY, Variant

N, D, C = 30, 4, 3
GOLDEN = {
    "full": (
        [
            [0.7373867616130003, 1.1219491375367117, 0.7505108024237964],
            [1.0654418363030755, 1.210299842728104, 1.1616484020953277],
            [0.9762315648238943, 1.079003867699015, 0.9825897547318556],
        ],
        0.05200431566374612,
    ),
    "kron": (
        [
            [0.7715911276337215, 1.0089735253188383, 0.7853660654334799],
            [0.873668265117156, 1.1626598004650752, 0.8904380023128969],
            [0.7808104147020347, 1.0239054455989618, 0.7949168478777471],
        ],
        0.09344748018334482,
    ),
}
"""Values of laplace-torch 0.3 with BackPACK: variances of three samples' logits at prior precision 2.5, and
the precision with the highest `log_marginal_likelihood`."""


def table(rows, columns, start):
    return torch.sin(start + torch.arange(rows * columns, dtype=torch.float64)).view(rows, columns)


FEATURES, WEIGHTS = 2 * table(N, D, 0.0), torch.cat([3 * table(C, D, 0.5), table(1, C, 0.25).T], 1)


def posterior(hessian):
    probs = (with_bias(FEATURES) @ WEIGHTS.T).softmax(-1)
    if hessian == "kron":
        return Kron(probs.sum(0).diag() - probs.T @ probs, FEATURES.T @ FEATURES, N)
    one = with_bias(FEATURES)
    matrices = torch.diag_embed(probs) - probs[:, :, None] * probs[:, None]
    return Full(torch.einsum("nck,nd,ne->cdke", matrices, one, one))


@pytest.mark.parametrize("hessian", ["full", "kron"])
def test_numbers_are_those_of_laplace_torch(hessian):
    variances, prior = GOLDEN[hessian]
    found = posterior(hessian)

    torch.testing.assert_close(
        found.variances(table(3, D, 0.75), 2.5), torch.tensor(variances).double(), rtol=1e-6, atol=0
    )
    assert max_likelihood_prior(found.curvatures, float(WEIGHTS.square().sum())) == pytest.approx(
        prior, rel=1e-4
    )


@pytest.mark.parametrize("hessian", ["full", "kron"])
def test_draws_vary_as_the_logits_do(hessian):
    found, asked = posterior(hessian), table(5, D, 0.75)
    draws = found.draws(4000, 2.5, torch.Generator().manual_seed(0))

    logits = torch.einsum("bd,scd->sbc", with_bias(asked), draws)

    assert draws.shape == (4000, C, D + 1)
    torch.testing.assert_close(logits.var(0), found.variances(asked, 2.5), rtol=0.1, atol=0)
    torch.testing.assert_close(logits.mean(0), torch.zeros(5, C).double(), rtol=0, atol=0.07)


def laplace(**changes):
    return LaplaceOptions(data=DataRef.parse("digits"), **changes)


def batches(sample, sizes=(3, 5)):
    inputs = sample.inputs(batch=sum(sizes))
    return [
        map_inputs(lambda x, i=i, n=n: x[i : i + n], inputs) for i, n in zip((0, *sizes), sizes, strict=False)
    ]


@pytest.fixture(scope="module")
def fitted():
    sample = base()
    return sample, LastLayer(sample.model(), laplace(hessian="full", prior=0.7), batches(sample), name="it")


@pytest.fixture(scope="module")
def unsure():
    """Return an overconfident model, for which a medium prior is best, and labelled held-out data."""
    sample = base()
    surer = replace(sample, state={n: t * 6 if n.startswith("head.") else t for n, t in sample.state.items()})
    inputs = sample.inputs(batch=60, seed=8)
    with torch.no_grad():
        said = surer.model().member_logits(inputs)[0].argmax(-1)
    return surer, inputs, torch.where(torch.arange(60) % 3 == 0, (said + 1) % 7, said)


def held_out(inputs, labels, size=25):
    return [
        (map_inputs(lambda x, i=i: x[i : i + size], inputs), labels[i : i + size])
        for i in range(0, len(labels), size)
    ]


def nll(logits, labels):
    return -float(logits.double().softmax(-1).mean(0).log()[torch.arange(len(labels)), labels].mean())


@pytest.mark.parametrize("hessian", ["full", "kron"])
def test_held_out_data_choose_the_prior_of_the_lowest_nll(unsure, hessian):
    """The reference inverts the precision matrix for each value of `GRID`."""
    sample, inputs, labels = unsure
    made = LastLayer(
        sample.model(),
        laplace(hessian=hessian),
        batches(sample),
        held_out=held_out(inputs, labels),
        name="it",
    )
    with torch.no_grad():
        seen, features, _ = made._logits_and_features(sample.inputs(batch=8))
        logits, asked, _ = made._logits_and_features(inputs)
        answers = made.member_logits(inputs)
    probs, x, asked = seen.double().softmax(-1), features.double(), asked.double()
    curve = torch.diag_embed(probs) - probs[:, :, None] * probs[:, None]
    if hessian == "full":
        parts = [(with_bias(x), with_bias(asked))]
    else:
        parts = [(x, asked), (torch.ones(8, 1).double(), torch.ones(60, 1).double())]
    costs = []
    for prior in np.logspace(-4, 4, 100):
        variances = torch.zeros(60, 7).double()
        for known, new in parts:
            if hessian == "full":
                matrix = sum(torch.kron(c, torch.outer(v, v)) for c, v in zip(curve, known, strict=True))
            else:
                matrix = torch.kron(curve.sum(0), known.T @ known) / 8
            covariance = torch.linalg.inv(matrix + prior * torch.eye(len(matrix)))
            jacobian = torch.einsum("ck,bd->bckd", torch.eye(7).double(), new).flatten(2)
            variances += torch.einsum("bcp,pq,bcq->bc", jacobian, covariance, jacobian)
        costs.append(nll((logits.double() / (1 + math.pi * variances / 8).sqrt())[None], labels))

    assert made.prior == pytest.approx(np.logspace(-4, 4, 100)[int(np.argmin(costs))], rel=1e-9)
    assert 1e-3 < made.prior < 1e3
    assert nll(answers, labels) == pytest.approx(min(costs), rel=1e-5)


@pytest.mark.more
def test_a_chosen_prior_is_the_best_of_those_that_could_be_given(unsure):
    """With draws, the seeds are equal."""
    sample, inputs, labels = unsure
    preprocess = laplace(predictive="samples", samples=5, seed=3)
    made = LastLayer(
        sample.model(), preprocess, batches(sample), held_out=held_out(inputs, labels), name="it"
    )
    given = [
        LastLayer(sample.model(), replace(preprocess, prior=prior), batches(sample), name="it")
        for prior in GRID
    ]
    with torch.no_grad():
        costs = [nll(each.member_logits(inputs), labels) for each in given]

    best = int(np.argmin(costs))
    assert made.prior == GRID[best] != GRID[0]
    assert torch.equal(made.drawn_weights, given[best].drawn_weights)


def test_full_is_the_hessian_of_the_loss(fitted):
    """For a linear last layer the Gauss-Newton matrix equals the Hessian, for all labels."""
    sample, made = fitted
    with torch.no_grad():
        _, features, layer = made._logits_and_features(sample.inputs(batch=8))
        features = features.double()
    weights = torch.cat([layer.weight, layer.bias[:, None]], 1).detach().double()

    def loss(w):
        return torch.nn.functional.cross_entropy(
            with_bias(features) @ w.T, torch.arange(8) % 7, reduction="sum"
        )

    hessian = torch.autograd.functional.hessian(loss, weights).view(weights.numel(), -1)
    covariance = torch.linalg.inv(hessian + 0.7 * torch.eye(len(hessian)))
    asked = with_bias(features[:2])
    jacobian = torch.einsum("ck,bd->bckd", torch.eye(7).double(), asked).flatten(2)
    expected = torch.einsum("bcp,pq,bcq->bc", jacobian, covariance, jacobian)

    torch.testing.assert_close(made.posterior.variances(features[:2], 0.7), expected, rtol=1e-5, atol=0)


def test_probit_makes_logits_less_sure_by_their_variance(fitted):
    sample, made = fitted
    asked = sample.inputs(batch=4, seed=3)
    with torch.no_grad():
        logits, features = (part.double() for part in made._logits_and_features(asked)[:2])
        found = made.member_logits(asked)

    variances = made.posterior.variances(features, 0.7)
    torch.testing.assert_close(found[0], (logits / (1 + math.pi / 8 * variances).sqrt()).float())
    assert (made.count, made.prior) == (8, 0.7)
    assert (found.softmax(-1).amax(-1) < logits.softmax(-1).amax(-1)).all()


def test_samples_are_members_around_the_model():
    sample = base()
    preprocess = laplace(predictive="samples", samples=256, seed=4)
    made = LastLayer(sample.model(), preprocess, batches(sample), name="it")
    asked = sample.inputs(batch=4)
    with torch.no_grad():
        found = made.member_logits(asked)
        each = torch.cat(
            [made.member_logits(map_inputs(lambda x, i=i: x[i : i + 1], asked)) for i in range(4)], 1
        )
        logits, features = (part.double() for part in made._logits_and_features(asked)[:2])

    assert found.shape == (256, 4, 7)
    torch.testing.assert_close(found, each, rtol=1e-4, atol=1e-4)
    deviations = made.posterior.variances(features, made.prior).sqrt()
    assert ((found.mean(0) - logits).abs() < 5 * deviations / 16).all()
    again = LastLayer(sample.model(), preprocess, batches(sample), name="it")
    assert torch.equal(again.drawn_weights, made.drawn_weights)


def test_a_temperature_divides_before_the_layer_is_doubted():
    sample = base()
    quarter = {n: t / 4 if n.startswith("head.") else t for n, t in sample.state.items()}
    cold, warm = sample.model(), replace(sample, state=quarter).model()
    cold.temperature = 4.0
    made = [LastLayer(model, laplace(), batches(sample), name="it") for model in (cold, warm)]
    with torch.no_grad():
        one, other = (each.member_logits(sample.inputs()) for each in made)

    assert made[0].prior == pytest.approx(made[1].prior, rel=1e-4)
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_what_has_no_linear_last_layer_is_refused():
    sample, distilled = (
        base(),
        base(Variant("timm-vit", "distilled", "deit_tiny_distilled_patch16_224", TINY)),
    )
    several = Hydra([sample.model(), sample.tuned(1).model()])

    for model, of, said in (
        (several, sample, "several models"),
        (distilled.model(), distilled, "its logits have other inputs"),
    ):
        with pytest.raises(UnsupportedModelError, match=said):
            LastLayer(model, laplace(), batches(of), name="it")


def test_a_large_layer_is_not_for_full(monkeypatch):
    monkeypatch.setattr("hydractl.research.baselines.laplace.MAX_FULL_WEIGHTS", 230)

    with pytest.raises(UnsupportedModelError, match="231 weights"):
        LastLayer(base().model(), laplace(hessian="full"), batches(base()), name="it")


def test_its_prediction_sets_are_fitted_and_never_those_of_its_model(tmp_path):
    base().save(tmp_path / "base.st")
    given = {
        "model": str(tmp_path / "base.st"), "data": DataRef.parse("digits::split=val,classes=0-6"), "latency": False,
        "bootstrap": 0, "device": "cpu", "metrics": ("accuracy",), "set_options": SetOptions(sets=0.8),
    }  # fmt: skip
    run_eval(EvalConfig(**given, save_model=tmp_path / "one.st"), ProgressLog())
    row = NamedModels.parse(f"laplace=laplace:{tmp_path / 'one.st'}::data=digits::split=train,classes=0-6")

    fitted = run_eval(EvalConfig(**given, compare=(row,)), ProgressLog()).document.rows[1]
    plain = run_eval(
        EvalConfig(**given | {"set_options": SetOptions()}, compare=(row,)), ProgressLog()
    ).document.rows[1]

    assert fitted.sets.is_fitted_here
    assert plain.sets is None
