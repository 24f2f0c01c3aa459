"""Recorded options of `michel` and `headmap`, and equal bytes after an interruption."""

from __future__ import annotations

import json

import pytest

from hydractl.errors import UsageError
from hydractl.heads.budget import HeadBudget
from hydractl.manifest.head_mask import HeadImportance
from hydractl.scoring.journal import JournalFile
from hydractl.stages.score.config import ScoreConfig
from hydractl.stages.score.run import run_score
from support.progress_log import InterruptedLoop

DIGITS = "digits::classes=0-6,limit=40"


def config(model, out, method, **changes):
    settings = {"data": DIGITS, "budget": HeadBudget(remove=5), "batch_size": 16} | changes
    return ScoreConfig(model=model, out=out, method=method, **settings)


@pytest.mark.parametrize(
    ("method", "given", "recorded"),
    [
        ("michel", {}, {"form": "sample", "normalize": "layer", "recompute": 0}),
        ("headmap", {"samples": 8}, {"samples": 8, "keep": 2}),
    ],
)
def test_a_file_says_what_was_set(model, tmp_path, method, given, recorded):
    for name in ("a.json", "b.json"):
        run_score(config(model, tmp_path / name, method, given=given))

    found = HeadImportance.read(tmp_path / "a.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert recorded.items() <= found.options.items()
    assert [len(row) for row in found.towers["vision"].scores] == [4, 4, 4]


@pytest.mark.parametrize(
    ("method", "given", "lines"), [("michel", {"recompute": 1}, 2), ("michel", {"recompute": 2}, 4)]
)
def test_an_interrupted_run_ends_with_the_same_bytes(model, tmp_path, method, given, lines):
    whole, out = tmp_path / "whole.json", tmp_path / "s.json"
    run_score(config(model, whole, method, given=given))
    with pytest.raises(KeyboardInterrupt):
        run_score(config(model, out, method, given=given), InterruptedLoop(2))
    assert len(json.loads((tmp_path / "s.json.journal").read_text())["removals"]) == lines

    report = run_score(config(model, out, method, given=given))

    assert report.resumed_from == lines
    assert out.read_bytes() == whole.read_bytes()
    assert report.scores.objective == "-nll"
    assert len(report.scores.removals) == 5


def test_a_step_that_was_cut_off_is_done_again(model, tmp_path):
    whole, out, journal = tmp_path / "whole.json", tmp_path / "s.json", tmp_path / "s.json.journal"
    run_score(config(model, whole, "michel", given={"recompute": 2}))
    with pytest.raises(KeyboardInterrupt):
        run_score(config(model, out, "michel", given={"recompute": 2}), InterruptedLoop(2))
    stored = JournalFile.read(journal)
    journal.write_text(stored.model_copy(update={"removals": stored.removals[:-1]}).sealed().to_json())

    run_score(config(model, out, "michel", given={"recompute": 2}))

    assert out.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize(
    ("method", "given", "message"),
    [
        ("michel", {"samples": 8}, "`--samples` has no effect with `--method michel`"),
        ("headmap", {"samples": 0}, "`--samples 0`: must be at least 1"),
    ],
)
def test_bad_settings_leave_nothing_behind(model, tmp_path, method, given, message):
    with pytest.raises(UsageError, match=message):
        run_score(config(model, tmp_path / "s.json", method, given=given))

    assert not list(tmp_path.iterdir())
