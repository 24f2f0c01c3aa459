"""`hydractl report`: output files, errors, and curves from `eval` to the page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydractl.manifest.report import Report
from hydractl.reporting.comparison import distinct_names
from support.reports import seeded

DATA = "digits::split=test,classes=0-6,limit=30"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Three reports of seeds, in the current folder."""
    for seed in range(3):
        (tmp_path / f"{seed}.json").write_text(seeded(seed).to_json())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_without_an_output_the_tables_are_shown(call, folder):
    seen = call("report", "0.json", "1.json")

    assert (seen.code, seen.err) == (0, "")
    assert seen.out.startswith("hydra ")
    assert "hydra − Deep ensemble" in seen.out
    assert sorted(path.name for path in folder.iterdir()) == ["0.json", "1.json", "2.json"]


def test_json_names_quantities_as_conditions_do(call, folder):
    seen = call("report", "0.json", "1.json", "--json")

    found = json.loads(seen.out)
    assert found["files"] == ["0.json", "1.json"]
    assert found["rows"]["hydra"]["auroc[all]"].keys() == {"value", "low", "high", "deviation"}
    assert found["differences"].keys() == {"base", "Deep ensemble"}
    assert (found["verdict"][:9], found["paths"]) == ("hydra is ", [])
    assert found["judgements"]["base"].keys() == {"accuracy", "nll", "ece", "auroc[birds]", "auroc[noise]"}


@pytest.mark.parametrize(
    ("name", "begins"), [("p.html", "<!doctype html>"), ("p.md", "# hydra against base")]
)
def test_the_suffix_says_what_is_written(call, folder, name, begins):
    seen = call("report", "0.json", "-o", name)

    text = (folder / name).read_text()
    assert (seen.code, seen.out.splitlines()[-1]) == (0, f"Wrote {name}")
    assert text.startswith(begins)
    assert call("report", "0.json", "-o", name).code == 6
    assert call("report", "1.json", "-o", name, "--force", "-q").out == f"{name}\n"
    assert (folder / name).read_text() != text


def test_standard_output_gets_markdown(call, folder):
    seen = call("report", "0.json", "-o", "-")

    assert seen.out.startswith("# hydra against base and Deep ensemble\n")
    assert call("report", "0.json", "-o", "p.md").code == 0
    assert (seen.out, seen.err) == ((folder / "p.md").read_text(), "")  # The page is printed once.


