"""The training loop on a small linear model."""

from __future__ import annotations

import signal

import pytest
import torch
from timm.utils import ModelEmaV3
from torch import nn
from torch.optim.swa_utils import AveragedModel

from hydractl.errors import CheckFailed
from hydractl.training.accelerator import start_engine
from hydractl.training.feeding import Piece
from hydractl.training.loop import train
from hydractl.training.recipe import Recipe
from hydractl.training.resume import Metrics, Snapshot, StateFolder
from hydractl.training.trainer import Job, freeze_unused

X = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
Y = torch.randn(12, generator=torch.Generator().manual_seed(1))


class Rows:
    """Feed of twelve rows, six per step."""

    steps_per_epoch = 2

    def steps(self, start, stop, share):
        for step in range(start, stop):
            rows = torch.arange(12)[step % 2 :: 2]
            yield [
                Piece(inputs=X[rows[a:b]], labels=Y[rows[a:b]], first=a, total=6, weight=(b - a) / 6)
                for a, b in share.bounds(6)
            ]


def build():
    model = nn.Sequential(nn.Linear(3, 1, bias=False), nn.Flatten(0))
    with torch.no_grad():
        model[0].weight.fill_(0.5)
    return model


def loss(outputs, labels):
    return (outputs - labels) ** 2


def fit(recipe, *, evaluate=None, build=build, folder=None, **extra):
    def error(model):
        value = loss(model(X), Y).mean().item()
        return Metrics(accuracy=0.0, nll=value) if value < 1e6 else None

    job = Job(
        build=build,
        feed=Rows(),
        loss=loss,
        evaluate=evaluate or error,
        probe=torch.zeros(1, 3),
        recipe=recipe,
        seed=0,
        **extra,
    )
    with start_engine("cpu", precision=recipe.precision) as engine:
        start = folder.load() if folder and folder.check(force=False) else Snapshot()
        return train(job, engine, folder=folder, start=start)


def sgd(**options):
    return Recipe(
        **{"optimizer": "sgd", "momentum": 0.0, "schedule": "constant", "warmup": 0, "steps": 4} | options
    )


def test_one_step_is_the_gradient_of_the_batch_mean():
    found = fit(sgd(lr=(0.1,), steps=1))

    weight = torch.full((1, 3), 0.5, requires_grad=True)
    loss((X[0::2] @ weight.T)[:, 0], Y[0::2]).mean().backward()
    assert torch.allclose(found.weights["0.weight"], weight.detach() - 0.1 * weight.grad, atol=1e-7)


@pytest.mark.parametrize("pieces", [2, 3, 6])
def test_pieces_change_nothing(pieces):
    whole = fit(sgd(lr=(0.1,)))
    found = fit(sgd(lr=(0.1,), accumulate=pieces))

    assert torch.allclose(found.weights["0.weight"], whole.weights["0.weight"], atol=1e-6)


def test_the_gradient_is_clipped():
    found = fit(sgd(lr=(1.0,), steps=1, clip=0.01))

    assert (found.weights["0.weight"] - 0.5).norm() == pytest.approx(0.01, rel=1e-3)


def test_the_rate_that_validates_best_wins():
    rates = (0.001, 0.1, 0.01)
    alone = {lr: fit(sgd(lr=(lr,))) for lr in rates}
    best = min(rates, key=lambda lr: alone[lr].metrics.nll)

    found = fit(sgd(lr=rates))

    assert found.lr == best
    assert found.metrics == alone[best].metrics
    assert torch.equal(found.weights["0.weight"], alone[best].weights["0.weight"])


def test_a_rate_that_diverges_loses(progress_log):
    found = fit(sgd(lr=(1e9, 0.1), steps=6))

    assert found.lr == 0.1
    assert "1e+09" in progress_log.warnings[0]


def test_divergence_of_all_is_an_error():
    with pytest.raises(CheckFailed, match=r"1e\+09, 1e\+08") as caught:
        fit(sgd(lr=(1e9, 1e8), steps=6))
    assert "--clip" in caught.value.hint


def scripted(values):
    """Return an evaluation function with scripted accuracies."""
    left = iter(values)
    return lambda _model: Metrics(accuracy=next(left), nll=1.0)


def test_early_stopping_counts_evaluations_without_improvement():
    found = fit(
        sgd(steps=20, eval_every=1, early_stop=2), evaluate=scripted([0.1, 0.3, 0.2, 0.4, 0.4, 0.4, 0.9])
    )

    assert (found.step, found.metrics.accuracy) == (4, 0.4)


def test_a_small_gain_is_no_improvement_but_is_kept():
    recipe = sgd(steps=20, eval_every=1, early_stop=2, patience_delta=0.1)
    found = fit(recipe, evaluate=scripted([0.5, 0.55, 0.58, 0.9]))

    assert (found.step, found.metrics.accuracy) == (3, 0.58)


