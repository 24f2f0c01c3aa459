"""Pages of a report: a single HTML file without external resources, or Markdown.

HTML pages adapt to any screen width, dark mode and paper. Markdown pages are for pull requests and model
cards.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib.resources import files

from hydractl.errors import escape_unsafe
from hydractl.reporting.chart import Figure, sample
from hydractl.reporting.comparison import Compared
from hydractl.reporting.matplotlib_figure import MARK, style, svg
from hydractl.reporting.report_values import ReportTable
from hydractl.reporting.sections import Section, answer_table, checks, facts, lineages, sections, title
from hydractl.reporting.verdict import remarks, sentence, verdict_table
from hydractl.version import __version__

TEMPLATE = "page.html"
FIRST = "risk"
"""Figure next to the verdict."""


def page(compared: Compared, figures: Sequence[Figure]) -> str:
    """Return the HTML page. All text from users is escaped."""
    from jinja2 import Environment, StrictUndefined  # noqa: PLC0415 - `--help` does without

    # `finalize` runs before escaping: texts lose control characters. Markup of hydractl is of another type
    # than `str` and is kept.
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: escape_unsafe(value) if type(value) is str else value,
    )
    template = environment.from_string(files(__package__).joinpath(TEMPLATE).read_text(encoding="utf-8"))
    by_name = {figure.name: figure for figure in figures}
    return template.render(
        mark=MARK,
        version=__version__,
        title=title(compared),
        svg=svg,
        sample=sample,
        style=style(),
        sentence=sentence(compared),
        verdict=verdict_table(compared),
        first=FIRST,
        answers=answer_table(compared),
        remarks=tuple(remarks(compared)),
        checks=tuple(checks(compared)),
        sections=tuple(_filled(compared, by_name)),
        by_name=by_name,
        lineage=lineages(compared),
        facts=tuple(facts(compared)),
        definitions=compared.reports[0].definitions,
    )


def _filled(compared: Compared, by_name: Collection[str]) -> Iterator[Section]:
    """Yield the sections with a table or a drawn figure."""
    for section in sections(compared):
        figures = tuple(name for name in section.figures if name in by_name)
        if section.tables or figures:
            yield section._replace(figures=figures)


def markdown(compared: Compared, figures: Sequence[Figure], folder: str | None) -> str:
    """Return the Markdown page.

    Args:
        compared: The reports.
        figures: Drawn figures.
        folder: URL of the folder of figures, relative to the page. `None` if figures were not written.
    """
    return "\n".join(_lines(compared, {} if folder is None else {f.name: f for f in figures}, folder)) + "\n"


def _lines(compared: Compared, by_name: Mapping[str, Figure], folder: str | None) -> Iterator[str]:
    yield from (f"# {literal(title(compared))}", "", f"<!-- {MARK} -->", "", literal(sentence(compared)))
    yield from _table(verdict_table(compared))
    yield from _picture(by_name, FIRST, folder)
    if (answers := answer_table(compared)) is not None:
        yield from _table(answers)
    for remark in remarks(compared):
        yield from ("", literal(remark))
    for i, (failed, text) in enumerate(checks(compared)):
        yield from ([""] if i == 0 else [])
        yield f"- {'❌' if failed else '✅'} {literal(text)}"
    for section in _filled(compared, by_name):
        yield from ("", f"## {section.title}")
        for table in section.tables:
            if not table.folded:
                yield from _table(table)
        if folded := [table for table in section.tables if table.folded]:
            yield from ("", "<details><summary>Each data set</summary>")
            for table in folded:
                yield from _table(table)
            yield from ("", "</details>")
        for name in section.figures:
            yield from _picture(by_name, name, folder)
    yield from ("", "<details><summary>What was measured</summary>", "")
    yield from (f"- {literal(name)}: {literal(text)}" for name, text in facts(compared))
    yield from ("", "</details>")


def _picture(by_name: Mapping[str, Figure], name: str, folder: str | None) -> Iterator[str]:
    if name in by_name:
        yield from ("", f"![{literal(by_name[name].description)}]({folder}/{name}.png)")


def _table(table: ReportTable) -> Iterator[str]:
    yield from ("", f"**{literal(table.title)}**", "")
    yield f"| {table.of} | {' | '.join(map(literal, table.heads))} |"
    yield f"|---|{'---:|' * len(table.heads)}"
    for name, cells in table.rows:
        yield f"| {literal(name)} | {' | '.join(literal(cell.text) for cell in cells)} |"


def literal(text: str) -> str:
    """Return a text as a single line without active HTML and inline Markdown.

    White space becomes single spaces. Markers at the beginning of a line, for example `- ` and `1. `, are not
    escaped, so the text should follow other text.
    """
    line = (
        re.sub(r"\s+", " ", escape_unsafe(text))
        .replace("&", "&amp;")
        .replace("<", "&lt;")
        .replace(">", "&gt;")
    )
    # a closing bracket is Markdown only before `[`, `(` or `:`
    return re.sub(r"([\\`*_{}#|~!@]|\](?=[\[(:]))", r"\\\1", line)
