"""What `hydractl inspect` shows of several choices of heads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hydractl.cli.inspect.documents import maps
from hydractl.cli.output import line, model_cell, table
from hydractl.progress import counted
from hydractl.reporting.names import told_apart

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rich.console import Console

    from hydractl.stages.inspect.choices import Choice
    from hydractl.stages.inspect.compare import Agreement, Comparison, ComparisonReport

SOURCES = {
    "asked": "{option}",
    "recorded": "{option}, as scored",
    "default": "{option}, by default",
}


def show_comparison(report: ComparisonReport, out: Console) -> None:
    """Show choices of heads side by side, and every pair in numbers."""
    choices = report.choices
    rows = []
    for c in choices:
        what = f"scores by {c.method}" if c.method is not None else c.kind.replace("-", " ")
        budget = "" if c.cut is None else SOURCES[c.cut.source].format(option=c.cut.option)
        rows.append((model_cell(c.name), what, budget, f"{c.removed} of {c.heads}"))
    out.print(table(["choice", "what", "budget", "removed"], rows, left=3))
    for choice in choices:
        if choice.ranked is not None and choice.ranked < choice.heads:
            rest = choice.heads - choice.ranked
            line(
                out, f"{model_cell(choice.name)} ranks {counted(choice.ranked, 'head')}; the other {rest} tie"
            )
    names = [model_cell(choice.name) for choice in choices]
    labels = told_apart(names)
    _maps(choices, labels, out)
    if report.pairs:
        out.print()
        _pairs(report.pairs, dict(zip(names, labels, strict=True)), out)
    if report.plot is not None:
        line(out, f"Wrote {report.plot}")


def _maps(choices: tuple[Choice, ...], labels: tuple[str, ...], out: Console) -> None:
    from hydractl.cli.tables import CROSS, KEPT_DROPPED, SHADES

    standing = [choice.standing for choice in choices]
    maps([choice.mask for choice in choices], labels, out, standing=standing)
    if any(standing):
        plain = out.options.ascii_only
        shades, (kept, gone) = SHADES[plain], KEPT_DROPPED[plain]
        line(
            out,
            f"scores: {CROSS[plain]} goes; {shades} stay, from the lowest quarter of all scores to the highest",
        )
        masks = "" if all(standing) else f"masks: {kept} stays, {gone} goes; "
        line(out, f"{masks}numbers: heads kept")


def _pairs(pairs: tuple[Comparison, ...], labels: Mapping[str, str], out: Console) -> None:
    several = len(pairs[0].towers) > 1
    ranked = any(
        value is not None for pair in pairs for value in (pair.overall.spearman, pair.overall.kendall)
    )
    rows = [row for pair in pairs for row in _rows(pair, labels, several=several, ranked=ranked)]
    columns = ["first", "second", *(["tower"] if several else []), "overlap", "by chance", "Jaccard", "JSD"]
    columns += ["Spearman", "Kendall"] if ranked else []
    out.print(table(columns, rows, left=3 if several else 2))
    line(out, "overlap: removed heads in common, of the smaller set; by chance: of random sets as large")
    line(out, "JSD: divergence of the layers that heads are removed from, 0 to 0.693 nats")


def _rows(
    pair: Comparison, labels: Mapping[str, str], *, several: bool, ranked: bool
) -> Iterator[tuple[str, ...]]:
    first, second = (labels[model_cell(name)] for name in (pair.first, pair.second))
    yield (first, second, *(["all"] if several else []), *_numbers(pair.overall, ranked=ranked))
    if several:
        for name, agreement in pair.towers.items():
            yield ("", "", name, *_numbers(agreement, ranked=ranked))


def _numbers(found: Agreement, *, ranked: bool) -> Iterator[str]:
    yield from (f"{value:.3f}" for value in (found.overlap, found.chance_overlap, found.jaccard))
    yield "-" if found.jsd_nats is None else f"{found.jsd_nats:.3f}"
    if ranked:
        yield from ("-" if v is None else f"{v:.3f}" for v in (found.spearman, found.kendall))
