"""Several reports together: means, intervals and differences from textbooks, and errors for unequal reports."""

from __future__ import annotations

import re
from math import sqrt
from statistics import NormalDist

import pytest
from scipy import stats

from hydractl.errors import InputError, ManifestError
from hydractl.manifest.document import Value
from hydractl.manifest.report import Difference
from hydractl.reporting.comparison import Compared, mean_of_sets, square_and_add, student
from hydractl.reporting.report_values import Number, Quantity
from hydractl.reporting.sections import tables
from support.reports import seeded

SEEDS = {f"{seed}.json": seeded(seed, fixed=("base",)) for seed in range(4)}


def row(report, name):
    return next(row for row in report.rows if row.name == name)


def changed(report, name, **values):
    """Return a report with other values in a row."""
    rows = tuple(
        r.model_copy(update={"values": r.values | values}) if r.name == name else r for r in report.rows
    )
    return report.model_copy(update={"rows": rows})


@pytest.mark.parametrize("count", [2, 3, 10])
def test_an_interval_of_a_mean_is_scipys(count):
    values = [0.9 + 0.01 * i**1.5 for i in range(count)]
    found = student(values)
    low, high = stats.t.interval(0.95, count - 1, loc=found.value, scale=stats.sem(values))

    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))
    assert found.deviation == pytest.approx(stats.tstd(values))


def test_an_interval_ends_where_values_do():
    found = student([0.99, 1.0, 0.97], low=0, high=1)

    assert (found.high, found.low) == (1, pytest.approx(student([0.99, 1.0, 0.97]).low))


def test_what_is_the_same_in_every_report_has_no_deviation():
    assert student([3.0, 3.0]) == Number(value=3.0)


def wilson(hits, n):
    z = NormalDist().inv_cdf(0.975)
    p = hits / n
    middle, half = p + z * z / (2 * n), z * sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return Number(value=p, low=(middle - half) / (1 + z * z / n), high=(middle + half) / (1 + z * z / n))


@pytest.mark.parametrize(
    ("first", "other", "low", "high"),
    [((56, 70), (48, 80), 0.0524, 0.3339), ((9, 10), (3, 10), 0.1705, 0.8090), ((10, 10), (0, 20), 0.6791, 1.0)],
)  # fmt: skip
def test_an_interval_of_a_difference_is_newcombes(first, other, low, high):
    """Newcombe 1998, Table II, method 10."""
    found = square_and_add(wilson(*first), wilson(*other))

    assert (found.low, found.high) == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5))


def test_a_difference_without_both_intervals_has_none():
    assert square_and_add(Number(value=2.0), Number(value=1.5, low=1.0, high=2.0)) == Number(value=0.5)


def test_differences_are_taken_seed_by_seed():
    compared = Compared.of(SEEDS)
    gaps = [
        row(report, "hydra").ood["birds"]["auroc"].value - row(report, "base").ood["birds"]["auroc"].value
        for report in SEEDS.values()
    ]

    assert compared.differences["base"][Quantity("auroc", "birds")] == student(gaps)
    # means over OOD sets have deviations too
    assert compared.rows["base"][Quantity("auroc", "all")].deviation > 0
    assert compared.differences.keys() == {"base", "Deep ensemble"}


def test_rows_are_matched_by_name_whatever_their_order():
    turned = {
        name: report.model_copy(update={"rows": report.rows[::-1]}) if name == "1.json" else report
        for name, report in SEEDS.items()
    }

    assert Compared.of(turned).rows == Compared.of(SEEDS).rows
    assert Compared.of(turned).differences == Compared.of(SEEDS).differences


SETS = {
    f"{name}.json": seeded(i, data=name, near=(), curves=False)
    for i, name in enumerate(("pets", "food", "cars"))
}


def test_a_mean_over_sets_has_the_interval_of_independent_estimates():
    """Normal intervals of means are the reference."""
    z, deviations, count = NormalDist().inv_cdf(0.975), (1.0, 2.0, 0.5), 100
    each = [
        Number(value=v, low=v - z * d / 10, high=v + z * d / 10)
        for v, d in zip((3.0, 5.0, 1.0), deviations, strict=True)
    ]
    half = z * sqrt(sum(d * d / count for d in deviations)) / 3

    found = mean_of_sets(each)

    assert (found.value, found.low, found.high) == pytest.approx((3.0, 3.0 - half, 3.0 + half))
    assert mean_of_sets([*each, Number(value=3.0)]) == Number(value=3.0)


def test_means_over_sets_are_of_numbers_and_of_differences():
    compared = Compared.of(SETS, over="sets")
    values = [row(report, "base").values["nll"] for report in SETS.values()]
    mean = sum(v.value for v in values) / 3

    found = compared.rows["base"][Quantity("nll")]
    assert (found.value, found.high) == pytest.approx((mean, mean + sqrt(3 * 0.02**2) / 3))
    assert found.deviation is None
    gap = compared.differences["base"][Quantity("nll")]
    assert gap.value == pytest.approx(compared.rows["hydra"][Quantity("nll")].value - mean)
    assert gap.high - gap.value == pytest.approx(sqrt(2) * 0.02 / sqrt(3))
    # all three reports use the same noise
    assert compared.rows["base"][Quantity("auroc", "noise")].interval is None
    assert "means over 3 data sets" in compared.notes[0]
    assert not any("other samples" in note for note in compared.notes)


def test_paired_differences_count_in_a_mean_over_sets():
    compared = Compared.of({name: paired(report) for name, report in SETS.items()}, over="sets")

    found = compared.differences["base"][Quantity("nll")]
    assert (found.value, found.low, found.high) == pytest.approx(
        (0.5, 0.5 - 0.1 / sqrt(3), 0.5 + 0.2 / sqrt(3))
    )


