"""`hydractl prune`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hydractl.cli.options import (
    BUDGET_PANEL,
    ArchOpt,
    DtypeOpt,
    ForceOpt,
    JsonOpt,
    KeepFractionOpt,
    KeepOpt,
    ModelArg,
    OutOpt,
    QuietOpt,
    RemoveOpt,
    SeedOpt,
    VerifyOpt,
    budget_of,
)
from hydractl.cli.output import Terminal, count, line, model_cell, size, table

if TYPE_CHECKING:
    from rich.console import Console

    from hydractl.stages.prune_config import PruneReport, Size

MEMBERS = "Members"


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
    keep: KeepOpt = None,
    remove: RemoveOpt = None,
    keep_fraction: KeepFractionOpt = None,
    per_layer: Annotated[
        bool,
        typer.Option(
            "--per-layer",
            help="With `--keep N`: exactly N heads in every layer.",
            rich_help_panel=BUDGET_PANEL,
        ),
    ] = False,
    members: Annotated[
        int,
        typer.Option(
            "--members", min=1, metavar="M", help="Sample M members from the pool.", rich_help_panel=MEMBERS
        ),
    ] = 1,
    pool: Annotated[
        int | None,
        typer.Option(
            "--pool",
            min=1,
            metavar="P",
            help="The first P heads to go are what members sample from.",
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
      hydractl prune base.st --mask mask.json -o member.st
    """
    terminal = Terminal(as_json=json, quiet=quiet, out=out)
    from hydractl.stages.prune import run_prune
    from hydractl.stages.prune_config import PruneConfig

    config = PruneConfig(
        model=model, out=out, arch=arch, scores=tuple(scores or ()), masks=tuple(mask or ()),
        budget=budget_of(keep=keep, remove=remove, keep_fraction=keep_fraction), per_layer=per_layer,
        members=members, pool=pool, diverge_from=diverge_from, seed=seed, dtype=dtype, verify=verify, force=force,
    )  # fmt: skip
    report = run_prune(config, terminal.progress())
    terminal.result(report, lambda out: render(report, out))


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
    for path in report.paths:
        if str(path) != "-":
            line(out, f"Wrote {path}")


def size_cells(cost: Size) -> tuple[str, str, str]:
    """Return parameters, MACs and bytes as texts."""
    return count(cost.parameters), count(cost.macs), size(cost.size_bytes)
