from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hydractl.cli import supported
from hydractl.families.registry import FAMILIES
from hydractl.families.transformers.hf_models import REFUSED

ROOT = Path(__file__).parents[2]
EMPTY = f"# T\n\n{supported.START}\n{supported.END}\n\nafter\n"


@pytest.fixture
def page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    return tmp_path / "docs" / "models.md"


def test_the_page_of_the_project_is_up_to_date(monkeypatch):
    monkeypatch.chdir(ROOT)
    assert supported.main(["--check"]) == 0, "run `python -m hydractl.cli.supported`"


def test_writing_twice_changes_nothing_and_the_rest_stays(page):
    page.write_text(EMPTY)
    assert supported.main(["--check"]) == 5
    assert page.read_text() == EMPTY
    assert supported.main([]) == 0
    once = page.read_text()
    assert once.startswith("# T\n\n")
    assert once.endswith("\n\nafter\n")
    assert supported.main([]) == supported.main(["--check"]) == 0
    assert page.read_text() == once


def test_every_family_and_every_refused_type_has_a_row():
    rows = [line.split(" | ") for line in supported.table().splitlines()]
    assert {len(row) for row in rows} == {4}
    assert {row[1] for row in rows[2:]} == {f"`{name}`" for name in FAMILIES} | {"–"}
    assert all(any(row[3].startswith(f"`{kind}`: ") for row in rows) for kind in REFUSED)


def test_every_family_says_what_it_covers():
    assert all(family.covers.strip() for family in FAMILIES.values())


@pytest.mark.parametrize(
    "text", [None, "", supported.START, f"{supported.END}{supported.START}", EMPTY + EMPTY],
    ids=["missing", "empty", "no-end", "reversed", "twice"],
)  # fmt: skip
def test_a_page_without_the_two_comments_is_left_alone(page, capsys, text):
    if text is not None:
        page.write_text(text)
    assert supported.main([]) == 3
    assert "lacks the two comments" in capsys.readouterr().err
    assert page.exists() == (text is not None)
    assert text is None or page.read_text() == text


def test_no_library_is_loaded():
    code = (
        "import sys, hydractl.cli.supported as s; s.table();"
        "print([m for m in ('torch', 'timm', 'transformers', 'open_clip') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"
