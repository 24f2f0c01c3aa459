"""Pages: a single complete file for any report, without markup from the report's texts."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from functools import cache
from html.parser import HTMLParser

import pytest

from hydractl.errors import InputError, ManifestError
from hydractl.manifest.document import Value
from hydractl.manifest.guarantees import Example, Examples
from hydractl.manifest.report import Bins, Report
from hydractl.reporting.chart import Chart, series_style
from hydractl.reporting.comparison import Compared
from hydractl.reporting.figures import figures
from hydractl.reporting.matplotlib_figure import PAINTS, svg
from hydractl.reporting.page import FIRST, markdown, page
from hydractl.reporting.report_values import Cell
from hydractl.reporting.sections import answer_table, class_tables, sections
from hydractl.reporting.verdict import remarks, sentence, verdict_table
from support.analysed import analysed
from support.reports import THRESHOLD, examples, seeded

ALL = ["risk", "reliability", "roc", "cost", "heads"]
FIGURES = ["risk", "reliability", "roc", "shift", "cost", "heads"]
WITHOUT_COST = [name for name in ALL if name != "cost"]
EVIL = ("<script>alert(1)</script>", '"><img src=x onerror=alert(2)>', "a|b `c` [d](e) 中文 ${x} {{ 7 * 7 }}")
VOID = {"meta", "link", "img", "br", "input"}


class Read(HTMLParser):
    """Parser for elements with attributes, and texts by element; checks that elements are nested correctly."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.setdefault(self.open[-1] if self.open else "", []).append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.found if name == tag]


def made(*reports):
    compared = Compared.of({f"{i}.json": report for i, report in enumerate(reports)})
    return page(compared, tuple(figures(compared)))


MANY = {
    "names": tuple(f"row {i}" for i in range(30)),
    "near": tuple(map(str, range(9))),
    "shape": (16, 24, 16),
}
PAGES = {
    "one report": ({}, ALL),
    "several seeds": ({"seeds": 3}, ALL),
    "no comparison": ({"names": ("hydra",)}, WITHOUT_COST),
    "no OOD data": ({"near": (), "far": ()}, [name for name in ALL if name != "roc"]),
    "one member": ({"names": ("member",), "shape": (1, 2, 2)}, WITHOUT_COST),
    "corrupted": ({"shift": True}, FIGURES),
    "corrupted seeds": ({"shift": True, "seeds": 2}, FIGURES),
    "no curves": ({"curves": False}, ["cost"]),
    "the reports have no curves to draw": ({"names": ("hydra",), "curves": False}, []),
    "many of all": (MANY, ALL),
    "evil names": ({"names": EVIL, "near": ("</title><script>1",), "far": ("<b>",)}, ALL),
}


@cache
def text_of(name):
    given = dict(PAGES[name][0])
    return made(*(seeded(seed, **given) for seed in range(given.pop("seeds", 1))))


@pytest.fixture(params=PAGES)
def case(request):
    return text_of(request.param), PAGES[request.param][1]


@pytest.mark.spread(cases=4)
def test_each_figure_is_there_and_says_what_it_shows(case):
    text, drawn = case
    read = Read(text)

    ids = [attributes["id"] for _, attributes in read.found if "id" in attributes]
    assert not read.open
    assert len(ids) == len({*ids})
    assert [name for name in ids if name in FIGURES] == drawn
    assert len(read.all("figure")) == len(read.all("figcaption")) == len(drawn)
    pictures = read.all("svg")
    assert len(pictures) == len(read.texts.get("desc", ())) >= len(drawn)
    assert all(picture["role"] == "img" for picture in pictures)
    assert all(told.strip() for told in read.texts.get("desc", ()))


@pytest.mark.spread(cases=3)
def test_a_legend_names_every_row_whole(case):
    """Each name has a sample with the colour and dashes of its lines."""
    drawn = [one for one in case[0].split("<figure ") if 'class="legend"' in one]
    ids = {re.search(r'id="([\w-]+)"', one)[1] for one in drawn}

    costs = case[0].partition("<caption><span>Costs</span>")[2].partition("</table>")[0]
    named = re.findall(r'<th scope="row">(.*?)</th>', costs)
    assert ids == {*case[1]} - {"reliability", "heads"}
    for one in drawn:
        lines = re.findall(
            r'style="fill: none; (?:stroke-dasharray: ([\d.,]+); stroke-dashoffset: 0; )?stroke: var\(--(c\d)\); stroke-width: 1.8',
            one,
        )
        entries = re.findall(r"</svg>\s*</span>(.*?)</li>", one)
        styles = [series_style(i) for i in range(len(entries))]
        assert [paint for _, paint in lines[: len(entries)]] == [style.paint for style in styles]
        dashes = [tuple(map(float, filter(None, dash.split(",")))) for dash, _ in lines[: len(entries)]]
        assert dashes == [style.dash for style in styles]
        assert {*lines[len(entries) :]} <= {*lines[: len(entries)]}
        assert entries == named


