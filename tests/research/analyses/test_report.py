"""Tables and figures of `--analyse` contain every number, for all names of rows and data."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hydractl.manifest.report import Report
from hydractl.reporting.comparison import Compared
from hydractl.reporting.figures import figures
from hydractl.reporting.matplotlib_figure import svg
from hydractl.reporting.page import page
from hydractl.reporting.report_values import Cell
from hydractl.reporting.sections import tables
from hydractl.research.analyses.tables import analysis_tables
from support.analysed import FIGURES, analysed
from support.reports import seeded

EVIL = "<b>|`*"


def analysis_figures(compared):
    return (figure for figure in figures(compared) if figure.name in FIGURES)


@pytest.fixture(scope="module")
def report():
    return analysed(seeded(0))


@pytest.fixture(scope="module")
def drawn(report):
    return {figure.name: figure for figure in analysis_figures(Compared.of({"a.json": report}))}


def test_every_analysis_is_drawn_and_survives_its_file(report, drawn):
    again = Report.from_json(report.to_json(), place="a")
    assert again == report
    assert [*drawn] == FIGURES
    assert not [*analysis_figures(Compared.of({"a.json": seeded(0)}))]


def test_tables_have_the_numbers(report):
    found = {table.title: table for table in analysis_tables(report)}
    own = report.rows[0].analyses
    first = next(table for title, table in found.items() if title.startswith("Proposition 1"))
    name, cells = first.rows[0]
    each = own.proposition[0]
    assert name == "hydra, member 0"
    assert cells[3][:2] == (f"{each.gap_pruned - each.gap:.4g}", f"≥ 0 in {int(each.gap_pruned >= each.gap)}")
    expected = each.slope - each.slope_clean + (each.curvature - each.curvature_clean) / 2
    assert cells[4].value == f"{expected:.4g}"
    apart = found["Mahalanobis distance of OOD from ID centroids in the last layer, means over heads"]
    assert apart.rows[0][1][0].value == f"{own.centroids.mahalanobis['birds']:.3g}"
    merged = found["hydra: merged weights against its members apart"]
    assert [cell.value for cell in merged.rows[0][1]] == ["0.500", "0.750", "0.8750", "0.125", "0.375"]
    assert [cell.value for cell in merged.rows[1][1]][:2] == ["0.250", "0.375"]
    fewer = found["Fewer heads, without training"]
    assert fewer.rows[0] == ("hydra, 6 of 8 heads by circuit", tuple(map(Cell, ("0.500", "0.750", "0.625"))))
    members = next(table for title, table in found.items() if title.startswith("Ensembles"))
    assert members.rows[2][0] == "hydra, 3 of 3 members (1)"
    assert [*found] == [t.title for t in tables(Compared.of({"a": report}))][-len(found) :]


def test_maps_are_on_one_scale_for_both_towers(drawn):
    text, vision = drawn["taylor"].panels[:2]
    opacities = [[*map(float, re.findall(r"opacity: ([\d.]+)", svg(each)))] for each in (text, vision)]
    assert max(opacities[0]) == 0.5
    assert min(opacities[1]) < 0.5
    assert len(re.findall(r'style="fill: var\(--c0\)"', svg(vision))) == 1
    assert "layer 0: 0.25, gone; layer 1: 0.062, 0.12" in text.description
    outlined = re.findall(r'd="([^"]*)" style="fill: none; stroke: var\(--rule\)', svg(text))
    assert [path.count("M") for path in outlined] == [1]


def test_times_are_of_all_batches(report, drawn):
    (bars,) = drawn["runtime"].panels
    batches = -(-100 // 8)
    assert bars.description.startswith(f"hydra: {6 * batches / 1e3:.3g} s, 3.00 × base; base: ")
    (times,) = (
        t for t in tables(Compared.of({"a": report})) if t.title.startswith("Time for 100 ID samples")
    )
    assert times.rows[0] == ("hydra", (Cell(f"{6 * batches / 1e3:.3g}"), Cell("3.00")))
    outlines = re.findall(r'd="M 0 [\d.]+ \nL ([\d.]+) [^"]*" style="fill: var\(--c', svg(bars))
    assert float(outlines[0]) == pytest.approx(3 * float(outlines[1]), rel=1e-4)


def test_heads_are_drawn_from_few_to_all(report, drawn):
    chart = drawn["fewer-heads"].panels[0]
    whole = report.rows[0].values["accuracy"].value
    assert chart.description.startswith(f"hydra by circuit: 0.375: 0.500, 0.75: 0.500, 1: {whole:.3f}")


def test_dots_of_a_set_are_one_shape(drawn):
    plane = drawn["pca"].panels[0]
    dots = [part.partition("</g>\n  </g>")[0].count("<use ") for part in svg(plane).split("<title>")[2:]]
    assert dots == [5, 5, 5]


def test_names_are_text_whatever_they_are():
    evil = analysed(seeded(0, names=(EVIL, "b"), near=(EVIL + "n",)), scores=EVIL)
    compared = Compared.of({"a.json": evil})
    text = page(compared, tuple(analysis_figures(compared)))
    assert "<b>" not in text
    assert "&lt;b&gt;" in text
    assert all(re.search("<svg", svg(figure.sheet())) for figure in analysis_figures(compared))


def test_of_several_reports_the_first_is_drawn_and_all_are_told(report):
    compared = Compared.of({"a.json": report, "b.json": analysed(seeded(1), seed=1)})
    assert all("Of a.json." in f.description for f in analysis_figures(compared) if f.name != "runtime")
    titles = [table.title for table in tables(compared)]
    assert "a.json: Fewer heads, without training" in titles
    assert "b.json: Fewer heads, without training" in titles


def test_the_golden_file_is_read_for_ever_and_dumped_byte_for_byte():
    text = (Path(__file__).parents[2] / "golden" / "report-analyses-1.json").read_text(encoding="utf-8")
    report = Report.from_json(text, place="golden")
    assert report.to_json() == text
    found = report.rows[0].analyses
    assert found.model_fields_set == set(type(found).model_fields)
    assert [*analysis_tables(report)]
