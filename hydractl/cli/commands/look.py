"""Commands that show files, data sets and the machine: `inspect`, `data`, `doctor`, `schema`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer

from hydractl.cli.command import QUIET, command
from hydractl.cli.output import Terminal, line, model_cell, size, table
from hydractl.data.presets import PREFIX
from hydractl.errors import escape_line
from hydractl.messages import abridged, count, counted, quoted
from hydractl.reporting.lineage import Node, lineage, pairs, plain, short
from hydractl.stages.datasets import Data, DataConfig, DataReport, KnownDataset, run_data
from hydractl.stages.doctor import DoctorConfig, DoctorReport, run_doctor

if TYPE_CHECKING:
    from rich.console import Console
    from rich.tree import Tree

    from hydractl.manifest.head_mask import HeadImportance, HeadMask, Mask
    from hydractl.manifest.header import Architecture, Preprocess, Step, Tokenization
    from hydractl.reporting.file_contents import CheckpointReport, Fused, SavedPredictions, Tally, TensorLine
    from hydractl.stages.inspect.config import InspectConfig
    from hydractl.stages.inspect.run import DocumentReport, LineageReport
    from hydractl.training.resume import StateFile


LABELS_SHOWN = 20
"""Maximum number of class names. `--json` has all of them. Chosen by hand; twice the number doubles the
line."""
PARTS_SHOWN = 200
"""Maximum number of rows for parts of a model, which a crafted file may have by the thousand. Chosen by hand;
twice the number doubles the table."""
LINES_SHOWN = 5000
"""Maximum number of tensors in the list of `--tensors`. `--json` has all of them. Chosen by hand; twice the
number doubles the list."""


@command(
    "hydractl.stages.inspect.config:InspectConfig",
    quiet=replace(
        QUIET, help="Print nothing; the exit code shows whether the file is valid, or the files match."
    ),
)
def inspect(config: InspectConfig, terminal: Terminal) -> None:
    """Show the content of a file: sizes, heads, scores, predictions.

    Only headers are read, so large files are quick. A checkpoint records the digest of every file read by its
    stages. `--verify` finds files by content, then by name. Data sets are recorded by their items and cannot
    be verified.

    Examples:
      hydractl inspect hydra.st
      hydractl inspect base.st --tensors
      hydractl inspect -q mask.json && echo valid
      hydractl inspect hydra.st --lineage
      hydractl inspect hydra.st --verify a.st b.st c.st
    """
    if config.shows_lineage:
        from hydractl.stages.inspect.run import run_lineage

        report = run_lineage(config, terminal.progress())
        terminal.result(report, show_lineage)
        report.require_checks()
    else:
        from hydractl.stages.inspect.run import run_inspect

        terminal.result(run_inspect(config, terminal.progress()), show_file)


def show_file(report: CheckpointReport | DocumentReport, out: Console) -> None:
    """Print the content of a file of any kind."""
    from hydractl.manifest.head_mask import HeadImportance, HeadMask
    from hydractl.manifest.report import Report
    from hydractl.reporting.file_contents import CheckpointReport
    from hydractl.training.resume import StateFile

    if isinstance(report, CheckpointReport):
        return _checkpoint(report, out)
    document = report.document
    if isinstance(document, HeadMask):
        return show_mask(model_cell(report.file), document, out)
    if isinstance(document, HeadImportance):
        return show_importance(model_cell(report.file), document, out)
    if isinstance(document, Report):
        from hydractl.cli.commands.measure import show_report

        return show_report(document, out)
    if isinstance(document, StateFile):
        return show_state(model_cell(report.file), document, out)
    raise TypeError(type(document).__name__)


def _checkpoint(report: CheckpointReport, out: Console) -> None:
    from hydractl.cli.tables import facts

    model, fused, file = report.model, report.fused, model_cell(report.file)
    of = f" of {counted(len(model.masks), 'member')}" if fused else ""
    line(out, f"{file}: {report.kind}{of}")
    out.print(facts(_checkpoint_facts(report)))
    out.print()
    if report.predictions:
        out.print(_predictions(report.predictions))
    else:
        out.print(_plan(fused, report.total) if fused else _parts(report.parts, report.total))
    if report.kind != "base":
        maps(model.masks, fused.members if fused else (file,), out)
    if report.lineage:
        out.print()
        out.print(lineage_tree(file, report.lineage))
    if report.listing is not None:
        out.print()
        out.print(_listing(report.listing))
    if report.hint:
        out.print()
        line(out, f"hint: {report.hint}")


def _checkpoint_facts(report: CheckpointReport) -> list[tuple[str, str]]:
    from hydractl.manifest.terms import Temperature

    model, total = report.model, report.total
    rows = [] if report.predictions else [("architecture", model.name or "not recorded")]
    if model.architecture:
        rows += _architecture_facts(model.architecture)
    if model.num_classes is not None:
        several = model.architecture is not None and model.architecture.task.by_label
        rows.append(("labels" if several else "classes", _labelled(model.num_classes, model.labels)))
    if model.preprocess:
        rows.append(("preprocessing", _preprocess(model.preprocess, model.tokenizer_size)))
    if model.prompting:
        rows.append(("prompts", _preprocess(model.prompting.tokenization, model.tokenizer_size)))
        rows += [("template", template) for template in model.prompting.templates]
    if report.scale != Temperature():
        rows.append(("temperature", str(report.scale)))
    if report.label_thresholds:
        rows.append(("label thresholds", abridged(report.label_thresholds)))
    guarantees = {
        "threshold": report.threshold,
        "known inputs": report.known_test,
        "prediction sets": report.prediction_sets,
    }
    rows += [(name, guarantee.summary) for name, guarantee in guarantees.items() if guarantee is not None]
    if report.fitted is not None:
        importance, data = ", ".join(report.fitted.scores), report.fitted.data.reference
        cost = (
            f"{size(report.beside_bytes)} in addition to the weights, {report.beside_macs / 1e6:.2g} M "
            "multiply-accumulates per sample"
        )
        rows.append(("OOD scores", f"{importance}: fitted on {data}, {cost}"))
    dtypes = (f"{name} ({counted(a.tensors, 'tensor')})" for name, a in report.dtypes.items())
    rows.append(("dtypes", ", ".join(dtypes)))
    if not report.predictions:
        rows.append(("parameters", f"{count(total.parameters)} ({total.parameters:,})"))
    rows.append(("bytes", f"{size(total.size_bytes)} in {counted(total.tensors, 'tensor')}"))
    if model.heads_total:
        rows.append(("heads", f"{' + '.join(map(str, model.heads_kept))} of {model.heads_total} kept"))
    return [*rows, *_fused_facts(report), *report.metadata.items()]


def _listing(lines: Sequence[TensorLine]) -> object:
    fates = any(t.fate for t in lines)
    rows = [
        (
            t.name,
            t.part,
            *([t.fate or ""] if fates else []),
            t.dtype,
            "x".join(map(str, t.shape)) or "scalar",
            size(t.size_bytes),
        )
        for t in lines[:LINES_SHOWN]
    ]
    if hidden_count := len(lines) - len(rows):
        rows.append(
            (f"{counted(hidden_count, 'tensor')} more: `--json` lists all", *[""] * (len(rows[0]) - 1))
        )
    columns = ["tensor", "part", *(["fate"] if fates else []), "dtype", "shape", "bytes"]
    return table(columns, rows, left=len(columns) - 2)


def _architecture_facts(architecture: Architecture) -> list[tuple[str, str]]:
    config = ", ".join(f"{k}={plain(v)}" for k, v in sorted(architecture.config.items()))
    rows = [("library", f"{architecture.library}, family {architecture.family}")]
    if architecture.pooling is not None:
        rows.append(("pooling", f"{architecture.pooling} over all tokens"))
    if config:
        rows.append(("configuration", config))
    rows += [
        (
            f"tower {name}",
            f"{counted(t.layers, 'layer')} of {counted(t.num_heads, 'head')}, each {t.head_dim} wide"
            + (f"; {t.sharing} share each head of keys" if t.sharing > 1 else ""),
        )
        for name, t in architecture.towers.items()
    ]
    return rows


def _fused_facts(report: CheckpointReport) -> list[tuple[str, str]]:
    fused, architecture = report.fused, report.model.architecture
    if fused is None or architecture is None:
        return []
    layers = sum(t.layers for t in architecture.towers.values())
    step = report.lineage
    trained = step is not None and step.command == "finetune"
    return [
        ("trunk", f"{fused.trunk} of {counted(layers, 'block')} computed once"),
        *(
            [("averaged", f"tensors that differ before block {fused.merge_trunk}")]
            if fused.merge_trunk
            else []
        ),
        ("MLPs", "averaged where they differ" if fused.mlp == "merge" else "kept for each member"),
        ("apart", f"the members take {size(fused.apart_bytes)}"),
        (
            "trained as one" if trained else "verification",
            pairs(step.results if step else {}) or "not verified",
        ),
    ]


def _parts(parts: Mapping[str, Tally], total: Tally) -> object:
    rows = [(name, *_tally(tally)) for name, tally in [*parts.items()][:PARTS_SHOWN]]
    if hidden_count := len(parts) - len(rows):
        rows.append((f"{counted(hidden_count, 'part')} more", "", "", ""))
    return table(["part", "tensors", "parameters", "bytes"], [*rows, ("in all", *_tally(total))])


def _predictions(predictions: SavedPredictions) -> object:
    rows = [
        (
            p.row,
            p.data,
            str(p.members),
            str(p.samples),
            str(p.classes),
            "yes" if p.data in predictions.labels else "no",
        )
        for p in predictions.log_probs
    ]
    return table(["row", "data", "members", "samples", "classes", "labels"], rows, left=2)


def _plan(fused: Fused, total: Tally) -> object:
    rows = [
        (part, fate, *_tally(tally))
        for part, fates in fused.amounts.items()
        for fate, tally in sorted(fates.items())
    ]
    columns = ["part", "fate", "tensors", "parameters", "bytes"]
    return table(columns, [*rows, ("in all", "", *_tally(total))], left=2)


def _tally(tally: Tally) -> tuple[str, str, str]:
    return str(tally.tensors), count(tally.parameters), size(tally.size_bytes)


def _labelled(number: int, labels: Sequence[str]) -> str:
    if not labels:
        return str(number) if number else "none yet (class names are given as texts)"
    suffix = f", ... and {len(labels) - LABELS_SHOWN} more" if len(labels) > LABELS_SHOWN else ""
    return f"{number}: {', '.join(labels[:LABELS_SHOWN])}{suffix}"


def _preprocess(preprocess: Preprocess | Tokenization, tokens: int | None) -> str:
    from hydractl.manifest.header import Tokenization

    if isinstance(preprocess, Tokenization):
        tokenizer_text = (
            f"its own tokenizer with {counted(tokens, 'token')}" if tokens else "its own tokenizer"
        )
        tokenizer = (
            f"{tokenizer_text} (the model knows {preprocess.vocab_size})"
            if preprocess.tokenizer
            else "no tokenizer yet"
        )
        names = ", ".join(("input_ids", *preprocess.names))
        side = ", padded on the left" if preprocess.padding_side == "left" else ""
        return f"text, {tokenizer}, at most {preprocess.max_length} tokens per text{side}; {names}"
    shape = "x".join(map(str, preprocess.input_size))
    mean, std = (" ".join(f"{v:g}" for v in values) for values in (preprocess.mean, preprocess.std))
    return f"{shape}, {preprocess.interpolation}, crop {preprocess.crop_pct:g} {preprocess.crop_mode}, mean {mean}, std {std}"


def show_mask(file: str, mask: HeadMask, out: Console) -> None:
    """Print a head mask."""
    from hydractl.cli.tables import facts
    from hydractl.heads.budget import total_heads
    from hydractl.heads.masks import total_kept

    kept_heads, total = total_kept(mask.towers), total_heads(mask.towers)
    line(out, f"{file}: head mask, {kept_heads} of {counted(total, 'head')} kept")
    rows = [("architecture", mask.architecture or "any model of this shape")]
    if mask.base:
        rows.append(("base", short(mask.base)))
    if origin := mask.origin:
        rows.append(("strategy", origin.strategy + (f", {pairs(origin.budget)}" if origin.budget else "")))
        origin_fields = {
            "method": origin.method,
            "seed": origin.seed,
            "member": origin.member,
            "tool": origin.tool,
        }
        rows += [(name, str(value)) for name, value in origin_fields.items() if value is not None]
        rows += [("scores", short(digest)) for digest in origin.scores]
    else:
        rows.append(("origin", "not recorded (may be written by hand)"))
    out.print(facts(rows))
    maps([mask.towers], ["kept"], out)


def show_importance(file: str, importance: HeadImportance, out: Console) -> None:
    """Print head importance: its origin, the ranks of heads, and the order of removal for a greedy method."""
    from hydractl.cli.tables import RankMap, facts
    from hydractl.pruning.selection import ranks

    line(out, f"{file}: scores by {importance.method}")
    rows = [("objective", importance.objective)] if importance.objective else []
    rows += [("options", pairs(importance.options))] if importance.options else []
    scalars = {
        name: value for name, value in importance.results.items() if not isinstance(value, tuple | list)
    }
    rows += [("results", pairs(scalars))] if scalars else []
    if importance.clusters is not None:
        sizes = ", ".join(str(len(cluster)) for cluster in importance.clusters)
        rows += [("clusters", f"{len(importance.clusters)}, of {sizes} heads")]
    rows += [
        (
            "model",
            f"{importance.model.reference}, {importance.architecture}, {short(importance.model.sha256)}",
        ),
        *(
            (f"data {name}", fingerprint(f.reference, f.sha256, f.count))
            for name, f in importance.data.items()
        ),
        ("tool", importance.tool),
    ]
    out.print(facts(rows))
    ranked = ranks(importance)
    total = sum(len(row) for tower in ranked.values() for row in tower)
    has_kept_heads = any(rank is None for tower in ranked.values() for row in tower for rank in row)
    meaning = (
        f"{total} was removed first, - was kept" if has_kept_heads else f"1 of {total} is the most important"
    )
    for tower, table_of_ranks in ranked.items():
        out.print()
        line(out, f"Ranks of the heads of tower {tower}: {meaning}")
        out.print(RankMap(ranks=table_of_ranks, total=total))
    if importance.removals is not None:
        _removals(importance, out)


def show_state(file: str, state: StateFile, out: Console) -> None:
    """Print the progress of an unfinished training, and how to resume it."""
    at, best = state.position, state.position.best
    place = f" with learning rate {at.candidate + 1} of the grid" if at.candidate else ""
    line(out, f"{file}: state of an unfinished run, after {counted(at.step, 'step')}{place}")
    if best is not None:
        line(
            out, f"Best validation: accuracy {best.accuracy:.4f}, NLL {best.nll:.4f}, at step {at.best_step}"
        )
    line(out, "hint: the same command resumes this run; `--force` discards it to start with other options")


def _removals(importance: HeadImportance, out: Console) -> None:
    from hydractl.cli.tables import Newspaper

    steps = importance.removals or ()
    start = "" if importance.baseline is None else f" ({importance.baseline:.4f} before)"
    digits, tower = len(str(len(steps))), len(importance.towers) > 1
    lines = [
        f"{i:>{digits}}. {f'{s.tower} ' if tower else ''}layer {s.layer} head {s.head}: {s.objective:.4f}"
        for i, s in enumerate(steps, 1)
    ]
    out.print()
    line(out, f"Order of removal, and the objective after each step{start}:")
    out.print(Newspaper(lines=tuple(lines)))


def maps(masks: Sequence[Mask], names: Sequence[str], out: Console) -> None:
    """Print the kept heads of masks, with a map per tower and mask. `names` are the headings of the masks."""
    from hydractl.cli.tables import HeadMaps

    for tower, first in masks[0].items() if masks else ():
        out.print()
        if len(masks[0]) > 1:
            line(out, f"tower {tower}")
        out.print(
            HeadMaps(
                names=tuple(names),
                keep=tuple(mask[tower].keep for mask in masks),
                num_heads=first.num_heads,
            )
        )


def lineage_tree(file: str, step: Step) -> Tree:
    """Return the tree of a file's provenance."""
    from rich.text import Text
    from rich.tree import Tree

    def text(node: Node) -> Text:
        words = (node.name, short(node.sha256), "(as above)" if node.is_repeated else node.step)
        return Text(escape_line("  ".join(filter(None, words))), overflow="fold")

    def grow(tree: Tree, node: Node) -> Tree:
        for source in node.made_of:
            grow(tree.add(text(source)), source)
        return tree

    root = lineage(file, step)
    return grow(Tree(text(root)), root)


