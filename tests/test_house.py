"""`.ci/house.py` counts correctly and detects growth, and the page on architecture has valid names."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / ".ci" / "house.py"

MODULE = '''"""A docstring
of two lines."""

from math import (
    ceil,
    floor,
)


def halves(number):  # a comment
    """Return both."""
    found = number / 2

    return floor(found), ceil(found)
'''


PAGE = """# Prune heads

Choose what it prunes. [What is it?](https://example.com/what-it-is) `what it is` `what`

```
what it told you about it
```

| what | it |
"""


@pytest.fixture
def house(tmp_path, monkeypatch):
    """Return the script, for a package of two modules with matching figures."""
    spec = importlib.util.spec_from_file_location("house", SCRIPT)
    house = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(house)
    for name in ("core", "research"):
        (tmp_path / "hydractl" / name).mkdir(parents=True)
        (tmp_path / "hydractl" / name / "halves.py").write_text(MODULE)
    monkeypatch.setattr(house, "ROOT", tmp_path)
    monkeypatch.setattr(house, "FIGURES", tmp_path / "house.toml")
    monkeypatch.setattr(sys, "argv", ["house.py"])
    (tmp_path / "README.md").write_text(PAGE)
    counts, _ = house.measure(tmp_path / "hydractl")
    counts["prose"], _ = house.hard_words(tmp_path)
    house.FIGURES.write_text(house.to_toml(counts))
    return house


def test_statements_names_and_lines_are_counted(house, tmp_path):
    counts, _ = house.measure(tmp_path / "hydractl")
    # def, assignment and return; not the import and the docstrings.
    assert counts["statements"] == {"total": 6, "without research": 3}
    assert counts["files"] == {"core": 1}
    # Four lines of an import and three of code. `halves` twice, `number`, `found`.
    assert counts["percent"] == {"imports": 57.14, "vague names": 25.0, "generic names": 0.0}
    assert counts["largest"] == {"lines of a file": 14, "modules of a folder": 1}


def test_hard_words_are_counted_in_sentences_without_code_and_tables(house, tmp_path):
    (tmp_path / "hydractl" / "core" / "halves.py").write_text(
        '"""Return halves; none for an odd number.\n\nArgs:\n    a: What is halved, it says.\n"""\nx = "what is it"  # noqa: what is it here\n'
    )
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_halves.py").write_text(
        "# The number stands for its halves, as well as for it.\n"
    )
    shares, places = house.hard_words(tmp_path)
    names = ("stand-ins per 100 words", "what per 1,000 words", "odd words per 1,000 words")
    by_tree = {tree: [shares[f"{name}, {tree}"] for name in names] for tree in house.TREES}
    # 5 words each: "none for an odd number", "What is halved, it says", and the docstring of the other module
    assert by_tree["package"] == [20.0, 66.7, 66.7]
    assert by_tree["tests and benchmarks"] == [round(100 * 4 / 11, 1), 0.0, round(1000 * 2 / 11, 1)]
    assert by_tree["pages"] == [50.0, 250.0, 0.0]
    assert places["what per 1,000 words, pages"] == "README.md (1)"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1\n", "statements: `without research` is 4, above 3; look at core (4), research (3)"),
        ("", "files: `core` is 2, above 1; look at core (2), research (1)"),
        (
            "kept = 1\n",
            "percent: `vague names` is 30, above 25; look at",
        ),
        ("value = 1\n", "percent: `generic names` is 10, above 0; look at `value` in core/extra.py (1)"),
        ("\n" * 15, "largest: `lines of a file` is 15, above 14; look at core/extra.py (15)"),
        ("", "largest: `modules of a folder` is 2, above 1; look at core (2), research (1)"),
        ("from a import b\n", "percent: `imports` is 60, above 57.14"),
    ],
)
def test_what_has_grown_is_said_with_where_to_look(house, tmp_path, capsys, text, said):
    assert house.main() == 0
    (tmp_path / "hydractl" / "core" / "extra.py").write_text(text)
    assert house.main() == 1
    assert said in capsys.readouterr().err


def test_figures_fall_and_never_rise(house, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["house.py", "--lower"])
    for text, figure in ((MODULE + "x = 1\n", 3), ("x = 1\n", 1), (MODULE, 1)):
        (tmp_path / "hydractl" / "core" / "halves.py").write_text(text)
        assert house.main() == 0
        figures = tomllib.loads(house.FIGURES.read_text())
        assert figures["statements"] == {"total": 3 + figure, "without research": figure}


def test_a_figure_never_rises_above_a_commit(house, tmp_path, monkeypatch, capsys):
    def git(*arguments):
        identity = ("-c", "user.name=x", "-c", "user.email=x@y.example")
        subprocess.run(["git", "-C", tmp_path, *identity, *arguments], check=True, capture_output=True)

    def commit(text, date):
        house.FIGURES.write_text(text)
        monkeypatch.setenv("GIT_COMMITTER_DATE", date)
        git("add", ".")
        git("commit", "-m", "figures")
        capsys.readouterr()
        return house.main()

    assert house.main() == 0
    assert "git has no history" in capsys.readouterr().err
    low = house.FIGURES.read_text()
    git("init")
    assert commit(low.replace("= 6", "= 5"), "2020-01-01T00:00:00Z") == 1  # The count is 6.
    assert commit(low.replace("= 6", "= 7"), "2090-01-01T00:00:00Z") == 0
    assert commit(low, "2090-01-02T00:00:00Z") == 0
    assert commit(low.replace("= 6", "= 8"), "2090-01-03T00:00:00Z") == 1
    assert capsys.readouterr().err.splitlines() == [
        f"house.toml: statements: `total` is 8, above {figure} of an earlier commit. Only an issue raises a figure."
        for figure in (6, 7)
    ]


def test_the_page_on_contributing_names_paths_that_exist():
    root = SCRIPT.parents[1]
    page = (root / "docs" / "CONTRIBUTING.md").read_text(encoding="utf-8")
    paths = re.findall(r"`([\w/]+/\w+\.py)[:`]", page)
    assert len(paths) > 50
    assert [
        path
        for path in paths
        if not any((root / top / path).exists() for top in ("", "hydractl", "hydractl/stages/evaluate"))
    ] == []


def test_a_stage_is_its_configuration_and_its_steps():
    """Stages have no other modules, and libraries import no stage: code below `run.py` takes plain values."""
    package = SCRIPT.parents[1] / "hydractl"
    modules = {
        folder.name: sorted(path.name for path in folder.glob("*.py"))
        for folder in (package / "stages").iterdir()
        if any(folder.glob("*.py"))
    }
    readers = {
        path.relative_to(package).parts[0]
        for path in package.rglob("*.py")
        if re.search(r"hydractl\.stages[\w.]*config\b", path.read_text(encoding="utf-8"))
    }

    assert {
        name: found for name, found in modules.items() if found != ["__init__.py", "config.py", "run.py"]
    } == {}
    assert readers <= {"__init__.py", "cli", "research", "stages"}
