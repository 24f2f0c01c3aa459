"""Charts: positions of points, looks of rows, sizes of pictures, and texts without overlaps."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from functools import cache
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from PIL import Image

from hydractl.manifest.head_mask import TowerKeep
from hydractl.manifest.report import Bins
from hydractl.reporting.chart import DASHES, EDGE, LINE, Axis, Chart, Figure, Series, legend, series_style
from hydractl.reporting.comparison import Compared
from hydractl.reporting.figures import figures, pareto, pooled
from hydractl.reporting.head_maps import head_map
from hydractl.reporting.matplotlib_figure import (
    PAINTS,
    RESOLUTION,
    Panel,
    breadth,
    fitting,
    picture,
    png,
    svg,
)
from support.analysed import analysed
from support.reports import seeded


def drawn(panel, look):
    """Draw a panel with the settings of `picture`, and return `look` of matplotlib's figure."""
    seen = []

    def draw(canvas):
        canvas.figure.set_dpi(72 * RESOLUTION)
        panel.draw(canvas)
        canvas.figure.canvas.draw()
        seen.append(look(canvas.figure))

    picture(replace(panel, draw=draw), suffix=".png")
    return seen[0]


def test_rows_are_told_apart_without_colours_too():
    looks = [series_style(i) for i in range(24)]

    assert len({*map(str, looks)}) == 24
    assert [own.dash for own in looks[:4]] == list(DASHES)
    assert len({own.marker for own in looks[:4]}) == 4


