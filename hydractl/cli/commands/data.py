"""`hydractl data`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hydractl.cli.command import QUIET, command
from hydractl.cli.output import Terminal, line, table
from hydractl.data.presets import PREFIX
from hydractl.stages.datasets import DataConfig

if TYPE_CHECKING:
    from rich.console import Console

    from hydractl.stages.datasets import Data, DataReport, KnownDataset


@command(
    DataConfig, quiet=replace(QUIET, help="Print nothing; the exit code says whether the data set exists.")
)
def data(config: DataConfig, terminal: Terminal) -> None:
    """List the named data sets, or show the references of some.

    A preset stands wherever DATA does: `preset:sst2::split=train`. `preset:sst2/near` names all near OOD sets of it, for `eval
    --near`, and `preset:sst2/yelp` one of them. Downloads nothing.

    Examples:
      hydractl data list
      hydractl data show cifar100
      hydractl data list --json > sets.json
    """
    from hydractl.stages.datasets import run_data

    terminal.result(run_data(config, terminal.progress()), render)


def render(report: DataReport, out: Console) -> None:
    """Show a line a data set, or all of each."""
    if report.briefly:
        rows = [
            (
                dataset.name,
                dataset.holds,
                _number(dataset.classes),
                _number(dataset.samples),
                _outside(dataset),
                dataset.licence,
            )
            for dataset in report.sets
        ]
        out.print(table(["name", "holds", "classes", "test", "OOD sets", "licence"], rows, left=2))
        return
    for number, dataset in enumerate(report.sets):
        if number:
            line(out, "")
        _show(dataset, out)


def _show(dataset: KnownDataset, out: Console) -> None:
    from hydractl.cli.tables import facts

    rows = [
        ("name", dataset.name),
        ("what", dataset.about),
        (
            "holds",
            f"{dataset.holds}, {'no labels' if dataset.classes is None else f'{dataset.classes} classes'}",
        ),
        ("licence", dataset.licence),
        ("home", dataset.home),
        *([("note", dataset.note)] if dataset.note else []),
    ]
    out.print(facts(rows))
    _references("parts", dataset.parts, out)
    for role, sets in dataset.outside.items():
        _references(f"{role} (all of them: {PREFIX}{dataset.name}/{role})", sets, out)


def _references(title: str, sets: tuple[Data, ...], out: Console) -> None:
    """Show what to type, one a line and whole, so that it can be pasted."""
    out.print()
    line(out, f"{title}:")
    for data_set in sets:
        line(
            out, f"  {data_set.typed}{'' if data_set.samples is None else f'   {data_set.samples:,} samples'}"
        )
        line(out, f"    {data_set.read}")


def _number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _outside(dataset: KnownDataset) -> str:
    return ", ".join(f"{len(sets)} {role}" for role, sets in dataset.outside.items())
