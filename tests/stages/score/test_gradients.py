"""Options and results of `taylor`, `magnitude` and `cahp` in the scores file."""

from __future__ import annotations

import json

import pytest

from hydractl.errors import UsageError
from hydractl.heads.budget import HeadBudget
from hydractl.manifest.head_mask import HeadImportance
from hydractl.stages.score.config import ScoreConfig
from hydractl.stages.score.run import run_score
from support.reviews import arch, reviews

DIGITS = "digits::classes=0-6,limit=40"


def config(model, out, method, **changes):
    settings = {"data": DIGITS, "budget": HeadBudget(remove=5), "batch_size": 16} | changes
    return ScoreConfig(model=model, out=out, method=method, **settings)


@pytest.mark.parametrize(
    ("method", "given", "recorded"),
    [
        ("taylor", {"variant": "molchanov"}, {"variant": "molchanov", "scope": "layer", "normalize": "none"}),
        ("magnitude", {"normalize": "tower"}, {"normalize": "tower"}),
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
    ("method", "given", "message"),
    [
        ("circuit", {"normalize": "layer"}, "`--normalize` has no effect with `--method circuit`"),
    ],
)
def test_bad_settings_leave_nothing_behind(model, tmp_path, method, given, message):
    with pytest.raises(UsageError, match=message):
        run_score(config(model, tmp_path / "s.json", method, given=given))

    assert not list(tmp_path.iterdir())


def test_the_salience_of_cahp_is_of_the_first_texts(tmp_path):
    """Salience uses the first of four batches, in the order of the data, for texts of any length."""
    rows = [json.loads(line) for line in reviews(tmp_path / "all.jsonl", 32, seed=0).read_text().splitlines()]
    rows.sort(key=lambda row: len(row["text"]))
    short, long = rows[:16], rows[16:]

    def salience(name, first, rest):
        chosen = [*first[:4], *rest]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in chosen))
        settings = {"data": str(tmp_path / f"{name}.jsonl"), "batch_size": 4, "given": {"signature_size": 8}}
        asked = ScoreConfig(model=arch(tmp_path), out=tmp_path / f"{name}.json", method="cahp", **settings)
        return run_score(asked).scores.towers

    base_of_all = salience("a", short, long[:12])

    assert salience("b", short, long[2:14]) == base_of_all
    assert salience("c", short[4:], long[:12]) != base_of_all
