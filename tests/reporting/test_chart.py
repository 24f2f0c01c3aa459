"""Charts and drawings: every point where it belongs, rows that can be told apart, pictures of the right size."""

from __future__ import annotations

import io
import re
from functools import cache
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from hydractl.manifest.head_mask import TowerKeep
from hydractl.manifest.report import Bins
from hydractl.reporting.chart import (
    BOTTOM,
    HEIGHT,
    LEFT,
    LINE,
    RIGHT,
    TOP,
    WIDTH,
    Axis,
    Chart,
    Figure,
    Series,
    legend,
    series_style,
)
from hydractl.reporting.comparison import Compared
from hydractl.reporting.figures import figures, pareto, pooled
from hydractl.reporting.head_maps import head_map
from hydractl.reporting.svg import (
    DASHES,
    EDGE,
    HEADING,
    PAINTS,
    Drawing,
    SvgPath,
    SvgText,
    breadth,
    fitting,
    joined,
    png,
    svg,
)
from support.analysed import analysed
from support.reports import seeded


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_ticks_are_few_even_and_inside(low, wide):
    axis = Axis(label="x", low=low, high=low + wide)
    if not axis.high - axis.low > abs(low) * 1e-9:
        return
    ticks = axis.ticks()

    assert 2 <= len(ticks) <= 7
    assert axis.low <= ticks[0] <= ticks[-1] <= axis.high
    steps = [b - a for a, b in pairwise(ticks)]
    assert max(steps) - min(steps) <= 1e-6 * max(steps) + 1e-9


def test_rows_are_told_apart_without_colours_too():
    looks = [series_style(i) for i in range(24)]

    assert len({*looks}) == 24
    assert [own.dash for own in looks[:4]] == list(DASHES)
    assert len({own.corners for own in looks[:4]}) == 4


