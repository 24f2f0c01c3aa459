"""A report as Markdown, for pull requests and model cards."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from hydractl.errors import harmless
from hydractl.reporting.comparison import Compared
from hydractl.reporting.report_values import ReportTable
from hydractl.reporting.sections import checks, facts, tables, title
from hydractl.reporting.summary import verdict
from hydractl.reporting.svg import MARK


def markdown(compared: Compared, pictures: Mapping[str, tuple[str, str]]) -> str:
    """Return the text.

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
