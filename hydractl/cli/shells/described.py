"""The command tree as completion scripts need it: every word that may be typed."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import typer.core

from hydractl.cli.helptext import unescaped
from hydractl.cli.shells.scripts import Command, Completes, ShellOption
from hydractl.data.corruptions.names import ALL, ALL_CORRUPTIONS
from hydractl.data.presets.registry import PRESETS
from hydractl.data.reference import BUILT_IN
from hydractl.metrics.ood_scores import EVERY
from hydractl.runtime import DTYPES
from hydractl.stages.datasets.config import LIST, SHOW

CHECKPOINTS = ("st", "safetensors")
VALUES = {
    "MODEL": Completes(files=True, suffixes=CHECKPOINTS),
    "MODEL...": Completes(files=True, suffixes=CHECKPOINTS),
    "FILE...": Completes(files=True, suffixes=(*CHECKPOINTS, "json")),
    "MODEL [FILE...]": Completes(files=True, suffixes=(*CHECKPOINTS, "json")),
    "WEIGHTS": Completes(files=True, suffixes=("pth", "pt", "bin", "ckpt", "tar", "safetensors", "json")),
    "JSON": Completes(files=True, suffixes=("json",)),
    "PATH": Completes(files=True),
    "DATA[::K=V,...]": Completes(words=BUILT_IN, files=True),
    "ACTION [NAME...]": Completes(words=(LIST, SHOW, *PRESETS)),
    "OBJECTIVE": Completes(words=("acc", "ood", "avg")),
    "SCORE,...": Completes(words=EVERY),
    "NAME[:1-5]": Completes(words=(ALL, *ALL_CORRUPTIONS)),
    "DEVICE": Completes(words=("auto", "cpu", "cuda", "mps")),
    "DTYPE": Completes(words=tuple(sorted(DTYPES))),
}
HELP = ShellOption(spellings=("-h", "--help"), help="Show this message and exit")


def describe(tree: typer.core.TyperGroup) -> tuple[Command, ...]:
    """Return the root, under the empty name, and every subcommand."""
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
