"""`hydractl finetune`."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from hydractl.cli.options import (
    DATA_METAVAR,
    DATA_SOURCES,
    ArchOpt,
    DeviceOpt,
    ForceOpt,
    JsonOpt,
    MaxLengthOpt,
    ModelArg,
    OutOpt,
    QuietOpt,
    SeedOpt,
)
from hydractl.cli.output import Terminal, count, line, table

if TYPE_CHECKING:
    from rich.console import Console

    from hydractl.stages.finetune.run import FinetuneReport

LEARN, TIME, WHAT, STOP = "Optimisation", "Length and batches", "What trains", "Evaluation and stopping"


class RecipeName(StrEnum):
    """The paper's recipes."""

    imagenet1k = "imagenet1k"
    cifar100 = "cifar100"
    sst2 = "sst2"


class OptimizerName(StrEnum):
    """The optimisers."""

    sgd = "sgd"
    adamw = "adamw"


class ScheduleName(StrEnum):
    """What the learning rate does after the warm-up."""

    constant = "constant"
    cosine = "cosine"
    linear = "linear"


class PrecisionName(StrEnum):
    """What the forward pass computes in."""

    fp32 = "fp32"
    bf16 = "bf16"


def finetune(
    model: ModelArg,
    data: Annotated[
        str, typer.Option("--data", metavar=DATA_METAVAR, help=f"Labelled training data: {DATA_SOURCES}.")
    ],
    val: Annotated[str, typer.Option("--val", metavar=DATA_METAVAR, help="Labelled validation data.")],
    out: OutOpt,
    max_length: MaxLengthOpt = None,
    recipe: Annotated[
        RecipeName | None, typer.Option("--recipe", help="As in the paper; options override it.")
    ] = None,
    optimizer: Annotated[
        OptimizerName | None, typer.Option("--optimizer", help="Default: adamw.", rich_help_panel=LEARN)
    ] = None,
    lr: Annotated[
        str | None,
        typer.Option(
            "--lr",
            metavar="X[,Y,...]",
            help="Peak learning rate (default 1e-4 for adamw, 1e-2 for sgd); of several, the one that validates best.",
            rich_help_panel=LEARN,
        ),
    ] = None,
    weight_decay: Annotated[
        float | None,
        typer.Option(
            "--weight-decay",
            help="Of matrices only (default 0.01 for adamw, 0 for sgd).",
            rich_help_panel=LEARN,
        ),
    ] = None,
    momentum: Annotated[
        float | None, typer.Option("--momentum", help="Of sgd only (default 0.9).", rich_help_panel=LEARN)
    ] = None,
    schedule: Annotated[
        ScheduleName | None,
        typer.Option("--schedule", help="After the warm-up (default: cosine).", rich_help_panel=LEARN),
    ] = None,
    warmup: Annotated[
        str | None,
        typer.Option(
            "--warmup",
            metavar="N|F",
            help="Warm-up in steps, or as a fraction such as 0.05 (default).",
            rich_help_panel=LEARN,
        ),
    ] = None,
    clip: Annotated[
        float | None, typer.Option("--clip", help="Largest norm of the gradient.", rich_help_panel=LEARN)
    ] = None,
    label_smoothing: Annotated[
        float | None, typer.Option("--label-smoothing", help="Share in [0, 1).", rich_help_panel=LEARN)
    ] = None,
    dropout: Annotated[
        float | None,
        typer.Option(
            "--dropout", help="Share in [0, 1); default: as the architecture says.", rich_help_panel=LEARN
        ),
    ] = None,
    augment: Annotated[
        str | None,
        typer.Option(
            "--augment",
            metavar="NAME[,...]",
            help="flip, rrc, randaugment, shift; or none (default).",
            rich_help_panel=LEARN,
        ),
    ] = None,
    precision: Annotated[
        PrecisionName | None,
        typer.Option(
            "--precision", help="Default: fp32; bf16 computes under autocast.", rich_help_panel=LEARN
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option("--steps", help="Optimiser steps.", rich_help_panel=TIME)
    ] = None,
    epochs: Annotated[
        int | None, typer.Option("--epochs", help="Passes over the data (default 10).", rich_help_panel=TIME)
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            "--batch-size",
            help="Samples in one optimiser step, over all processes (default 64).",
            rich_help_panel=TIME,
        ),
    ] = None,
    accumulate: Annotated[
        int | None,
        typer.Option(
            "--accumulate",
            metavar="N",
            help="Compute each batch in N pieces, to save memory; the result is the same.",
            rich_help_panel=TIME,
        ),
    ] = None,
    train: Annotated[
        str | None,
        typer.Option(
            "--train",
            metavar="PART[,...]",
            help="embed, norm, attention, mlp, readout, head; default: all.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    last_blocks: Annotated[
        int | None,
        typer.Option(
            "--last-blocks",
            metavar="N",
            help="Only the last N blocks, readout and head.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    reset_head: Annotated[
        bool | None,
        typer.Option(
            "--reset-head/--keep-head", help="Start from a classifier of zeros.", rich_help_panel=WHAT
        ),
    ] = None,
    eval_every: Annotated[
        int | None,
        typer.Option(
            "--eval-every",
            metavar="STEPS",
            help="Validate so often (default: every epoch).",
            rich_help_panel=STOP,
        ),
    ] = None,
    early_stop: Annotated[
        int | None,
        typer.Option(
            "--early-stop",
            metavar="N",
            help="Stop after N evaluations without improvement, and keep the best weights.",
            rich_help_panel=STOP,
        ),
    ] = None,
    patience_delta: Annotated[
        float | None,
        typer.Option(
            "--patience-delta",
            help="With `--early-stop`: how much is an improvement (default 0).",
            rich_help_panel=STOP,
        ),
    ] = None,
    keep_best: Annotated[
        bool | None,
        typer.Option(
            "--keep-best/--keep-last",
            help="Keep the weights that validated best, or the last (default).",
            rich_help_panel=STOP,
        ),
    ] = None,
    save_every: Annotated[
        int | None,
        typer.Option(
            "--save-every",
            metavar="STEPS",
            help="Save what a killed run goes on from (default: every half minute, and every epoch).",
            rich_help_panel="Machine",
        ),
    ] = None,
    seed: SeedOpt = 0,
    device: DeviceOpt = "auto",
    arch: ArchOpt = None,
    force: ForceOpt = False,
    json: JsonOpt = False,
    quiet: QuietOpt = False,
) -> None:
    """Train a base or a member on labelled data; `arch:NAME` trains from random weights.

    A run that was interrupted goes on where it was when the same command is given again. Training that diverges
    exits 5 and writes nothing.

    Examples:
      hydractl finetune member.st --data train/ --val val/ --lr 1e-4 --epochs 5 -o tuned.st
      hydractl finetune member.st --data train/ --val val/ --recipe imagenet1k -o tuned.st
      hydractl finetune bert/ --data reviews.jsonl --val val.jsonl --recipe sst2 --max-length 128 -o base.st
      hydractl finetune arch:vit_tiny_patch16_224::num_classes=7 --data train/ --val val/ --seed 1 -o base.st
      torchrun --nproc-per-node 2 -m hydractl finetune member.st --data train/ --val val/ -o tuned.st
    """
    terminal = Terminal(as_json=json, quiet=quiet, out=out)
    from hydractl.data.reference import DataRef
    from hydractl.stages.finetune.run import FinetuneConfig, run_finetune
    from hydractl.training.recipes.options import parse_names, parse_rates, parse_warmup
    from hydractl.training.recipes.recipe import recipe_of

    overrides = {
        "optimizer": optimizer and optimizer.value, "lr": parse_rates(lr), "weight_decay": weight_decay, "momentum": momentum,
        "schedule": schedule and schedule.value, "warmup": parse_warmup(warmup), "clip": clip, "label_smoothing": label_smoothing,
        "dropout": dropout, "augment": parse_names("--augment", augment), "precision": precision and precision.value,
        "steps": steps, "epochs": epochs, "batch_size": batch_size, "accumulate": accumulate, "train": parse_names("--train", train),
        "last_blocks": last_blocks, "reset_head": reset_head, "eval_every": eval_every, "early_stop": early_stop,
        "patience_delta": patience_delta, "keep_best": keep_best,
    }  # fmt: skip
    config = FinetuneConfig(
        model=model, data=DataRef.parse(data), val=DataRef.parse(val), out=out, recipe=recipe_of(recipe, overrides), arch=arch,
        max_length=max_length, save_every=save_every, seed=seed, device=device, force=force,
    )  # fmt: skip
    report = run_finetune(config, terminal.progress())
    terminal.result(report, lambda out: render(report, out))


def render(report: FinetuneReport, out: Console) -> None:
    """Show what came of it."""
    cells = (
        f"{report.accuracy:.4f}",
        f"{report.nll:.4f}",
        f"{report.lr:g}",
        f"{report.step}/{report.total_steps}",
        count(report.trained_parameters),
        count(report.frozen_parameters),
    )
    columns = ["model", "validation accuracy", "nll", "lr", "steps", "trained", "frozen"]
    out.print(table(columns, [(str(report.path), *cells)]))
    if str(report.path) != "-":
        line(out, f"Wrote {report.path}")
