"""What this source tree keeps of the command tree: completion scripts, for those who package them, the page of options, summaries.

`python -m hydractl.cli.completion` writes them to `completions/`, `docs/reference.md` and `hydractl/cli/summaries.py`; with
`--check` it says which are out of date.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import cast

import typer
import typer.core

from hydractl.cli.app import command_tree
from hydractl.cli.helptext import unescaped
from hydractl.cli.shells.command import SCRIPTS

FILES = {
    "bash": "completions/hydractl.bash",
    "zsh": "completions/_hydractl",
    "fish": "completions/hydractl.fish",
}
PAGE = "docs/reference.md"
SUMMARIES = "hydractl/cli/summaries.py"
HEAD = """\
# Every command and option

What `hydractl COMMAND --help` says, on one page. Made by `python -m hydractl.cli.completion`; not written by hand.
"""
Parameter = typer.core.TyperOption | typer.core.TyperArgument


def files() -> dict[str, str]:
    """Return each file's path and text."""
    tree = command_tree()
    return {
        SUMMARIES: summaries(tree),
        PAGE: reference_page(tree),
        **{FILES[shell]: script for shell, script in SCRIPTS.items()},
    }


def summaries(tree: typer.core.TyperGroup) -> str:
    """Return the module that tells what commands do, for whom no command needs to load."""
    commands = cast("dict[str, typer.core.TyperCommand]", tree.commands)
    lines = [f'    "{name}": "{paragraphs(command)[0]}",' for name, command in commands.items()]
    head = '"""What each command does, in one line; `python -m hydractl.cli.completion` writes this."""'
    return "\n".join([head, "", "SUMMARIES = {", *lines, "}", ""])


def reference_page(tree: typer.core.TyperGroup) -> str:
    """Return the page of every command and option as Markdown, what `--help` says: the program, a list of its commands, then a section of each."""
    commands = cast("dict[str, typer.core.TyperCommand]", tree.commands)
    first = [
        f"- [`{name}`](#hydractl-{name}): {paragraphs(command)[0]}" for name, command in commands.items()
    ]
    parts = [HEAD, *_prose(tree), "\n".join(first) + "\n"]
    for name, command in commands.items():
        parts += [f"## hydractl {name}\n", *_prose(command), *_tables(name, command)]
    return "\n".join(parts)


def paragraphs(command: typer.core.TyperCommand | typer.core.TyperGroup) -> list[str]:
    """Return what a command's help says, without the layout of the terminal."""
    return unescaped(command.help or "").split("\n\n")


def _prose(command: typer.core.TyperCommand | typer.core.TyperGroup) -> Iterator[str]:
    """Yield what a command says of itself: paragraphs, and blocks such as its examples as they stand."""
    for paragraph in paragraphs(command):
        title, *lines = paragraph.strip().split("\n")
        block = "\n".join(line.removeprefix("  ") for line in lines)
        kind = "sh" if title == "Examples:" else "text"
        yield f"{title}\n\n```{kind}\n{block}\n```\n" if lines else f"{_cell(title)}\n"


def _tables(name: str, command: typer.core.TyperCommand) -> Iterator[str]:
    """Yield a table of the arguments and one of each group of options, as the help groups them."""
    context = typer.Context(command, info_name=name)
    visible = [p for p in command.params if isinstance(p, Parameter) and not p.hidden]
    visible.sort(key=lambda p: (isinstance(p, typer.core.TyperOption), p.rich_help_panel is not None))
    for title, group in groupby(visible, key=_title):
        yield "\n".join([f"| {title} | |", "|---|---|", *(_row(p, context) for p in group), ""])


def _title(parameter: Parameter) -> str:
    is_option = isinstance(parameter, typer.core.TyperOption)
    return parameter.rich_help_panel or ("Options" if is_option else "Arguments")


def _row(parameter: Parameter, context: typer.Context) -> str:
    """Return an option's names with what stands for its value, of an argument the latter alone, and its help."""
    names, help_text = parameter.get_help_record(context) or ("", "")
    if isinstance(parameter, typer.core.TyperArgument):
        names = parameter.metavar or str(parameter.name).upper()
    return "| {} | {} |".format(
        *(text.replace("|", r"\|") for text in (f"`{names}`", _cell(unescaped(help_text))))
    )


def _cell(text: str) -> str:
    """Return a text on one line in which Markdown sees no HTML."""
    return " ".join(text.split()).replace("<", "&lt;")


def main(arguments: Iterable[str]) -> int:
    """Write the files, or with `--check` compare them; return the exit code."""
    check = "--check" in arguments
    stale = []
    for name, text in files().items():
        path = Path(name)
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if check and stale:
        sys.stderr.write(
            f"out of date: {', '.join(stale)}\n\nhint: run `python -m hydractl.cli.completion`\n"
        )
        return 5
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