@pytest.mark.parametrize(("keep", "step"), [(True, 2), (False, 4)])
def test_the_best_or_the_last_are_kept(keep, step):
    found = fit(sgd(lr=(0.1,), eval_every=1, keep_best=keep), evaluate=scripted([0.1, 0.9, 0.2, 0.3]))
    wanted = fit(sgd(lr=(0.1,), steps=step))

    assert found.step == step
    assert torch.equal(found.weights["0.weight"], wanted.weights["0.weight"])


def test_the_last_step_is_evaluated_whatever_the_rhythm(progress_log):
    fit(sgd(steps=5, eval_every=3))

    assert [line.split(":")[0] for line in progress_log.steps] == [
        "step 3/5 (epoch 1.5)",
        "step 5/5 (epoch 2.5)",
    ]


def path(rates):
    """Yield the weights after each step of plain SGD with these rates, on the batches of `Rows`."""
    weight = torch.full((1, 3), 0.5, requires_grad=True)
    for step, rate in enumerate(rates):
        rows = torch.arange(12)[step % 2 :: 2]
        (gradient,) = torch.autograd.grad(loss((X[rows] @ weight.T)[:, 0], Y[rows]).mean(), weight)
        weight = (weight.detach() - rate * gradient).requires_grad_()
        yield nn.ParameterList([weight.detach()])


@pytest.mark.parametrize("decay", [0.3, 0.99])
def test_a_running_mean_is_timms_with_its_warm_up(decay):
    reference = ModelEmaV3(nn.ParameterList([torch.zeros(1, 3)]), decay=decay, use_warmup=True)
    for step, weights in enumerate(path([0.1] * 6), 1):
        reference.update(weights, step=step)

    found = fit(sgd(lr=(0.1,), steps=6, ema=decay))

    assert torch.allclose(found.weights["0.weight"], reference.module[0], atol=1e-6)
    assert found.metrics.nll == pytest.approx(
        loss(X @ found.weights["0.weight"][0], Y).mean().item(), abs=1e-6
    )


@pytest.mark.parametrize(("start", "ends"), [(2, (4, 6, 7)), (0.6, (6, 7))])
def test_the_mean_of_epochs_is_torchs_and_their_rate_stays(start, ends):
    """An epoch has two steps, the last epoch a single step.

    The rate falls linearly until averaging starts.
    """
    reference = AveragedModel(nn.ParameterList([torch.zeros(1, 3)]))
    for step, weights in enumerate(path([0.1 * (1 - min(step, ends[0]) / 7) for step in range(7)]), 1):
        if step in ends:
            reference.update_parameters(weights)

    found = fit(sgd(lr=(0.1,), steps=7, schedule="linear", swa=start))

    assert torch.allclose(found.weights["0.weight"], reference.module[0], atol=1e-6)


def test_weights_before_their_mean_begins_are_measured_and_never_the_best(progress_log):
    recipe = sgd(lr=(0.1,), steps=8, swa=2, early_stop=2, patience_delta=0.5)
    found = fit(recipe, evaluate=scripted([0.9, 0.3, 0.2, 0.1]))

    assert (found.step, found.metrics.accuracy) == (4, 0.3)
    assert len(progress_log.steps) == 4


@pytest.fixture
def folder(tmp_path):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield StateFolder(tmp_path / "state", f"sha256:{'0' * 64}")
    signal.signal(signal.SIGINT, before)


def pressed_in_step(number):
    """Return a model builder. Step `number` of the model raises SIGINT."""
    calls = []

    def press(module, _inputs):
        if module.training:
            calls.append(1)
            if len(calls) == number:
                signal.raise_signal(signal.SIGINT)

    def make():
        model = build()
        model[0].register_forward_pre_hook(press)
        return model

    return make


@pytest.mark.parametrize("mean", [{}, {"ema": 0.9}, {"swa": 1}])
def test_ctrl_c_in_a_step_leaves_the_state_after_it(folder, mean):
    recipe = sgd(lr=(0.1,), steps=6, momentum=0.9, **mean)
    whole = fit(recipe)

    with pytest.raises(KeyboardInterrupt):
        fit(recipe, build=pressed_in_step(3), folder=folder)

    assert folder.load().position.step == 3
    assert torch.equal(fit(recipe, folder=folder).weights["0.weight"], whole.weights["0.weight"])


@pytest.mark.parametrize(("at", "mean"), [(1, {}), (2, {}), (3, {}), (2, {"ema": 0.9})])
def test_an_evaluation_that_was_interrupted_is_made_up_for(folder, at, mean):
    recipe = sgd(lr=(0.1,), steps=6, early_stop=9, **mean)
    script = [0.1, 0.9, 0.2]
    whole = fit(recipe, evaluate=scripted(script))
    measured = scripted(script)
    calls = []

    def evaluate(model):
        calls.append(1)
        if len(calls) == at:
            raise KeyboardInterrupt
        return measured(model)

    with pytest.raises(KeyboardInterrupt):
        fit(recipe, evaluate=evaluate, folder=folder)
    assert folder.load().position.step == 2 * at
    found = fit(recipe, evaluate=evaluate, folder=folder)

    assert (found.step, found.metrics) == (whole.step, whole.metrics) == (4, Metrics(accuracy=0.9, nll=1.0))
    assert torch.equal(found.weights["0.weight"], whole.weights["0.weight"])


