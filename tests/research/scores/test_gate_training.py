"""Training of gates uses the loop of `finetune`, and does not change frozen weights."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 - the field's own name

from hydractl.errors import CheckFailed, DataError
from hydractl.progress import reporting
from hydractl.research.scores import gates
from hydractl.research.scores.dsp import score_dsp
from hydractl.research.scores.gates import GateTraining, train_gates
from hydractl.research.scores.l0 import CLOSED, HardConcrete, score_l0
from hydractl.research.scores.options import DspSettings, L0Settings
from hydractl.scoring.job import Samples, ScoreJob
from support.builders import base
from support.gates import COUNT, Rows, planted, training_job
from support.progress_log import ProgressLog
from support.variants import VARIANTS, Variant

SHORT = {"epochs": 2}
METHODS = [(score_l0, L0Settings), (score_dsp, DspSettings)]
each_method = pytest.mark.parametrize(("score", "settings"), METHODS, ids=["l0", "dsp"])


def job(settings, **changes):
    return training_job(planted(), budget=6, settings=settings, **changes)


@each_method
def test_the_loop_of_fine_tuning_trains_them(score, settings, monkeypatch):
    seen = []

    def watched(work, engine, *, folder, start):
        seen.append(work)
        return train(work, engine, folder=folder, start=start)

    train = gates.train
    assert train.__module__ == "hydractl.training.loop"
    monkeypatch.setattr(gates, "train", watched)

    found = score(job(settings(**SHORT)))

    assert len(seen) == 1
    assert found.results["steps"] == seen[0].total == 6
    assert set(seen[0].rates.values()) == {settings().gate_lr}


@pytest.mark.spread(cases=1)
@each_method
def test_the_same_seed_gives_the_same_bits_and_the_model_stays(score, settings):
    first = job(settings(**SHORT))
    before = {n: t.clone() for n, t in first.model.state_dict().items()}

    found = score(first)

    assert found == score(job(settings(**SHORT)))
    assert found.scores != score(job(settings(**SHORT), seed=1)).scores
    assert found.weights is None
    after = first.model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[n], after[n]) for n in before)


def test_pipelined_training_leaves_the_weights_and_joint_training_does_not():
    sample = planted()
    gated, _ = train_gates(
        job(L0Settings(**SHORT)), L0Settings(**SHORT), lambda _: HardConcrete(torch.zeros(12))
    )
    pipelined = gated.model.library_state()
    joint = score_dsp(job(DspSettings(training="joint", **SHORT), keeps_weights=True)).weights

    assert all(torch.equal(pipelined[n], t) for n, t in sample.state.items())
    assert joint.keys() == sample.state.keys()
    changed = [n for n, t in sample.state.items() if not torch.equal(joint[n], t)]
    assert len(changed) > len(joint) / 2


def test_joint_training_leaves_running_statistics_and_measures_what_comes_back():
    sample = base(Variant("timm-vit", "batch-norm", "tiny_batch_norm", {"img_size": 8, "num_classes": 7}))
    settings = L0Settings(training="joint", **SHORT)
    asked = training_job(sample, budget=6, settings=settings, keeps_weights=True)
    gated, ranking = train_gates(asked, settings, lambda _: HardConcrete(torch.zeros(12)))

    with torch.inference_mode():
        losses = sum(F.cross_entropy(gated(x), y, reduction="sum").item() for x, y in asked.id_data)
    weights = gated.model.library_state()
    assert ranking.results["training_nll"] == pytest.approx(losses / COUNT, rel=1e-5)
    assert all(torch.equal(weights[n], t) for n, t in sample.state.items() if ".running_" in n)
    assert any(not torch.equal(weights[n], t) for n, t in sample.state.items() if "backbone.1." in n)


def test_the_weights_that_come_back_are_the_gated_model_once_cut():
    """`l0` multiplies open gates into the weights."""
    settings = L0Settings(training="joint", epochs=12, gate_lr=0.5, penalty=0.05)
    asked = job(settings, keeps_weights=True)
    found = score_l0(asked)
    rows = found.scores["vision"]
    closed = torch.tensor(rows, dtype=torch.float64) <= CLOSED

    sample = type(planted())(planted().header, dict(found.weights))
    member = sample.pruned(*((~row).nonzero().flatten().tolist() for row in closed)).model()

    hits = count = 0
    for inputs, labels in asked.id_data:
        hits += (member(inputs).argmax(-1) == labels).sum().item()
        count += len(labels)
    assert 0 < closed.sum() < 12
    assert hits / count == pytest.approx(found.results["training_accuracy"])


@each_method
def test_weights_that_nobody_keeps_are_warned_of(score, settings):
    for keeps in (False, True):
        with reporting(progress_log := ProgressLog()):
            score(job(settings(training="joint", epochs=1), keeps_weights=keeps))
        assert [("--save-model" in w) for w in progress_log.warnings] == [True] * (not keeps)


@pytest.mark.spread(cases=2)
@each_method
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_training_that_is_not_in_the_dtype_asked_for_is_told(score, settings, dtype, progress_log):
    asked = job(settings(**SHORT))
    asked.model.to(dtype)
    found = score(asked)
    assert [("fp16" in w) for w in progress_log.warnings] == [True] * (dtype == torch.float16)
    if dtype == torch.float16:  # equals fp32 training from the rounded weights
        asked.model.to(torch.float32)
        assert score(asked) == found


def test_both_towers_of_a_zero_shot_model_are_gated():
    sample = base(next(v for v in VARIANTS if v.family == "transformers-clip"))
    images, labels = sample.inputs(batch=48, seed=1)["pixel_values"], torch.arange(48) % 7
    model = sample.model()
    named = sample.inputs(batch=7, seed=5)
    model.answer.ask({n: x for n, x in named.items() if n != "pixel_values"}, templates=1)
    asked = ScoreJob(
        model=model,
        family=sample.family,
        architecture=sample.header.architecture,
        id_data=[Samples(images, labels)],
        settings=DspSettings(**SHORT),
        budget=8,
        training=GateTraining(feed=lambda: Rows(images, labels)),
    )

    found = score_dsp(asked).scores

    assert {name: (len(rows), len(rows[0])) for name, rows in found.items()} == {
        "text": (3, 4),
        "vision": (3, 4),
    }
    assert len({s for rows in found.values() for row in rows for s in row}) == 24


def test_outputs_that_are_not_finite_end_the_training():
    sample = planted()
    state = {n: t * float("nan") if n == "head.weight" else t for n, t in sample.state.items()}
    labels = torch.zeros(48, dtype=torch.long)

    with pytest.raises(CheckFailed, match=r"diverged with learning rate 0\.1") as caught:
        score_l0(training_job(type(sample)(sample.header, state), labels=labels, settings=L0Settings()))
    assert caught.value.hint == "lower `--gate-lr`"


def test_what_is_not_labelled_is_refused():
    asked = job(L0Settings(**SHORT))
    bare = [samples._replace(labels=None) for samples in asked.id_data]

    with pytest.raises(DataError, match="labelled data"):
        score_l0(job(L0Settings(**SHORT), id_data=bare))


def test_a_job_that_offers_no_training_is_a_mistake():
    with pytest.raises(TypeError, match="needs a `GateTraining`"):
        score_l0(job(L0Settings(), training=None))
