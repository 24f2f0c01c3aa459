"""`hydractl eval`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hydractl.cli.command import command
from hydractl.cli.output import Terminal, as_json, count, line, table
from hydractl.metrics.metric import Metric, Needs, Unit
from hydractl.metrics.table import METRICS, TEMPERATURE, needing
from hydractl.progress import counted
from hydractl.stages.evaluate.config import EvalConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from rich.console import Console

    from hydractl.manifest import Fingerprint, Report, Value

CELLS: dict[Unit, Callable[[float], str]] = {
    Unit.SHARE: lambda value: f"{100 * value:.1f}",
    Unit.COUNT: count,
    Unit.MS: lambda value: f"{value:.2f} ms",
}


@command(EvalConfig, streams=("out", "save_predictions"))
def evaluate(config: EvalConfig, terminal: Terminal) -> None:
    """Measure accuracy, calibration, OOD detection, diversity and cost, of one model or of several side by side.

    A condition names a metric of MODEL; on OOD data it says where: `auroc[near]`, `auroc[all]`, `fpr95[svhn]`.

    Metrics: {metrics}.

    Examples:
      hydractl eval hydra.st --data digits::split=test,classes=0-6
      hydractl eval hydra.st --data val/ --near birds=birds/ --far noise --fail-if 'auroc[near]<0.9' -o report.json
      hydractl eval hydra.st --data digits::split=test --temperature digits::split=val --compare base.st
      hydractl eval clip-hydra.st --data val/ --classes cat,dog --template "A photo of a {label}."
      hydractl eval hydra.st --data reviews.jsonl --near goods=hf:fancyzhx/amazon_polarity::split=test,limit=2000
      hydractl eval hydra.st --data val/ --compare base.st --compare 'Deep ensemble=a.st,b.st,c.st'
    """
    from hydractl.stages.evaluate.run import run_eval

    report = run_eval(config, terminal.progress())
    if terminal.as_json and terminal.speaks:
        terminal.document(as_json(report.document))
    else:
        terminal.result(report, lambda console: show(report.document, report.paths, console))
    report.require_checks()


def show(document: Report, paths: Sequence[Path], out: Console) -> None:
    """Show the tables, what came of the conditions, and what was written."""
    render(document, out)
    for check in document.checks:
        line(out, f"{'failed' if check.failed else 'ok'}: {check.condition}, found {check.found:.6g}")
    for path in paths:
        if str(path) != "-":
            line(out, f"Wrote {path}")


def render(document: Report, out: Console) -> None:
    """Show a report: a table over all rows, one for each OOD set, and one of the members' diversity."""
    out.print(_main_table(document))
    sets = len(document.near) + len(document.far)
    tested = document.data.get("id")
    if tested is not None:
        line(out, f"{_samples(tested, ': ')}{_notes(document, sets)}")
    if any(TEMPERATURE in row.values for row in document.rows):
        line(out, _scaling(document))
    for kind, names in (("near", document.near), ("far", document.far)):
        for name in names:
            out.print(_ood_table(document, name, kind))
    if _has_members(document):
        out.print(_member_table(document))


def _notes(document: Report, sets: int) -> str:
    """Return what must be known of the columns that are shown: which are means, and which are in %."""
    ranked = [
        str(m.column)
        for m in _columns(Needs.OOD)
        if any(m.name in row.means.get("all", {}) for row in document.rows)
    ]
    means = f"; {_listed(ranked)} {'are means' if len(ranked) > 1 else 'is a mean'} over {sets} OOD sets"
    hidden = set() if _has_members(document) else {m.name for m in _columns(Needs.MEMBERS)}
    shown = {name for row in document.rows for name in row.values.keys() - hidden}
    shown |= {name for row in document.rows for values in row.ood.values() for name in values}
    shares = [
        str(m.column)
        for m in _columns(Needs.LABELS, Needs.OOD, Needs.MEMBERS)
        if m.unit is Unit.SHARE and m.name in shown
    ]
    return (means if ranked and sets > 1 else "") + (f". {_listed(shares)} in %" if shares else "")


