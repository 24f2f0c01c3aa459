"""The verdict: a judgement of each measure by the interval, and a short sentence."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydractl.manifest.document import Value
from hydractl.manifest.guarantees import ByClass, ClassHits
from hydractl.manifest.report import Difference
from hydractl.metrics.registry import METRICS
from hydractl.reporting.comparison import Compared
from hydractl.reporting.report_values import Quantity
from hydractl.reporting.verdict import MOST_WORDS, judgements, remarks, sentence, verdict_table
from support.reports import seeded

NAME = st.lists(st.text("abc−|", min_size=1, max_size=5), min_size=1, max_size=40).map(" ".join)


@given(st.lists(NAME, min_size=1, max_size=5, unique=True), st.booleans())
def test_it_is_one_sentence_of_thirty_words_at_most_whatever_models_are_called(names, with_ood):
    sets = {} if with_ood else {"near": (), "far": ()}
    said = sentence(Compared.of({"a.json": seeded(0, names=tuple(names), **sets)}))

    assert 3 < len(said.split()) <= MOST_WORDS == 30
    assert said.endswith(".")
    assert said[:-1].count(". ") == 0


END = st.floats(-2, 2, allow_subnormal=False)


@given(
    st.sampled_from(["accuracy", "nll", "ece", "auroc"]),
    st.tuples(END, END, END).map(sorted),
    st.none() | st.floats(0, 1),
)
def test_better_is_a_difference_of_sufficient_size_with_the_whole_interval_on_one_side(
    metric, ends, smallest
):
    low, value, high = ends
    report = seeded(0, names=("hydra", "base"), near=(), far=("noise",))
    gap = {metric: Value(value=value, low=low, high=high)}
    difference = Difference(
        values={} if metric == "auroc" else gap, ood={"noise": gap if metric == "auroc" else {}}
    )
    first, base = report.rows
    report = report.model_copy(update={"rows": (first, base.model_copy(update={"difference": difference}))})
    compared = Compared.of({"a.json": report}, smallest={} if smallest is None else {metric: smallest})

    quantity = Quantity(metric, "noise" if metric == "auroc" else None)
    good, bad = (low > 0, high < 0) if METRICS[metric].higher_is_better else (high < 0, low > 0)
    least = {"accuracy": 0.002}.get(metric, 0.005) if smallest is None else smallest
    word = "level" if abs(value) < least else "better" if good else "worse" if bad else "level"
    assert judgements(compared)["base"][quantity] == word
    arrow = "↑" if metric in {"accuracy", "auroc"} else "↓"
    (cells,) = (cells for name, cells in verdict_table(compared).rows if name == f"{quantity.label} {arrow}")
    assert cells[1] == (word, f"{value:+.3f} [{low:+.3f}, {high:+.3f}]", word)


def of(names=("hydra", "base"), **values):
    """Return a comparison with other values of the first two rows, as (low, value, high) for each row."""
    report = seeded(0, names=names, near=(), far=(), curves=False)
    rows = {row.name: row for row in report.rows}
    for name, both in values.items():
        for who, (low, value, high) in zip(names[:2], both, strict=True):
            found = {name: Value(value=value, low=low, high=high)}
            rows[who] = rows[who].model_copy(update={"values": rows[who].values | found})
    return Compared.of({"r.json": report.model_copy(update={"rows": tuple(rows.values())})})


MIXED = {
    "accuracy": ((0.94, 0.95, 0.96), (0.90, 0.91, 0.92)),
    "nll": ((0.29, 0.30, 0.31), (0.29, 0.30, 0.31)),
    "ece": ((0.04, 0.05, 0.06), (0.01, 0.02, 0.03)),
}


def test_against_one_model_the_sentence_names_the_measures():
    said = sentence(of(**MIXED))

    assert said == (
        "hydra is better than base in accuracy, worse in ECE, level in NLL, at 2.6 times its compute."
    )


def test_against_several_it_counts_them():
    compared = of(names=("hydra", "base", "Deep ensemble"), **MIXED)

    words = [*judgements(compared)["Deep ensemble"].values()]
    assert (words.count("better"), words.count("worse")) == (1, 0)
    assert sentence(compared) == (
        "hydra is better than base in 1 of 3 measures, worse in 1, at 2.6 times its compute; better than Deep ensemble in "
        "1, worse in none, at 0.88 times."
    )
    same = (0.6, 0.7, 0.8)
    alike = of(names=("hydra", "base", "other"), **dict.fromkeys(MIXED, (same, same)))
    assert sentence(alike).startswith(
        "hydra is level with base in all 3 measures, at 2.6 times its compute; better than"
    )


def test_costs_are_ratios():
    rows = dict(verdict_table(of(**MIXED)).rows)

    assert [cell.value for cell in rows["multiply-accumulates ↓"]] == ["46.20 G", "2.6 times"]
    assert [cell.value for cell in rows["parameters ↓"]] == ["92.40 M", "2.6 times"]


def test_without_intervals_nothing_is_called_better():
    none = (None, 0.5, None)
    compared = of(accuracy=((None, 0.9, None), none), nll=(none, none), ece=(none, none))

    assert sentence(compared) == (
        "hydra against base: no interval in accuracy, NLL and ECE, at 2.6 times its compute."
    )
    assert dict(verdict_table(compared).rows)["accuracy ↑"][1] == ("no interval", "+0.400", "")


@pytest.mark.parametrize(
    ("stored", "fitted", "fair"),
    [
        ({"hydra": (1.5,)}, False, False),
        ({"base": (1.5,)}, False, False),
        ({"hydra": (1.5, 1.0), "base": (1.5,)}, False, False),
        ({"hydra": (1.5,), "base": (2.0, 3.0)}, False, True),
        ({"hydra": (1.5,)}, True, True),
        ({}, False, True),
    ],
)
def test_probabilities_of_rows_with_and_without_a_temperature_are_not_compared(stored, fitted, fair):
    """An unfair report is sufficient to withhold comparisons of several reports."""
    plain = seeded(0, names=("hydra", "base"), near=(), far=(), curves=False, shift=True)
    rows = tuple(
        row.model_copy(update={"stored_temperatures": stored.get(row.name, ())}) for row in plain.rows
    )
    data = plain.data | ({"temperature": plain.data["id"]} if fitted else {})
    report = plain.model_copy(update={"rows": rows, "data": data})

    for reports in ({"a.json": report}, {"a.json": plain, "b.json": report}):
        compared = Compared.of(reports)
        words = judgements(compared)["base"]
        withheld = {q.label for q, word in words.items() if word == "not compared"}
        assert withheld == (set() if fair else {"NLL", "NLL under corruption", "ECE"})
        assert (
            any(
                re.match("Calibration and NLL are not compared with base", note) for note in remarks(compared)
            )
            != fair
        )


def test_several_sets_of_a_kind_are_judged_by_their_mean():
    one = Compared.of({"a.json": seeded(0, near=("birds",), far=("noise",))})
    several = Compared.of({"a.json": seeded(0, near=("birds", "bugs", "cats"), far=())})

    assert [str(q) for q in judgements(one)["base"]] == [
        "accuracy",
        "nll",
        "ece",
        "auroc[birds]",
        "auroc[noise]",
    ]
    assert [str(q) for q in judgements(several)["base"]][3:] == ["auroc[all]"]


def test_a_row_alone_is_not_called_better():
    compared = Compared.of({"a.json": seeded(0, names=("hydra",), far=())})

    assert sentence(compared) == ("hydra is the only model on this page, so there is no comparison.")
    assert verdict_table(compared).heads == ("hydra",)


def by_class(*counts):
    classes = tuple(ClassHits(index=i, name=f"c{i}", count=n, hits=0) for i, n in enumerate(counts))
    return ByClass(total=len(counts), classes=classes, confusions=())


@pytest.mark.parametrize(
    ("counts", "accuracy", "begin"),
    [
        ((60, 40), 0.6, "The accuracy of hydra, 0.600, does not exceed guessing: 0.600 of the samples have the class c0. "),
        ((40, 60), 0.5, "The accuracy of hydra, 0.500, does not exceed guessing: 0.600 of the samples have the class c1. "),
        ((60, 40), 0.61, ""),
    ],
)  # fmt: skip
def test_the_verdict_starts_with_an_accuracy_that_does_not_exceed_guessing(counts, accuracy, begin):
    (report,) = of(**MIXED).reports
    first, *others = report.rows
    values = first.values | {"accuracy": Value(value=accuracy)}

    def verdict(results):
        changed = first.model_copy(update={"values": values, "by_class": results})
        return sentence(Compared.of({"r.json": report.model_copy(update={"rows": (changed, *others)})}))

    assert verdict(by_class(*counts)) == begin + verdict(None)
    assert verdict(None).startswith("hydra ")
    # With results for some of the classes, the largest class is unknown.
    some = by_class(*counts).model_copy(update={"total": 3})
    assert verdict(some) == verdict(None)