def luminance(colour):
    def linear(part):
        share = int(part, 16) / 255
        return share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4

    red, green, blue = (linear(colour[i : i + 2]) for i in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", [0, 1])
def test_colours_stand_out_from_the_sheet(scheme):
    """WCAG 2: 4.5 for text, 3 for graphics."""
    sheet = luminance(PAINTS["sheet"][scheme])
    for name, both in PAINTS.items():
        low, high = sorted((luminance(both[scheme]), sheet))
        least = {"ink": 7, "soft": 4.5, "rule": 1.2, "sheet": 1}.get(name, 3)
        assert (high + 0.05) / (low + 0.05) >= least, name


def test_points_stand_where_axes_say():
    chart = Chart(
        title="t",
        description="t",
        x=Axis(label="x", high=2),
        y=Axis(label="y", low=-1),
        series=[Series(points=[(0, -1), (2, 1), (1, 0)], style=series_style(0))],
    )
    *_, line = chart.drawing().shapes

    left, right, top, bottom = LEFT, WIDTH - RIGHT, TOP, HEIGHT - BOTTOM
    assert line.parts == [[(left, bottom), (right, top), ((left + right) / 2, (top + bottom) / 2)]]


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
    drawing = head_map("m", TowerKeep(num_heads=heads, keep=keep))
    gone, kept = (shape for shape in drawing.shapes if isinstance(shape, SvgPath))

    assert (len(kept.parts), len(gone.parts)) == (sum(map(len, keep)), layers * heads - sum(map(len, keep)))
    corners = [point for part in (*kept.parts, *gone.parts) for point in part]
    assert max(x for x, _ in corners) <= drawing.width
    assert max(y for _, y in corners) <= drawing.height
    assert len({*map(tuple, kept.parts)} | {*map(tuple, gone.parts)}) == layers * heads


def colour_of(name):
    return tuple(int(PAINTS[name][0][i : i + 2], 16) for i in (1, 3, 5))


def test_a_file_shows_its_panels_under_its_title_with_space_around_them():
    shapes = [SvgPath(parts=[[(0, 0), (40, 0), (40, 20), (0, 20)]], fill="c1")]
    panel = Drawing(title="t", description="t", width=40, height=20, shapes=shapes)

    sheet = joined("Time", "told", [[panel, panel], [panel]])

    top = 2 * EDGE + HEADING
    assert (sheet.width, sheet.height) == (80 + 2 * EDGE, top + 40 + EDGE)
    title, *panels = sheet.shapes
    assert title.text == "Time"
    assert EDGE < title.at[1] < top
    assert [shape.parts[0][0] for shape in panels] == [(EDGE, top), (EDGE + 40, top), (EDGE, top + 20)]
    picture = Image.open(io.BytesIO(png(sheet))).convert("RGB")
    x, y = (round(2 * place) for place in (EDGE, top))
    assert picture.getpixel((x + 2, y + 2)) == colour_of("c1")
    for outside in ((x - 2, y + 2), (x + 2, y - 2), (picture.width - x + 2, y + 2)):
        assert picture.getpixel(outside) == colour_of("sheet")


def test_a_picture_has_the_size_of_its_drawing_and_no_date():
    shapes = [
        SvgPath(parts=[[(0, 0), (40, 0), (40, 20), (0, 20)]], fill="c1"),
        SvgPath(parts=[], fill="c2"),
        SvgPath(parts=[[(5, 30), (75, 30)]], stroke="ink", dash="2 2"),
        SvgText(at=(40, 38), text="$x^2$ <&> 中\n", anchor="middle", turned=True),
    ]
    drawing = Drawing(title="t", description="t", width=80, height=40, shapes=shapes)

    picture = Image.open(io.BytesIO(png(drawing))).convert("RGB")
    assert picture.size == (160, 80)
    assert picture.getpixel((20, 20)) == colour_of("c1")
    assert png(drawing) == png(drawing)
    assert b"Date" not in png(drawing)
    assert re.search(r">\$x\^2\$ &lt;&amp;&gt; 中\?<", svg(drawing))


@cache
def font():
    from matplotlib import get_data_path
    from matplotlib.ft2font import FT2Font

    made = FT2Font(f"{get_data_path()}/fonts/ttf/DejaVuSans.ttf")
    made.set_size(1000, 72)
    return made


@cache
def advance(letter):
    """Measured, in sizes; a letter that the font lacks is square, as in those that have it."""
    index = font().get_char_index(ord(letter))
    return font().load_glyph(index).linearHoriAdvance / 65536e3 if index else 1.0


def measured(text):
    return text.size * sum(map(advance, text.text))


LETTERS = st.text(
    st.characters(min_codepoint=32, max_codepoint=126)
    | st.sampled_from("…—äöüßéÉÆŒøØμΩαβЩжшюЖ中文字かナ한")
    | st.sampled_from("W@%mi"),
    min_size=1,
    max_size=90,
)


@given(LETTERS, st.floats(6, 20))
def test_no_text_is_wider_than_is_reckoned_with(text, size):
    assert measured(SvgText(at=(0, 0), text=text, size=size)) <= breadth(text, size)


@given(LETTERS, st.floats(20, 400))
def test_a_text_is_cut_only_where_it_would_not_fit(text, width):
    cut = fitting(text, width)

    assert (cut == text) == (breadth(text) <= width or text == "…")
    assert breadth(cut) <= max(width, breadth("…"))


def box(text):
    """Return where a text is at most: left, top, right, bottom, with all that letters reach above and below the line."""
    (x, y), wide = text.at, measured(text)
    before = {"start": 0, "middle": wide / 2, "end": wide}[text.anchor]
    up, down = 0.76 * text.size, 0.24 * text.size
    if text.turned:
        return x - up, y + before - wide, x + down, y + before
    return x - before, y - up, x - before + wide, y + down


def overlap(one, other):
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


@given(st.lists(LETTERS, min_size=1, max_size=24), st.floats(150, 1000))
def test_entries_of_a_legend_stand_apart_and_inside(names, width):
    drawing = legend(names, width)
    texts = [shape for shape in drawing.shapes if isinstance(shape, SvgText)]
    samples = [
        (*map(min, zip(*shape.parts[0], strict=True)), *map(max, zip(*shape.parts[0], strict=True)))
        for shape in drawing.shapes
        if isinstance(shape, SvgPath) and shape.fill
    ]
    boxes = [*map(box, texts), *samples]

    assert len(texts) == len(samples) == len(names)
    assert not [pair for pair in combinations(boxes, 2) if overlap(*pair)]
    assert all(
        left >= 0 and right <= width and top >= 0 and bottom <= drawing.height
        for left, top, right, bottom in boxes
    )
    assert [text.text for text in texts] == [fitting(name, width - texts[0].at[0]) for name in names]


def test_a_legend_is_no_higher_than_its_names_need():
    """One line where all fit, and never more lines than names."""
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


@pytest.mark.parametrize("names", SHEETS.values(), ids=SHEETS)
def test_no_text_of_a_file_lies_on_another_or_beyond_the_sheet(names):
    report = analysed(seeded(0, names=names, near=("a" * 90,), far=("noise", "photographs"), shift=True))
    for figure in figures(Compared.of({"a.json": report})):
        sheet = figure.sheet()
        texts = [(shape.text, box(shape)) for shape in sheet.shapes if isinstance(shape, SvgText)]
        lying = [(a, b) for (a, one), (b, other) in combinations(texts, 2) if overlap(one, other)]
        beyond = [
            text
            for text, (left, top, right, bottom) in texts
            if min(left, top) < 0 or right > sheet.width or bottom > sheet.height
        ]
        assert (lying, beyond) == ([], []), figure.name


@pytest.mark.parametrize(("panels", "across"), [(1, 1), (2, 2), (3, 3), (4, 2), (5, 3), (6, 3), (7, 3)])
def test_rows_of_a_file_are_much_the_same(panels, across):
    panel = Drawing(title="t", description="t", width=40, height=20, shapes=[])
    figure = Figure(name="f", title="t", description="t", panels=(panel,) * panels)

    assert figure.sheet().width == 40 * across + 2 * EDGE