def _columns(*needs: Needs) -> list[Metric]:
    """Return the metrics that tables show, in the order of what they need."""
    return [METRICS[name] for each in needs for name in needing(METRICS, each) if METRICS[name].column]


def _scaling(document: Report) -> str:
    """Return where the temperatures are from."""
    fitted_on = document.data.get(TEMPERATURE) if TEMPERATURE not in document.options else None
    source = "as given" if fitted_on is None else f"fitted on {_samples(fitted_on, ', ')}"
    return f"Logits are divided by T, {source}"


def _samples(data: Fingerprint, between: str) -> str:
    return data.reference + ("" if data.count is None else between + counted(data.count, "sample"))


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def _has_members(document: Report) -> bool:
    diverse = {m.name for m in _columns(Needs.MEMBERS)}
    return any(row.members > 1 and row.values.keys() & diverse for row in document.rows)


def _main_table(document: Report) -> object:
    """Return a row's values on the ID set, costs, and means over all OOD sets."""
    found = [
        {m: v.value for m, v in row.values.items()} | dict(row.means.get("all", {})) for row in document.rows
    ]
    every = _columns(Needs.TEMPERATURE, Needs.LABELS, Needs.OOD, Needs.WEIGHTS, Needs.TIME)
    shown = [m for m in every if any(m.name in numbers for numbers in found)]
    heads = [str(m.column).format(batch_size=document.options.get("batch_size")) for m in shown]
    rows = [[row.name, *_cells(shown, numbers)] for row, numbers in zip(document.rows, found, strict=True)]
    return table(["model", *heads], rows)


def _ood_table(document: Report, name: str, kind: str) -> object:
    shown = [
        m for m in _columns(Needs.OOD, Needs.MEMBERS) if all(m.name in row.ood[name] for row in document.rows)
    ]
    rows = [[row.name, *(_with_interval(m, row.ood[name][m.name]) for m in shown)] for row in document.rows]
    title = f"{name} ({kind} OOD: {_samples(document.data[name], ', ')})"
    return table(["model", *(str(m.column) for m in shown)], rows, title=title)


def _with_interval(metric: Metric, found: Value) -> str:
    text = cell(metric, found.value)
    if found.low is None or found.high is None:
        return text
    return f"{text} [{cell(metric, found.low)}, {cell(metric, found.high)}]"


def _member_table(document: Report) -> object:
    known = [m for m in _columns(Needs.MEMBERS) if all(m.name in row.values for row in document.rows)]
    ood = all(row.means.get("all", {}).keys() >= {m.name for m in known} for row in document.rows)
    heads = [f"{m.column} {where}" for where in ("ID", "OOD")[: 1 + ood] for m in known]
    rows = [
        [
            row.name,
            str(row.members),
            *_cells(known, {m: v.value for m, v in row.values.items()}),
            *(_cells(known, row.means["all"]) if ood else ()),
        ]
        for row in document.rows
    ]
    return table(["model", "members", *heads], rows, title="Diversity of the members")


def _cells(metrics: Sequence[Metric], numbers: Mapping[str, float]) -> list[str]:
    return [cell(m, numbers[m.name]) if m.name in numbers else "" for m in metrics]


def cell(metric: Metric, value: float) -> str:
    """Return a number as a person reads it."""
    return CELLS.get(metric.unit, "{:.3f}".format)(value)


def _known_metrics() -> str:
    """Return the names of all metrics, by what they need."""
    kinds = {
        "": (Needs.LABELS,),
        "of members ": (Needs.MEMBERS,),
        "with OOD data ": (Needs.OOD,),
        "the temperature if there is one": (),
        "costs ": (Needs.WEIGHTS, Needs.TIME),
    }
    return "; ".join(kind + ", ".join(needing(METRICS, *needs)) for kind, needs in kinds.items())


evaluate.__doc__ = str(evaluate.__doc__).replace("{metrics}", _known_metrics())