def test_figures_are_files_that_markdown_shows(call, folder):
    (folder / "text").mkdir()
    seen = call("report", "0.json", "1.json", "-o", "text/p.md", "--figures", "a figure's folder", "-q")

    figures = folder / "a figure's folder"
    names = ["cost", "heads", "reliability", "risk", "roc"]
    assert (seen.code, seen.err) == (0, "")
    assert sorted(path.name for path in figures.iterdir()) == [
        f"{n}{s}" for n in names for s in (".png", ".svg")
    ]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in figures.glob("*.png"))
    shown = re.findall(r"!\[.+\]\((.+)\)", (folder / "text" / "p.md").read_text())
    assert sorted(shown) == [f"../a%20figure%27s%20folder/{name}.png" for name in names]
    assert len(seen.out.splitlines()) == 11

    again = call("report", "0.json", "--figures", "a figure's folder")
    assert (again.code, "a figure's folder/risk.png: already exists" in again.err) == (6, True)


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (["0.json", "0.json"], 3, "0.json: is the same report as 0.json"),
        (["0.json", "copy.json"], 3, "copy.json: is the same report as 0.json"),
        (["0.json", "few.json"], 3, "few.json: has no row `Deep ensemble`, which 0.json has"),
        (["none.json"], 3, "none.json: "),
        (["mask.json"], 3, "mask.json: schema is"),
        (["0.json", "-o", "p.pdf"], 2, "`-o p.pdf`: a page must have the suffix .html or .md"),
        (["0.json", "-o", "none/p.md"], 3, "none/p.md: folder `none` does not exist"),
        (["0.json", "-o", "here.md", "--figures", "0.json"], 3, "0.json: is a file, not a folder"),
        (["0.json", "-q"], 2, "`-q` prints only the paths written, but nothing is written"),
        (["0.json", "--force"], 2, "`--force` has no effect without an output"),
        (["-", "-"], 2, "only one report can come from standard input"),
        (["bare.json", "--figures", "figures"], 2, "`--figures`: the reports have no curves to draw"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_and_nothing_is_written(call, folder, argv, code, said):
    (folder / "copy.json").write_text(" " + (folder / "0.json").read_text())
    (folder / "few.json").write_text(seeded(7, names=("hydra", "base")).to_json())
    (folder / "bare.json").write_text(seeded(7, names=("hydra",), curves=False).to_json())
    (folder / "mask.json").write_text('{"schema": "hydractl.head-mask/1"}')
    before = {path: path.read_bytes() for path in folder.iterdir()}

    seen = call("report", *argv)

    assert (seen.code, seen.out) == (code, "")
    assert seen.err.startswith(f"error: {said}")
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_what_is_up_to_date_is_left_and_what_a_report_made_is_replaced(call, folder):
    for name, seed in (("few", 0), ("other", 1)):
        (folder / f"{name}.json").write_text(seeded(seed, curves=False).to_json())
    line = ["report", "few.json", "-o", "p.md", "--figures", "figures", "--if-changed"]
    first, second = call(*line), call(*line)
    made = {path: path.stat().st_mtime_ns for path in [folder / "p.md", *(folder / "figures").iterdir()]}

    assert (first.code, second.code, second.out.splitlines()[-1]) == (0, 0, "p.md: up to date")
    assert (len(made), len(second.out.splitlines())) == (3, 3)
    (folder / "few.json").write_text((folder / "other.json").read_text())
    assert call(*line, "--json").code == 0
    assert all(path.stat().st_mtime_ns != when for path, when in made.items())
    (folder / "figures" / "cost.svg").write_text("<svg/>")
    assert call(*line).err.startswith("error: figures/cost.svg: was not written by hydractl")
    assert (folder / "figures" / "cost.svg").read_text() == "<svg/>"
    assert call("report", "few.json", "--if-changed").code == 2


def test_eval_says_who_makes_pages(call, folder):
    seen = call("eval", "m.st", "--data", "digits", "-o", "r.html")

    assert seen.code == 2
    assert "hint: `-o r.json`, and then `hydractl report r.json -o r.html`" in seen.err


@pytest.fixture(scope="module")
def curved(made, tmp_path_factory):
    """Reports of `eval` for a hydra and a base: with curves, without, and with curves again."""
    from hydractl.cli.app import main

    folder = tmp_path_factory.mktemp("curved")
    line = [
        "eval", str(made / "hydra.st"), "--data", DATA, "--near", "9=digits::classes=9,limit=20", "--far", "noise::limit=20,size=8",
        "--compare", f"base={made / 'base.st'}", "--no-latency", "--bootstrap", "4", "--device", "cpu", "-q", "-o",
    ]  # fmt: skip
    for name, more in (("with", []), ("without", ["--no-curves"]), ("again", ["--curves"])):
        assert main([*line, str(folder / f"{name}.json"), *more]) == 0
    return folder


def test_curves_are_kept_unless_they_are_not_wanted_and_say_what_the_numbers_do(curved, made):
    report, without = (Report.read(curved / f"{name}.json") for name in ("with", "without"))

    assert (curved / "with.json").read_bytes() == (curved / "again.json").read_bytes()
    assert "curves" not in (curved / "without.json").read_text()
    bare = [row.model_copy(update={"curves": None, "by_class": None, "origins": ()}) for row in report.rows]
    assert tuple(bare) == without.rows
    for row in report.rows:
        bins = row.curves.reliability
        ece = (
            sum(n * abs(a - c) for n, c, a in zip(bins.count, bins.confidence, bins.accuracy, strict=True))
            / 30
        )
        assert ece == pytest.approx(row.values["ece"].value, abs=1e-9)
        assert row.curves.risk.y[-1] == pytest.approx(1 - row.values["accuracy"].value)
        assert row.curves.roc.keys() == {"9", "noise"}
    hydra, base = (row.origins[0] for row in report.rows)
    assert (len(hydra.masks), hydra.made_by.command, base.made_by) == (3, "fuse", None)


@pytest.mark.parametrize("name", ["report-curves-1", "report-answers-1", "report-answers-2"])
def test_curves_and_answers_of_this_version_are_read_for_ever_and_dumped_byte_for_byte(call, name):
    golden = Path(__file__).parent.parent / "golden" / f"{name}.json"
    text = golden.read_text(encoding="utf-8")

    assert Report.from_json(text, place="golden").to_json() == text
    assert call("report", golden).code == 0


def test_a_real_report_becomes_a_page(curved, call, tmp_path):
    seen = call("report", curved / "with.json", "-o", tmp_path / "page.html", "-q")

    text = (tmp_path / "page.html").read_text()
    assert seen.code == 0
    assert all(f'<figure id="{name}">' in text for name in ("cost", "reliability", "roc", "risk", "heads"))
    assert str(tmp_path.parent) not in text


PATHS = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=4).map("/".join)


@given(st.lists(PATHS, min_size=1, max_size=5))
def test_short_names_tell_apart_what_names_do(names):
    found = distinct_names(names)

    assert len(set(found)) == len(set(names))
    assert all(f"/{name}".endswith(f"/{short}") for name, short in zip(names, found, strict=True))


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["runs/0/scores.json"], ["scores.json"]),
        (["x/taylor/s.json", "x/circuit/s.json", "m.json"], ["taylor/s.json", "circuit/s.json", "m.json"]),
        (["s.json", "x/s.json"], ["s.json", "x/s.json"]),
        (["x/s.json", "x/s.json"], ["s.json", "s.json"]),
        (["out/hydra.st: a.st", "out/hydra.st: b.st"], ["hydra.st: a.st", "hydra.st: b.st"]),
        (["folder/", "stdin"], ["folder/", "stdin"]),
    ],
)
def test_names_lose_the_folders_that_say_nothing(names, shown):
    assert distinct_names(names) == tuple(shown)
