"""The plan of `benchmarks/promise.py`: commands that a user could type, made in an order that works, at the costs that it says."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from hydractl.cli.app import command_tree
from hydractl.stages.evaluate.refs import NamedModels

ROOT = Path(__file__).parents[2]


@pytest.fixture(params=("digits", "shapes"))
def plan(request, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import promise_tasks
    from promise_plan import fill

    (tmp_path / "shapes-clip").mkdir()  # else it would be trained
    (tmp_path / "seed").mkdir()
    return fill(getattr(promise_tasks, request.param)(tmp_path / "seed", 11))


def test_every_command_is_one_that_a_user_could_type(plan):
    tree = command_tree()

    for words in (*(made.command for made in plan.files.values()), plan.report("report.json")):
        tree.commands[words[0]].make_context(words[0], list(words[1:]))
    for row in plan.rows:
        NamedModels.parse(f"{row.name}={','.join(row.models)}")


def test_a_file_is_made_after_what_it_needs_and_no_training_has_the_seed_of_another(plan):
    made = set()
    for name, file in plan.files.items():
        assert made.issuperset(file.needs)
        made.add(name)
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

    assert costs["single"] in (1, pytest.approx(1 + 10 / 20 / 3))  # with a classifier that is fitted first
    begun = costs["deep ensemble of 3"] - 3
    assert costs["merged trunk of 3 K 1"] <= costs["deep ensemble of 3"]
    assert costs["trained as one K 1"] == pytest.approx(3 + begun, abs=0.02)
