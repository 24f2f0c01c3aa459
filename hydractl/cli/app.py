"""The program: all commands, the parser, and the translation of errors to messages and exit codes."""

from __future__ import annotations

import errno
import os
import sys
from collections import UserDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

import typer
import typer.core
import typer.main
from typing_extensions import override

from hydractl.cli.helptext import ALL, HELP, HELP_SUMMARY, Command, Helped, Rows, command_help, paragraphs
from hydractl.cli.refusals import REMOVED, help_of, name_of
from hydractl.cli.summaries import SUMMARIES
from hydractl.errors import CheckFailed, HydraError, InputError, Interrupted, UsageError, shortened
from hydractl.messages import did_you_mean, quoted
from hydractl.plugins import load, plugins
from hydractl.processes.signals import received_end_signal
from hydractl.runtime import short_of_memory, spare_memory
from hydractl.version import __version__

if TYPE_CHECKING:
    from hydractl.cli.output import CommandDocument

C = TypeVar("C", typer.core.TyperCommand, typer.core.TyperGroup)

# A shell reports 128 plus the number of the signal for a program ended by a signal.
INTERRUPTED, BROKEN_PIPE = 130, 141
BROKEN_DISK = {errno.EIO, errno.ESTALE, errno.ENOSPC, errno.EDQUOT}
"""Errors of reading or writing an open file. They have no file name."""

GROUPS: Mapping[str, Mapping[str, str]] = {
    "Make a hydra": {
        "make": "hydractl.cli.commands.make:make",
        "import": "hydractl.cli.commands.models:import_weights",
        "score": "hydractl.cli.commands.models:score",
        "prune": "hydractl.cli.commands.models:prune",
        "finetune": "hydractl.cli.commands.models:finetune",
        "fuse": "hydractl.cli.commands.models:fuse",
    },
    "Measure": {
        "eval": "hydractl.cli.commands.measure:evaluate",
        **{name: path for plugin in plugins() for name, path in plugin.commands.items()},
        "report": "hydractl.cli.commands.measure:report",
    },
    "Use": {
        "predict": "hydractl.cli.commands.use:predict",
        "export": "hydractl.cli.commands.use:export",
        "push": "hydractl.cli.commands.use:push",
    },
    "Look": {
        "inspect": "hydractl.cli.commands.look:inspect",
        "data": "hydractl.cli.commands.look:data",
        "doctor": "hydractl.cli.commands.look:doctor",
    },
    "Automate": {
        "run": "hydractl.cli.commands.run:run",
        "demo": "hydractl.cli.commands.run:demo",
        "schema": "hydractl.cli.commands.look:schema",
        "completion": "hydractl.cli.shells:completion",
    },
}
"""Path of each command's function, by group."""
COMMANDS = {name: path for commands in GROUPS.values() for name, path in commands.items()}


COMPLETE = "_HYDRACTL_COMPLETE"
"""Environment variable with the name of the shell, set by completion scripts."""
LETTERS = 60
"""Maximum number of characters of an unknown word in a message. Chosen by hand; the message then fits two
lines of 80 columns, and twice the number would add a line."""


EXIT_CODES = """\
Exit codes:
  0    success
  1    a bug in hydractl
  2    wrong usage: unknown options, or options that exclude each other
  3    an input that cannot be used, or an output that cannot be written
  4    the network or the Hub failed
  5    a check failed (`--verify`, `eval --fail-if`), or training diverged
  6    the output exists
  130  interrupted"""


