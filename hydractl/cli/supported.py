"""The tables of supported models, and of what folders may say, in the documents, from the families themselves.

`python -m hydractl.cli.supported` writes them between two comments in docs/models.md; with `--check` it says whether they
are out of date. No model library is loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from hydractl.families.registry import FAMILIES
from hydractl.families.transformers.hf_models import REFUSED
from hydractl.families.transformers.models import LIBRARY as TRANSFORMERS

PAGE = Path("docs/models.md")
START = "<!-- models: written by `python -m hydractl.cli.supported` -->"
END = "<!-- end of models -->"
HEADING = ("library", "family", "models", "refused")
RULES_HEADING = ("library", "field or file of a folder", "what is done with it")
NOTHING = "–"


def table() -> str:
    """Return the table as Markdown, a row a family, then a row a model type that is refused as a whole."""
    rows = [(f.library, f"`{f.name}`", f.covers, f.refuses or NOTHING) for f in FAMILIES.values()]
    rows.sort(key=lambda row: row[0])  # stable: a library's families keep their order
    rows += [(TRANSFORMERS, NOTHING, NOTHING, f"`{kind}`: {reason}") for kind, reason in REFUSED.items()]
    return _markdown(HEADING, rows)


def rules_table() -> str:
    """Return the table of what is done with each field and file of a library's folder, as Markdown."""
    rules = dict.fromkeys(rule for family in FAMILIES.values() for rule in family.rules)
    rows = sorted(((rule.library, rule.name, rule.effect) for rule in rules), key=lambda row: row[0])
    return _markdown(RULES_HEADING, rows)


def _markdown(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = (heading, ("---",) * len(heading), *(tuple(map(_cell, row)) for row in rows))
    return "".join(f"| {' | '.join(row)} |\n" for row in cells)


def _cell(text: str) -> str:
    return text.replace("|", r"\|").replace("\n", " ")


def with_table(text: str) -> str | None:
    """Return a page with the table of today between its comments, or None if it does not have them once, in order."""
    before, start, after_start = text.partition(START)
    _, end, after = after_start.partition(END)
    if not start or not end or START in after_start or END in before + after:
        return None
    return f"{before}{START}\n\n{table()}\n{rules_table()}\n{END}{after}"


def main(arguments: Iterable[str]) -> int:
    """Write the table, or with `--check` compare it; return the exit code."""
    text = PAGE.read_text(encoding="utf-8") if PAGE.is_file() else ""
    page_text = with_table(text)
    if page_text is None:
        sys.stderr.write(f"{PAGE}: lacks the two comments around the table\n\nhint: {START} ... {END}\n")
        return 3
    if page_text == text:
        return 0
    if "--check" in arguments:
        sys.stderr.write(
            f"out of date: {PAGE}'s table of models\n\nhint: run `python -m hydractl.cli.supported`\n"
        )
        return 5
    PAGE.write_text(page_text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
