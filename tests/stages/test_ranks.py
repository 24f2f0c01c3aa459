"""Outputs are bit-identical for any number of processes, for each scoring method and several commands."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest

from hydractl.heads.budget import HeadBudget
from hydractl.runtime import one_thread
from hydractl.scoring.methods import METHODS
from hydractl.stages.score.config import ScoreConfig
from hydractl.stages.score.run import run_score
from support.builders import base
from support.pairs import pair
from support.ranks import main as do_all
from support.ranks import score_all
from support.reviews import arch, reviews
from support.variants import variant

RESEARCH = find_spec("hydractl.research") is not None
# 40 samples are five batches of 9, so two or three processes get unequal shares. A single batch of 64 leaves
# all processes but one without work.
TASKS = {
    "images": {"data": "digits::classes=0-6,limit=40", "batch_size": 9},
    "one-batch": {"data": "digits::classes=0-6,limit=40", "batch_size": 64},
    "texts": {"batch_size": 9},
    "zero-shot": {"data": "digits::classes=0-4,limit=40", "batch_size": 9},
}
GIVEN = {"circuit": {"objective": "acc"}, "l0": {"epochs": 1}, "dsp": {"epochs": 1}}
MAY_REFUSE = {"zero-shot"}
OOD = "digits::classes=9,limit=30"
LAZY = {"objective": "acc-0.1*nll", "search": "lazy"}
SEARCHES = {
    ("images", "ood"): {"ood": OOD},
    ("images", "lazy"): {"ood": OOD, "given": {**LAZY, "objective": "avg"}},
    ("texts", "lazy"): {"given": LAZY},
    ("zero-shot", "lazy"): {"given": LAZY},
}
OF_DIGITS = ("--device", "cpu", "--batch-size", "9", "--data", "digits::classes=0-6,limit=40")
COMMANDS = {
    "eval-images": (
        *(
            "eval",
            "{images}",
            *OF_DIGITS,
            "--near",
            f"nines={OOD}",
            "--far",
            "noise::limit=7",
            "--no-latency",
        ),
        *("--compare", "Both={images},{images}", "--temperature", "digits::split=val,classes=0-6,limit=31"),
        *(
            "--ood-score",
            "energy,mi,knn,vim,energy+density,mahalanobis:alpha=0",
            "--bootstrap",
            "5",
            "--threshold-for",
            "risk<=0.99",
        ),
        *(
            "--train",
            "digits::split=train,classes=0-6,limit=50",
            "--val",
            "digits::split=val,classes=0-6,limit=31",
        ),
        *(("--corrupt", "gaussian-noise:3", "--analyse", "all") if RESEARCH else ()),
        *("-o", "{out}.json", "--save-predictions", "{out}.st", "--save-model", "{out}-stored.st"),
    ),
    "eval-texts": (
        *("eval", "{texts}", "--data", "{reviews}", "--device", "cpu", "--batch-size", "9", "--no-latency"),
        *("--bootstrap", "0", "-o", "{out}.json", "--save-predictions", "{out}.st"),
        *(("--corrupt", "typos:3") if RESEARCH else ()),
    ),
    "fuse-data": (
        *(
            "fuse",
            "{members[0]}",
            "{members[1]}",
            "--temperature",
            "digits::split=val,classes=0-6,limit=31",
        ),
        *("--max-nll-increase", "9", "-o", "{out}.st"),
        *(
            "--train",
            "digits::split=train,classes=0-6,limit=50",
            "--val",
            "digits::split=val,classes=0-6,limit=31",
        ),
    ),
    "prune-diverse": (
        *("prune", "{images}", *OF_DIGITS, "--strategy", "diverse", "--ood", OOD, "--scores", "{scores}"),
        *("--remove", "3", "--pool", "7", "--members", "2", "--candidates", "5", "-o", "{out}-{i}.st"),
    ),
}
MADE = {
    "eval-images": (".json", ".st", "-stored.st"),
    "eval-texts": (".json", ".st"),
    "fuse-data": (".st",),
    "prune-diverse": ("-0.st", "-1.st", "-0.mask.json", "-1.mask.json"),
}
CASES = [(task, method) for task in TASKS for method in METHODS]
WORLDS = {f"{task}-{method}": 2 + i % 4 for i, (task, method) in enumerate([*SEARCHES, *CASES])}
"""Number of processes per case without `--all-variants`.