def test_it_loads_nothing(case):
    read = Read(text := case[0])

    assert {tag for tag, _ in read.found} & {
        "script",
        "link",
        "img",
        "iframe",
        "object",
        "image",
    } == set()
    for _, attributes in read.found:
        assert {*attributes} & {"src", "href", "srcset", "onerror", "onload"} == set()
        assert (attributes.get("xlink:href") or "#").startswith("#")
        assert (attributes.get("clip-path") or "url(#").startswith("url(#")
    styles = " ".join([*read.texts["style"], *(a.get("style") or "" for _, a in read.found)])
    assert not re.search(r"url\(|@import|expression", styles)
    assert {*re.findall(r"var\(--(\w+)\)", text)} <= {*PAINTS}


def test_it_has_a_title_a_language_and_a_width(case):
    read = Read(case[0])

    assert read.all("html") == [{"lang": "en"}]
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in read.all("meta")
    assert len(read.all("h1")) == len(read.all("main")) == 1
    assert all("scope" in cell for cell in read.all("th"))


def test_what_reports_say_is_text():
    read = Read(text_of("evil names"))

    said = " ".join(text for texts in read.texts.values() for text in texts)
    assert all(name in said for name in (*EVIL, "</title><script>1"))
    assert "49" not in " ".join(read.texts["h1"])


def test_no_character_steers_a_page():
    steering = "\x1b]0;a\x07\u202e\u200b\x9b"
    text = made(seeded(0, names=(f"a{steering}b", "base"), near=(steering,)))

    assert not set(text) & set(steering.replace("]0;a", ""))
    assert "a\\x1b]0;a\\x07\\u202e\\u200b\\x9bb" in text


def test_class_names_are_text_however_many():
    report = seeded(0)
    classes = tuple(f"<script>{i}</script>" for i in range(1000))
    text = made(report.model_copy(update={"options": {"classes": classes}}))

    assert Read(text).all("script") == []
    assert "&lt;script&gt;999" in text


def changed(report, **updates):
    return report.model_copy(update={"rows": (report.rows[0].model_copy(update=updates), *report.rows[1:])})


@pytest.mark.more
def test_whatever_numbers_a_file_holds_there_is_a_page():
    report = seeded(0)
    row = report.rows[0]
    nothing = row.curves.model_copy(
        update={
            "reliability": Bins(count=(0,), confidence=(0.0,), accuracy=(0.0,)),
        }
    )
    for value in (-1e308, 0.0, 1e308):
        same = Value(value=value, low=-1e308, high=1e308)
        text = made(changed(report, values=dict.fromkeys(row.values, same), curves=nothing))
        assert len(Read(text).all("figure")) == len(ALL)


METRICS = ("accuracy", "nll", "ece", "brier", "macs", "parameters", "auroc", "fpr95")


@pytest.mark.spread(cases=3)
@pytest.mark.parametrize(
    "kept", [*((name,) for name in METRICS), ("macs", "auroc"), ("accuracy", "macs"), ()]
)
@pytest.mark.parametrize("whose", [slice(None), slice(1)], ids=["all", "first"])
def test_whatever_was_measured_there_is_a_page(kept, whose):
    def left(values):
        return {name: value for name, value in values.items() if name in kept}

    report = seeded(0, shift=True)
    rows = [
        row.model_copy(
            update={
                "values": left(row.values),
                "ood": {name: left(own) for name, own in row.ood.items()},
                "means": {name: left(own) for name, own in row.means.items()},
            }
        )
        for row in report.rows[whose]
    ]
    report = report.model_copy(update={"rows": (*rows, *report.rows[len(rows) :])})
    compared = Compared.of({"a.json": Report.from_json(report.to_json(), place="a")})

    read = Read(page(compared, tuple(figures(compared))))
    both = "macs" in kept and len(kept) > 1
    assert ("cost" in [a["id"] for a in read.all("figure")]) == (both or whose == slice(1))
    assert markdown(compared, (), None)


def test_curves_are_drawn_where_every_report_has_them():
    text = made(seeded(0), seeded(1, curves=False))

    assert [a["id"] for a in Read(text).all("figure")] == ["cost", "heads"]
    assert "Curves are drawn where every report has them" in text


