"""`hydractl score`: the message about the default budget."""

from __future__ import annotations

import re

import pytest

from hydractl.errors import DataError

DATA = "digits::classes=0-6,limit=8"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            ("--objective", "acc", "--data", DATA),
            "Default budget: 3 of 8 heads are removed, two thirds are kept.",
        ),
        (
            ("--method", "taylor", "--data", DATA),
            "Default budget: two thirds of the heads of each layer are kept",
        ),
    ],
)
def test_a_default_budget_is_said(call, work, options, text):
    seen = call("score", "base.st", *options, "-o", "new.json")

    assert text in seen.out
    assert "`--keep-heads N`, `--remove R` or `--keep-fraction F`" in seen.out


@pytest.mark.parametrize(
    "options",
    [("--objective", "acc", "--data", DATA, "--remove", "2"), ("--method", "magnitude")],
)
def test_no_default_is_said_where_none_was_used(call, work, options):
    assert "Default budget" not in call("score", "base.st", *options, "-o", "new.json").out


def test_the_default_is_in_the_help(call):
    words = " ".join(call("score", "--help").out.split())

    assert "Keep the fraction F of all heads (default: 2/3)." in words
    assert "The default budget keeps two thirds of the heads" in words


def test_one_removal_is_one_removal(call, work):
    seen = call("score", "base.st", "--objective", "acc", "--data", DATA, "--remove", "1", "-o", "new.json")

    assert "1 removals" not in seen.out


def test_groups_of_heads_are_told(call, work):
    options = ("--embedding", "none", "--signature-size", "4", "--salience-share", "1", "--degree", "2")
    seen = call(
        "score", "base.st", "--method", "cahp", "--data", DATA, "--remove", "2", *options, "-o", "new.json"
    )

    assert "8 heads in 6 groups: one of each is kept, and at least one in each layer" in seen.out
    assert "Default budget" not in seen.out


CIRCUIT = ("--data", DATA, "--remove", "3")


def test_what_a_search_took_is_told(call, work):
    seen = call(
        "score", "base.st", "--objective", "acc-0.1*nll", "--search", "lazy", *CIRCUIT, "-o", "new.json"
    )

    assert "acc-0.1*nll after" in seen.out
    assert re.search(
        r"Evaluated \d+ of 21 candidates on all data: [\d.]+% of the work of `--search exact`", seen.out
    )


def test_an_exact_search_has_nothing_to_tell(call, work):
    assert "Valued" not in call("score", "base.st", "--objective", "acc", *CIRCUIT, "-o", "new.json").out


@pytest.mark.parametrize(
    ("options", "given", "bound"),
    [
        ((), {}, None),
        (("--objective=-nll", "--search", "lazy"),
         {"objective": "-nll", "search": "lazy"}, None),
        (("--ood-score", "max-logit", "--max-memory", "1.5GiB"), {"ood_score": "max-logit"}, 3 << 29),
    ],
)  # fmt: skip
def test_options_reach_the_stage(monkeypatch, call, work, options, given, bound):
    seen = []

    def stop(config, progress):
        seen.append(config)
        raise DataError("far enough")

    monkeypatch.setattr("hydractl.stages.score.run.run_score", stop)
    ood = () if "nll" in "".join(options) else ("--ood", "noise::limit=8")
    call("score", "base.st", "--data", "digits", *ood, *options, "-o", "new.json")

    assert dict(seen[0].given) == given
    assert seen[0].max_memory == bound


@pytest.mark.parametrize("size", ["", "much", "2 GiB extra", "-1GB", "0.5B", "2QB"])
def test_bad_sizes(call, work, size):
    seen = call("score", "base.st", "--objective", "acc", *CIRCUIT, f"--max-memory={size}", "-o", "new.json")

    assert (seen.code, "is not a memory size" in seen.err) == (2, True)
    assert not (work / "new.json").exists()
