"""`finetune --estimate`: what a run would take, and nothing is written."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from hydractl import runtime
from hydractl.data.reference import DataRef
from hydractl.errors import UsageError
from hydractl.stages.finetune.config import FinetuneConfig
from hydractl.stages.finetune.estimate import run_estimate
from hydractl.stages.finetune.run import run_finetune
from hydractl.stages.shared import time_and_memory
from hydractl.training.recipes.recipe import Recipe
from support.reviews import arch, reviews

pytestmark = pytest.mark.usefixtures("one_thread")

ARCH = "arch:vit_tiny_patch16_224::img_size=16,patch_size=2,in_chans=1,embed_dim=64,depth=4,num_heads=4,num_classes=10"
DATA = {
    "data": DataRef.parse("digits::split=train,limit=300"),
    "val": DataRef.parse("digits::split=val,limit=300"),
}
RECIPE = Recipe(lr=(1e-3, 1e-4), epochs=3, batch_size=16, augment=("shift",))
HEAD = replace(RECIPE, train=("head",), augment=(), epochs=5)
SLOW = 4.0
"""Seconds to compile a graph: more than the training of a tiny model takes."""


def config(out, **changes):
    return FinetuneConfig(**({"model": ARCH, "out": out, "recipe": RECIPE, "device": "cpu"} | DATA | changes))


@pytest.mark.parametrize("recipe", [RECIPE, HEAD], ids=["all", "head"])
def test_an_estimate_is_near_what_a_run_takes(tmp_path, monkeypatch, recipe):
    # others on the machine make seconds of the clock longer
    monkeypatch.setattr(time_and_memory.time, "perf_counter", time.process_time)
    given = config(tmp_path / "out.st", recipe=recipe)

    run_estimate(given)  # loads what a process loads once
    found = run_estimate(given)

    assert not list(tmp_path.iterdir())
    begin = time.process_time()
    report = run_finetune(given)
    spent = time.process_time() - begin
    assert spent / 2 < found.seconds < 2 * spent
    parts = (found.preparing, found.encoding, found.compiling, found.training, found.validating)
    assert found.seconds == pytest.approx(sum(parts))
    assert (found.encoding > 0) == (recipe is HEAD)
    assert (found.steps, found.evaluations) == (2 * report.total_steps, 2 * recipe.epochs)
    assert (found.samples, found.val_samples, found.compiling) == (300, 300, 0)


def test_twice_as_long_takes_twice_as_long(tmp_path):
    once, twice = (
        run_estimate(
            config(tmp_path / "out.st", recipe=replace(RECIPE, epochs=None, steps=n, eval_every=n // 2))
        )
        for n in (100, 200)
    )

    assert (once.steps, twice.steps, once.evaluations, twice.evaluations) == (200, 400, 4, 4)
    assert 1 < twice.training / once.training < 4


def test_memory_holds_weights_gradients_and_the_optimiser(tmp_path):
    small, large = (
        run_estimate(config(tmp_path / "out.st", recipe=replace(RECIPE, batch_size=size))).memory
        for size in (4, 64)
    )
    once = replace(RECIPE, lr=(1e-3,), epochs=None, steps=1)
    parameters = run_finetune(config(tmp_path / "out.st", recipe=once)).trained_parameters

    assert small > 4 * 4 * parameters
    assert large > 4 * small


@pytest.mark.newer
def test_compiling_counts_for_each_rate(tmp_path, monkeypatch):
    def slow(graph, _):
        time.sleep(SLOW)
        return graph.forward

    monkeypatch.setattr(runtime, "BACKEND", slow)
    found = run_estimate(config(tmp_path / "out.st", compile=True))

    assert 2 * SLOW < found.compiling < found.seconds


def test_texts(tmp_path):
    sets = {
        name: DataRef.parse(str(reviews(tmp_path / f"{name}.jsonl", 40, seed=0))) for name in ("data", "val")
    }
    model, before = arch(tmp_path), {*tmp_path.iterdir()}
    found = run_estimate(config(tmp_path / "out.st", model=model, recipe=replace(HEAD, epochs=2), **sets))

    assert (found.steps, found.val_samples) == (2 * 2 * 3, 40)
    assert found.encoding > 0 < found.validating
    assert {*tmp_path.iterdir()} == before


def test_what_a_run_would_refuse_is_refused(tmp_path):
    given = config(tmp_path / "out.st", recipe=replace(RECIPE, warmup=10_000))

    for work in (run_finetune, run_estimate):
        with pytest.raises(UsageError, match="the warm-up of 10000 steps takes all of the"):
            work(given)
