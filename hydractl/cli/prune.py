"""`hydractl prune`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hydractl.cli.options import (
    BUDGET_PANEL,
    DATA_METAVAR,
    ArchOpt,
    ClassesOpt,
    DtypeOpt,
    ForceOpt,
    JsonOpt,
    MaxLengthOpt,
    ModelArg,
    OutOpt,
    QuietOpt,
    RemoveOpt,
    SeedOpt,
    TemplateOpt,
    VerifyOpt,
    budget_of,
    keep_fraction_option,
)
from hydractl.cli.output import Terminal, count, line, model_cell, size, table
from hydractl.stages.prune.strategy import DEFAULT_CANDIDATES, Diversity, Strategy

if TYPE_CHECKING:
    from rich.console import Console

    from hydractl.heads.budget import Budget
    from hydractl.stages.prune.report import DiverseReport, PruneReport, Size

MEMBERS, DIVERSE = "Members", "Strategy diverse"
AUTO = "auto"


def prune(
    model: ModelArg,
    out: OutOpt,
    scores: Annotated[
        list[Path] | None,
        typer.Option(
            "--scores", metavar="JSON", help="Scores; several make one member each. `-` is standard input."
        ),
    ] = None,
    mask: Annotated[
        list[Path] | None,
        typer.Option(
            "--mask", metavar="JSON", help="A head-mask file instead of scores; several make one member each."
        ),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(
            "--keep",
            metavar="N|auto",
            help="Keep N heads a layer, on average over the model; `auto`: as many as cahp or l0 chose, or the knee of a greedy method's objective.",
            rich_help_panel=BUDGET_PANEL,
        ),
    ] = None,
    remove: RemoveOpt = None,
    keep_fraction: Annotated[float | None, keep_fraction_option()] = None,
    per_layer: Annotated[
        bool,
        typer.Option(
            "--per-layer",
            help="With `--keep N`: exactly N heads in every layer.",
            rich_help_panel=BUDGET_PANEL,
        ),
    ] = False,
    strategy: Annotated[
        Strategy | None,
        typer.Option(
            "--strategy",
            help="best: the most important heads. sample: the pool's heads go by chance. objectives: one member a scores "
            "file. clusters: one head of each cluster, the j-th best for member j. random: no scores, a control. diverse: "
            "the draws of sample that disagree most on data. Default: what the other options imply.",
            rich_help_panel=MEMBERS,
        ),
    ] = None,
    members: Annotated[
        int,
        typer.Option("--members", min=1, metavar="M", help="How many members.", rich_help_panel=MEMBERS),
    ] = 1,
    pool: Annotated[
        int | None,
        typer.Option(
            "--pool",
            min=1,
            metavar="P",
            help="The first P heads to go are what members sample from (sample, diverse).",
            rich_help_panel=MEMBERS,
        ),
    ] = None,
    diverge_from: Annotated[
        int,
        typer.Option(
            "--diverge-from",
            min=0,
            metavar="LAYER",
            help="Members are alike before this layer; fused, it runs once.",
            rich_help_panel=MEMBERS,
        ),
    ] = 0,
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            metavar=DATA_METAVAR,
            help="Labelled validation data to compare members on.",
            rich_help_panel=DIVERSE,
        ),
    ] = None,
    ood: Annotated[
        str | None,
        typer.Option(
            "--ood",
            metavar=DATA_METAVAR,
            help="Out-of-distribution validation data, where the scores' objective ranks it.",
            rich_help_panel=DIVERSE,
        ),
    ] = None,
    candidates: Annotated[
        int | None,
        typer.Option(
            "--candidates",
            min=1,
            metavar="N",
            help=f"Masks to draw and to choose from (default {DEFAULT_CANDIDATES}).",
            rich_help_panel=DIVERSE,
        ),
    ] = None,
    diversity: Annotated[
        Diversity | None,
        typer.Option(
            "--diversity",
            help="What to maximise: mutual information (default), the share of pairs that disagree, or none, a control.",
            rich_help_panel=DIVERSE,
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            "--batch-size",
            min=1,
            metavar="N",
            help="Samples in one forward pass (default 64).",
            rich_help_panel=DIVERSE,
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            metavar="DEVICE",
            help="auto (default), cpu, cuda, cuda:N or mps.",
            rich_help_panel=DIVERSE,
        ),
    ] = None,
    max_length: MaxLengthOpt = None,
    classes: ClassesOpt = None,
    template: TemplateOpt = None,
    seed: SeedOpt = 0,
    arch: ArchOpt = None,
    dtype: DtypeOpt = None,
    verify: VerifyOpt = True,
    force: ForceOpt = False,
    json: JsonOpt = False,
    quiet: QuietOpt = False,
) -> None:
    r"""Cut attention heads out of a base: one member, or several that differ.

    Each member is written with its head mask beside it (`member-0.mask.json`).

    Examples:
      hydractl prune base.st --scores scores.json --keep 8 -o member.st
      hydractl prune base.st --scores scores.json --keep 8 \
        --members 3 --pool 96 -o 'member-{i}.st'
      hydractl prune base.st --scores cahp.json --keep auto --members 3 -o 'member-{i}.st'
      hydractl prune base.st --scores scores.json --keep 8 --members 3 --pool 96 \
        --strategy diverse --data val/ -o 'member-{i}.st'
      hydractl prune base.st --strategy random --keep 8 --members 3 -o 'member-{i}.st'
      hydractl prune base.st --mask mask.json -o member.st
    """
    terminal = Terminal(as_json=json, quiet=quiet, out=out)
    from hydractl.stages.prune.config import DiverseConfig, PruneConfig
    from hydractl.stages.prune.run import run_prune

    diverse = DiverseConfig.parse(
        strategy,
        {
            "data": data, "ood": ood, "candidates": candidates, "diversity": diversity, "batch-size": batch_size,
            "device": device, "max-length": max_length, "classes": classes, "template": template,
        },
    )  # fmt: skip
    config = PruneConfig(
        model=model, out=out, arch=arch, scores=tuple(scores or ()), masks=tuple(mask or ()), strategy=strategy,
        budget=amount_of(keep, remove=remove, keep_fraction=keep_fraction), auto=keep == AUTO, per_layer=per_layer,
        members=members, pool=pool, diverge_from=diverge_from, diverse=diverse, seed=seed, dtype=dtype, verify=verify,
        force=force,
    )  # fmt: skip
    report = run_prune(config, terminal.progress())
    terminal.result(report, lambda out: render(report, out))


def amount_of(keep: str | None, *, remove: int | None, keep_fraction: float | None) -> Budget | None:
    """Return the budget that one of three options gives, or None without any and where the scores shall choose.

    Raises:
        UsageError: If two are given, or one is out of range.
    """
    from hydractl.errors import UsageError

    if keep is not None and keep != AUTO and not (keep.isascii() and keep.isdigit()):
        raise UsageError(
            f"`--keep {keep}`: must be a number of heads or `auto`", hint="`--keep 8`, or `--keep auto`"
        )
    if keep == AUTO and not (remove is None and keep_fraction is None):
        raise UsageError(
            f"`--keep auto` and `{'--remove' if keep_fraction is None else '--keep-fraction'}` exclude each other",
            hint="`--keep auto` takes the number from the scores",
        )
    number = None if keep is None or keep == AUTO else int(keep)
    return budget_of(keep=number, remove=remove, keep_fraction=keep_fraction)


def render(report: PruneReport, out: Console) -> None:
    """Show sizes before and after."""
    rows = [(model_cell(report.model), str(report.heads), *size_cells(report.base), "")]
    rows += [
        (
            "stdout" if str(m.path) == "-" else str(m.path),
            str(m.heads_kept),
            *size_cells(m.size),
            "" if m.largest_difference is None else f"{m.largest_difference:.1e}",
        )
        for m in report.members
    ]
    out.print(table(["model", "heads", "parameters", "MACs", "bytes", "differs from masked"], rows))
    for found in report.found:
        line(out, found)
    if report.diverse is not None:
        render_diverse(report.diverse, out)
    for path in report.paths:
        if str(path) != "-":
            line(out, f"Wrote {path}")


def render_diverse(report: DiverseReport, out: Console) -> None:
    """Show what was chosen, and how diverse it is beside what `sample` draws."""
    rows = [
        (f"member {i}", f"draw {c.draw}", f"{c.objective:.4f}", "", "") for i, c in enumerate(report.chosen)
    ]
    rows += [(s.name, "", f"{s.objective:.4f}", f"{s.mi:.4f}", f"{s.disagreement:.4f}") for s in report.sets]
    out.print(table(["set", "mask", report.objective, "MI", "disagreement"], rows))


def size_cells(cost: Size) -> tuple[str, str, str]:
    """Return parameters, MACs and bytes as texts."""
    return count(cost.parameters), count(cost.macs), size(cost.size_bytes)