Cases with 4 or 5 are skipped. The others cover each method and each task with two or three processes.
"""


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("jobs")
    models = {
        "images": str(base(variant("class-token")).save(folder / "base.st")),
        "texts": arch(folder),
        "zero-shot": str(pair("clip", folder).save(folder / "clip.st")),
    }
    sample = base(variant("class-token"))
    models["members"] = [str(sample.tuned(i).save(folder / f"{i}.st")) for i in range(2)]
    models["one-batch"] = models["images"]
    models["reviews"] = TASKS["texts"]["data"] = str(reviews(folder / "reviews.jsonl", 40, seed=0))
    models["scores"] = folder / "scores.json"
    run_score(
        ScoreConfig(
            model=models["images"],
            method="magnitude",
            out=models["scores"],
            budget=HeadBudget(remove=3),
            data=None,
        )
    )
    commands = {
        name: {"argv": [word.format(**models, out="{out}", i="{i}") for word in words]}
        for name, words in COMMANDS.items()
    }
    return (
        commands
        | {
            f"{task}-{method}": {
                **TASKS[task],
                "model": models[task],
                "method": method,
                "given": GIVEN.get(method, {}),
                "budget": {"remove": 3},
                "device": "cpu",
            }
            for task, method in CASES
        }
        | {
            f"{task}-{name}": {
                **TASKS[task],
                "model": models[task],
                "budget": {"remove": 5},
                "device": "cpu",
                **settings,
            }
            for (task, name), settings in SEARCHES.items()
        }
    )


@pytest.fixture(scope="module")
def made(jobs, tmp_path_factory, python, request):
    """Output files by number of processes."""
    found = {}
    every = request.config.getoption("all_variants")
    asked = {world: {name for name in jobs if every or WORLDS.get(name, 2) == world} for world in (2, 3)}
    asked[1] = asked[2] | asked[3]
    for world in (1, 2, 3):
        folder = tmp_path_factory.mktemp(f"world-{world}")
        (folder / "jobs.json").write_text(
            json.dumps({name: job for name, job in jobs.items() if name in asked[world]})
        )
        out = folder / "out"
        out.mkdir()
        if world == 1:
            # The other processes use one thread each; more threads would change the last bits of sums.
            with one_thread():
                do_all(folder / "jobs.json", out)
        else:
            score_all(world, folder / "jobs.json", out, python=python())
        found[world] = {path.name: path.read_bytes() for path in out.iterdir()}
        # Several processes refuse the same jobs, but slowly: each waits for another one to print the error.
        # Commands run with one and two processes only.
        jobs = {
            name: job
            for name, job in jobs.items()
            if f"{name}.refused" not in found[1] and not (world == 2 and "argv" in job)
        }
    return found


@pytest.mark.parametrize(
    ("task", "method", "world"),
    [
        pytest.param(
            task, method, world, marks=() if WORLDS[f"{task}-{method}"] == world else pytest.mark.more
        )
        for task, method in [*CASES, *SEARCHES]
        for world in (2, 3)
    ],
)
def test_the_file_is_the_same_for_any_number_of_processes(made, task, method, world):
    name = f"{task}-{method}"
    if task in MAY_REFUSE and f"{name}.refused" in made[1]:
        return

    assert f"{name}.json" in made[1], made[1].get(f"{name}.refused")
    assert made[world][f"{name}.json"] == made[1][f"{name}.json"]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_files_of_a_command_are_the_same_for_two_processes(made, name):
    alone, together = (
        {path: found for path, found in made[n].items() if path.startswith(name)} for n in (1, 2)
    )

    assert alone.keys() == {f"{name}{suffix}" for suffix in MADE[name]}
    assert together == alone


@pytest.mark.parametrize("world", [1, 2, 3])
def test_nothing_else_is_left(made, world):
    assert {name.rpartition(".")[2] for name in made[world]} <= {"json", "refused", "st"}