def luminance(colour):
    def linear(part):
        share = int(part, 16) / 255
        return share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4

    red, green, blue = (linear(colour[i : i + 2]) for i in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", [0, 1])
def test_colours_stand_out_from_the_sheet(scheme):
    """WCAG 2 requires a contrast of 4.5 for text and 3 for graphics."""
    sheet = luminance(PAINTS["sheet"][scheme])
    for name, both in PAINTS.items():
        low, high = sorted((luminance(both[scheme]), sheet))
        least = {"ink": 7, "soft": 4.5, "rule": 1.2, "sheet": 1}.get(name, 3)
        assert (high + 0.05) / (low + 0.05) >= least, name


def test_series_are_drawn_where_their_numbers_are():
    chart = Chart(
        title="t",
        description="t",
        x=Axis(label="$x$", low=0, high=2),
        y=Axis(label="y"),
        series=[
            Series(points=[(0, -1), (2, 1), (1, 0)], style=series_style(0), titles=["a"]),
            Series(points=[(1, 2)], style=series_style(1), kind="marks", spans=[(-3, 4)], titles=["b"]),
            Series(points=[(1, 3)], style=series_style(2), kind="bars", bar=0.5, weights=[0.5], titles=["c"]),
        ],
        guides=[[(0, 0), (2, 2)]],
    )

    def look(figure):
        (axes,) = figure.axes
        (bar,) = axes.patches
        return (
            [line.get_xydata().tolist() for line in axes.lines],
            (bar.get_x(), bar.get_width(), bar.get_height(), bar.get_alpha()),
            (axes.get_xlim(), axes.get_ylim()),
            (axes.get_xlabel(), axes.get_ylabel()),
        )

    lines, bar, (x, (low, high)), labels = drawn(chart.panel(), look)
    assert lines == [[[0, -1], [2, 1], [1, 0]], [[1, -3], [1, 4]], [[1, 2]], [[0, 0], [2, 2]]]
    assert bar == (0.75, 0.5, 3, pytest.approx(0.6))
    assert x == (0, 2)
    assert low < -3 < 4 < high
    assert labels == ("$x$", "y")


@pytest.mark.parametrize("value", [0.0, -1.5, 1e308, -1e308, 1e-308])
def test_any_number_is_drawn(value):
    lines = [Series(points=[(0, value), (1, -value)], style=series_style(0), titles=["a"])]
    marks = [
        Series(
            points=[(0, value)], style=series_style(0), kind="marks", spans=[(-value, value)], titles=["a"]
        )
    ]
    for series in (lines, marks, [*lines, *marks]):
        chart = Chart(title="t", description="t", x=Axis(label="x"), y=Axis(label="y"), series=series)
        assert svg(chart.panel()).endswith("</svg>\n")


def test_nothing_on_the_pareto_line_is_beaten():
    points = [(1, 0.5), (2, 0.4), (2, 0.6), (3, 0.6), (4, 0.9)]

    assert pareto(points, up=True) == [(1, 0.5), (2, 0.6), (4, 0.9)]
    assert pareto(points, up=False) == [(1, 0.5), (2, 0.4)]


def test_bins_of_several_seeds_are_those_of_all_samples():
    one = Bins(count=(1, 0), confidence=(0.2, 0.0), accuracy=(1.0, 0.0))
    other = Bins(count=(3, 2), confidence=(0.4, 0.9), accuracy=(0.0, 0.5))

    assert pooled([one, other]) == [(4, pytest.approx(0.35), 0.25), (2, 0.9, 0.5)]


@pytest.mark.parametrize(("layers", "heads"), [(24, 16), (1, 1), (3, 200)])
def test_a_map_shows_every_head(layers, heads):
    keep = tuple(tuple(range(layer % heads, heads, 2)) for layer in range(layers))
    panel = head_map("m", TowerKeep(num_heads=heads, keep=keep))

    def look(figure):
        patches = (each for each in figure.artists if isinstance(each, Patch))
        return {patch.get_facecolor(): patch.get_path().to_polygons(closed_only=False) for patch in patches}

    cells = drawn(panel, look)
    kept = sum(map(len, keep))
    assert sorted(map(len, cells.values())) == sorted(n for n in (kept, layers * heads - kept) if n)
    corners = [point for group in cells.values() for cell in group for point in cell]
    assert max(x for x, _ in corners) <= panel.width
    assert max(y for _, y in corners) <= panel.height
    assert len({cell.tobytes() for group in cells.values() for cell in group}) == layers * heads


def colour_of(name):
    return tuple(int(PAINTS[name][0][i : i + 2], 16) for i in (1, 3, 5))


def rectangle(width, height, colour):
    def draw(canvas):
        canvas.rectangles([(0, 0)], (width, height), colour)

    return Panel(title="t", description="t", width=width, height=height, draw=draw)


def test_a_file_shows_its_panels_under_its_title_with_space_around_them():
    panels = (
        rectangle(40, 20, "c1"),
        rectangle(40, 20, "c2"),
        rectangle(40, 20, "c3"),
        rectangle(40, 20, "c4"),
    )
    sheet = Figure(name="time", title="", description="told", panels=panels).sheet()

    assert sheet.width == 80 + 2 * EDGE
    image = Image.open(io.BytesIO(png(sheet))).convert("RGB")
    assert image.size == (RESOLUTION * sheet.width, RESOLUTION * sheet.height)
    top = sheet.height - EDGE - 40
    for i, paint in enumerate(("c1", "c2", "c3", "c4")):
        at = (EDGE + 40 * (i % 2) + 20, top + 20 * (i // 2) + 10)
        assert image.getpixel(tuple(int(RESOLUTION * x) for x in at)) == colour_of(paint)
    for outside in ((2, 40), (sheet.width - 3, 40), (40, 2), (40, sheet.height - 3)):
        assert image.getpixel(tuple(int(RESOLUTION * x) for x in outside)) == colour_of("sheet")


def test_a_picture_has_no_date_and_literal_texts():
    def draw(canvas):
        canvas.write(5, 20, "$x^2$ <&> 中\n")
        canvas.rectangles([(0, 0)], (40, 20), "c1", tooltip='<b> & "stroke: #0072b2"')

    panel = Panel(title="<t>", description="d", width=80, height=40, draw=draw)
    text = svg(panel)

    assert png(panel) == png(panel)
    assert text == svg(panel)
    assert b"Date" not in png(panel)
    assert not re.search(r"dc:date|dc:creator|Matplotlib", text)
    assert re.search(r">\$x\^2\$ &lt;&amp;&gt; 中\?<", text)
    assert text.count("fill: var(--c1)") == 1
    root = ET.fromstring(text)  # noqa: S314 - our own bytes
    titles = [each.text for each in root.iter("{http://www.w3.org/2000/svg}title")]
    assert titles == ["<t>", '<b> & "stroke: #0072b2"']


@cache
def font():
    from matplotlib import get_data_path
    from matplotlib.ft2font import FT2Font

    made = FT2Font(f"{get_data_path()}/fonts/ttf/DejaVuSans.ttf")
    made.set_size(1000, 72)
    return made


@cache
def advance(letter):
    """Return the width of a letter in ems. matplotlib shows a box of 1.1 ems for letters that the font lacks."""
    index = font().get_char_index(ord(letter))
    return font().load_glyph(index).linearHoriAdvance / 65536e3 if index else 1.1


LETTERS = st.text(
    st.characters(min_codepoint=32, max_codepoint=126)
    | st.sampled_from("…—äöüßéÉÆŒøØμΩαβЩжшюЖ中文字かナ한")
    | st.sampled_from("W@%mi"),
    min_size=1,
    max_size=90,
)


@given(LETTERS, st.floats(6, 20))
def test_the_width_of_a_text_is_that_of_its_font(text, size):
    assert breadth(text, size) == pytest.approx(size * sum(map(advance, text)))


@given(LETTERS, st.floats(20, 400))
def test_a_text_is_cut_only_where_it_would_not_fit(text, width):
    cut = fitting(text, width)

    assert (cut == text) == (breadth(text) <= width or text == "…")
    assert breadth(cut) <= max(width, breadth("…"))


def extents(figure):
    """Return texts and bounding boxes, without ticks outside the axes."""
    texts = [*figure.texts, *(each for each in figure.artists if hasattr(each, "get_text"))]
    for axes in figure.axes:
        texts += [axes.xaxis.label, axes.yaxis.label]
        for labels, limits, k in (
            (axes.get_xticklabels(), axes.get_xlim(), 0),
            (axes.get_yticklabels(), axes.get_ylim(), 1),
        ):
            texts += [each for each in labels if limits[0] <= each.get_position()[k] <= limits[1]]
    return [(each.get_text(), each.get_window_extent().frozen()) for each in texts if each.get_text()]


def faults(panel):
    """Return pairs of overlapping texts, and texts cut by the edge of the picture."""
    boxes = drawn(panel, extents)
    lying = [(a, b) for (a, one), (b, other) in combinations(boxes, 2) if one.overlaps(other)]
    beyond = [
        text
        for text, box in boxes
        if min(box.x0, box.y0) < 0
        or box.x1 > RESOLUTION * panel.width + 1
        or box.y1 > RESOLUTION * panel.height
    ]
    return lying, beyond


@pytest.mark.spread(cases=3)
@pytest.mark.parametrize("width", [150, 990])
@pytest.mark.parametrize(
    "names", [["a"], ["W@%mi" * 9] * 24, ["中文字かナ한" * 7, "a…", "é"], [f"row {i}" for i in range(23)]]
)
def test_entries_of_a_legend_stand_apart_and_inside(names, width):
    panel = legend(names, width)

    assert faults(panel) == ([], [])
    assert drawn(panel, lambda figure: sum(isinstance(each, Line2D) for each in figure.artists)) == len(names)


def test_a_legend_is_no_higher_than_its_names_need():
    """All names are in one line if the width suffices. There are at most as many lines as names."""
    names = ["Single", "Deep Ensemble x3", "Hydra"]

    assert legend(names, 990).height == legend(names[:1], 990).height
    assert legend(names, 60).height == legend(names[:1], 60).height + 2 * LINE


NINE = ("Single", "Single fine-tuned alike", "Deep Ensemble x3", "Deep Ensemble x3 fine-tuned alike", "Taylor", "CircAvg",
        "Hydra (merged trunk)", "Hydra (Taylor)", "Hydra (Circ)")  # fmt: skip
LONG = (
    "an_unbroken_name_" * 12,
    "W" * 42,
    "models/vit-base/seed-3/hydra-of-three-members.safetensors",
    "中" * 42,
)
SHEETS = {"2": NINE[:2], "4": NINE[:4], "9": NINE, "30": tuple(f"row {i}" for i in range(30)), "long": LONG}


@pytest.mark.more
@pytest.mark.spread(cases=1)
@pytest.mark.parametrize(
    "names",
    [
        pytest.param(names, id=name, marks=() if name in {"4", "long"} else pytest.mark.more)
        for name, names in SHEETS.items()
    ],
)
def test_no_text_of_a_file_lies_on_another_or_beyond_the_sheet(names):
    report = analysed(seeded(0, names=names, near=("a" * 90,), far=("noise", "photographs"), shift=True))
    for figure in figures(Compared.of({"a.json": report})):
        assert faults(figure.sheet()) == ([], []), figure.name


@pytest.mark.parametrize(("panels", "across"), [(1, 1), (2, 2), (3, 3), (4, 2), (5, 3), (6, 3), (7, 3)])
def test_rows_of_a_file_are_much_the_same(panels, across):
    panel = rectangle(40, 20, "c1")
    figure = Figure(name="f", title="t", description="t", panels=(panel,) * panels)

    assert figure.sheet().width == 40 * across + 2 * EDGE
