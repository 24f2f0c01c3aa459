"""Options that several commands share: one spelling, one help text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from hydractl.heads.select import Budget

ModelArg = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A checkpoint, a folder in timm's layout, a Hub id `org/name[@revision]`, or `-`.",
        show_default=False,
    ),
]
ModelsArg = Annotated[
    list[str],
    typer.Argument(metavar="MODEL...", help="Checkpoints, folders or Hub ids.", show_default=False),
]
ArchOpt = Annotated[
    str | None,
    typer.Option(
        "--arch",
        metavar="NAME[::K=V,...]",
        help="Architecture of a bare .safetensors file.",
        rich_help_panel="Model",
    ),
]
OutOpt = Annotated[
    Path,
    typer.Option(
        "-o", "--out", metavar="PATH", help="Output file; `-` is standard output.", show_default=False
    ),
]
ForceOpt = Annotated[bool, typer.Option("--force", help="Replace an existing output.")]
JsonOpt = Annotated[bool, typer.Option("--json", help="Print the result as one JSON document.")]
QuietOpt = Annotated[bool, typer.Option("-q", "--quiet", help="Print only the paths written, one a line.")]
BUDGET_PANEL = "Budget (one of three)"
KeepOpt = Annotated[
    int | None,
    typer.Option(
        "--keep",
        min=0,
        metavar="N",
        help="Keep N heads a layer, on average over the model.",
        rich_help_panel=BUDGET_PANEL,
    ),
]
RemoveOpt = Annotated[
    int | None,
    typer.Option("--remove", min=0, metavar="R", help="Remove R heads in all.", rich_help_panel=BUDGET_PANEL),
]
KeepFractionOpt = Annotated[
    float | None,
    typer.Option(
        "--keep-fraction",
        min=0.0,
        max=1.0,
        metavar="F",
        help="Keep this share of all heads.",
        rich_help_panel=BUDGET_PANEL,
    ),
]
SeedOpt = Annotated[int, typer.Option("--seed", min=0, metavar="N", help="Seed of everything random.")]
DeviceOpt = Annotated[
    str,
    typer.Option(
        "--device", metavar="DEVICE", help="auto, cpu, cuda, cuda:N or mps.", rich_help_panel="Machine"
    ),
]
DtypeOpt = Annotated[
    str | None,
    typer.Option(
        "--dtype", metavar="DTYPE", help="bf16, fp16 or fp32; default: as stored.", rich_help_panel="Machine"
    ),
]
BatchSizeOpt = Annotated[
    int,
    typer.Option(
        "--batch-size", min=1, metavar="N", help="Samples in one forward pass.", rich_help_panel="Machine"
    ),
]
VerifyOpt = Annotated[
    bool,
    typer.Option(
        "--verify/--no-verify", help="Check the result on a seeded random batch before it is published."
    ),
]
DATA_METAVAR = "DATA[::K=V,...]"


def budget_of(*, keep: int | None, remove: int | None, keep_fraction: float | None) -> Budget | None:
    """Return the budget that one of three options gives, or None without any.

    Raises:
        UsageError: If two are given, or one is out of range.
    """
    from hydractl.errors import UsageError
    from hydractl.heads.select import Budget

    if keep is None and remove is None and keep_fraction is None:
        return None
    try:
        return Budget(keep_per_layer=keep, remove=remove, keep_fraction=keep_fraction)
    except ValueError as error:
        raise UsageError(
            str(error), hint="give one of `--keep N`, `--remove R`, `--keep-fraction F`"
        ) from error