def test_a_set_does_not_count_twice():
    with pytest.raises(InputError, match=r"^b\.json: is of the same ID data as pets\.json"):
        Compared.of({**SETS, "b.json": seeded(9, data="pets", near=())}, over="sets")


def test_each_set_has_its_column():
    """The table has the form of the paper's Table 24."""
    each = {table.title: table for table in tables(Compared.of(SETS, over="sets"))}

    accuracy = each["Acc ↑ on each data set"]
    assert (accuracy.heads, accuracy.folded) == (("pets", "food", "cars", "mean"), False)
    assert each["Brier ↓ on each data set"].folded
    assert (
        dict(accuracy.rows)["base"][1].value
        == f"{row(SETS['food.json'], 'base').values['accuracy'].value:.3f}"
    )
    assert dict(accuracy.rows)["base"][3] == dict(each["In-distribution data"].rows)["base"][0]
    assert not any("each data set" in table.title for table in tables(Compared.of(SEEDS)))


def test_one_report_says_its_own_numbers():
    compared = Compared.of({"0.json": SEEDS["0.json"]})
    value = row(SEEDS["0.json"], "base").values["nll"]

    assert compared.rows["base"][Quantity("nll")] == Number(value=value.value, low=value.low, high=value.high)


OTHERS = seeded(9)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (seeded(9, names=("hydra", "base")), "b.json: has no row `Deep ensemble`, which a.json has"),
        (seeded(9, names=("hydra", "base", "Deep ensemble", "more")), "a.json: has no row `more`, which b.json"),
        (seeded(9, far=()), "b.json: has no far OOD set `noise`, which a.json has"),
        (seeded(9, near=(), far=("noise", "birds")), "b.json: has no near OOD set `birds`"),
        (changed(OTHERS, "base", adaptive_ece=Value(value=0.1)), "a.json: has no number `adaptive_ece of base`"),
        (OTHERS.model_copy(update={"ood_scores": ("mi",)}), "b.json: has no first OOD score `msp`"),
    ],
)  # fmt: skip
def test_what_does_not_measure_the_same_is_refused(other, said):
    with pytest.raises(InputError, match=f"^{re.escape(said)}") as refused:
        Compared.of({"a.json": seeded(8), "b.json": other})

    assert refused.value.hint


def test_what_a_report_may_lack_is_left_out_where_one_does():
    """Without predicted spans a report has no calibration error of spans."""
    with_spans, without = (
        changed(seeded(seed), "base", span_f1=Value(value=0.5), **more)
        for seed, more in ((8, {"span_ece": Value(value=0.1)}), (9, {}))
    )
    for reports in ([with_spans, without], [without, with_spans]):
        compared = Compared.of(dict(zip("ab", reports, strict=True)))
        assert Quantity("span_f1") in compared.rows["base"]
        assert Quantity("span_ece") not in {*compared.rows["base"], *compared.quantities}


def paired(report, *, marked=False, **update):
    """Return a report whose second row has paired differences to the first row."""
    first, second, *others = report.rows
    gap = Value(value=0.5, low=0.4, high=0.7)
    difference = Difference(values={"nll": gap}, ood={name: {"auroc": gap} for name in second.ood})
    second = second.model_copy(update={"difference": difference, "tuned_on_ood": marked})
    return report.model_copy(update={"rows": (first, second, *others), **update})


def test_a_paired_difference_counts_where_there_is_one():
    report = paired(seeded(0))
    compared = Compared.of({"a.json": report})
    plain = Compared.of({"a.json": seeded(0)})

    found, without = compared.differences["base"], plain.differences["base"]
    gap = Number(value=0.5, low=0.4, high=0.7)
    assert {q for q in found if found[q] == gap} == {
        Quantity("nll"),
        Quantity("auroc", "birds"),
        Quantity("auroc", "noise"),
    }
    assert found[Quantity("ece")] == without[Quantity("ece")]
    assert compared.differences["Deep ensemble"] == plain.differences["Deep ensemble"]
    assert "Differences from base use the same resamples for both models." in compared.notes
    assert any(
        note.startswith("Intervals of differences from Deep ensemble follow") for note in compared.notes
    )
    both = Compared.of({"a.json": report, "b.json": paired(seeded(1))}).differences["base"]
    assert both == Compared.of({"a.json": seeded(0), "b.json": seeded(1)}).differences["base"]


def test_warnings_and_marks_of_reports_are_notes():
    report = paired(seeded(0), marked=True, warnings=("few samples",))

    one = Compared.of({"a.json": report}).notes
    two = Compared.of({"a.json": report, "b.json": seeded(1)}).notes
    said = "The heads of base were chosen with OOD data, which gives it an advantage over the other models."
    assert one[-2:] == (said, "few samples")
    assert two[-2:] == (said, "a.json: few samples")


def test_a_metric_of_a_newer_release_is_refused():
    report = OTHERS.model_copy(update={"definitions": {**OTHERS.definitions, "@msp": "x", "zest": "New."}})

    with pytest.raises(ManifestError, match=r"^a\.json: measures `zest`, which this release"):
        Compared.of({"a.json": report})


def test_notes_say_what_numbers_do_not():
    other = seeded(7, fixed=("base",))
    moved = {**other.data, "id": other.data["birds"]}
    notes = Compared.of({**SEEDS, "x.json": other.model_copy(update={"data": moved})}).notes

    assert "means over 5 reports" in notes[0]
    assert "4 degrees of freedom" in notes[0]
    assert notes[1:] == (
        "base is the same model in several reports, so its deviation does not show the effect of a seed.",
        "The data set id has other samples in `x.json` than in `0.json`, so deviations include the data (`--over sets` for means over sets).",
    )
