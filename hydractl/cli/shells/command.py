"""`hydractl completion`."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated, cast

import typer

from hydractl.cli.output import Terminal, written_out


class Shell(StrEnum):
    """The shells that there are scripts for; the same words as in `hydractl.cli.shells.scripts.SCRIPTS`."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"


def completion(
    context: typer.Context,
    shell: Annotated[Shell, typer.Argument(help="Whose script.", show_default=False)],
    json: Annotated[bool, typer.Option("--json", help="Print the script within one JSON document.")] = False,
) -> None:
    """Print the script that completes commands, options, their values and files when Tab is pressed.

    The script holds every word itself: pressing Tab never starts the program. Print it again after an update.

    Examples:
      eval "$(hydractl completion bash)"   # in ~/.bashrc
      eval "$(hydractl completion zsh)"    # in ~/.zshrc, after `compinit`
      hydractl completion zsh > ~/.zfunc/_hydractl   # or in a folder of $fpath
      hydractl completion fish > ~/.config/fish/completions/hydractl.fish
    """
    terminal = Terminal(as_json=json)
    from hydractl.cli.shells.described import describe
    from hydractl.cli.shells.scripts import SCRIPTS

    tree = cast("typer.core.TyperGroup", context.find_root().command)
    script = SCRIPTS[shell.value](describe(tree))
    if json:
        terminal.document({"script": script, "shell": shell.value})
    elif terminal.speaks:
        with written_out():
            sys.stdout.write(script)
