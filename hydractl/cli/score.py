"""`hydractl score`."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from hydractl.cli.options import (
    BUDGET_PANEL,
    DATA_METAVAR,
    ArchOpt,
    BatchSizeOpt,
    ClassesOpt,
    DeviceOpt,
    DtypeOpt,
    ForceOpt,
    JsonOpt,
    KeepOpt,
    MaxLengthOpt,
    ModelArg,
    OutOpt,
    QuietOpt,
    RemoveOpt,
    SeedOpt,
    TemplateOpt,
    budget_of,
)
from hydractl.cli.output import Terminal, line, table
from hydractl.progress import counted
from hydractl.scoring.table import METHODS

if TYPE_CHECKING:
    from rich.console import Console

    from hydractl.manifest import HeadScores
    from hydractl.stages.score_config import ScoreReport

GREEDY, TAYLOR = "Circuit", "Taylor"
HEADS_SHOWN = 10


if TYPE_CHECKING:
    MethodName = StrEnum  # what follows is made of the table, which types cannot see
else:
    MethodName = StrEnum("MethodName", list(METHODS))
DEFAULT_METHOD = MethodName("circuit")


class Scope(StrEnum):
    """Over what gradients are compared."""

    layer = "layer"
    all = "global"


def score(
    model: ModelArg,
    out: OutOpt,
    method: Annotated[MethodName, typer.Option("--method", help="How heads are scored.")] = DEFAULT_METHOD,
    data: Annotated[
        str,
        typer.Option(
            "--data",
            metavar=DATA_METAVAR,
            help="Labelled data: validation (circuit) or calibration (taylor).",
        ),
    ] = "digits",
    limit: Annotated[
        int | None,
        typer.Option("--limit", min=1, metavar="N", help="Use N samples of it, drawn with the seed."),
    ] = None,
    max_length: MaxLengthOpt = None,
    objective: Annotated[
        str | None,
        typer.Option(
            "--objective",
            metavar="OBJECTIVE",
            help="What the kept heads should be good at: acc, ood or avg (default).",
            rich_help_panel=GREEDY,
        ),
    ] = None,
    ood: Annotated[
        str | None,
        typer.Option(
            "--ood",
            metavar=DATA_METAVAR,
            help="Out-of-distribution validation data, for ood and avg.",
            rich_help_panel=GREEDY,
        ),
    ] = None,
    scope: Annotated[
        Scope | None,
        typer.Option(
            "--scope",
            help="Score layer by layer, each without what went before (default); or all at once.",
            rich_help_panel=TAYLOR,
        ),
    ] = None,
    keep: KeepOpt = None,
    remove: RemoveOpt = None,
    keep_fraction: Annotated[
        float | None,
        typer.Option(
            "--keep-fraction",
            min=0.0,
            max=1.0,
            metavar="F",
            help="Keep this share of all heads (default without a budget: 2/3).",
            rich_help_panel=BUDGET_PANEL,
        ),
    ] = None,
    towers: Annotated[
        str | None,
        typer.Option(
            "--towers",
            metavar="A,B",
            help="Score the heads of these towers only (text, vision); the others keep all of theirs.",
            rich_help_panel="Zero-shot",
        ),
    ] = None,
    classes: ClassesOpt = None,
    template: TemplateOpt = None,
    seed: SeedOpt = 0,
    arch: ArchOpt = None,
    batch_size: BatchSizeOpt = 64,
    device: DeviceOpt = "auto",
    dtype: DtypeOpt = None,
    force: ForceOpt = False,
    json: JsonOpt = False,
    quiet: QuietOpt = False,
) -> None:
    """Score how much each attention head matters.

    Without a budget two thirds of the heads are kept: a circuit run then orders the other third, and `prune` can remove
    no more than these. A circuit run keeps a journal beside its output: interrupted and started again, it goes on where it was.

    Examples:
      hydractl score base.st --data val/ --ood places/ -o scores.json
      hydractl score base.st --method taylor --data train/ --limit 1024 --keep 8 -o scores.json
      hydractl score clip/ --data val/ --objective acc --remove 24 --template "A photo of a {label}." -o scores.json
      hydractl score base.st --method random --seed 1 -o - | hydractl prune base.st --scores - --keep 8 -o member.st
    """
    terminal = Terminal(as_json=json, quiet=quiet, out=out)
    from hydractl.stages.classes import Naming
    from hydractl.stages.score import run_score
    from hydractl.stages.score_config import ScoreConfig

    given = {"objective": objective, "scope": scope}
    config = ScoreConfig(
        model=model, out=out, method=method.value, data=data, ood=ood,
        given={name: value for name, value in given.items() if value is not None},
        budget=budget_of(keep=keep, remove=remove, keep_fraction=keep_fraction), limit=limit,
        max_length=max_length, towers=tuple(towers.split(",")) if towers else (),
        naming=Naming.parse(classes, template), seed=seed, arch=arch,
        batch_size=batch_size, device=device, dtype=dtype, force=force,
    )  # fmt: skip
    report = run_score(config, terminal.progress())
    terminal.result(report, lambda out: render(report, out))


def render(report: ScoreReport, out: Console) -> None:
    """Show the first heads to go."""
    scores = report.scores
    if scores.removals is not None:
        rows = [
            (str(i + 1), f"{r.tower} {r.layer}.{r.head}", f"{r.objective:.4f}")
            for i, r in enumerate(scores.removals[:HEADS_SHOWN])
        ]
        out.print(
            table(
                ["step", "head removed", f"{scores.objective} after"],
                [("0", "", f"{scores.baseline:.4f}"), *rows],
            )
        )
        if len(scores.removals) > HEADS_SHOWN:
            last = scores.removals[-1]
            done = counted(len(scores.removals), "removal")
            line(out, f"... {done}; {scores.objective} {last.objective:.4f} after the last")
    else:
        heads = sorted(
            (s, n, layer, h)
            for n, t in scores.towers.items()
            for layer, row in enumerate(t.scores)
            for h, s in enumerate(row)
        )
        lowest = [(f"{n} {layer}.{h}", f"{s:.4g}") for s, n, layer, h in heads[:HEADS_SHOWN]]
        out.print(table(["lowest heads", "score"], lowest))
    if report.default_budget:
        line(out, _default_budget(scores))
    if str(report.path) != "-":
        line(out, f"Wrote {report.path}")


def _default_budget(scores: HeadScores) -> str:
    total = sum(len(row) for tower in scores.towers.values() for row in tower.scores)
    if scores.removals is None:
        done = "each layer was scored down to two thirds of its heads"
    else:
        done = f"{len(scores.removals)} of {counted(total, 'head')} were removed, two thirds stay"
    return f"No budget given: {done}. `--keep N`, `--remove R` or `--keep-fraction F` sets another"
