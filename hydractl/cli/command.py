"""Commands as typer sees them, made of what configurations declare: one parameter an option."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer

from hydractl.cli.output import Terminal
from hydractl.publish import STDOUT, is_stdout
from hydractl.settings import Declared, Setting, configured, options_of, spelled

C = TypeVar("C")
KINDS: dict[str, Any] = {
    "bool": bool,
    "int": int,
    "float": float,
    "str": str,
    "Path": Path,
    "tuple[str, ...]": list[str],
    "tuple[Path, ...]": list[Path],
}
"""What typer reads for a field's type as it is written; anything else is declared with `parse`."""
JSON = Setting("Print the result as one JSON document.")
QUIET = Setting("Print only the paths written, one a line.", spelled=("-q", "--quiet"))


def command(
    config: type[C], *, quiet: Setting = QUIET, streams: tuple[str, ...] = ("out",)
) -> Callable[[Callable[[C, Terminal], None]], Callable[..., None]]:
    """Make a command of a function that is given a configuration and the terminal; its docstring is the help.

    Args:
        config: Declares the options.
        quiet: What `--quiet` does.
        streams: The options that name an output; where one is `-`, standard output belongs to it.
    """
    options = (
        *options_of(config),
        Declared("json", "bool", JSON, default=False),
        Declared("quiet", "bool", quiet, default=False),
    )

    def made(function: Callable[[C, Terminal], None]) -> Callable[..., None]:
        def run(*, json: bool, quiet: bool, **typed: object) -> None:
            taken = [name for name in streams if is_stdout(Path(str(typed.get(name))))]
            typed |= dict.fromkeys(taken, STDOUT)
            terminal = Terminal(as_json=json, quiet=quiet, out=STDOUT if taken else None)
            function(configured(config, typed), terminal)

        parameters = [_parameter(option) for option in options]
        run.__doc__ = function.__doc__
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what typer looks at
        return run

    return made


def _parameter(option: Declared) -> inspect.Parameter:
    default = inspect.Parameter.empty if option.default is ... else option.default or None
    if isinstance(option.default, bool | int | float):
        default = option.default
    kind = kind_of(option)
    annotation: Any = Annotated[kind | None if default is None else kind, typed(option.name, option.setting)]
    return inspect.Parameter(
        option.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def kind_of(option: Declared) -> Any:  # noqa: ANN401 - a type, as typer reads it
    """Return what typer converts an option's text to."""
    setting = option.setting
    if setting.parse is not None:
        return list[str] if setting.repeated else str
    if setting.choices:
        return Literal[tuple(map(str, setting.choices))]
    return KINDS[option.kind.removesuffix(" | None")]


def typed(name: str, setting: Setting) -> Any:  # noqa: ANN401 - as typer has it
    """Return typer's own declaration of a setting."""
    told: dict[str, Any] = {
        "metavar": setting.metavar,
        "help": setting.help,
        "rich_help_panel": setting.panel,
        "show_default": setting.shows,
    }
    if setting.tells:
        told |= {"min": setting.low, "max": setting.high}
    if setting.positional:
        return typer.Argument(**told)
    return typer.Option(*(setting.spelled or (spelled(name),)), **told)
