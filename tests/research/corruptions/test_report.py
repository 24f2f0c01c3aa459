"""Metrics under corruption in tables and figures, with intervals."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser
from statistics import fmean, stdev

import pytest
import torch

from hydractl.errors import InputError
from hydractl.manifest.document import Value
from hydractl.metrics.registry import METRICS
from hydractl.metrics.resampling import Resampling
from hydractl.reporting.comparison import Compared
from hydractl.reporting.figures import figures
from hydractl.reporting.matplotlib_figure import svg
from hydractl.reporting.page import page
from hydractl.reporting.report_values import Quantity
from hydractl.research.corruptions.measure import ShiftNumbers
from support.reports import seeded

TRIALS = 150


class Captions(HTMLParser):
    """Parser of the spans in a page."""

    def __init__(self, text):
        super().__init__()
        self.span, self.texts = False, []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.span = tag == "span"

    def handle_data(self, data):
        self.texts += [data] if self.span else []


def made(*reports):
    compared = Compared.of({f"{i}.json": report for i, report in enumerate(reports)})
    return page(compared, tuple(figures(compared)))


def test_corruptions_are_drawn_by_severity_from_the_clean_data_on():
    report = seeded(0, shift=True)
    row = report.rows[0]
    text = made(report)

    clean = row.values["accuracy"]
    found = {i: row.shift.means[str(i)]["accuracy"] for i in range(1, 6)}
    said = [f"{clean.value:.3f} [{clean.low:.3f}, {clean.high:.3f}]"]
    said += [f"{value:.3f} [{value - 0.04:.3f}, {value + 0.03:.3f}]" for value in found.values()]
    assert f"hydra: {', '.join(said)}" in text
    assert "ECE under corruption" not in text  # the report has no ECE
    captions = Captions(text).texts
    assert "Acc ↑ under 1 corruption of the ID set, means by severity" in captions


def test_every_interval_under_corruption_is_a_bar():
    """Three rows at six severities have bars, and a report without intervals has no bars."""

    def bars(report):
        compared = Compared.of({"a.json": report})
        (drawn,) = (figure for figure in figures(compared) if figure.name == "shift")
        paths = re.findall(
            r'd="M ([\d.]+) ([\d.]+) \nL ([\d.]+) ([\d.]+) \n" style="[^"]*width: 1.5', svg(drawn.panels[0])
        )
        return [path for path in paths if path[0] == path[2] and float(path[1]) > float(path[3])]

    report = seeded(0, shift=True)
    without = [
        row.model_copy(
            update={
                "values": {name: Value(value=own.value) for name, own in row.values.items()},
                "shift": row.shift.model_copy(update={"intervals": {}}),
            }
        )
        for row in report.rows
    ]
    assert len(bars(report)) == 6 * len(report.rows)
    assert bars(report.model_copy(update={"rows": tuple(without)})) == []


def test_reports_are_put_together_that_are_of_the_same_corruptions():
    with pytest.raises(InputError, match=r"b.json: has no number `accuracy\[fog\] of"):
        Compared.of({"a.json": seeded(0, shift=True), "b.json": seeded(1)})


def test_seeds_have_means_under_corruption_and_their_intervals():
    reports = {f"{seed}.json": seeded(seed, shift=True) for seed in range(3)}
    compared = Compared.of(reports)

    shifts = [report.rows[0].shift for report in reports.values()]
    for scope, values in (
        ("shift:5", [shift.means["5"]["accuracy"] for shift in shifts]),
        ("fog", [fmean(own["accuracy"] for own in shift.values["fog"].values()) for shift in shifts]),
    ):
        found = compared.rows["hydra"][Quantity("accuracy", scope)]
        assert found.value == pytest.approx(fmean(values))
        assert found.deviation == pytest.approx(stdev(values))
    pages = page(compared, tuple(figures(compared)))
    assert f"{compared.rows['hydra'][Quantity('nll', 'shift:5')].value:.3f} ± " in pages


@pytest.mark.more
def test_intervals_of_means_over_corruptions_cover():
    """Samples are equally hard under each corruption, so separate resamples would narrow intervals."""
    generator, covered, apart = torch.Generator().manual_seed(0), 0, 0
    for trial in range(TRIALS):
        hard = torch.rand(100, generator=generator, dtype=torch.float64)
        cells, others = {}, {}
        for i in range(4):
            hits = (0.9 * hard + 0.1 * torch.rand(100, generator=generator, dtype=torch.float64)) < 0.5
            for found, seed in ((cells, trial), (others, 1000 * i + trial)):
                found["fog", str(i + 1)] = Resampling(seed=seed).values([METRICS["accuracy"]], {"hits": hits})
        low, high = ShiftNumbers(cells=cells).to_shift().intervals["shift"]["accuracy"]
        covered += low <= 0.5 <= high
        low, high = ShiftNumbers(cells=others).to_shift().intervals["shift"]["accuracy"]
        apart += low <= 0.5 <= high

    error = 4 * math.sqrt(0.95 * 0.05 / TRIALS)
    assert 0.95 - error - 0.01 <= covered / TRIALS <= 0.95 + error
    assert apart < 0.8 * TRIALS
