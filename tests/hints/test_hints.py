"""Each hint in the code is printed by a wrong command, and its command does not fail with the same error."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from support.hints.rows import all_rows
from support.hints.table import NUMBER, check
from support.hints.texts import hint_templates

ROWS = all_rows()
TESTS = Path(__file__).resolve().parents[1]
SLOW = {"bench", "export", "make", "run"}
"""Commands that run several stages or trace a model. The command of their hints runs with `--all-variants`
only, unless the hint contains a computed number."""
FOLLOWED = 3
"""A plain run follows every third hint of the other commands, and `--all-variants` follows all."""


@pytest.mark.parametrize(("place", "row"), [*enumerate(row for row in ROWS if not row.test)], ids=str)
@pytest.mark.usefixtures("folder")
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # datasets does not close a metadata file with errors.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_second_command_follows_the_hint(place, row, request):
    tried = place % FOLLOWED == 0 and row.right.partition(" ")[0] not in SLOW
    check(row, follow=tried or NUMBER in row.right or request.config.getoption("all_variants"))


def test_each_hint_has_a_row():
    """A hint defined in n files needs n rows."""
    rows, templates = Counter(row.hint for row in ROWS), hint_templates()

    assert sorted((templates - rows).elements()) == []
    assert sorted({*rows} - {*templates}) == [], "rows of hints that the code does not contain"


@pytest.mark.parametrize("row", [row for row in ROWS if row.test], ids=str)
def test_the_test_that_stands_for_a_row_exists(row):
    file, _, function = row.test.partition("::")

    assert f"def {function}(" in (TESTS.parent / file).read_text(encoding="utf-8")
