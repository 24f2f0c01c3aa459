"""`hydractl import`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hydractl.cli.options import ForceOpt, JsonOpt, OutOpt, QuietOpt
from hydractl.cli.output import Terminal, count, line, size, table

if TYPE_CHECKING:
    from rich.console import Console

    from hydractl.stages.importing.run import ImportReport


def import_weights(
    weights: Annotated[
        str,
        typer.Argument(
            metavar="WEIGHTS",
            help="What a training script saved: .pth, .pt, .ckpt, .bin or .safetensors, or the .index.json of shards.",
            show_default=False,
        ),
    ],
    arch: Annotated[
        str,
        typer.Option(
            "--arch",
            metavar="NAME[::K=V,...]",
            help="Architecture: a name of timm, a model type of transformers (`bert`, `vit`), "
            "or a folder whose config.json says it.",
            show_default=False,
        ),
    ],
    out: OutOpt,
    num_classes: Annotated[
        int | None, typer.Option("--num-classes", min=1, metavar="N", help="How many classes it tells apart.")
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(
            "--labels",
            metavar="PATH",
            help="Names of the classes: a file with one a line, a JSON list, or `a,b,c`.",
        ),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option("--tokenizer", metavar="PATH", help="For texts: a folder, or a tokenizer.json."),
    ] = None,
    ema: Annotated[
        bool, typer.Option("--ema", help="Take the exponential moving average of the weights.")
    ] = False,
    force: ForceOpt = False,
    json: JsonOpt = False,
    quiet: QuietOpt = False,
) -> None:
    """Make a base of weights that a training script saved.

    Finds the state dict beneath the usual keys (`state_dict`, `model`, ...), takes off what DataParallel, torch.compile
    and Lightning put before its names, and lets timm or transformers translate those of original repositories. Pickles
    are read as data: one that needs code is refused, and nothing in it is run.

    Examples:
      hydractl import weights.pth --arch vit_small_patch16_224 --num-classes 7 -o base.st
      hydractl import last.ckpt --arch vit_base_patch16_224 --labels cat,dog -o base.st
      hydractl import model_best.pth.tar --arch deit_small_patch16_224 --ema -o base.st
      hydractl import pytorch_model.bin --arch bert::num_labels=4 --tokenizer tokenizer.json -o base.st
    """
    terminal = Terminal(as_json=json, quiet=quiet, out=out)
    from hydractl.stages.importing.run import ImportConfig, run_import

    config = ImportConfig(
        source=weights, arch=arch, out=out, num_classes=num_classes, labels=labels, tokenizer=tokenizer, ema=ema,
        force=force,
    )  # fmt: skip
    report = run_import(config, terminal.progress())
    terminal.result(report, lambda out: render(report, out))


def render(report: ImportReport, out: Console) -> None:
    """Show what was found."""
    row = (
        report.architecture,
        str(report.num_classes),
        str(report.heads),
        count(report.parameters),
        size(report.size_bytes),
    )
    out.print(table(["architecture", "classes", "heads", "parameters", "bytes"], [row]))
    place = [f"beneath `{report.wrapper}`"] if report.wrapper else []
    place += [f"behind `{report.prefix}`"] if report.prefix else []
    if place:
        line(out, f"Found {' and '.join(place)}")
    if str(report.path) != "-":
        line(out, f"Wrote {report.path}")
