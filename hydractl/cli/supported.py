"""Generated tables of docs/models.md: supported models, and the handling of their files.

`python -m hydractl.cli.supported` writes them between two comments of the page. With `--check` the command
only reports outdated tables. No model library is loaded.
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
    """Return the Markdown table of models: a row per family, then a row per unsupported model type."""
    rows = [(f.library, f"`{f.name}`", f.covers, f.refuses or NOTHING) for f in FAMILIES.values()]
    rows.sort(key=lambda row: row[0])  # The sort is stable: families of a library keep their order.
    rows += [(TRANSFORMERS, NOTHING, NOTHING, f"`{kind}`: {reason}") for kind, reason in REFUSED.items()]
    return _markdown(HEADING, rows)


def rules_table() -> str:
    """Return the table of fields and files of folders as Markdown."""
    rules = dict.fromkeys(rule for family in FAMILIES.values() for rule in family.rules)
    rows = sorted(((rule.library, rule.name, rule.effect) for rule in rules), key=lambda row: row[0])
    return _markdown(RULES_HEADING, rows)


def _markdown(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = (heading, ("---",) * len(heading), *(tuple(map(_cell, row)) for row in rows))
    return "".join(f"| {' | '.join(row)} |\n" for row in cells)


def _cell(text: str) -> str:
    return text.replace("|", r"\|").replace("\n", " ")


def with_table(text: str) -> str | None:
    """Return the page with new tables, or None without both comments once and in order."""
    before, start, after_start = text.partition(START)
    _, end, after = after_start.partition(END)
    if not start or not end or START in after_start or END in before + after:
        return None
    return f"{before}{START}\n\n{table()}\n{rules_table()}\n{END}{after}"


def main(arguments: Iterable[str]) -> int:
    """Write the tables, or with `--check` compare them.

    Returns:
        Exit code: 3 if the page lacks the comments, 5 for outdated tables with `--check`, else 0.
    """
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