def test_ctrl_c_before_the_first_step_leaves_nothing(folder):
    def press():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(sgd(), build=press, folder=folder)
    assert not folder.path.exists()


def test_bf16_computes_in_bf16_and_keeps_fp32_weights():
    dtypes = []

    def watched():
        model = build()
        model[0].register_forward_hook(lambda _m, _i, out: dtypes.append(out.dtype))
        return model

    found = fit(sgd(lr=(0.1,), precision="bf16"), build=watched)

    assert torch.bfloat16 in dtypes
    assert found.weights["0.weight"].dtype == torch.float32


def test_a_parameter_that_nothing_hangs_on_does_not_train():
    model = build()
    model.register_parameter("loose", nn.Parameter(torch.ones(2)))

    freeze_unused(model, torch.zeros(1, 3))

    assert [n for n, p in model.named_parameters() if p.requires_grad] == ["0.weight"]
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("pieces", [1, 2, 3, 6])
def test_ordered_pieces_are_the_same_gradient(pieces):
    whole = fit(sgd(lr=(0.1,)))
    found = fit(sgd(lr=(0.1,)), pieces=pieces)

    assert torch.allclose(found.weights["0.weight"], whole.weights["0.weight"], atol=1e-6)


class Twice(nn.Module):
    """Model with two parameters. Their gradients are views of the same tensor."""

    def __init__(self):
        super().__init__()
        self.one, self.other = (nn.Parameter(torch.full((3,), 0.25)) for _ in range(2))

    def forward(self, x):
        return (x @ (self.one.view(3, 1) + self.other.view(3, 1)))[:, 0]


@pytest.mark.parametrize("clip", [None, 0.01])
@pytest.mark.parametrize("cut", [{}, {"accumulate": 3}, {"pieces": 3}], ids=str)
def test_gradients_that_lie_in_one_storage_are_added_and_clipped_once(clip, cut):
    told = {name: cut[name] for name in cut.keys() & {"accumulate"}}
    recipe = sgd(lr=(0.1,), steps=1, clip=clip, **told)
    found = fit(recipe, build=Twice, **({} if told else cut))

    weight = torch.full((3,), 0.5, requires_grad=True)
    loss(X[0::2] @ weight, Y[0::2]).mean().backward()
    gradient = weight.grad if clip is None else weight.grad / weight.grad.norm() * clip / 2**0.5
    for name in ("one", "other"):
        assert torch.allclose(found.weights[name], 0.25 - 0.1 * gradient, atol=1e-6)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_penalty_counts_once_a_step_however_the_batch_is_cut(accumulate):
    found = fit(
        sgd(lr=(0.1,), steps=1, accumulate=accumulate), penalty=lambda model: 2.0 * model[0].weight.sum()
    )

    weight = torch.full((1, 3), 0.5, requires_grad=True)
    (loss((X[0::2] @ weight.T)[:, 0], Y[0::2]).mean() + 2.0 * weight.sum()).backward()
    assert torch.allclose(found.weights["0.weight"], weight.detach() - 0.1 * weight.grad, atol=1e-6)


def test_parameters_train_at_rates_of_their_own():
    usual = fit(sgd(lr=(0.1,)))
    found = fit(sgd(lr=(1e-9,)), rates={"0.weight": 0.1})

    assert torch.equal(found.weights["0.weight"], usual.weights["0.weight"])


def test_what_changes_with_the_steps_is_told_each_step_also_after_an_interruption(folder):
    recipe = sgd(lr=(0.1,), steps=6)

    def scaled(model, step):
        told.append(step)
        model[0].scale = step + 1.0

    def made(before=build):
        model = before()
        model[0].scale = 1.0
        model[0].register_forward_hook(lambda module, _inputs, out: out * module.scale)
        return model

    told = []
    whole = fit(recipe, build=made, begin_step=scaled)
    assert told == list(range(6))
    with pytest.raises(KeyboardInterrupt):
        fit(recipe, build=lambda: made(pressed_in_step(3)), begin_step=scaled, folder=folder)
    told.clear()
    found = fit(recipe, build=made, begin_step=scaled, folder=folder)

    assert told == [3, 4, 5]
    assert torch.equal(found.weights["0.weight"], whole.weights["0.weight"])


def test_progress_names_what_is_measured(progress_log):
    fit(sgd(steps=2), measured_on="training")

    assert "training accuracy" in progress_log.steps[0]
