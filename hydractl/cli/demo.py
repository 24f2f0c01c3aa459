"""`hydractl demo`: the whole method on the digits that scikit-learn ships, through the commands a user would type."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hydractl.cli.demo_findings import findings
from hydractl.cli.options import ForceOpt, JsonOpt, QuietOpt, SeedOpt
from hydractl.cli.output import Terminal, say, written_out

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TRAIN, VAL, TEST, OOD_VAL = (
    f"digits::{key}"
    for key in ("classes=0-6,split=train", "classes=0-6,split=val", "classes=0-6,split=test", "classes=9")
)
ARCHITECTURE = "arch:vit_tiny_patch16_224::img_size=8,patch_size=2,in_chans=1,embed_dim=64,depth=6,num_heads=8,num_classes=7"
TRAINING = (
    "--optimizer",
    "adamw",
    "--lr",
    "1e-3",
    "--epochs",
    "80",
    "--batch-size",
    "64",
    "--augment",
    "shift",
)
FINE_TUNING = (
    "--optimizer",
    "adamw",
    "--lr",
    "3e-4",
    "--epochs",
    "20",
    "--batch-size",
    "64",
    "--augment",
    "shift",
)
REMOVED, POOL, KEPT_BY_LAYER = "16", "32", "5"
MEMBERS = range(3)
NEAR = ("7=digits::classes=7", "8=digits::classes=8")
REPORT = "report.json"
SINGLE, ENSEMBLE, HYDRAS = "Single", "Deep Ensemble x3", ("Hydra (Taylor)", "Hydra (Circ)")
FAR = ("photos=photos::limit=300", "noise=noise::limit=300")


@dataclass(frozen=True, slots=True)
class Part:
    """Some commands with one purpose."""

    title: str
    commands: tuple[tuple[str, ...], ...]


def demo(
    context: typer.Context,
    out: Annotated[
        Path, typer.Option("-o", "--out", metavar="DIR", help="Where every artefact is kept.")
    ] = Path("hydractl-demo"),
    seed: SeedOpt = 0,
    force: ForceOpt = False,
    json: JsonOpt = False,
    quiet: QuietOpt = False,
) -> None:
    """Run the whole method on real images in a few minutes.

    Trains a small vision transformer and two more seeds of it on handwritten digits 0 to 6, scores, prunes,
    fine-tunes and fuses it, and compares everything in one table. Digits 7 and 8 are near out-of-distribution data,
    patches of photographs and noise far ones; digit 9 guides the circuits.

    Examples:
      hydractl demo
      hydractl demo -o demo --seed 3
    """
    Terminal(as_json=json, quiet=quiet)
    # The matrices are tiny: a second thread gains little, and loses much where other work is running. One thread
    # also makes the numbers those of any machine with the same processor, whatever its number of cores.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    prepare(out, force=force)
    silent = json or quiet
    for part in plan(out, seed):
        show(f"\n{part.title}", unless=silent, style="bold")
        for command in part.commands:
            last = command[0] == "eval"
            arguments = [
                *command,
                *(["--force"] if force else []),
                *(["--json"] if json and last else []),
                *(["-q"] if quiet or not (last or (watched() and not json)) else []),
            ]
            show(f"$ hydractl {shlex.join(arguments)}", unless=silent)
            begun = time.monotonic()
            code = run(context.obj, arguments, loud=quiet or last)
            if code:
                raise typer.Exit(code)
            show(f"done in {time.monotonic() - begun:.1f} s", unless=silent, style="dim")
    if not silent:
        conclude(out / REPORT)


def watched() -> bool:
    """Return whether somebody may be watching the steps at a terminal."""
    return sys.stderr.isatty()


def conclude(path: Path) -> None:
    """Say in sentences what the table shows."""
    from hydractl.manifest import Report

    with written_out():
        for sentence in findings(Report.read(path), single=SINGLE, ensemble=ENSEMBLE, hydras=HYDRAS):
            sys.stdout.write(f"{sentence}\n")


def plan(out: Path, seed: int) -> tuple[Part, ...]:
    """Return every command of the demo in order."""
    taylor = [f"taylor-{i}" for i in MEMBERS]
    circuit = [f"circuit-{i}" for i in MEMBERS]
    pruned = [*taylor, *circuit, "circuit-best"]
    bases = ["base", *(f"base-{i}" for i in MEMBERS[1:])]

    def path(name: str) -> str:
        return str(out / name)

    def checkpoints(names: Sequence[str], suffix: str = "") -> tuple[str, ...]:
        return tuple(path(f"{name}{suffix}.st") for name in names)

    def tuned(names: Sequence[str]) -> str:
        return ",".join(checkpoints(names, "-tuned"))

    data = ("--data", TRAIN, "--val", VAL)
    circuit_scores, best = path("circuit.json"), ("--remove", REMOVED)
    ood = tuple(
        flag for kind, sets in (("--near", NEAR), ("--far", FAR)) for name in sets for flag in (kind, name)
    )
    compared = {
        "Single fine-tuned alike": tuned(["base"]),
        ENSEMBLE: ",".join(checkpoints(bases)),
        "Deep Ensemble x3 fine-tuned alike": tuned(bases),
        "Taylor": tuned(taylor[:1]),
        "CircAvg": tuned(["circuit-best"]),
        HYDRAS[0]: path("hydra-taylor.st"),
        HYDRAS[1]: path("hydra-circuit.st"),
    }
    return (
        Part(
            "Train a base, and two more seeds for a deep ensemble",
            tuple(
                ("finetune", ARCHITECTURE, *data, *TRAINING, "--seed", str(seed + i), "-o", path(f"{name}.st"))
                for i, name in enumerate(bases)
            ),
        ),
        Part(
            "Score its heads: by Taylor expansion on three samples of the data, and by greedy circuit extraction",
            (
                *(
                    ("score", path("base.st"), "--method", "taylor", "--data", TRAIN, "--limit", "256", "--keep", KEPT_BY_LAYER,
                     "--seed", str(seed + i), "-o", path(f"{name}.json"))
                    for i, name in enumerate(taylor)
                ),
                ("score", path("base.st"), "--data", VAL, "--ood", OOD_VAL, "--remove", POOL, "-o", circuit_scores),
            ),
        ),
        Part(
            "Prune: three Taylor members, three samples of the circuit's removals, and the best circuit",
            (
                ("prune", path("base.st"), *(f"--scores={path(name)}.json" for name in taylor), "--keep", KEPT_BY_LAYER,
                 "--per-layer", "-o", path("taylor-{i}.st")),
                ("prune", path("base.st"), "--scores", circuit_scores, *best, "--members", str(len(MEMBERS)), "--pool", POOL,
                 "--seed", str(seed), "-o", path("circuit-{i}.st")),
                ("prune", path("base.st"), "--scores", circuit_scores, *best, "-o", path("circuit-best.st")),
            ),
        ),
        Part(
            "Fine-tune every member, and the bases alike",
            tuple(
                ("finetune", path(f"{name}.st"), *data, *FINE_TUNING, "--seed", str(seed + i), "-o", path(f"{name}-tuned.st"))
                for i, name in enumerate([*pruned, *bases])
            ),
        ),
        Part(
            "Fuse",
            tuple(
                ("fuse", *checkpoints(names, "-tuned"), "-o", path(f"hydra-{kind}.st"))
                for kind, names in (("taylor", taylor), ("circuit", circuit))
            ),
        ),
        Part(
            "Compare",
            (
                ("eval", path("base.st"), "--name", SINGLE, "--data", TEST, *ood,
                 *(f"--compare={name}={models}" for name, models in compared.items()), "-o", path(REPORT)),
            ),
        ),
    )  # fmt: skip


def run(main: Callable[[list[str]], int], arguments: list[str], *, loud: bool) -> int:
    """Run one command line and return its exit code; unless `loud`, its result goes to stderr."""
    if loud:
        return main(arguments)
    with contextlib.redirect_stdout(sys.stderr):
        return main(arguments)


def show(message: str, *, unless: bool, style: str | None = None) -> None:
    """Print one line to stderr."""
    if not unless:
        say(message, style=style)


def prepare(out: Path, *, force: bool) -> None:
    """Make the folder, or refuse one that is in use.

    Raises:
        OutputExists: If there is something in it and `force` is off.
        OutputError: If it cannot be made.
    """
    from hydractl.errors import OutputError, OutputExists

    if out.is_dir() and any(out.iterdir()) and not force:
        raise OutputExists(
            f"{out}: is not empty", hint="add `--force` to start anew, or choose another folder with `-o`"
        )
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{out}: cannot be made: {error.strerror}") from error
