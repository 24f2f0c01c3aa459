"""What this source tree keeps of the command tree: completion scripts, for those who package them, the page of options, summaries.

`python -m hydractl.cli.completion` writes them to `completions/`, `docs/reference.md` and `hydractl/cli/summaries.py`; with
`--check` it says which are out of date.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import cast

import typer.core

from hydractl.cli.app import command_tree
from hydractl.cli.reference import page, paragraphs
from hydractl.cli.shells.command import SCRIPTS

FILES = {
    "bash": "completions/hydractl.bash",
    "zsh": "completions/_hydractl",
    "fish": "completions/hydractl.fish",
}
PAGE = "docs/reference.md"
SUMMARIES = "hydractl/cli/summaries.py"


def files() -> dict[str, str]:
    """Return each file's path and text."""
    tree = command_tree()
    return {
        SUMMARIES: summaries(tree),
        PAGE: page(tree),
        **{FILES[shell]: script for shell, script in SCRIPTS.items()},
    }


def summaries(tree: typer.core.TyperGroup) -> str:
    """Return the module that tells what commands do, for whom no command needs to load."""
    commands = cast("dict[str, typer.core.TyperCommand]", tree.commands)
    lines = [f'    "{name}": "{paragraphs(command)[0]}",' for name, command in commands.items()]
    head = '"""What each command does, in one line; `python -m hydractl.cli.completion` writes this."""'
    return "\n".join([head, "", "SUMMARIES = {", *lines, "}", ""])


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
        advice = "run `python -m hydractl.cli.completion`"
        sys.stderr.write(f"out of date: {', '.join(stale)}\n\nhint: {advice}\n")
        return 5
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
