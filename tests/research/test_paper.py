"""Tables of Hydra Ensembles in small: commands, claims about rows, and a page of the results."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from scipy import stats

from hydractl.research.methods.options import parse_method
from support.commands import check_plan

packed = pytest.importorskip("hydractl.research.methods.packed")
ROOT = Path(__file__).parents[2]
PAPER = ROOT / "benchmarks" / "paper"


@pytest.fixture
def claims(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.syspath_prepend(PAPER)
    import claims

    return claims


@pytest.fixture
def plan(claims, tmp_path):
    from measure import planned
    from promise_tasks import digits

    return planned(digits(tmp_path / "seed", 11), "digits")


def test_members_differ_in_what_a_row_says_and_in_nothing_else(plan):
    def told(name):
        words = plan.files[name].command
        return {o: words[words.index(o) + 1] for o in ("--order-seed", "--dropout-seed", "--seed")} | {
            "cut": words[1]
        }

    rows = {row.name: row.models for row in plan.rows}
    for row, varies in (
        ("order", "--order-seed"),
        ("dropout", "--dropout-seed"),
        ("heads", "cut"),
        ("none", None),
    ):
        first, *others = (
            told(name)
            for name in rows[
                "nothing varies"
                if row == "none"
                else f"only {row} varies"
                if row != "heads"
                else "only heads vary"
            ]
        )
        for other in others:
            assert {name for name in first if first[name] != other[name]} == ({varies} if varies else set())


@pytest.fixture
def zero_shot_plan(claims, tmp_path, monkeypatch):
    import zero_shot

    monkeypatch.setattr(zero_shot, "_train", lambda *_: None)
    (tmp_path / "shapes-data").mkdir()  # existing images are not drawn
    return zero_shot.of_set(zero_shot.planned(zero_shot.begun(tmp_path / "seed", 11)), "quarter-2")


def test_claims_are_about_rows_that_are_made(claims, plan, zero_shot_plan):
    from zero_shot import HYDRA_SCALED, SCALED

    made = {row.name for row in plan.rows}
    zero_shot = {row.name for row in zero_shot_plan.rows} | {SCALED, HYDRA_SCALED}

    for claim in claims.CLAIMS:
        assert {claim.first, claim.other} <= (made if claim.tuned else zero_shot)


@pytest.mark.parametrize("options", [(), ("--template", "a {label}")], ids=["tuned", "zero-shot"])
def test_commands_are_ones_that_a_user_could_type(plan, zero_shot_plan, options):
    check_plan(zero_shot_plan if options else plan, *options, ood=not options)


def test_hydras_of_a_quarter_know_its_classes(zero_shot_plan, tmp_path):
    from shapes import KNOWN

    words = zero_shot_plan.files["circuit-6-hydra-quarter-2.st"].command

    assert words[words.index("--classes") + 1].split(",") == [*KNOWN[6:12]]
    assert zero_shot_plan.data.test == f"{tmp_path}/shapes-data/test::classes={'+'.join(KNOWN[6:12])}"


@pytest.mark.parametrize(
    ("gaps", "equal", "more", "verdict"),
    [
        ((0.02, 0.021, 0.019), None, True, "holds"),
        ((0.02, 0.021, 0.019), None, False, "fails"),
        ((0.02, -0.021, 0.019), None, True, "open"),
        ((0.001, 0.0012, 0.0011), 0.005, True, "holds"),
        ((0.02, 0.021, 0.019), 0.005, True, "fails"),
        ((0.02, -0.021, 0.019), 0.005, True, "open"),
    ],
)
def test_a_claim_is_judged_by_the_whole_interval(claims, gaps, equal, more, verdict):
    claim = claims.Claim(
        table="0", first="a", other="b", metric="nll", is_higher=more, paper_numbers="", equal=equal
    )
    seeds = [{"a": {"nll": 1 + gap}, "b": {"nll": 1.0}} for gap in gaps]

    found = claims.judge(claim, seeds)

    low, high = stats.t.interval(0.95, 2, loc=found.gap, scale=stats.sem(gaps))
    assert found.verdict == verdict
    assert (found.gap - found.half, found.gap + found.half) == (pytest.approx(low), pytest.approx(high))
    assert claims.judge(claim, [{"a": {}, "b": {}}]) is None


def test_costs_are_those_of_the_papers_table(claims):
    from page import vit_b

    assert [vit_b(1, 12), vit_b(3, 8), 3 * vit_b(1, 12)] == pytest.approx([17.58, 46.19, 52.74], rel=2e-3)


def test_packed_members_share_the_width(plan):
    (row,) = [row for row in plan.rows if row.name == "packed"]
    commands = [plan.files[name].command for name in row.models]

    assert len({words[words.index("--seed") + 1] for words in commands}) == 3
    for words in commands:
        method = parse_method(words[words.index("--method") + 1])
        assert "embed_dim=48" in packed.narrow_reference(words[1], method)


def test_what_was_not_measured_is_said_and_what_was_has_a_row(claims, monkeypatch):
    import page

    (task, result), *_ = page.read_results().items()
    cells = "| hydra (circuits) has higher OOD AUROC than packed | "
    gone = ("packed", "circuit for OOD not tuned")
    seeds = [
        {
            name: {metric: value for metric, value in own.items() if metric not in page.DISTANCES}
            for name, own in seed.items()
            if name not in gone
        }
        for seed in result.rows
    ]

    monkeypatch.setattr(page, "read_results", lambda: {task: replace(result, rows=seeds)})
    before = "\n".join(page._lines())
    own = {"euclidean ood": 2.0, "mahalanobis ood": 3.0}
    more = [
        {**seed, "single": seed["single"] | own, "packed": seed["single"], gone[1]: seed["single"] | own}
        for seed in seeds
    ]
    monkeypatch.setattr(page, "read_results", lambda: {task: replace(result, rows=more)})
    after = "\n".join(page._lines())

    assert cells not in before
    assert "Table 1: hydra (circuits) has higher OOD AUROC than packed: not measured" in before
    assert "(Table 5) |" not in before
    assert cells in after
    assert not [
        line for line in after.splitlines() if "not measured" in line and any(n in line for n in gone)
    ]
    assert "| circuit for OOD not tuned | 2.000 | 3.000 |" in after
    assert "| packed |" not in before
    assert "| packed |" in after


def test_rows_that_not_every_seed_has_say_of_which_they_are(claims, monkeypatch):
    import page

    (task, result), *_ = page.read_results().items()
    first, *others = result.rows
    alone = replace(result, rows=[first], seeds=result.seeds[:1])
    monkeypatch.setattr(page, "read_results", lambda: {task: alone})
    (single,) = (line for line in page._lines() if line.startswith("| single | 0.") and line.count("|") > 10)
    monkeypatch.setattr(
        page,
        "read_results",
        lambda: {task: replace(result, rows=[{**first, "new": first["single"]}, *others])},
    )

    assert single.replace("single", f"new (only seed {result.seeds[0]})") in page._lines()
    assert [line for line in page._lines() if line.startswith("| oba |")]


def test_seeds_are_kept_one_by_one(claims, monkeypatch, tmp_path):
    import measure
    import page

    monkeypatch.setattr(measure, "RESULTS", tmp_path)
    path = tmp_path / "paper-shapes.json"
    for seed, value in ((12, 0.1), (11, 0.2), (12, 0.3)):
        measure.keep("shapes", seed, {"single": {"nll": value}})

    kept = page.Result.read(path)
    assert (kept.seeds, kept.epochs) == (("11", "12"), measure.EPOCHS["shapes"])
    assert kept.rows == [{"single": {"nll": 0.2}}, {"single": {"nll": 0.3}}]
    assert kept.command.endswith("measure.py shapes --seeds 11 12")
    assert len(kept.place) == 1

    path.write_text(json.dumps({**json.loads(path.read_text()), "epochs": [1, 2]}))
    with pytest.raises(SystemExit, match=r"1, 2\] epochs: remove the file first"):
        measure.keep("shapes", 13, {"single": {"nll": 0.1}})
    assert page.Result.read(path).seeds == ("11", "12")


def test_one_seed_decides_nothing(claims):
    claim = claims.Claim(table="0", first="a", other="b", metric="nll", is_higher=True, paper_numbers="")

    assert claims.judge(claim, [{"a": {"nll": 2.0}, "b": {"nll": 1.0}}]).verdict == "open"


def test_the_page_is_what_its_program_writes():
    done = subprocess.run(
        [sys.executable, PAPER / "page.py", "--check"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