class Strict(Helped):
    """A command that rejects a single-valued option given twice. Typer would silently use the last value.

    For an unknown choice, the error suggests the nearest choice.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - of a private class of typer's
        """Parse the arguments.

        Raises:
            UsageError: If a single-valued option appears twice, a flag appears with its opposite, or a value
                is not a choice.
        """
        if ALL in args and {"-h", "--help"} & {*args}:
            ctx.meta[ALL], args = True, ["--help"]
        try:
            values_by_name, _, option_order = self.make_parser(ctx).parse_args(args=list(args))
        except Exception as error:
            # The parser does not set the context if an option lacks a value.
            if getattr(error, "ctx", ctx) is None:
                vars(error)["ctx"] = ctx
            raise
        for option in self.params:
            if (
                isinstance(option, typer.core.TyperOption)
                and not option.multiple
                and option_order.count(option) > 1
                and (not option.is_flag or option.secondary_opts)
            ):
                name = "/".join((option.opts[0], *option.secondary_opts))
                raise UsageError(f"`{name}` appears more than once", hint="give it once")
        for parameter in self.params:
            if not isinstance(parameter, typer.core.TyperOption | typer.core.TyperArgument):
                continue
            choices = [*map(str, parameter.type_descriptor.choices or ())]
            word = values_by_name.get(parameter.name)
            if choices and isinstance(word, str) and word not in choices:
                raise UsageError(
                    f"{name_of(parameter)}: `{shortened(word, LETTERS)}` is not one of {quoted(choices)}",
                    hint=did_you_mean(word, choices) or help_of(ctx.command_path),
                )
        return super().parse_args(ctx, args)


class Commands(UserDict[str, Any]):
    """All commands by name.

    Each is imported on first access, so a command does not wait for imports of the others.

    Args:
        others: Additional commands, or replacements.
    """

    def __init__(self, others: Mapping[str, Any]) -> None:
        super().__init__(
            dict.fromkeys(COMMANDS)
            | {name: _finished(extra_command) for name, extra_command in others.items()}
        )

    @override
    def __getitem__(self, name: str) -> Any:
        if self.data[name] is None:
            single_app = typer.Typer(add_completion=False, rich_markup_mode=None)
            single_app.command(name, cls=Strict)(function_of(name))
            self.data[name] = _finished(cast("typer.core.TyperCommand", typer.main.get_command(single_app)))
        return self.data[name]


class Tree(typer.core.TyperGroup):
    """The program's command group, with a help that imports no command."""

    @override
    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)

    @override
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in self.commands and not args[0].startswith("-"):
            if args[0] in REMOVED:
                raise UsageError(f"`{args[0]}` was removed from `hydractl`", hint=REMOVED[args[0]])
            near = did_you_mean(args[0], self.commands)
            raise UsageError(
                f"`{shortened(args[0], LETTERS)}` is not a command of `hydractl`",
                hint=near or help_of("hydractl"),
            )
        return super().resolve_command(ctx, args)

    @override
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args[:1] == [HELP]:
            args = [*args[1:], "--help"]
        return super().parse_args(ctx, args)

    @override
    def format_help(self, ctx: Any, formatter: Any) -> None:
        listed: dict[str, Rows] = {
            title: [
                (name, SUMMARIES.get(name) or paragraphs(cast("Command", self.commands[name]))[0])
                for name in self.commands
                if name in group
            ]
            for title, group in GROUPS.items()
        }
        listed[[*GROUPS][-1]].append((HELP, HELP_SUMMARY))
        formatter.write(command_help(self, ctx, width=formatter.width, commands=listed))


