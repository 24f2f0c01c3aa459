from __future__ import annotations

import json
import time

import pytest

from hydractl import runtime
from hydractl.cli.app import main
from hydractl.errors import CheckpointError
from hydractl.heads.budget import HeadBudget
from hydractl.progress import Silent
from hydractl.stages.score import estimate
from hydractl.stages.score.config import ScoreConfig
from hydractl.stages.score.run import run_score
from hydractl.stages.shared import time_and_memory
from support.builders import base
from support.variants import variant

DATA = {"data": "digits::classes=0-6,limit=200", "ood": "digits::classes=9,limit=100"}

SLOW = 4.0
"""Seconds to compile a graph: more than a search of a tiny model takes."""


class Watched(Silent):
    """A progress that notes the seconds of a search on the processor."""

    seconds = 0.0

    def track(self, items, *, label, total):
        begin = time.process_time()
        yield from items
        self.seconds = time.process_time() - begin


@pytest.mark.parametrize("given", [{"search": "exact"}, {}], ids=["exact", "lazy"])
def test_an_estimate_is_near_what_a_run_takes(model, tmp_path, monkeypatch, given):
    # others on the machine make seconds of the clock longer
    monkeypatch.setattr(time_and_memory.time, "perf_counter", time.process_time)
    config = ScoreConfig(
        model=model, out=tmp_path / "s.json", budget=HeadBudget(remove=6), batch_size=16, given=given, **DATA
    )

    found = estimate.run_estimate(config)

    assert not list(tmp_path.iterdir())
    watched = Watched()
    report = run_score(config, watched)
    assert watched.seconds / 2 < found.seconds < 2 * watched.seconds
    valued = report.scores.results.get("evaluations", 12 + 11 + 10 + 9 + 8 + 7)
    assert valued / 2 < found.candidates < 2 * valued
    assert (found.removals, found.samples) == (6, 300)


@pytest.mark.newer
def test_compiling_counts_once(model, tmp_path, monkeypatch):
    def slow(graph, _):
        time.sleep(SLOW)
        return graph.forward

    monkeypatch.setattr(runtime, "BACKEND", slow)
    config = ScoreConfig(
        model=model, out=tmp_path / "s.json", budget=HeadBudget(remove=6), batch_size=16, compile=True, **DATA
    )

    found = estimate.run_estimate(config)

    assert SLOW < found.compiling < found.seconds < found.compiling + SLOW
    assert all(found.compiling < seconds <= found.seconds for seconds in found.by_devices.values())
    assert found.seconds - found.by_devices[2] == pytest.approx(
        (found.seconds - found.compiling) / 2, rel=0.1
    )


def test_what_a_run_would_refuse_is_refused(tmp_path):
    member = base(variant("class-token")).pruned((0, 1), (1, 2, 3), (0,)).save(tmp_path / "member.st")
    config = ScoreConfig(model=str(member), out=tmp_path / "s.json", budget=HeadBudget(remove=2), **DATA)

    for work in (run_score, estimate.run_estimate):
        with pytest.raises(CheckpointError, match="is a member, but `score` needs a base"):
            work(config)


def test_an_estimate_is_one_document(model, tmp_path, capsys):
    words = ["score", model, "--data", "digits::classes=0-6,limit=40", "--objective", "acc", "--remove", "3"]

    main(
        [
            *words,
            "--search",
            "exact",
            "--batch-size",
            "16",
            "-o",
            str(tmp_path / "s.json"),
            "--estimate",
            "--json",
        ]
    )

    found = json.loads(capsys.readouterr().out)
    assert found["candidates"] == 12 + 11 + 10
    assert found["seconds"] == found["by_devices"]["1"] > found["by_devices"]["2"]
    assert found["memory"] > 0 < found["passes"]
    assert found["compiling"] == 0
    assert not list(tmp_path.iterdir())
