"""`hydractl import`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hydractl.cli.command import command
from hydractl.cli.output import Terminal, line, size, table
from hydractl.stages.importing.config import ImportConfig
from hydractl.wording import count

if TYPE_CHECKING:
    from rich.console import Console

    from hydractl.stages.importing.run import ImportReport


@command(ImportConfig, provenance=True)
def import_weights(config: ImportConfig, terminal: Terminal) -> None:
    """Make a base of weights that a training script saved.

    Finds the state dict beneath the usual keys (`state_dict`, `model`, ...), takes off what DataParallel, torch.compile
    and Lightning put before its names, and lets timm or transformers translate those of original repositories. Takes
    the architecture, its options, the number of classes, mean and std that the script saved about itself (timm,
    Lightning, transformers, open_clip), prints them, and refuses options that contradict them. Pickles are read as
    data: one that needs code is refused, and nothing in it is run.

    Examples:
      hydractl import model_best.pth.tar -o base.st
      hydractl import weights.pth --arch vit_small_patch16_224 --num-classes 7 -o base.st
      hydractl import last.ckpt --arch vit_base_patch16_224 --labels cat,dog -o base.st
      hydractl import model_best.pth.tar --arch deit_small_patch16_224 --ema -o base.st
      hydractl import pytorch_model.bin --arch bert::num_labels=4 --tokenizer tokenizer.json -o base.st
    """
    from hydractl.stages.importing.run import run_import

    report = run_import(config, terminal.progress())
    terminal.result(report, render)


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
