"""Pages in a real browser, if installed: visible figures, phone width, and the reader's colours."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from itertools import combinations

import pytest

from hydractl.reporting.comparison import Compared
from hydractl.reporting.figures import figures
from hydractl.reporting.matplotlib_figure import PAINTS
from hydractl.reporting.page import page
from support.analysed import FIGURES, analysed
from support.reports import examples, seeded

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
PHONE, DESK = 375, 1280
WITHOUT = ("reliability", "heads", "taylor", "runtime")
"""Figures without a legend, whose panels have names."""
NAMES = ("<script>document.title='broken into'</script>", "an_unbroken_name_" * 12, "base")
CASES = {
    "one": (seeded(0).model_copy(update={"examples": examples()}),),
    "seeds": (seeded(0, shape=(2, 3, 200)), seeded(1, shape=(2, 3, 200))),
    "analysed": (analysed(seeded(0, names=NAMES)),),
    "many": (seeded(0, names=NAMES, near=("a" * 90, "<b>"), shape=(16, 24, 16)),),
}
LOOK = """<script>
addEventListener("load", () => {
  const found = [...document.querySelectorAll("iframe")].map(frame => {
    const page = frame.contentDocument, wide = page.documentElement.clientWidth;
    for (const each of page.querySelectorAll("details")) each.open = true;
    for (const each of page.querySelectorAll(".wide")) each.scrollLeft = 1e6;
    const outside = (what, share) => [...page.querySelectorAll(what)].map(one => one.getBoundingClientRect()).filter(
      one => one.left < 0 || one.right > share * wide);
    const sticking = [...page.querySelectorAll("body *")].filter(
      one => !one.closest(".wide > *, svg > *, head") && one.getBoundingClientRect().right > wide + 0.5);
    return {
      name: frame.name, wide, scroll: page.documentElement.scrollWidth, title: page.title,
      captions: outside("caption span", 1), rows: outside(".wide th:first-child", 0.9),
      sticking: sticking.map(one => one.tagName + "." + one.className),
      seen: [...page.querySelectorAll("figure[id]")].map(
        one => [one.id, [...one.querySelectorAll(".panels svg")].every(svg => svg.getBoundingClientRect().height > 20)]),
      legends: [...page.querySelectorAll(".legend")].map(one => [...one.querySelectorAll("li svg")].map(
        svg => [svg, svg.closest("li")].map(each => each.getBoundingClientRect()).map(
          each => [each.left, each.top, each.right, each.bottom]))),
      sheet: getComputedStyle(page.body).backgroundColor,
      letters: Math.min(...[...page.querySelectorAll("svg text")].map(
        text => parseFloat(getComputedStyle(text).fontSize) * Math.hypot(text.getScreenCTM().a, text.getScreenCTM().b))),
    };
  });
  const told = document.body.appendChild(document.createElement("pre"));
  told.textContent = "FOUND" + JSON.stringify(found) + "END";
});
</script>"""


def overlap(one, other):
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


@pytest.fixture
def shown(tmp_path):
    """Return a browser's measurements of each page, for a dark phone and a light desktop, and the console."""
    frames = []
    for name, reports in CASES.items():
        compared = Compared.of({f"{i}.json": report for i, report in enumerate(reports)})
        text = html.escape(page(compared, tuple(figures(compared))))
        frames += [
            f'<iframe name="{name}" style="width:{wide}px;height:800px;border:0;color-scheme:{scheme}" srcdoc="{text}"></iframe>'
            for wide, scheme in ((PHONE, "dark"), (DESK, "light"))
        ]
    (tmp_path / "all.html").write_text(f"<!doctype html><meta charset=utf-8><body>{''.join(frames)}{LOOK}")
    done = subprocess.run(
        [
            BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", f"--user-data-dir={tmp_path / 'profile'}",
            "--hide-scrollbars", "--dump-dom", (tmp_path / "all.html").as_uri(),
        ],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    (found,) = re.findall(r"<pre>FOUND(.+)END</pre>", done.stdout)
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return json.loads(html.unescape(found)), console


def test_every_figure_is_seen_and_nothing_sticks_out(shown):
    found, console = shown

    assert console == []
    assert [(one["name"], one["wide"]) for one in found] == [(n, w) for n in CASES for w in (PHONE, DESK)]
    for one in found:
        more = FIGURES if one["name"] == "analysed" else []
        names = ("cost", "reliability", "risk", "roc", "heads", *more)
        assert sorted(one["seen"]) == sorted([name, True] for name in names)
        assert (one["scroll"], one["sticking"]) == (one["wide"], [])
        assert (one["captions"], one["rows"]) == ([], [])  # the table is scrolled to the end
        assert one["letters"] > 8.5
        assert len(one["legends"]) == len([name for name in names if name not in WITHOUT])
        for legend in one["legends"]:
            boxes = [entry for _, entry in legend]
            assert not [pair for pair in combinations(boxes, 2) if overlap(*pair)]
            assert all(sample[2] - sample[0] > 30 and entry[2] - sample[2] > 12 for sample, entry in legend)
        assert one["title"] != "broken into"
        sheet = PAINTS["sheet"][one["wide"] == PHONE]
        assert one["sheet"] == f"rgb({', '.join(str(int(sheet[i : i + 2], 16)) for i in (1, 3, 5))})"