def test_equal_reports_are_equal_bytes_and_others_are_not():
    assert made(seeded(0)) == made(seeded(0)) != made(seeded(1))


def test_numbers_and_differences_are_in_tables():
    text = text_of("several seeds")
    read = Read(text)

    assert read.texts["th"].count("hydra − base") == 3  # ID data, and two OOD sets
    assert sum(" ± " in cell for cell in read.texts["td"]) > 10
    assert any(cell.endswith(("better", "worse", "level")) for cell in read.texts["small"])


def test_the_first_screen_is_a_sentence_a_verdict_and_a_picture():
    """Cells of the verdict have intervals as tooltips, and a colour class with the judgement."""
    text = text_of("one report")
    read = Read(text)
    assert [a["id"] for a in read.all("section")][:2] == ["verdict", "remarks"]
    first = text.partition('<section id="remarks">')[0]
    assert (
        first.index('<p class="verdict">')
        < first.index('<section id="verdict">')
        < first.index('<figure id="risk">')
    )

    compared = Compared.of({"0.json": seeded(0)})
    for _, cells in verdict_table(compared).rows:
        for cell in cells:
            marks = (f' class="{cell.word}"' if cell.word else "") + (
                f' title="{cell.note}"' if cell.note else ""
            )
            assert f"<td{marks}>{cell.value}</td>" in first
    assert "<small>" not in first


def with_threshold(report, **updates):
    rule = THRESHOLD.model_copy(update={"count": 40, "accepted": 30, "errors": 6, **updates})
    return changed(report, threshold=rule)


def test_the_first_screen_shows_the_threshold_of_the_first_row(monkeypatch):
    """The mark is at the accepted share and the share of wrong answers among these."""
    charts = []
    monkeypatch.setattr(
        "hydractl.reporting.figures.Chart", lambda **given: charts.append(Chart(**given)) or charts[-1]
    )
    (curve, *_) = figures(Compared.of({"a.json": with_threshold(seeded(0))}))
    (panel,) = curve.panels
    drawing = svg(panel, "risk")

    assert curve.name == FIRST
    assert "The mark is the threshold of hydra on `msp`" in curve.description
    assert (
        "threshold of hydra: accepts inputs whose msp is below -0.5 (75.0 % of 40 samples, 6 wrong)"
        in drawing
    )
    assert "threshold of base" not in drawing
    assert charts[0].series[-1].points == [(0.75, 0.2)]
    highest = max(y for row in seeded(0).rows for y in row.curves.risk.y)
    assert charts[0].guides == [((0.75, 0.0), (0.75, highest))]
    assert "threshold" not in next(figures(Compared.of({"a.json": seeded(0)}))).description


def test_a_failed_threshold_and_other_orders_of_rows_have_their_own_marks():
    failed = with_threshold(seeded(0), below=None, accepted=0, errors=0)
    other = with_threshold(seeded(1))
    swapped = other.model_copy(update={"rows": (other.rows[1], other.rows[0], *other.rows[2:])})

    assert "The mark" not in next(figures(Compared.of({"a.json": failed}))).description
    (panel,) = next(figures(Compared.of({"a.json": seeded(0), "b.json": swapped}))).panels
    assert panel.description.count("threshold of hydra") == 1


def test_the_first_screen_has_answers_and_names_the_wrong_one():
    answers = tuple(
        Example(
            name=f"row {i}",
            label="cat",
            answer=answer,
            confidence=0.5,
            votes=(answer,),
            accepted=answer == "cat",
        )
        for i, answer in enumerate(("cat", "cat", "cat", "cat", "dog"))
    )
    report = seeded(0).model_copy(
        update={"examples": Examples(answers=answers, disagreements=(), mistakes=())}
    )
    compared = Compared.of({"a.json": Report.from_json(report.to_json(), place="a")})
    first = page(compared, tuple(figures(compared))).partition('<section id="remarks">')[0]

    title = f"Answers of hydra: inputs at equal distances in {report.data['id'].reference} and the first wrong answer that is held back"
    assert f"<caption><span>{title}</span></caption>" in first
    rows = re.findall(
        r'<tr><th scope="row">(row \d)</th><td>cat</td><td(.*?)>(\w+)</td><td>([\w ]+)</td>', first
    )
    assert rows == [
        *((f"row {i}", "", "cat", "accepted") for i in range(4)),
        ("row 4", ' class="worse"', "dog", "held back"),
    ]
    assert f"**{title}**" in markdown(compared, (), None)

    accepted = tuple(example.model_copy(update={"accepted": True}) for example in answers)
    report = report.model_copy(update={"examples": report.examples.model_copy(update={"answers": accepted})})
    assert answer_table(Compared.of({"a.json": report})).title == title.partition(" and ")[0]


