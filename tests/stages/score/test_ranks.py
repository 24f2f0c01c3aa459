"""However many processes score together, the file is the same to the last byte; every method is held to it."""

from __future__ import annotations

import json

import pytest

from hydractl.scoring.methods import METHODS
from support.builders import base
from support.pairs import pair
from support.ranks import score_all
from support.reviews import arch, reviews
from support.variants import variant

# 40 samples: five batches are dealt out unevenly to two and to three processes, and of one batch most get nothing
TASKS = {
    "images": {"data": "digits::classes=0-6,limit=40", "batch_size": 9},
    "one-batch": {"data": "digits::classes=0-6,limit=40", "batch_size": 64},
    "texts": {"batch_size": 9},
    "zero-shot": {"data": "digits::classes=0-4,limit=40", "batch_size": 9},
}
MAY_REFUSE = {"zero-shot"}
OOD = "digits::classes=9,limit=30"
LAZY = {"objective": "acc-0.1*nll", "search": "lazy", "recheck": 4}
SEARCHES = {
    ("images", "ood"): {"ood": OOD},
    ("images", "lazy"): {"ood": OOD, "given": {**LAZY, "objective": "avg"}},
    ("texts", "lazy"): {"given": LAZY},
    ("zero-shot", "lazy"): {"given": LAZY},
}
CASES = [(task, method) for task in TASKS for method in METHODS]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("jobs")
    models = {
        "images": str(base(variant("class-token")).save(folder / "base.st")),
        "texts": arch(folder),
        "zero-shot": str(pair("clip", folder).save(folder / "clip.st")),
    }
    models["one-batch"] = models["images"]
    TASKS["texts"]["data"] = str(reviews(folder / "reviews.jsonl", 40, seed=0))
    return {
        f"{task}-{method}": {
            **TASKS[task],
            "model": models[task],
            "method": method,
            "given": {"objective": "acc"} if method == "circuit" else {},
            "budget": {"remove": 3},
            "device": "cpu",
        }
        for task, method in CASES
    } | {
        f"{task}-{name}": {
            **TASKS[task],
            "model": models[task],
            "budget": {"remove": 5},
            "device": "cpu",
            **settings,
        }
        for (task, name), settings in SEARCHES.items()
    }


@pytest.fixture(scope="module")
def made(jobs, tmp_path_factory, python):
    """The files of every scoring, by the number of processes."""
    found = {}
    for world in (1, 2, 3):
        folder = tmp_path_factory.mktemp(f"world-{world}")
        (folder / "jobs.json").write_text(json.dumps(jobs))
        out = folder / "out"
        out.mkdir()
        score_all(world, folder / "jobs.json", out, python=python())
        found[world] = {path.name: path.read_bytes() for path in out.iterdir()}
        # what one process refuses, several would too, each waiting for the other to say so
        jobs = {name: job for name, job in jobs.items() if f"{name}.refused" not in found[1]}
    return found


@pytest.mark.parametrize(("task", "method"), [*CASES, *SEARCHES])
@pytest.mark.parametrize("world", [2, 3])
def test_the_file_is_the_same_for_any_number_of_processes(made, task, method, world):
    name = f"{task}-{method}"
    if task in MAY_REFUSE and f"{name}.refused" in made[1]:
        return

    assert f"{name}.json" in made[1], made[1].get(f"{name}.refused")
    assert made[world][f"{name}.json"] == made[1][f"{name}.json"]


@pytest.mark.parametrize("world", [1, 2, 3])
def test_nothing_else_is_left(made, world):
    assert {name.rpartition(".")[2] for name in made[world]} <= {"json", "refused"}
