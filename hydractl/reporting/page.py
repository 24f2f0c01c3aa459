"""A report as a page of HTML: one file that loads nothing, for a screen of any width, light or dark, or paper."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

from hydractl.errors import harmless
from hydractl.reporting.chart import Figure, sample
from hydractl.reporting.comparison import Compared
from hydractl.reporting.sections import checks, facts, lineages, tables, title
from hydractl.reporting.summary import verdict
from hydractl.reporting.svg import MARK, style, svg
from hydractl.version import __version__

TEMPLATE = "page.html"


def page(compared: Compared, figures: Sequence[Figure]) -> str:
    """Return the page. What is of the user is text in it, whatever it says."""
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