def test_tests_of_another_report_replace_those_of_the_reports(monkeypatch):
    """The mark has the colour of the tested row. Rows, numbers and curves are those of the reports."""
    charts = []
    monkeypatch.setattr(
        "hydractl.reporting.figures.Chart", lambda **given: charts.append(Chart(**given)) or charts[-1]
    )
    tests = with_threshold(seeded(1, names=("base",)), errors=3)
    tests = tests.model_copy(update={"examples": examples()})
    plain, both = (
        Compared.of({"a.json": with_threshold(seeded(0))}, tests=reports) for reports in ((), (tests,))
    )

    assert (both.rows, both.differences) == (plain.rows, plain.differences)
    (panel,) = next(figures(both)).panels
    assert "threshold of base: accepts" in panel.description
    assert "threshold of hydra" not in panel.description
    assert charts[0].series[-1].style == series_style(both.names.index("base"))
    assert charts[0].series[-1].points == [(0.75, 0.1)]
    assert f"base: {tests.rows[0].threshold.summary}." in [*remarks(both)]
    assert "hydra: accepts" in " ".join(remarks(both))
    with pytest.raises(InputError, match="has the row `other`"):
        Compared.of({"a.json": seeded(0)}, tests=(seeded(1, names=("other",)),))


def test_no_backtick_of_hydractl_is_on_a_page():
    compared = Compared.of({"a.json": with_threshold(seeded(0, shift=True))})
    text = page(compared, tuple(figures(compared)))
    unpaired = page(Compared.of({"a.json": seeded(0, names=("a`b", "base"))}), ())

    assert "`" not in text
    assert "<code>msp</code>" in text
    assert "a`b" in " ".join(Read(unpaired).texts["p"])


def test_ratios_of_times_name_the_fastest_row():
    compared = Compared.of({"a.json": analysed(seeded(0))})
    drawn = next(figure for figure in figures(compared) if figure.name == "runtime")
    (table,) = [t for s in sections(compared) for t in s.tables if t.title.startswith("Time for")]

    assert table.heads == ("seconds ↓", "× base")
    assert dict(table.rows)["base"][1].value == "1.00"
    assert "3.00 × base" in drawn.panels[0].description
    assert "to the fastest row, base." in drawn.description


def test_reports_of_earlier_versions_with_histograms_keep_working():
    report = seeded(0)
    raw = json.loads(report.to_json())
    for row in raw["rows"]:
        row["curves"]["confidence"] = {"id": [1, 2], "birds": [0, 3]}

    expected = made(Report.from_json(report.to_json(), place="a"))
    assert made(Report.from_json(json.dumps(raw), place="a")) == expected


def test_every_figure_has_its_section():
    reports = {"a.json": analysed(seeded(0, shift=True))}
    compared = Compared.of(reports)
    drawn = {figure.name for figure in figures(compared)}

    assert drawn == {FIRST, *(name for section in sections(compared) for name in section.figures)}


def test_each_ood_score_has_tables_of_its_own():
    """A second score adds tables and no columns; every table has the numbers of a single score."""
    report = seeded(0)
    rows = tuple(
        row.model_copy(
            update={
                "ood": {name: own | {f"{k}@mi": v for k, v in own.items()} for name, own in row.ood.items()}
            }
        )
        for row in report.rows
    )
    both = Report.from_json(
        report.model_copy(update={"rows": rows, "ood_scores": ("msp", "mi")}).to_json(), place="a"
    )
    one, two = (
        [t for s in sections(Compared.of({"a": r})) if s.name == "ood" for t in s.tables]
        for r in (report, both)
    )
    assert [t.title for t in two] == [f"{t.title}, by {score}" for t in one for score in ("msp", "mi")]
    assert [t.heads for t in two[::2]] == [t.heads for t in two[1::2]] == [t.heads for t in one]
    assert [t.rows for t in two[::2]] == [t.rows for t in two[1::2]] == [t.rows for t in one]


