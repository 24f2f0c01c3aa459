"""The completion scripts of this source tree, for those who package it: what `hydractl completion` prints.

`python -m hydractl.cli.completion` writes them to `completions/`; with `--check` it says which are out of date.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from hydractl.cli.app import command_tree
from hydractl.cli.shells.described import describe
from hydractl.cli.shells.scripts import SCRIPTS

FOLDER = Path("completions")
FILES = {"bash": "hydractl.bash", "zsh": "_hydractl", "fish": "hydractl.fish"}


def scripts() -> dict[str, str]:
    """Return each script's file name and text."""
    commands = describe(command_tree())
    return {FILES[shell]: script(commands) for shell, script in SCRIPTS.items()}


def main(arguments: Iterable[str]) -> int:
    """Write the scripts, or with `--check` compare them; return the exit code."""
    check = "--check" in arguments
    stale = []
    for name, text in scripts().items():
        path = FOLDER / name
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(str(path))
        if not check:
            FOLDER.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if check and stale:
        again = "run `python -m hydractl.cli.completion`"
        sys.stderr.write(f"out of date: {', '.join(stale)}\n\nhint: {again}\n")
        return 5
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
