"""Options that several commands share: one spelling, one help text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hydractl.data.reference import BUILT_IN, LABELLED

if TYPE_CHECKING:
    from hydractl.heads.budget import Budget

ModelArg = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A checkpoint, a folder of timm, transformers or OpenCLIP (also `local-dir:PATH`), a Hub id "
        "`org/name[@revision]` (also `hf-hub:ID`), `arch:NAME[::K=V,...]` for random weights, or `-`.",
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
ClassesOpt = Annotated[
    str | None,
    typer.Option(
        "--classes",
        metavar="A,B,...|FILE",
        help="Classes of a zero-shot model: names, or a file with one name a line.",
        rich_help_panel="Zero-shot",
    ),
]
TemplateOpt = Annotated[
    list[str] | None,
    typer.Option(
        "--template",
        metavar="TEXT",
        help='What a class is asked with, holding `{label}`; give several to average. Default: "A photo of a {label}."',
        rich_help_panel="Zero-shot",
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


def keep_fraction_option(default: str = "") -> Any:  # noqa: ANN401 - as typer has it
    """Return `--keep-fraction`.

    Args:
        default: What holds without a budget, for the help.
    """
    return typer.Option(
        "--keep-fraction",
        min=0.0,
        max=1.0,
        metavar="F",
        help=f"Keep this share of all heads{f' (default{default})' if default else ''}.",
        rich_help_panel=BUDGET_PANEL,
    )


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
MaxLengthOpt = Annotated[
    int | None,
    typer.Option(
        "--max-length",
        min=1,
        metavar="N",
        help="Tokens of a text at most; default: as many as the model reads.",
    ),
]
VerifyOpt = Annotated[
    bool,
    typer.Option(
        "--verify/--no-verify", help="Check the result on a seeded random batch before it is published."
    ),
]
DATA_METAVAR = "DATA[::K=V,...]"
DATA_SOURCES = f"{', '.join(LABELLED)}, a folder, a .jsonl, .csv or .parquet file, or hf:org/name"
UNLABELLED_SOURCES = ", ".join(name for name in BUILT_IN if name not in LABELLED)


def budget_of(*, keep: int | None, remove: int | None, keep_fraction: float | None) -> Budget | None:
    """Return the budget that one of three options gives, or None without any.

    Raises:
        UsageError: If two are given, or one is out of range.
    """
    from hydractl.errors import UsageError
    from hydractl.heads.budget import Budget

    options = {"--keep": keep, "--remove": remove, "--keep-fraction": keep_fraction}
    given = [f"`{name}`" for name, value in options.items() if value is not None]
    if not given:
        return None
    if len(given) > 1:
        raise UsageError(
            f"{' and '.join(given)} exclude each other",
            hint="give one of `--keep N`, `--remove R`, `--keep-fraction F`",
        )
    if keep_fraction is not None and not 0 < keep_fraction <= 1:
        raise UsageError(
            f"`--keep-fraction {keep_fraction:g}`: the share must be more than 0 and at most 1",
            hint="`--keep 0` removes all heads; two thirds are `--keep-fraction 0.667`",
        )
    return Budget(keep_per_layer=keep, remove=remove, keep_fraction=keep_fraction)
