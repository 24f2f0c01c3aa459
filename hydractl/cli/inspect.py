"""`hydractl inspect`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hydractl.cli.options import JsonOpt
from hydractl.cli.output import Terminal, count, line, size, table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console
    from rich.tree import Tree

    from hydractl.manifest import Architecture, HeadMask, HeadScores, InputFile, Preprocess, Step, TowerKeep
    from hydractl.stages.inspect_report import Amount, CheckpointReport, DocumentReport, Fused, TensorLine

LABELS_SHOWN = 20
DIGEST_SHOWN = 12


def inspect(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="A checkpoint, a folder, scores, a head mask or a report; `-` is standard input.",
            show_default=False,
        ),
    ],
    tensors: Annotated[bool, typer.Option("--tensors", help="List a checkpoint's tensors.")] = False,
    json: JsonOpt = False,
) -> None:
    """Show what a file is: sizes, heads, fuse plan, scores, lineage.

    Only headers are read, so a file of any size answers at once.

    Examples:
      hydractl inspect hydra.st
      hydractl inspect member-0.mask.json
      hydractl inspect base.st --tensors
      hydractl inspect hydra.st --json | jq .fused.trunk
    """
    terminal = Terminal(as_json=json)
    from hydractl.stages.inspect import InspectConfig, run_inspect

    report = run_inspect(InspectConfig(file=file, tensors=tensors), terminal.progress())
    terminal.result(report, lambda out: render(report, out))


def render(report: CheckpointReport | DocumentReport, out: Console) -> None:
    """Show a file of any kind."""
    from hydractl.manifest import HeadMask, HeadScores, Report
    from hydractl.stages.inspect_report import CheckpointReport

    if isinstance(report, CheckpointReport):
        return _checkpoint(report, out)
    document = report.document
    if isinstance(document, HeadMask):
        return _mask(report.file, document, out)
    if isinstance(document, HeadScores):
        return _scores(report.file, document, out)
    if isinstance(document, Report):
        from hydractl.cli.eval import render as render_report

        return render_report(document, out)
    raise TypeError(type(document).__name__)


def _checkpoint(report: CheckpointReport, out: Console) -> None:
    from hydractl.cli.tables import facts

    model, fused = report.model, report.fused
    of = f" of {len(model.masks)} members" if fused else ""
    line(out, f"{report.file}: {report.kind}{of}")
    rows = [("architecture", model.name or "not stated")]
    if model.architecture:
        rows += _architecture_facts(model.architecture)
    if model.num_classes is not None:
        rows.append(("classes", _labelled(model.num_classes, model.labels)))
    if model.preprocess:
        rows.append(("preprocessing", _preprocess(model.preprocess)))
    rows.append(("dtypes", ", ".join(f"{name} ({a.tensors} tensors)" for name, a in report.dtypes.items())))
    rows.append(("parameters", f"{count(report.total.parameters)} ({report.total.parameters:,})"))
    rows.append(("bytes", f"{size(report.total.size_bytes)} in {report.total.tensors} tensors"))
    if model.heads_total:
        kept = " + ".join(str(n) for n in model.heads_kept)
        rows.append(("heads", f"{kept} of {model.heads_total} kept"))
    rows += _fused_facts(report)
    rows += list(report.metadata.items())
    out.print(facts(rows))
    out.print()
    out.print(_plan(fused, report.total) if fused else _parts(report.parts, report.total))
    if report.kind != "base":
        _maps(model.masks, fused.members if fused else (report.file,), out)
    if report.lineage:
        out.print()
        out.print(_lineage(report.file, report.lineage))
    if report.listing is not None:
        out.print()
        out.print(_listing(report.listing))
    if report.hint:
        out.print()
        line(out, f"hint: {report.hint}")


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
        for t in lines
    ]
    columns = ["tensor", "part", *(["fate"] if fates else []), "dtype", "shape", "bytes"]
    return table(columns, rows, left=len(columns) - 2)


def _architecture_facts(architecture: Architecture) -> list[tuple[str, str]]:
    config = ", ".join(f"{k}={_plain(v)}" for k, v in sorted(architecture.config.items()))
    rows = [("library", f"{architecture.library}, family {architecture.family}")]
    if config:
        rows.append(("configuration", config))
    rows += [
        (f"tower {name}", f"{t.layers} layers of {t.num_heads} heads, each {t.head_dim} wide")
        for name, t in architecture.towers.items()
    ]
    return rows


def _fused_facts(report: CheckpointReport) -> list[tuple[str, str]]:
    fused, architecture = report.fused, report.model.architecture
    if fused is None or architecture is None:
        return []
    layers = sum(t.layers for t in architecture.towers.values())
    results = report.lineage.results if report.lineage else {}
    return [
        ("trunk", f"{fused.trunk} of {layers} blocks run once"),
        ("MLPs", "averaged where they differ" if fused.mlp == "merge" else "kept for each member"),
        ("apart", f"the members take {size(fused.apart_bytes)}"),
        ("verification", _pairs(results) or "not verified"),
    ]


def _parts(parts: Mapping[str, Amount], total: Amount) -> object:
    rows = [(name, *_amount(amount)) for name, amount in parts.items()]
    return table(["part", "tensors", "parameters", "bytes"], [*rows, ("in all", *_amount(total))])


def _plan(fused: Fused, total: Amount) -> object:
    rows = [
        (part, fate, *_amount(amount))
        for part, fates in fused.amounts.items()
        for fate, amount in sorted(fates.items())
    ]
    return table(
        ["part", "fate", "tensors", "parameters", "bytes"],
        [*rows, ("in all", "", *_amount(total))],
        left=2,
    )


def _amount(amount: Amount) -> tuple[str, str, str]:
    return str(amount.tensors), count(amount.parameters), size(amount.size_bytes)


def _maps(masks: Sequence[Mapping[str, TowerKeep]], names: Sequence[str], out: Console) -> None:
    from hydractl.cli.tables import HeadMaps

    for tower, first in masks[0].items() if masks else ():
        keep = tuple(mask[tower].keep for mask in masks)
        out.print()
        if len(masks[0]) > 1:
            line(out, f"tower {tower}")
        out.print(HeadMaps(names=tuple(names), keep=keep, num_heads=first.num_heads))


def _mask(file: str, mask: HeadMask, out: Console) -> None:
    from hydractl.cli.tables import facts

    kept = sum(len(layer) for tower in mask.towers.values() for layer in tower.keep)
    total = sum(len(tower.keep) * tower.num_heads for tower in mask.towers.values())
    line(out, f"{file}: head mask, {kept} of {total} heads kept")
    rows = [("architecture", mask.architecture or "any of this shape")]
    if mask.base:
        rows.append(("base", _short(mask.base)))
    if origin := mask.origin:
        rows.append(("strategy", origin.strategy + (f", {_pairs(origin.budget)}" if origin.budget else "")))
        given = {"method": origin.method, "seed": origin.seed, "member": origin.member, "tool": origin.tool}
        rows += [(name, str(value)) for name, value in given.items() if value is not None]
        rows += [("scores", _short(digest)) for digest in origin.scores]
    else:
        rows.append(("origin", "not stated: written by hand?"))
    out.print(facts(rows))
    _maps([mask.towers], ["kept"], out)


def _scores(file: str, scores: HeadScores, out: Console) -> None:
    from hydractl.cli.tables import RankMap, facts
    from hydractl.stages.inspect import ranks

    line(out, f"{file}: scores by {scores.method}")
    rows = [("objective", scores.objective)] if scores.objective else []
    rows += [("options", _pairs(scores.options))] if scores.options else []
    rows += [
        ("model", f"{scores.model.reference}, {scores.architecture}, {_short(scores.model.sha256)}"),
        *((f"data {name}", _fingerprint(f.reference, f.sha256, f.count)) for name, f in scores.data.items()),
        ("tool", scores.tool),
    ]
    out.print(facts(rows))
    ranked = ranks(scores)
    total = sum(len(row) for tower in ranked.values() for row in tower)
    for tower, table_of_ranks in ranked.items():
        out.print()
        line(out, f"Ranks of the heads of tower {tower}: 1 matters most of {total}")
        out.print(RankMap(ranks=table_of_ranks, total=total))
    if scores.removals is not None:
        _removals(scores, out)


def _removals(scores: HeadScores, out: Console) -> None:
    from hydractl.cli.tables import Newspaper

    steps = scores.removals or ()
    start = "" if scores.baseline is None else f" ({scores.baseline:.4f} before)"
    digits, tower = len(str(len(steps))), len(scores.towers) > 1
    lines = [
        f"{i:>{digits}}. {f'{s.tower} ' if tower else ''}layer {s.layer} head {s.head}: {s.objective:.4f}"
        for i, s in enumerate(steps, 1)
    ]
    out.print()
    line(out, f"Order of removal, and the objective after each{start}:")
    out.print(Newspaper(lines=tuple(lines)))


def _lineage(file: str, step: Step) -> Tree:
    from rich.text import Text
    from rich.tree import Tree

    def grow(tree: Tree, inputs: Sequence[InputFile]) -> None:
        for source in inputs:
            made = f"  {_step(source.made_by)}" if source.made_by else ""
            branch = tree.add(Text(f"{source.name}  {_short(source.sha256)}{made}", overflow="fold"))
            grow(branch, source.made_by.inputs if source.made_by else ())

    root = Tree(Text(f"{file}  {_step(step)}", overflow="fold"))
    grow(root, step.inputs)
    return root


def _step(step: Step) -> str:
    options = dict(step.options) | ({"seed": step.seed} if step.seed is not None else {})
    return f"{step.command} {_pairs(options)}".rstrip()


def _short(digest: str) -> str:
    return digest[: len("sha256:") + DIGEST_SHOWN]


def _fingerprint(reference: str, digest: str, number: int | None) -> str:
    return f"{reference}, {_short(digest)}" + (f", {number} samples" if number is not None else "")


def _labelled(number: int, labels: Sequence[str]) -> str:
    if not labels:
        return str(number)
    rest = f", ... and {len(labels) - LABELS_SHOWN} more" if len(labels) > LABELS_SHOWN else ""
    return f"{number}: {', '.join(labels[:LABELS_SHOWN])}{rest}"


def _preprocess(found: Preprocess) -> str:
    shape = "x".join(map(str, found.input_size))
    mean, std = (" ".join(f"{v:g}" for v in values) for values in (found.mean, found.std))
    return (
        f"{shape}, {found.interpolation}, crop {found.crop_pct:g} {found.crop_mode}, mean {mean}, std {std}"
    )


def _pairs(options: Mapping[str, object]) -> str:
    return " ".join(f"{name}={_plain(value)}" for name, value in sorted(options.items()))


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return ",".join(_plain(v) for v in value)
    return f"{value:g}" if isinstance(value, float) else str(value)
