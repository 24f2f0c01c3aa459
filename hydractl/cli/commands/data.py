"""`hydractl data`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hydractl.cli.command import QUIET, command
from hydractl.cli.output import Terminal, line, table
from hydractl.data.presets.registry import PREFIX
from hydractl.stages.datasets.config import DataConfig

if TYPE_CHECKING:
    from rich.console import Console

    from hydractl.stages.datasets.run import Data, DataReport, KnownDataset


@command(
    DataConfig, quiet=replace(QUIET, help="Print nothing: the exit code says whether there is such a set.")
)
def data(config: DataConfig, terminal: Terminal) -> None:
    """List the data sets that have names, `preset:NAME`, or show all that is known of some: references, licence, OOD sets.

    A preset stands wherever DATA does: `preset:sst2::split=train`. `preset:sst2/near` names all sets that are near to it, for
    `eval --near`, and `preset:sst2/yelp` one. Nothing is fetched here.

    Examples:
      hydractl data list
      hydractl data show cifar100
      hydractl data list --json | jq -r '.sets[] | select(.zero_shot) | .name'
    """
    from hydractl.stages.datasets.run import run_data

    terminal.result(run_data(config, terminal.progress()), render)


def render(report: DataReport, out: Console) -> None:
    """Show a line a data set, or all of each."""
    if report.briefly:
        rows = [
            (one.name, one.holds, _number(one.classes), _number(one.samples), _outside(one), one.licence)
            for one in report.sets
        ]
        out.print(table(["name", "holds", "classes", "test", "OOD sets", "licence"], rows, left=2))
        return
    for number, one in enumerate(report.sets):
        if number:
            line(out, "")
        _show(one, out)


def _show(one: KnownDataset, out: Console) -> None:
    from hydractl.cli.tables import facts

    told = [
        ("name", one.name),
        ("what", one.about),
        ("holds", f"{one.holds}, {'no labels' if one.classes is None else f'{one.classes} classes'}"),
        ("licence", one.licence),
        ("home", one.home),
        *([("note", one.note)] if one.note else []),
    ]
    out.print(facts(told))
    _references("parts", one.parts, out)
    for role, sets in one.outside.items():
        _references(f"{role} (all of them: {PREFIX}{one.name}/{role})", sets, out)


def _references(title: str, sets: tuple[Data, ...], out: Console) -> None:
    """Show what to type, one a line and whole, so that it can be pasted."""
    out.print()
    line(out, f"{title}:")
    for one in sets:
        line(out, f"  {one.typed}{'' if one.samples is None else f'   {one.samples:,} samples'}")
        line(out, f"    {one.read}")


def _number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _outside(one: KnownDataset) -> str:
    return ", ".join(f"{len(sets)} {role}" for role, sets in one.outside.items())
