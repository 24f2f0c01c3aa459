"""`hydractl run`: each stage of a pipeline file, in one process, unless it is up to date."""

from __future__ import annotations

import contextlib
import io
import json as jsons
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeAlias

import typer
from typer.core import TyperGroup

from hydractl.cli.command import JSON, QUIET, typer_option
from hydractl.cli.output import Terminal, say, written_out
from hydractl.cli.pipeline import Stage, parsed, read
from hydractl.errors import CheckFailed, Interrupted, OutputExists, UsageError
from hydractl.messages import did_you_mean, lasting
from hydractl.output.publish import has_content, make_folder, publish_text
from hydractl.strict_json import NOT_UTF8

UP_TO_DATE = 0.2
"""A command that took less of its usual time had nothing to do."""


class Example(StrEnum):
    """The pipelines that come with the command: `examples/NAME.toml`."""

    vit = "vit"
    bert = "bert"
    clip = "clip"
    decoder = "decoder"
    multi_label = "multi-label"
    tokens = "tokens"


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
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the commands and run none.")] = False,
    json: Annotated[bool, typer_option("json", JSON)] = False,
    quiet: Annotated[bool, typer_option("quiet", QUIET)] = False,
) -> None:
    """Run the stages of a pipeline file that are not up to date.

    A file has parameters and stages, whose keys are the names of the command's options:

      [params]
      members = 3

      [[stage]]
      name = "tune"
      command = "finetune"
      repeat = "{members}"
      model = "base.st"
      data = "train/"
      val = "val/"
      seed = "{i}"
      out = "tuned-{i}.st"

      [[stage]]
      name = "fuse"
      command = "fuse"
      models = ["@tune"]
      out = "hydra.st"

    `{members}` stands for a parameter, `{i}` for the number of a repetition from 0, `@tune` for what that stage writes. `{{members}}` and `@@tune` stand for the
    texts `{members}` and `@tune`. Options in `[defaults.finetune]` hold for all its stages. Paths are relative to the current folder; folders of outputs are made. If a stage fails, the run ends with its exit code; the same command resumes there.

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
        text = (Path(__file__).parents[1] / "examples" / f"{example.value}.toml").read_text(encoding="utf-8")
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
        go(stages, tree, context.obj, json=json, quiet=quiet)


def go(
    stages: Sequence[Stage],
    tree: TyperGroup,
    main: Callable[..., int],
    *,
    json: bool,
    quiet: bool,
    brief: bool = False,
    may_fail: Collection[str] = (),
) -> None:
    """Run every command line as far as it is not up to date, and with `json` say what each one said.

    Args:
        stages: Those to run.
        tree: Knows the commands.
        main: Runs a command line and returns its exit code, as `app.main`.
        json: Print one document, in which a stage that failed is the last.
        quiet: Print only paths.
        brief: Print what runs, and none of what stages print on standard output.
        may_fail: Names of stages whose check may fail (exit code 5) without ending the run.

    Raises:
        Exit: With the exit code of a stage that failed.
        OutputError: If the folder of an output cannot be made.
    """
    results: list[dict[str, object]] = []
    if json:
        Terminal(as_json=True).document({"stages": results})  # which may stay empty: `repeat = 0`
    countdown = Countdown([stage.seconds for stage in stages for _ in stage.lines])
    for stage, line in lines_of(stages, tree):
        for path in stage.outputs:
            make_folder(path.parent)
        if not (json or quiet):
            say(f"\n{countdown.position}", style="dim")
            say(f"{stage.name}: $ hydractl {shlex.join(line)}", style="bold")
        captured = io.StringIO()
        begin = time.monotonic()
        with contextlib.redirect_stdout(captured) if json or brief else contextlib.nullcontext():
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
    """How far a run is, and how long it still takes.

    Attributes:
        seconds: About how long each command takes, as the file says it.
        finished: How many commands have ended.
        expected: What those that ran should have taken, in seconds.
        spent: What they took.
    """

    seconds: Sequence[float]
    finished: int = 0
    expected: float = 0.0
    spent: float = 0.0

    def step(self, spent: float) -> None:
        """Count a command that has ended; what was up to date says nothing of the pace."""
        usual = self.seconds[self.finished]
        if usual and spent > UP_TO_DATE * usual:
            self.expected += usual
            self.spent += spent
        self.finished += 1

    @property
    def position(self) -> str:
        """Which command is next, and the time left where the file says how long commands take."""
        pace = self.spent / self.expected if self.expected else 1.0
        remaining = pace * sum(self.seconds[self.finished :])
        return f"command {self.finished + 1} of {len(self.seconds)}" + (
            f", about {lasting(remaining)} left" if remaining else ""
        )


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"`--set {text}`: expected NAME=VALUE", hint="for example `--set members=5`")
    return name, value


def chosen(stages: Sequence[Stage], *, only: Sequence[str], begin: str | None) -> tuple[Stage, ...]:
    """Return the stages that were asked for, in order.

    Raises:
        UsageError: If there is no such stage, or it is asked in two ways.
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
    """Yield every command line, with `--if-changed` where the command has it."""
    for stage in stages:
        for line in stage.lines:
            has = any(option.name == "if_changed" for option in tree.commands[line[0]].params)
            yield stage, (*line, *(["--if-changed"] * has))


def show(stages: Sequence[Stage], tree: TyperGroup, *, json: bool, quiet: bool) -> None:
    """Print what would run: a shell script, or a document."""
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
"""A stage of a pipeline file: its name, its command and the options of the command."""


def written(
    stages: Iterable[StageOptions],
    *,
    command: str,
    params: StageOptions | None = None,
    defaults: Mapping[str, StageOptions] | None = None,
) -> str:
    """Return the text of a pipeline file that a command of hydractl makes; `defaults` are options by command.

    Raises:
        UsageError: If a name is not UTF-8, which TOML cannot represent.
    """
    tables = [
        *([("[params]", params)] if params else []),
        *((f"[defaults.{name}]", options) for name, options in (defaults or {}).items()),
        *(("[[stage]]", stage) for stage in stages),
    ]
    lines = [f"# Written by `hydractl {command}`; run this file with `hydractl run` to resume it."]
    for heading, options in tables:
        lines += ["", heading]
        # TOML accepts the strings of JSON, except for DEL
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
    return text.replace("\x7f", r"\u007f")  # which JSON does not escape, but TOML does


def read_back(plan: Path, text: str, *, force: bool) -> tuple[Stage, ...]:
    """Return the stages of a pipeline text, if its file has the same text or does not exist.

    Raises:
        OutputExists: If the file holds another pipeline, unless `force`.
        InputError: If a command refuses its options.
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
    may_fail: Collection[str] = (),
) -> None:
    """Write a pipeline and run it; with `dry_run` print its commands, and write it only if `keep`.

    `brief` and `may_fail` are those of `go`.

    Raises:
        OutputError: If the file's folder cannot be made.
        Exit: With the exit code of a stage that failed.
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
        go(
            stages,
            command_tree(),
            main,
            json=terminal.as_json,
            quiet=terminal.quiet,
            brief=brief,
            may_fail=may_fail,
        )
    except typer.Exit:
        if is_new and not keep and [path for path in plan.parent.rglob("*") if path.is_file()] == [plan]:
            plan.unlink()  # nothing was made yet, so that other options may be tried
            if makes_folder:
                shutil.rmtree(plan.parent)
        raise
