"""What this source tree keeps of the command tree: completion scripts, for those who package them, the page of options, summaries.

`python -m hydractl.cli.completion` writes them to `completions/`, `docs/reference.md` and `hydractl/cli/summaries.py`; with
`--check` it says which are out of date.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import cast

import typer
import typer.core

from hydractl.cli.app import EXIT_CODES, GROUPS, command_tree
from hydractl.cli.helptext import Command, is_block, panels, paragraphs
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
    """Return the page of every command and option as Markdown: what `--help` says of the program, then of each command."""
    commands = cast("dict[str, typer.core.TyperCommand]", tree.commands)
    parts = [HEAD, *_prose(paragraphs(tree))]
    for title, group in GROUPS.items():
        lines = [f"- [`{name}`](#hydractl-{name}): {paragraphs(commands[name])[0]}" for name in group]
        parts.append("\n".join([f"{title}:\n", *lines, ""]))
    parts += _prose([EXIT_CODES])
    for name, command in commands.items():
        parts += [f"## hydractl {name}\n", *_prose(paragraphs(command)), *_tables(name, command)]
    return "\n".join(parts)


def _prose(texts: Iterable[str]) -> Iterator[str]:
    """Yield what a command says of itself: paragraphs, and blocks such as its examples as they stand."""
    for text in texts:
        title, *lines = text.split("\n")
        block = "\n".join(line.removeprefix("  ") for line in lines)
        kind = "sh" if title == "Examples:" else "text"
        yield f"{title}\n\n```{kind}\n{block}\n```\n" if is_block(text) else f"{_cell(title)}\n"


def _tables(name: str, command: Command) -> Iterator[str]:
    """Yield a table of the arguments and one of each group of options, as the help groups them."""
    for title, rows in panels(command, typer.Context(command, info_name=name)).items():
        lines = (
            "| `{}` | {} |".format(*(text.replace("|", r"\|") for text in (names, _cell(help_text))))
            for names, help_text in rows
            if not names.endswith("--help")
        )
        yield "\n".join([f"| {title} | |", "|---|---|", *lines, ""])


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