def test_accuracy_by_class_is_of_all_samples_of_all_reports():
    reports = {f"{seed}.json": seeded(seed) for seed in range(3)}
    by_class, confusions = class_tables(Compared.of(reports))

    hits = {
        (row.name, c.name): sum(
            other.hits
            for report in reports.values()
            for same in report.rows
            if same.name == row.name
            for other in same.by_class.classes
            if other.name == c.name
        )
        for row in reports["0.json"].rows
        for c in row.by_class.classes
    }
    assert by_class.title == "Accuracy ↑ by class, lowest of hydra first"
    assert by_class.heads == ("samples", "hydra", "base", "Deep ensemble")
    assert {name: [cell.value for cell in cells] for name, cells in by_class.rows} == {
        name: ["150", *(f"{hits[row, name] / 150:.3f}" for row in by_class.heads[1:])] for name in "abc"
    }
    assert [cells[1].value for _, cells in by_class.rows] == sorted(
        cells[1].value for _, cells in by_class.rows
    )
    assert ("b", (Cell("c"), Cell("9"))) in confusions.rows


def test_classes_of_one_name_are_told_apart():
    report = seeded(0)
    first = report.rows[0]
    same = tuple(c.model_copy(update={"name": "crane"}) for c in first.by_class.classes)
    rows = tuple(
        row.model_copy(update={"by_class": row.by_class.model_copy(update={"classes": same})})
        for row in report.rows
    )

    by_class, _ = class_tables(Compared.of({"a.json": report.model_copy(update={"rows": rows})}))
    assert {name for name, _ in by_class.rows} == {"crane (0)", "crane (1)", "crane (2)"}


def test_examples_are_pictures_in_the_page_and_texts_that_are_no_markup():
    report = seeded(0).model_copy(update={"examples": examples()})
    text = made(Report.from_json(report.to_json(), place="a"))
    read = Read(text)

    assert [a["src"] for a in read.all("img")] == ["data:image/jpeg;base64,/9j/AAAA"]
    assert "the &lt;img src=x&gt; `secret` text" in text
    assert {"examples", "classes"} <= {a["id"] for a in read.all("section")}
    told = markdown(Compared.of({"a.json": report}), (), None)
    assert "| cat/1.png | cat | dog | 0.600 | 0.250 | cat, dog, dog |" in told
    assert r"the &lt;img src=x&gt; \`secret\` text" in told
    assert "examples" not in {a.get("id") for a in Read(made(seeded(0))).all("section")}


@pytest.mark.parametrize("picture", ['"><script>', "data:x", "a b", "", "a" * 20_001])
def test_a_picture_is_base64_and_small(picture):
    raw = json.loads(seeded(0).model_copy(update={"examples": examples()}).to_json())
    raw["examples"]["disagreements"][0]["picture"] = picture

    with pytest.raises(ManifestError, match=r"examples\.disagreements\[0\]\.picture"):
        Report.from_json(json.dumps(raw), place="a")


def test_lineage_is_told_once():
    read = Read(text_of("one report"))

    assert [text for text in read.texts["summary"] if ".st" in text] == [
        "hydra: hydra.st",
        "base: base.st",
        "Deep ensemble: base.st",
    ]
    commands = [text for text in read.texts["code"] if re.match(r"(fuse|prune|import) ", text)]
    assert commands[:3] == ["fuse mlp=merge seed=0", "prune keep=2", "import arch=vit"]
    assert sum("as above" in text for text in read.texts["span"]) == 2


def test_markdown_is_made_of_the_same_sentences_and_tables():
    compared = Compared.of({"a.json": seeded(0, names=EVIL)})
    (first, *others) = figures(compared)
    text = markdown(compared, (first, *others), "some/figures")

    assert sentence(compared).partition("<")[0] in text
    assert f"![{first.description}](some/figures/{FIRST}.png)" in text
    assert len(re.findall(r"(?<!\\)\][(\[:]", text)) == len(others) + 1
    assert not re.search(r"(?<!\\)<(?!/?(details|summary)>|!-- hydractl report -->)", text)
    tables = re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE)
    assert len(tables) > 4
    for table in tables:
        columns = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(columns) == 1
        assert "`" not in re.sub(r"\\`", "", table)


def test_a_figure_of_its_own_is_xml():
    for figure in figures(Compared.of({"a.json": seeded(0, names=EVIL)})):
        root = ET.fromstring(svg(figure.sheet(), standalone=True))  # noqa: S314 - of ours
        tags = [child.tag.rpartition("}")[2] for child in root]

        assert root.tag.endswith("svg")
        assert tags[:5] == ["title", "desc", "style", "rect", "g"]
        assert {*tags[5:]} <= {"defs"}
        texts = ["".join(each.itertext()) for each in root.iter() if each.tag.endswith("}text")]
        assert figure.title in texts
