"""`hydractl score`: what it says about a budget that nobody gave."""

from __future__ import annotations

import pytest

DATA = "digits::classes=0-6,limit=8"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            ("--objective", "acc", "--data", DATA),
            "No budget given: 3 of 8 heads were removed, two thirds stay.",
        ),
        (("--method", "taylor", "--data", DATA), "No budget given: each layer was scored down to two thirds"),
    ],
)
def test_a_default_budget_is_said(call, work, options, text):
    seen = call("score", "base.st", *options, "-o", "new.json")

    assert text in seen.out
    assert "`--keep N`, `--remove R` or `--keep-fraction F`" in seen.out


@pytest.mark.parametrize(
    "options",
    [("--objective", "acc", "--data", DATA, "--remove", "2"), ("--method", "magnitude")],
)
def test_no_default_is_said_where_none_was_used(call, work, options):
    assert "No budget given" not in call("score", "base.st", *options, "-o", "new.json").out


def test_the_default_is_in_the_help(call):
    words = " ".join(call("score", "--help").out.replace("│", " ").split())

    assert "default without a budget: 2/3" in words
    assert "Without a budget two thirds of the heads are kept" in words


def test_one_removal_is_one_removal(call, work):
    seen = call("score", "base.st", "--objective", "acc", "--data", DATA, "--remove", "1", "-o", "new.json")

    assert "1 removals" not in seen.out