app = typer.Typer(
    name="hydractl",
    cls=Tree,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    epilog=EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def function_of(name: str) -> Callable[..., None]:
    """Return a command's function.

    Raises:
        KeyError: If the command does not exist.
    """
    function = cast("Callable[..., Any]", load(COMMANDS[name]))
    return function() if hasattr(function, "is_command") else function


def _version(value: bool) -> None:
    if value:
        typer.echo(f"hydractl {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Turn one trained transformer into a pruned, fused ensemble with calibrated uncertainty."""


def command_tree() -> typer.core.TyperGroup:
    """Return the program with all commands."""
    tree = cast("typer.core.TyperGroup", typer.main.get_command(app))
    tree.commands = Commands(tree.commands)
    _finished(tree).no_args_is_help = True
    help_option = tree.get_help_option(typer.Context(tree, **tree.context_settings))
    if help_option is not None:
        # typer loads pydantic to determine the default of a flag without a default.
        help_option.default = False
    return tree


def _finished(command: C) -> C:
    """Make a command with required arguments show its help if called without arguments."""
    command.no_args_is_help = any(p.required for p in command.params)
    return command


def main(argv: list[str] | None = None, *, shows_checks: bool = True) -> int:
    """Run a command line and return the exit code. Errors become messages only here.

    An exception that is a bug in hydractl is raised again.

    Args:
        argv: Arguments; by default the arguments of the process.
        shows_checks: Whether to print a failed check (exit code 5) as an error.
    """
    from hydractl.cli.output import command_document, write_json

    arguments = sys.argv[1:] if argv is None else list(argv)
    if shell := os.environ.get(COMPLETE):
        from hydractl.cli.shells import suggestions

        sys.stdout.writelines(
            f"{line}\n" for line in suggestions(command_tree(), arguments or [""], shell=shell)
        )
        return 0
    with command_document(arguments, write_json) as document:
        try:
            return _run(arguments, document, shows_checks=shows_checks)
        except Exception as error:
            document.fail(error)
            raise


def _run(arguments: list[str], document: CommandDocument, *, shows_checks: bool) -> int:
    from hydractl.cli.output import drop_stdout

    spare = spare_memory()
    try:
        tree = command_tree()
        # The context passes `main` to `run` and `demo`, which run other command lines.
        with tree.make_context("hydractl", arguments, obj=main) as context:
            tree.invoke(context)
        document.write()
        sys.stdout.flush()
    except BrokenPipeError:
        drop_stdout()
        return BROKEN_PIPE
    except typer.Exit as done:
        document.write()
        return done.exit_code
    except (KeyboardInterrupt, typer.Abort) as error:
        return _interrupted(error, document)
    except Exception as error:  # noqa: BLE001 - typer's usage errors are of a private class; all others are raised again
        if received_end_signal() and not isinstance(error, Interrupted):
            # A library replaced the interrupt by another error.
            return _interrupted(KeyboardInterrupt(), document)
        if spare is not None:
            spare.close()  # Printing the message needs memory.
        return (
            _failed(error, document, is_shown=shows_checks or not isinstance(error, CheckFailed))
            if isinstance(error, HydraError)
            else _usage_or_bug(error, document)
        )
    return 0


def _interrupted(error: BaseException, document: CommandDocument) -> int:
    """Print that the command was interrupted, and return the exit code."""
    from hydractl.cli.output import interrupted

    interrupted(error)
    document.fail(error)
    return INTERRUPTED


def _failed(error: HydraError, document: CommandDocument, *, is_shown: bool = True) -> int:
    """Print the error, and return its exit code."""
    from hydractl.cli.output import fail, leader_is_silent, refusal

    # Every rank detects usage errors, so only the leader prints them. An interrupted rank may have an empty
    # message.
    if is_shown and error.message and (not isinstance(error, UsageError) or leader_is_silent()):
        fail(error)
    document.fail(error) if is_shown else document.write()
    refusal()  # An output that failed on the way to standard output is still partly in the buffer.
    return error.exit_code


def _usage_or_bug(error: Exception, document: CommandDocument) -> int:
    """Handle usage errors of typer, file errors and exhausted memory. Other exceptions are raised again."""
    from hydractl.cli.output import leader_is_silent, refusal
    from hydractl.cli.refusals import usage_error

    if (refused := usage_error(error)) is not None:
        return _failed(refused, document)
    show, code = getattr(error, "show", None), getattr(error, "exit_code", None)
    # For a command without arguments, typer raises an error whose `show` prints the help.
    if callable(show) and isinstance(code, int):
        if leader_is_silent():
            show()
        return code
    if isinstance(error, OSError):
        failed = refusal()  # Concerns text printed by typer itself: help and version.
        if failed is None and (error.filename is not None or error.errno in BROKEN_DISK):
            name = "an input or output file" if error.filename is None else os.fsdecode(error.filename)
            failed = InputError(f"{name}: {error.strerror}")
        if failed is not None:
            return _failed(failed, document)
    if (short := short_of_memory(error)) is not None:
        return _failed(short, document)
    raise error
