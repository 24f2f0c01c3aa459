"""A report as a page: of HTML, one file that loads nothing, for a screen of any width, light or dark, or paper; or of Markdown.

Pages of Markdown are for pull requests and model cards.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files

from hydractl.errors import harmless
from hydractl.reporting.chart import Figure, sample
from hydractl.reporting.comparison import Compared
from hydractl.reporting.report_values import ReportTable
from hydractl.reporting.sections import checks, facts, lineages, tables, title, verdict
from hydractl.reporting.svg import MARK, style, svg
from hydractl.version import __version__

TEMPLATE = "page.html"


def page(compared: Compared, figures: Sequence[Figure]) -> str:
    """Return the page of HTML. What is of the user is text in it, whatever it says."""
    from jinja2 import Environment, StrictUndefined  # noqa: PLC0415 - `--help` does without

    environment = Environment(autoescape=True, undefined=StrictUndefined, finalize=_safe_text)
    template = environment.from_string(files(__package__).joinpath(TEMPLATE).read_text(encoding="utf-8"))
    return template.render(
        mark=MARK,
        version=__version__,
        title=title(compared),
        svg=svg,
        sample=sample,
        style=style(),
        verdict=verdict(compared),
        notes=compared.notes,
        checks=tuple(checks(compared)),
        tables=tuple(tables(compared)),
        figures=figures,
        lineage=lineages(compared),
        facts=tuple(facts(compared)),
        definitions=compared.reports[0].definitions,
    )


def _safe_text(value: object) -> object:
    """Return what the template shows of a value: a text of somebody else without unsafe characters, before it is escaped."""
    return harmless(value) if type(value) is str else value  # not what is markup of ours


def markdown(compared: Compared, pictures: Mapping[str, tuple[str, str]]) -> str:
    """Return the page of Markdown.

    Args:
        compared: What it says.
        pictures: Of each figure by its title: what is to be seen, and where the picture lies beside the text.
    """
    return "\n".join(_lines(compared, pictures)) + "\n"


def _lines(compared: Compared, pictures: Mapping[str, tuple[str, str]]) -> Iterator[str]:
    yield from (f"# {literal(title(compared))}", "", f"<!-- {MARK} -->")
    for sentence in (*verdict(compared), *compared.notes):
        yield from ("", literal(sentence))
    for i, (failed, text) in enumerate(checks(compared)):
        yield from ([""] if i == 0 else [])
        yield f"- {'❌' if failed else '✅'} {literal(text)}"
    every = tuple(tables(compared))
    for table in every:
        if not table.folded:
            yield from _table(table)
    if folded := [table for table in every if table.folded]:
        yield from ("", "<details><summary>Each data set</summary>")
        for table in folded:
            yield from _table(table)
        yield from ("", "</details>")
    for name, (alt, place) in pictures.items():
        yield from ("", f"## {name}", "", f"![{literal(alt)}]({place})")
    yield from ("", "<details><summary>What was measured</summary>", "")
    yield from (f"- {literal(name)}: {literal(text)}" for name, text in facts(compared))
    yield from ("", "</details>")


def _table(table: ReportTable) -> Iterator[str]:
    yield from ("", f"**{literal(table.title)}**", "")
    yield f"| {table.of} | {' | '.join(map(literal, table.heads))} |"
    yield f"|---|{'---:|' * len(table.heads)}"
    for name, cells in table.rows:
        cell_texts = (literal(" ".join(filter(None, cell))) for cell in cells)
        yield f"| {literal(name)} | {' | '.join(cell_texts)} |"


def literal(text: str) -> str:
    """Return a text in which nothing is markup."""
    line = re.sub(r"\s+", " ", harmless(text)).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_{}#|~!@]|\](?=[\[(:]))", r"\\\1", line)  # brackets alone mark nothing