def show_lineage(report: LineageReport, out: Console) -> None:
    """Print the provenance of a model, or the result of the verification of each file."""
    for verified_file in report.verified:
        as_read = (
            f" is `{verified_file.read_as}`" if not verified_file.problem else f": {verified_file.problem}"
        )
        line(
            out,
            f"{'failed' if verified_file.problem else 'ok'}: {verified_file.file}{as_read}, {short(verified_file.sha256)}",
        )
    if report.left:
        line(out, f"not verified: {quoted(report.left)}")
    if report.step is None:
        line(out, f"{model_cell(report.model)}: a {report.kind} that was not made by hydractl")
    elif not report.verified:
        out.print(lineage_tree(model_cell(report.model), report.step))


def fingerprint(reference: str, digest: str, number: int | None) -> str:
    """Return reference, digest and size of a data set as text; None leaves out the size."""
    return f"{reference}, {short(digest)}" + (f", {counted(number, 'sample')}" if number is not None else "")


@command(
    "hydractl.stages.datasets:DataConfig",
    quiet=replace(QUIET, help="Print nothing; the exit code shows whether the data set exists."),
)
def data(config: DataConfig, terminal: Terminal) -> None:
    """List named data sets, or show their references.

    Presets are valid wherever a command takes DATA: `preset:sst2::split=train`. For `eval --near`,
    `preset:sst2/near` means all near OOD sets of `sst2`, and `preset:sst2/yelp` means the near OOD set
    `yelp`. Nothing is downloaded.

    Examples:
      hydractl data list
      hydractl data show cifar100
      hydractl data list --json > sets.json
    """
    terminal.result(run_data(config, terminal.progress()), show_sets)


