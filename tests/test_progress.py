from __future__ import annotations

import pytest

from hydractl.progress import SILENT, counted


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 heads"), (1, "1 head"), (2, "2 heads"), (144, "144 heads")]
)
def test_only_one_is_singular(number, text):
    assert counted(number, "head") == text


def test_silence_hands_the_items_on():
    assert list(SILENT.track(range(3), label="x", total=3)) == [0, 1, 2]
