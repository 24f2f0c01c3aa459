"""Static completion scripts for bash, zsh and fish, generated from the command tree.

They hold every word themselves, so pressing Tab never starts the program. `python -m hydractl.cli.completion` writes
them to `completions/`; with `--check` it says which are out of date.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import cast

import typer.core

from hydractl.cli.app import command_tree
from hydractl.cli.completion.shells import (
    Command,
    Completes,
    ShellOption,
    bash_script,
    fish_script,
    zsh_script,
)
from hydractl.cli.helptext import unescaped
from hydractl.data.reference import BUILT_IN
from hydractl.metrics.scores import SCORES
from hydractl.runtime import DTYPES

FOLDER = Path("completions")
CHECKPOINTS = ("st", "safetensors")


VALUES = {
    "MODEL": Completes(files=True, suffixes=CHECKPOINTS),
    "MODEL...": Completes(files=True, suffixes=CHECKPOINTS),
    "FILE...": Completes(files=True, suffixes=(*CHECKPOINTS, "json")),
    "WEIGHTS": Completes(files=True, suffixes=("pth", "pt", "bin", "ckpt", "tar", "safetensors", "json")),
    "JSON": Completes(files=True, suffixes=("json",)),
    "PATH": Completes(files=True),
    "DATA[::K=V,...]": Completes(words=BUILT_IN, files=True),
    "OBJECTIVE": Completes(words=("acc", "ood", "avg")),
    "SCORE,...": Completes(words=tuple(SCORES)),
    "DEVICE": Completes(words=("auto", "cpu", "cuda", "mps")),
    "DTYPE": Completes(words=tuple(sorted(DTYPES))),
}
HELP = ShellOption(spellings=("-h", "--help"), help="Show this message and exit")


def describe() -> tuple[Command, ...]:
    """Return the root, under the empty name, and every subcommand, as the scripts need them."""
    tree = command_tree()
    commands = cast("dict[str, typer.core.TyperCommand]", tree.commands)
    return (_command("", tree), *(_command(name, command) for name, command in commands.items()))


def _command(name: str, command: typer.core.TyperCommand | typer.core.TyperGroup) -> Command:
    options = tuple(_option(p) for p in command.params if isinstance(p, typer.core.TyperOption))
    arguments = [p for p in command.params if isinstance(p, typer.core.TyperArgument)]
    first = arguments[0] if arguments else None
    return Command(
        name=name,
        help=_sentence(command.help),
        options=(*options, HELP),
        argument=_value(first) if first else None,
        metavar=(first.metavar or first.name or "").removesuffix("...").upper() if first else "",
        many=bool(first and first.nargs != 1),
    )


def _option(parameter: typer.core.TyperOption) -> ShellOption:
    return ShellOption(
        spellings=(*parameter.opts, *parameter.secondary_opts),
        help=_sentence(parameter.help),
        value=None if parameter.is_flag else _value(parameter),
        metavar=parameter.metavar or (parameter.name or "").upper(),
        repeatable=parameter.multiple,
    )


def _value(parameter: typer.core.TyperOption | typer.core.TyperArgument) -> Completes:
    descriptor = parameter.type_descriptor
    if descriptor.choices:
        return Completes(words=tuple(map(str, descriptor.choices)))
    if descriptor.annotation is Path and parameter.metavar not in VALUES:
        return Completes(files=True)
    return VALUES.get(parameter.metavar or "", Completes())


def _sentence(text: str | None) -> str:
    """Return the first sentence of a help text, on one line."""
    lines = unescaped(text or "").strip().split("\n\n")[0].replace("\n", " ")
    return lines.split(". ")[0].removesuffix(".")


def scripts() -> dict[str, str]:
    """Return each script's file name and text."""
    commands = describe()
    return {
        "hydractl.bash": bash_script(commands),
        "_hydractl": zsh_script(commands),
        "hydractl.fish": fish_script(commands),
    }


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
