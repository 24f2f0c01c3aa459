"""Messages outside of a stage."""

from __future__ import annotations

from hydractl.progress import SILENT


def test_silence_hands_the_items_on():
    assert list(SILENT.track(range(3), label="x", total=3)) == [0, 1, 2]
