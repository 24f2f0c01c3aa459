"""The number of threads may change the last bits of importances, but never the order of heads."""

from __future__ import annotations

import json

import pytest

from hydractl.scoring.methods import METHODS
from support.ranks import score_all
from support.reviews import arch, reviews


@pytest.fixture(scope="module")
def made(tmp_path_factory, python):
    """Scores files of each method by number of threads."""
    folder = tmp_path_factory.mktemp("threads")
    jobs = {
        name: {
            "data": str(reviews(folder / "reviews.jsonl", 128, seed=0)),
            "model": arch(folder),
            "method": method,
            "given": given,
            "budget": {"remove": 3},
            "batch_size": 128,  # large products are split between threads
            "device": "cpu",
        }
        for name, method, given in CASES
    }
    (folder / "jobs.json").write_text(json.dumps(jobs))
    found = {}
    for threads in (1, 2):
        out = folder / str(threads)
        out.mkdir()
        score_all(1, folder / "jobs.json", out, threads=threads, python=python())
        found[threads] = {path.stem: json.loads(path.read_text()) for path in out.iterdir()}
    return found


CASES = [
    *((method, method, {"objective": "acc"} if method == "circuit" else {}) for method in METHODS),
    ("lazy", "circuit", {"objective": "nll", "search": "lazy"}),
]


def flat(scores):
    return [value for tower in scores["towers"].values() for row in tower["scores"] for value in row]


@pytest.mark.more
@pytest.mark.parametrize("name", [case[0] for case in CASES])
def test_the_number_of_threads_moves_no_head(made, name):
    one, two = (flat(made[threads][name]) for threads in (1, 2))

    # With another number of threads, float32 sums are rounded differently.
    assert two == pytest.approx(one, rel=0, abs=1e-4 * max(map(abs, one)))
    assert sorted(range(len(two)), key=two.__getitem__) == sorted(range(len(one)), key=one.__getitem__)
    if "clusters" in made[1][name]:
        assert made[2][name]["clusters"] == made[1][name]["clusters"]
