from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hydractl.cli import completion
from hydractl.families.registry import FAMILIES
from hydractl.families.transformers.hf_models import REFUSED

ROOT = Path(__file__).parents[2]
EMPTY = f"# T\n\n{completion.START}\n{completion.END}\n\nafter\n"


@pytest.fixture
def page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    return tmp_path / "docs" / "models.md"


def test_writing_twice_changes_nothing_and_the_rest_stays(page):
    page.write_text(EMPTY)
    once = completion.models_page()
    assert once.startswith("# T\n\n")
    assert once.endswith("\n\nafter\n")
    page.write_text(once)
    assert completion.models_page() == once


def test_every_family_and_every_refused_type_has_a_row():
    rows = [line.split(" | ") for line in completion.model_table().splitlines()]
    assert {len(row) for row in rows} == {4}
    assert {row[1] for row in rows[2:]} == {f"`{name}`" for name in FAMILIES} | {"–"}
    assert all(any(row[3].startswith(f"`{kind}`: ") for row in rows) for kind in REFUSED)


def test_every_family_says_what_it_covers():
    assert all(family.covers.strip() for family in FAMILIES.values())


@pytest.mark.parametrize(
    "text", [None, "", completion.START, f"{completion.END}{completion.START}", EMPTY + EMPTY],
    ids=["missing", "empty", "no-end", "reversed", "twice"],
)  # fmt: skip
def test_a_page_without_the_two_comments_is_left_alone(page, text):
    if text is not None:
        page.write_text(text)
    with pytest.raises(SystemExit, match="lacks the two comments"):
        completion.main([])
    assert [path.name for path in page.parents[1].rglob("*.*")] == ([] if text is None else ["models.md"])
    assert text is None or page.read_text() == text


def test_no_library_is_loaded():
    code = (
        "import sys, hydractl.cli.completion as s; s.model_table();"
        "print([m for m in ('torch', 'timm', 'transformers', 'open_clip') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"
