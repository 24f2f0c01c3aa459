"""The plan of `benchmarks/promise.py`: valid commands in a possible order, with the stated costs."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from support.commands import check_plan

ROOT = Path(__file__).parents[2]


TASKS = ("digits", "clinc150", "shapes")


def planned(task, tmp_path, monkeypatch):
    """Return the plan of a task; the task "paper" is the plan of `benchmarks/paper/measure.py`."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.syspath_prepend(ROOT / "benchmarks" / "paper")
    from measure import planned
    from promise_plan import fill
    from promise_tasks import clinc150, digits, shapes

    if task == "paper":
        return planned(digits(tmp_path / "seed", 11), "digits")
    for made in (
        "shapes-clip",
        "shapes-data",
    ):  # an existing model is not trained, and existing images are not drawn
        (tmp_path / made).mkdir()
    folder = tmp_path / "seed"
    (folder / "data").mkdir(parents=True)
    for part in ("train", "val", "test", "near", "far", "oos", "near-val"):  # existing data are not drawn
        (folder / "data" / f"{part}.jsonl").touch()
    text = partial(clinc150, file=tmp_path / "clinc150.jsonl", backbone=tmp_path / "encoder")
    return fill({"digits": digits, "clinc150": text, "shapes": shapes}[task](folder, 11))


@pytest.fixture(params=TASKS)
def plan(request, tmp_path, monkeypatch):
    return planned(request.param, tmp_path, monkeypatch)


@pytest.fixture(params=(*TASKS, "paper"))
def either(request, tmp_path, monkeypatch):
    return planned(request.param, tmp_path, monkeypatch)


def test_every_command_is_one_that_a_user_could_type(either):
    check_plan(either)


def test_a_file_is_made_after_what_it_needs(either):
    made = set()
    for name, file in either.files.items():
        assert made.issuperset(file.needs)
        made.add(name)


def test_no_training_has_the_seed_of_another(plan):
    seeds = [
        b
        for f in plan.files.values()
        if f.command[0] == "finetune"
        for a, b in pairwise(f.command)
        if a == "--seed"
    ]
    assert len({*seeds}) == len(seeds)


def test_members_of_a_merged_trunk_are_trained_for_no_longer_than_the_ensemble(plan):
    costs = {row.name: plan.training(row) for row in plan.rows}

    fitted_first = pytest.approx(1 + 10 / 20 / 3), pytest.approx(1 + 10 / 10 / 3)
    assert costs["single"] in (1, *fitted_first)
    begun = costs["deep ensemble of 3"] - 3
    assert costs["merged trunk of 3 K 1"] <= costs["deep ensemble of 3"]
    assert costs["trained as one K 1"] == pytest.approx(3 + begun, abs=0.1)  # whole epochs only
