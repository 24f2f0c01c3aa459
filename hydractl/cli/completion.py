"""What this source tree keeps of the command tree: the completion scripts, for those who package them, and the page of options.

`python -m hydractl.cli.completion` writes them to `completions/` and `docs/reference.md`; with `--check` it says which are out
of date.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from hydractl.cli.app import command_tree
from hydractl.cli.reference import page
from hydractl.cli.shells.described import describe
from hydractl.cli.shells.scripts import SCRIPTS

FILES = {
    "bash": "completions/hydractl.bash",
    "zsh": "completions/_hydractl",
    "fish": "completions/hydractl.fish",
}
PAGE = "docs/reference.md"


def files() -> dict[str, str]:
    """Return each file's path and text."""
    tree = command_tree()
    commands = describe(tree)
    return {PAGE: page(tree), **{FILES[shell]: script(commands) for shell, script in SCRIPTS.items()}}


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
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if check and stale:
        again = "run `python -m hydractl.cli.completion`"
        sys.stderr.write(f"out of date: {', '.join(stale)}\n\nhint: {again}\n")
        return 5
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
