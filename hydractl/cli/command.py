"""Commands for typer, generated from the settings of a configuration: a parameter per option."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer

from hydractl.cli.output import Terminal
from hydractl.data.reference import BUILT_IN
from hydractl.errors import UnreadableError
from hydractl.output.publish import STDOUT, is_stdout
from hydractl.plugins import load
from hydractl.provenance.command_config import CommandConfig, input_refs
from hydractl.runtime import enough_memory
from hydractl.settings import Option, Role, Setting, configured, declared, details, long_option, options_of
from hydractl.stages import options as shared

C = TypeVar("C", bound=CommandConfig)
KINDS: dict[str, Any] = {
    "bool": bool,
    "int": int,
    "float": float,
    "str": str,
    "Path": Path,
    "tuple[str, ...]": list[str],
    "tuple[Path, ...]": list[Path],
}
"""Type for typer by field type. Options of all other types need `parse`."""
METAVARS = {"int": "N", "float": "X"}
"""Default metavars by type."""
INLINE = 16
"""Maximum number of characters of the choices in a metavar. Longer lists are added to the help text. Chosen
by hand: with longer metavars, option and metavar do not fit the 24 columns of names in help."""
OWN_PANELS = "a command's own"
PANELS = (
    None, shared.BUDGET_PANEL, shared.DATA, OWN_PANELS, shared.IMAGES_PANEL, shared.ZERO_SHOT,
    shared.MODEL_PANEL, shared.MACHINE, shared.OUTPUT,
)  # fmt: skip
"""Panels of options in the order of help. The main options have none."""
CONFIGURATIONS: ContextVar[list[Any] | None] = ContextVar("configurations", default=None)
"""If set, commands append their configurations to this list instead of running. `run` checks a pipeline this
way."""
JSON = Setting("Print the result as one JSON document.", panel=shared.OUTPUT)
QUIET = Setting(
    "Print only the paths of the files written, one per line.",
    option_names=("-q", "--quiet"),
    panel=shared.OUTPUT,
)


def command(
    config: str,
    *,
    quiet: Setting = QUIET,
    streams: tuple[str, ...] = ("out",),
    prints: str | None = None,
    unchanged: Callable[[C, Terminal], None] | None = None,
    compares: bool = False,
) -> Callable[[Callable[[C, Terminal], None]], Callable[[], Callable[..., None]]]:
    """Turn a function of a configuration and a terminal into a command.

    The docstring of the function is the help.

    The command is created on first access: modules define several commands, but completion should load a
    single configuration.

    Args:
        config: Path `module:name` of the configuration class.
        quiet: Declaration of `--quiet`.
        streams: Options with the name of an output. The value `-` means standard output.
        prints: See `Terminal`.
        unchanged: Prints the result for `--if-changed` if outputs are up to date; by default, their paths are
            printed.
        compares: Whether the function itself handles `--if-changed`, because making the outputs is quick.

    Returns:
        A decorator. The decorated name becomes a function without arguments that creates the command for
        typer.
    """

    def decorate(function: Callable[[C, Terminal], None]) -> Callable[[], Callable[..., None]]:
        def make() -> Callable[..., None]:
            config_class: type[C] = load(config)

            def run(*, json: bool, quiet: bool, **option_values: object) -> None:
                stdout_options = [name for name in streams if is_stdout(Path(str(option_values.get(name))))]
                option_values |= dict.fromkeys(stdout_options, STDOUT)
                terminal = Terminal(
                    as_json=json, quiet=quiet, out=STDOUT if stdout_options else None, prints=prints
                )
                configuration = configured(config_class, option_values)
                if (collected := CONFIGURATIONS.get()) is not None:
                    collected.append(configuration)
                    return
                checks_up_to_date = configuration.if_changed and not compares
                if not (checks_up_to_date and _is_up_to_date(configuration, terminal, unchanged)):
                    _check_inputs(configuration)
                    with enough_memory(option_values), _naming_skip_bad(configuration):
                        function(configuration, terminal)

            options = [
                *options_of(config_class),
                Option("json", "bool", JSON, default=False),
                Option("quiet", "bool", quiet, default=False),
            ]
            parameters = [_parameter(option) for option in sorted(options, key=_place)]
            run.__name__, run.__doc__ = function.__name__, function.__doc__
            run.common = config_class.COMMON  # type: ignore[attr-defined]  # read by `cli.helptext`
            run.is_configured = True  # type: ignore[attr-defined]  # read by `cli.pipeline`
            run.__annotations__ = {p.name: p.annotation for p in parameters}
            run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # read by typer
            return run

        make.is_command = True  # type: ignore[attr-defined]  # other commands are functions of their options
        return make

    return decorate


def _place(option: Option) -> int:
    panel = option.setting.panel
    return PANELS.index(panel if panel in PANELS else OWN_PANELS)


@contextmanager
def _naming_skip_bad(config: CommandConfig) -> Iterator[None]:
    """Add `--skip-bad` to the hint of an unreadable image, if the command has this option."""
    try:
        yield
    except UnreadableError as error:
        if "skip_bad" in declared(type(config)):
            error.hint = f"{error.hint or 'leave the image out'}, or add `--skip-bad`"
        raise


def _check_inputs(config: CommandConfig) -> None:
    """Raise for missing inputs before libraries are loaded.

    With several processes, only the first checks, at a later time.
    """
    from hydractl.processes.distributed import world_size

    if world_size() == 1:
        for ref in input_refs(config):
            ref.check_exists()


def _is_up_to_date(config: C, terminal: Terminal, say: Callable[[C, Terminal], None] | None) -> bool:
    from hydractl.provenance.output import Output

    reason = Output.outdated(config)
    if reason:
        terminal.progress().step(f"Not up to date: {reason}")
    elif reason is None:
        say(config, terminal) if say else terminal.up_to_date(config.output_files())
    return reason is None


def _parameter(option: Option) -> inspect.Parameter:
    default = inspect.Parameter.empty if option.default is ... else option.default or None
    if isinstance(option.default, bool | int | float):
        default = option.default
    kind = kind_of(option) | None if default is None else kind_of(option)
    annotation: Any = Annotated[kind, typer_option(option.name, option.setting, option.kind)]
    return inspect.Parameter(
        option.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def kind_of(option: Option) -> Any:  # noqa: ANN401 - a type, as typer reads it
    """Return the type to which typer converts an option's text.

    Returns:
        `str` for a setting with `parse`, or `list[str]` if the setting is repeated. A `Literal` for a setting
        with choices. Otherwise the type in `KINDS`, for example `int` or `list[Path]`.
    """
    setting = option.setting
    if setting.parse is not None:
        return list[str] if setting.repeated else str
    if setting.choices:
        return Literal[tuple(map(str, setting.choices))]
    return KINDS[option.kind.removesuffix(" | None")]


def typer_option(name: str, setting: Setting, kind: str = "") -> Any:  # noqa: ANN401 - as typer has it
    """Return typer's declaration of a setting; `kind` is the annotation of the field."""
    metavar, help_text, choices = setting.metavar, setting.help, [*map(str, setting.choices)]
    if metavar is None and choices:
        metavar = "|".join(choices) if len("|".join(choices)) <= INLINE else "NAME"
        if metavar == "NAME" and not all(choice in help_text for choice in choices):
            help_text += details(f"One of {', '.join(choices)}.")
    typer_arguments: dict[str, Any] = {
        "metavar": metavar or METAVARS.get(kind.removesuffix(" | None")),
        "help": help_text,
        "rich_help_panel": setting.panel,
        "show_default": setting.shows_default,
    }
    words = setting.choices or setting.suggestions or (BUILT_IN if setting.role is Role.DATA else ())
    if words:
        typer_arguments["autocompletion"] = lambda: [*map(str, words)]
    if setting.shows_range:
        typer_arguments |= {"min": setting.low, "max": setting.high}
    if setting.positional:
        return typer.Argument(**typer_arguments)
    return typer.Option(*(setting.option_names or (long_option(name),)), **typer_arguments)
