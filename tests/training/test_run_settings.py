"""Message about a run that was started with other settings."""

from __future__ import annotations

import pytest

from hydractl.training.resume import changes, texts_of


def test_settings_are_short_texts():
    texts = texts_of(
        {"lr": 0.1, "ema": True, "layers": (1, 2), "none": None, "empty": [], "names": ["x"] * 99}
    )

    assert texts == {"lr": "0.1", "ema": "true", "layers": "1,2", "empty": "none", "names": texts["names"]}
    assert texts["names"].startswith("sha256:")
    assert len(texts["names"]) == 19


@pytest.mark.parametrize(
    ("before", "now", "text"),
    [
        ({}, {"lr": "1"}, None),
        ({"lr": "1"}, {"lr": "1"}, None),
        ({"lr": "1", "seed": "0"}, {"lr": "2", "seed": "0"}, "`lr` was 1, is now 2"),
        ({"lr": "1", "ema": "true"}, {"lr": "1"}, "`ema` was true, is now not set"),
        (dict.fromkeys("abcde", "1"), dict.fromkeys("abcde", "2"), "`a` was 1, is now 2; `b` was 1, is now 2; `c` was 1, is now 2; 2 more"),
    ],
)  # fmt: skip
def test_what_differs_is_named_from_which_value_to_which(before, now, text):
    assert changes(before, now) == text
