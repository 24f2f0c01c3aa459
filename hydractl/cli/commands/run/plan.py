"""Pipelines that a command writes, keeps and runs."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

import typer

from hydractl.cli.commands.run.command import go, show
from hydractl.cli.commands.run.pipeline import Stage, parsed
from hydractl.cli.output import Terminal
from hydractl.errors import OutputExists, UsageError
from hydractl.output.publish import has_content, make_folder, publish_text
from hydractl.strict_json import NOT_UTF8

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
            f"{key} = {json.dumps(value, ensure_ascii=False)}"
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