def show_sets(report: DataReport, out: Console) -> None:
    """Print a line per data set, or all details of each."""
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
        _show_set(dataset, out)


def _show_set(dataset: KnownDataset, out: Console) -> None:
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
    """Print references to type, a line each and unabridged for copying."""
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


@command(
    "hydractl.stages.doctor:DoctorConfig",
    quiet=replace(QUIET, help="Print nothing; the exit code shows whether all checks passed."),
)
def doctor(config: DoctorConfig, terminal: Terminal) -> None:
    """Show versions, devices, cache, Hub and token.

    If a check fails, prints advice and exits with 5. `pip check` compares the requirements of libraries. With
    `HF_HUB_OFFLINE=1` the network is not used. The token is never printed.

    Examples:
      hydractl doctor
      hydractl doctor --json > doctor.json
      HF_HUB_OFFLINE=1 hydractl doctor -q
    """
    report = run_doctor(config, terminal.progress())
    terminal.result(report, show_findings)
    report.require_checks()


def show_findings(report: DoctorReport, out: Console) -> None:
    """Print a line per finding. The error after the table has the advice."""
    rows = [(f.group, f.name, f.state, f.found) for f in report.findings]
    out.print(table(["", "what", "state", "found"], rows, left=4))


DocumentKind: TypeAlias = Literal["scores", "head-mask", "report"]


def schema(
    kind: Annotated[DocumentKind, typer.Argument(help="Kind of file.", show_default=False)],
    json: Annotated[
        bool, typer.Option("--json", help="Accepted for consistency; a schema is always JSON.")
    ] = False,
) -> None:
    """Print the JSON Schema of scores, head masks or reports.

    Examples:
      hydractl schema head-mask
      hydractl schema report > report.schema.json
    """
    terminal = Terminal(as_json=json)
    from hydractl.manifest.report import DOCUMENTS

    json_schema = DOCUMENTS[kind].model_json_schema(by_alias=True)
    # The schema does not require this field, because the constructors of hydractl have a default. In a file
    # the field is required.
    json_schema["required"] = sorted({*json_schema.get("required", ()), "schema"})
    if terminal.speaks:
        terminal.document(json_schema)
