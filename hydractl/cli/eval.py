"""`hydractl eval`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hydractl.cli.options import (
    DATA_METAVAR,
    DATA_SOURCES,
    UNLABELLED_SOURCES,
    ArchOpt,
    BatchSizeOpt,
    ClassesOpt,
    DeviceOpt,
    DtypeOpt,
    ForceOpt,
    JsonOpt,
    MaxLengthOpt,
    ModelArg,
    QuietOpt,
    SeedOpt,
    TemplateOpt,
)
from hydractl.cli.output import Terminal, as_json, count, line, table
from hydractl.progress import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from hydractl.manifest import Fingerprint, Report, Row

TABLE, DATA = "Table", "Data"
PERCENT = {"accuracy", "auroc", "fpr95", "aupr", "disagreement"}
COUNTS = {"parameters", "macs"}
TIMES = {"latency_ms", "latency_batch_ms"}
ID_COLUMNS = {"accuracy": "Acc", "brier": "Brier", "nll": "NLL", "ece": "ECE", "adaptive_ece": "aECE"}
OOD_COLUMNS = {"auroc": "AUROC", "fpr95": "FPR95", "aupr": "AUPR"}
TEMPERATURE = "temperature"
COST_COLUMNS = {"parameters": "Params", "macs": "MACs", "latency_ms": "Latency"}
MEMBER_COLUMNS = {"mutual_information": "MI", "disagreement": "DI"}


def evaluate(
    model: ModelArg,
    data: Annotated[
        str,
        typer.Option(
            "--data", metavar=DATA_METAVAR, help=f"In-distribution data, with labels: {DATA_SOURCES}.",
            show_default=False, rich_help_panel=DATA,
        ),
    ],
    near: Annotated[
        list[str] | None,
        typer.Option("--near", metavar="NAME=DATA", help="OOD data close to it.", rich_help_panel=DATA),
    ] = None,
    far: Annotated[
        list[str] | None,
        typer.Option("--far", metavar="NAME=DATA", help=f"OOD data far from it; also {UNLABELLED_SOURCES}.", rich_help_panel=DATA),
    ] = None,
    compare: Annotated[
        list[str] | None,
        typer.Option(
            "--compare", metavar="NAME=MODEL[,MODEL...]", help="One more row: a model, or an ensemble of several.",
            rich_help_panel=TABLE,
        ),
    ] = None,
    temperature: Annotated[
        str | None,
        typer.Option(
            "--temperature", metavar="DATA|NUMBER",
            help="Labelled held-out data: each row's logits are divided by the number that lowers its NLL there most. "
            "Or the number.",
            rich_help_panel=DATA, show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="What the first row is called.", rich_help_panel=TABLE)
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option("--metrics", metavar="NAME,...", help="Measure these only.", rich_help_panel=TABLE),
    ] = None,
    latency: Annotated[
        bool, typer.Option("--latency/--no-latency", help="Measure time too.", rich_help_panel=TABLE)
    ] = True,
    bootstrap: Annotated[
        int,
        typer.Option(
            "--bootstrap", min=0, metavar="N", help="Resamples for 95 % intervals; 0 makes none.",
            rich_help_panel=TABLE,
        ),
    ] = 200,
    fail_if: Annotated[
        list[str] | None,
        typer.Option("--fail-if", metavar="COND", help="Exit 5 if this is so of MODEL, for example `ece>0.02`."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="PATH", help="Report; `-` is standard output.", show_default=False),
    ] = None,
    save_predictions: Annotated[
        Path | None,
        typer.Option(
            "--save-predictions", metavar="PATH",
            help="Keep all log-probabilities (safetensors), scaled by `--temperature`.", show_default=False,
        ),
    ] = None,
    max_length: MaxLengthOpt = None,
    batch_size: BatchSizeOpt = 64,
    classes: ClassesOpt = None,
    template: TemplateOpt = None,
    device: DeviceOpt = "auto",
    dtype: DtypeOpt = None,
    arch: ArchOpt = None,
    seed: SeedOpt = 0,
    force: ForceOpt = False,
    json: JsonOpt = False,
    quiet: QuietOpt = False,
) -> None:  # fmt: skip
    """Measure accuracy, calibration, OOD detection, diversity and cost, of one model or of several side by side.

    A condition names a metric of MODEL; on OOD data it says where: `auroc[near]`, `auroc[all]`, `fpr95[svhn]`.

    Metrics: accuracy, brier, nll, ece, adaptive_ece; of members mutual_information, disagreement, entropy; with OOD data auroc, fpr95, aupr, aupr_in, aupr_out_trapezoid, aupr_in_trapezoid; the temperature if there is one; costs parameters, macs, latency_ms, latency_batch_ms.

    Examples:
      hydractl eval hydra.st --data digits::split=test,classes=0-6
      hydractl eval hydra.st --data val/ --near birds=birds/ --far noise --fail-if 'auroc[near]<0.9' -o report.json
      hydractl eval hydra.st --data digits::split=test --temperature digits::split=val --compare base.st
      hydractl eval clip-hydra.st --data val/ --classes cat,dog --template "A photo of a {label}."
      hydractl eval hydra.st --data reviews.jsonl --near goods=hf:fancyzhx/amazon_polarity::split=test,limit=2000
      hydractl eval hydra.st --data val/ --compare base.st --compare 'Deep ensemble=a.st,b.st,c.st'
    """
    terminal = Terminal(as_json=json, quiet=quiet, out=save_predictions if str(out) != "-" else out)
    from hydractl.data.reference import DataRef
    from hydractl.stages.evaluate.condition import Condition
    from hydractl.stages.evaluate.refs import NamedData, NamedModels, parse_temperature
    from hydractl.stages.evaluate.run import EvalConfig, run_eval
    from hydractl.stages.shared.classes import Naming

    config = EvalConfig(
        model=model, data=DataRef.parse(data), near=tuple(map(NamedData.parse, near or ())),
        far=tuple(map(NamedData.parse, far or ())), compare=tuple(map(NamedModels.parse, compare or ())),
        name=name, arch=arch, metrics=None if metrics is None else tuple(metrics.split(",")),
        fail_if=tuple(map(Condition.parse, fail_if or ())), out=out, save_predictions=save_predictions,
        naming=Naming.parse(classes, template), max_length=max_length, batch_size=batch_size, device=device, dtype=dtype,
        temperature=None if temperature is None else parse_temperature(temperature), latency=latency, bootstrap=bootstrap, seed=seed, force=force,
    )  # fmt: skip
    report = run_eval(config, terminal.progress())
    if json and terminal.speaks:
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
        label
        for m, label in OOD_COLUMNS.items()
        if any(m in row.means.get("all", {}) for row in document.rows)
    ]
    means = f"; {_listed(ranked)} {'are means' if len(ranked) > 1 else 'is a mean'} over {sets} OOD sets"
    hidden = set() if _has_members(document) else set(MEMBER_COLUMNS)
    shown = {m for row in document.rows for m in row.values.keys() - hidden}
    shown |= {m for row in document.rows for values in row.ood.values() for m in values}
    names = {**ID_COLUMNS, **OOD_COLUMNS, **MEMBER_COLUMNS}
    shares = [label for m, label in names.items() if m in PERCENT & shown]
    return (means if ranked and sets > 1 else "") + (f". {_listed(shares)} in %" if shares else "")


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
    return any(row.members > 1 and row.values.keys() & MEMBER_COLUMNS for row in document.rows)


def _main_table(document: Report) -> object:
    chosen = {TEMPERATURE: "T", **ID_COLUMNS, **OOD_COLUMNS, **COST_COLUMNS}
    known = [m for m in chosen if any(_number(row, m) is not None for row in document.rows)]
    batch = document.options.get("batch_size")
    heads = [chosen[m] for m in known]
    if any("latency_batch_ms" in row.values for row in document.rows):
        known.append("latency_batch_ms")
        heads.append(f"at batch {batch}")
    rows = [[row.name, *(cell(m, _number(row, m)) for m in known)] for row in document.rows]
    return table(["model", *heads], rows)


def _number(row: Row, metric: str) -> float | None:
    """Return what the main table shows: the ID value or cost, or the mean over all OOD sets."""
    if metric in row.values:
        return row.values[metric].value
    return row.means.get("all", {}).get(metric) if metric in OOD_COLUMNS else None


def _ood_table(document: Report, name: str, kind: str) -> object:
    known = [m for m in (*OOD_COLUMNS, *MEMBER_COLUMNS) if all(m in row.ood[name] for row in document.rows)]
    labels = {**OOD_COLUMNS, **MEMBER_COLUMNS}
    rows = [[row.name, *(_with_interval(m, row, name) for m in known)] for row in document.rows]
    data = document.data[name]
    title = f"{name} ({kind} OOD: {_samples(data, ', ')})"
    return table(["model", *(labels[m] for m in known)], rows, title=title)


def _with_interval(metric: str, row: Row, name: str) -> str:
    value = row.ood[name][metric]
    text = cell(metric, value.value)
    if value.low is None or value.high is None:
        return text
    return f"{text} [{cell(metric, value.low)}, {cell(metric, value.high)}]"


def _member_table(document: Report) -> object:
    known = [m for m in MEMBER_COLUMNS if all(m in row.values for row in document.rows)]
    ood = all(row.means.get("all", {}).keys() >= {*known} for row in document.rows)
    heads = [f"{MEMBER_COLUMNS[m]} ID" for m in known] + [f"{MEMBER_COLUMNS[m]} OOD" for m in known if ood]
    rows = [
        [
            row.name,
            str(row.members),
            *(cell(m, row.values[m].value) for m in known),
            *(cell(m, row.means["all"][m]) for m in known if ood),
        ]
        for row in document.rows
    ]
    return table(["model", "members", *heads], rows, title="Diversity of the members")


def cell(metric: str, value: float | None) -> str:
    """Return a number as a person reads it."""
    if value is None:
        return ""
    if metric in PERCENT:
        return f"{100 * value:.1f}"
    if metric in COUNTS:
        return count(value)
    return f"{value:.2f} ms" if metric in TIMES else f"{value:.3f}"
