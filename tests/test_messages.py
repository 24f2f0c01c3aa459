from __future__ import annotations

import pytest

from hydractl.errors import DataError
from hydractl.messages import counted, did_you_mean, did_you_mean_path, duration_text, quoted


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


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("magnitud", "magnitude"),
        # A candidate that starts with the word is preferred to the similar `gcvit_tiny`.
        ("vit_tiny", "vit_tiny_patch16_224"),
        ("vit_tiny_patch16_24", "vit_tiny_patch16_224"),
        ("zzz", None),
        ("", None),
    ],
)
def test_the_nearest_name(name, near):
    known = {"magnitude", "random", "gcvit_tiny", "vit_tiny_patch16_224", "vit_tiny_patch16_224_in21k"}

    assert did_you_mean(name, known) == (near and f"did you mean `{near}`?")


@pytest.mark.parametrize(
    ("typed", "near"),
    [
        ("trian/", "train/"),
        ("./trian", "train"),
        ("trian/cat", "train/cat"),
        ("train/cta", "train/cat"),
        ("trian/cta", None),  # One wrong part is corrected, two are not.
        ("bse.st", "base.st"),
        ("elsewhere", None),
        ("nowhere/at/all", None),
    ],
)
def test_the_nearest_path(typed, near, tmp_path, monkeypatch):
    (tmp_path / "train" / "cat").mkdir(parents=True)
    (tmp_path / "base.st").touch()
    monkeypatch.chdir(tmp_path)

    assert did_you_mean_path(typed) == (near and f"did you mean `{near}`?")
    folder, ending = tmp_path / typed, "/" if typed.endswith("/") else ""
    assert did_you_mean_path(f"{folder}{ending}") == (near and f"did you mean `{tmp_path / near}{ending}`?")


def test_a_hint_does_not_steer_the_terminal(tmp_path):
    (tmp_path / "tr\x1b[31main").mkdir()

    assert "\x1b" not in str(DataError("x", hint=did_you_mean_path(str(tmp_path / "tr[31main"))).hint)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.04 s"), (1.14, "1 s"), (59, "59 s"), (60, "1.0 min"), (3599, "60.0 min"), (9000, "2.5 h")],
)
def test_a_time_has_the_unit_that_fits(seconds, text):
    assert duration_text(seconds) == text
