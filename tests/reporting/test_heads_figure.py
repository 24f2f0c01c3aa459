"""The figure of heads: the same bytes, the right size, and whatever names, shapes and numbers of choices come."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from itertools import combinations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from hydractl.heads.budget import total_heads
from hydractl.heads.masks import best_mask, removal_order
from hydractl.manifest.head_mask import TowerShape
from hydractl.reporting import heads_figure
from hydractl.reporting.heads_figure import MOST_PANELS, Panel, distinct_names, draw_heads, shortened, wrapped
from hydractl.reporting.matplotlib_figure import FORMATS, printable

ONE = {"vision": TowerShape(12, 12)}
TWO = {"text": TowerShape(12, 8), "vision": TowerShape(12, 12)}
LONG = "/data/experiments/2026/imagenet1k/vit_base_patch16_224.augreg2_in21k_ft_in1k/circuit-avg/{}.mask.json"


def panel(name, shape=ONE, *, seed=0):
    draw = Random(seed)  # noqa: S311 - no secret
    scores = {
        n: [[draw.gauss(i / 4, 1) for _ in range(t.num_heads)] for i in range(t.layers)]
        for n, t in shape.items()
    }
    mask = best_mask(removal_order(scores), shape, removals=total_heads(shape) // 3)
    return Panel(name=name, mask=mask)


def panels(count, shape=ONE, name="scores-{}.json"):
    return [panel(name.format(i), shape, seed=i) for i in range(count)]


@pytest.mark.parametrize("suffix", FORMATS)
def test_equal_panels_are_equal_bytes(suffix):
    first, *others = [draw_heads(panels(2, TWO), suffix=suffix) for _ in range(3)]

    assert all(other == first for other in others)
    assert draw_heads(panels(2, TWO)[::-1], suffix=suffix) != first


def test_settings_and_process_play_no_part(tmp_path):
    (tmp_path / "matplotlibrc").write_text(
        "font.size: 20\naxes.facecolor: red\nsavefig.dpi: 10\nsvg.fonttype: none\n"
    )
    code = (
        "import sys; from hydractl.manifest.head_mask import TowerKeep; from hydractl.reporting.heads_figure import *\n"
        f"p = Panel(name='m', mask={{'t': TowerKeep(num_heads=2, keep=((0,), ()))}})\n"
        f"for suffix in {[*FORMATS]}: sys.stdout.buffer.write(draw_heads([p], suffix=suffix))"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True,
            env={**os.environ, "MPLCONFIGDIR": folder, "PYTHONHASHSEED": seed},
        ).stdout
        for folder, seed in ((str(tmp_path), "1"), (os.environ.get("MPLCONFIGDIR", str(tmp_path / "none")), "2"))
    ]  # fmt: skip

    assert runs[0] == runs[1]


def test_a_backend_that_matplotlib_does_not_know_is_no_traceback():
    code = "from hydractl.reporting.heads_figure import *; draw_heads([None], suffix='.svg')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "MPLBACKEND": "are not supported: open_clip has no such cleaning"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert "UsageError: matplotlib does not start: " in done.stderr
    assert "are not supported: open_clip has no such cleaning" in done.stderr


def test_a_file_says_neither_when_nor_with_what_it_was_made():
    svg = draw_heads(panels(1), suffix=".svg").decode()
    png = draw_heads(panels(1), suffix=".png")

    assert re.search(r"dc:date|dc:creator|Matplotlib v", svg) is None
    assert b"Software" not in png
    ET.fromstring(svg)  # noqa: S314 - our own bytes
    assert Image.open(io.BytesIO(png)).info.keys() <= {"dpi"}


@pytest.mark.parametrize("name", ["$x_{1$.json", "日本 \udcff\n.json", "", "x" * 5000, "<&>'\""], ids=ascii)
@pytest.mark.parametrize("suffix", FORMATS)
def test_any_name_is_shown_literally(name, suffix):
    picture = draw_heads([panel(name), panel("b")], suffix=suffix)

    if suffix == ".svg":
        ET.fromstring(picture.decode())  # noqa: S314 - as above


@pytest.mark.parametrize(
    "shape", [{"t": TowerShape(1, 1)}, {"t": TowerShape(2, 64)}, {"t": TowerShape(96, 2)}], ids=str
)
def test_any_shape_is_drawn(shape):
    assert Image.open(io.BytesIO(draw_heads(panels(2, shape), suffix=".png"))).width < 1000


def test_a_choice_that_removes_nothing_is_drawn():
    mask = best_mask((), ONE, removals=0)

    assert draw_heads([Panel(name="base.st", mask=mask)], suffix=".svg")


@pytest.mark.parametrize(
    ("count", "suffix", "text"),
    [(0, ".png", "got 0"), (MOST_PANELS + 1, ".png", "got 41"), (1, ".pdf", "'.pdf'")],
)
def test_refuses_what_cannot_be_drawn(count, suffix, text):
    with pytest.raises(ValueError, match=text):
        draw_heads([panel("a")] * count, suffix=suffix)


SHAPES = (ONE, TWO, {"vision": TowerShape(24, 16)})
TITLES = ((1, LONG), (2, "{}.json"), (5, LONG), (7, "W" * 40 + "{}"))


@pytest.mark.parametrize(
    ("shape", "count", "name"),
    [
        pytest.param(shape, count, name, marks=() if (i + j) % 2 else pytest.mark.more)
        for i, shape in enumerate(SHAPES)
        for j, (count, name) in enumerate(TITLES)
    ],
)
def test_no_two_texts_overlap_or_leave_the_sheet(shape, count, name):
    from matplotlib import rc_context

    given = panels(count, shape, name)
    with rc_context({"font.size": 8.0}):
        figure = Figure(dpi=100)
        canvas = FigureCanvasAgg(figure)
        heads_figure._fill(figure, given)
        canvas.draw()
        texts = [*figure.texts, *(t for legend in figure.legends for t in legend.get_texts())]
        for axes in figure.axes:
            low, high = axes.get_xlim()
            top, bottom = sorted(axes.get_ylim())
            texts += [axes.xaxis.label, axes.yaxis.label]
            texts += [t for t in axes.get_xticklabels() if low <= t.get_position()[0] <= high]
            texts += [t for t in axes.get_yticklabels() if top <= t.get_position()[1] <= bottom]
        boxes = {t.get_text(): t.get_window_extent() for t in texts if t.get_text()}
        extents = [t.get_window_extent() for t in texts if t.get_text()]

    width, height = figure.get_size_inches() * 100
    for text, box in boxes.items():
        assert box.x0 >= 0, text
        assert box.x1 <= width + 1, text
        assert box.y0 >= 0, text
        assert box.y1 <= height, text
    assert not [1 for one, two in combinations(extents, 2) if one.overlaps(two)]


PATHS = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=4).map("/".join)


@given(st.lists(PATHS, min_size=1, max_size=5))
def test_short_names_tell_apart_what_names_do(names):
    found = distinct_names(names)

    assert len(set(found)) == len(set(names))
    assert all(f"/{name}".endswith(f"/{short}") for name, short in zip(names, found, strict=True))


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["runs/0/scores.json"], ["scores.json"]),
        (["x/taylor/s.json", "x/circuit/s.json", "m.json"], ["taylor/s.json", "circuit/s.json", "m.json"]),
        (["s.json", "x/s.json"], ["s.json", "x/s.json"]),
        (["x/s.json", "x/s.json"], ["s.json", "s.json"]),
        (["out/hydra.st: a.st", "out/hydra.st: b.st"], ["hydra.st: a.st", "hydra.st: b.st"]),
        (["folder/", "stdin"], ["folder/", "stdin"]),
    ],
)
def test_names_lose_the_folders_that_say_nothing(names, shown):
    assert distinct_names(names) == tuple(shown)


@given(st.text(max_size=60), st.integers(2, 20))
def test_a_shortened_text_fits_and_keeps_its_ends(text, letters):
    found = shortened(text, letters)

    assert len(found) <= letters
    assert (found == text) == (len(text) <= letters)
    assert not text or found[-1] in {text[-1], "…"}


@given(st.text(max_size=80), st.integers(2, 20), st.integers(1, 4))
def test_a_wrapped_name_fits_its_place(name, letters, lines):
    found = wrapped(name, letters, lines=lines).split("\n")

    assert len(found) <= lines
    assert all(len(line) <= letters for line in found)
    if len(name) <= letters * lines:
        assert "".join(found) == printable(name)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a\nb", "a?b"),
        ("\udcff.json", "?.json"),
        ("a\u202e\u200b\u3164", "a???"),
        ("$x_1$ é 日", "$x_1$ é 日"),
    ],
)
def test_what_a_figure_cannot_show(name, shown):
    assert printable(name) == shown


def test_the_end_of_a_path_says_most():
    assert (
        shortened("/data/runs/seed-0/scores.json", 20)
        == "/data/…/scores.json"[:6] + "…" + "-0/scores.json"[-13:]
    )
