from __future__ import annotations

import pytest

from hydractl.progress import SILENT, counted, quoted


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 heads"), (1, "1 head"), (2, "2 heads"), (144, "144 heads")]
)
def test_only_one_is_singular(number, text):
    assert counted(number, "head") == text


@pytest.mark.parametrize(
    ("most", "text"),
    [(None, "`a`, `b`, `c`"), (3, "`a`, `b`, `c`"), (2, "`a`, `b`, ..."), (4, "`a`, `b`, `c`")],
)
def test_names_beyond_the_first_are_dots(most, text):
    assert quoted(iter("abc"), most=most) == text
    assert quoted((), most=most) == ""


def test_silence_hands_the_items_on():
    assert list(SILENT.track(range(3), label="x", total=3)) == [0, 1, 2]
