"""The command tree: the only place that knows which commands there are."""

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

from hydractl.cli.helptext import HELP, HELP_SUMMARY, Command, Helped, Rows, command_help, paragraphs
from hydractl.cli.refusals import REMOVED, help_of, name_of
from hydractl.cli.summaries import SUMMARIES
from hydractl.errors import CheckFailed, HydraError, InputError, Interrupted, UsageError, shortened
from hydractl.messages import did_you_mean, quoted
from hydractl.plugins import load, plugins
from hydractl.processes.signals import told_to_end
from hydractl.runtime import short_of_memory, spare_memory
from hydractl.version import __version__

if TYPE_CHECKING:
    from hydractl.cli.output import CommandDocument

C = TypeVar("C", typer.core.TyperCommand, typer.core.TyperGroup)

# 128 and the number of the signal, as a shell reports a program that it ended
INTERRUPTED, BROKEN_PIPE = 130, 141
BROKEN_DISK = {errno.EIO, errno.ESTALE, errno.ENOSPC, errno.EDQUOT}
"""Errors of reading or writing an open file, which carry no file name."""

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
"""Module of each command, by group."""
COMMANDS = {name: path for commands in GROUPS.values() for name, path in commands.items()}


COMPLETE = "_HYDRACTL_COMPLETE"
"""Environment variable that holds the shell's name when a completion script asks for candidates."""
LETTERS = 60
"""Maximum length of an unknown word in a message, in characters."""


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
    """A command that refuses an option given twice, unless it is a list: typer lets the last one count without a word.

    Of a word that is no choice it says which one is near.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - of a private class of typer's
        """Parse what was typed.

        Raises:
            UsageError: If an option has two values, or is given beside its opposite, or a word is none of those that may be chosen.
        """
        try:
            values_by_name, _, option_order = self.make_parser(ctx).parse_args(args=list(args))
        except Exception as error:
            if getattr(error, "ctx", ctx) is None:  # the parser leaves it out where an option lacks its value
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
    """All commands, each loaded when it is asked for: one does not wait for what the others import.

    Args:
        others: What else there is, or takes the place of one.
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
    """A program whose help loads none of its commands."""

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
        KeyError: If there is no such command.
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
    """Return the program with its commands."""
    tree = cast("typer.core.TyperGroup", typer.main.get_command(app))
    tree.commands = Commands(tree.commands)
    _finished(tree).no_args_is_help = True
    help_option = tree.get_help_option(typer.Context(tree, **tree.context_settings))
    if help_option is not None:
        help_option.default = False  # typer loads pydantic to learn what an absent `--help` means
    return tree


def _finished(command: C) -> C:
    """Let a command that needs arguments show its help when it has none."""
    command.no_args_is_help = any(p.required for p in command.params)
    return command


def main(argv: list[str] | None = None, *, shows_checks: bool = True) -> int:
    """Run one command line and return its exit code; errors become messages here and nowhere else.

    Args:
        argv: The command line, by default that of the process.
        shows_checks: Whether a failed check (exit code 5) is printed as an error.
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
        with tree.make_context("hydractl", arguments, obj=main) as context:  # the demo runs command lines
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
        if told_to_end() and not isinstance(error, Interrupted):
            return _interrupted(KeyboardInterrupt(), document)  # a library made an error of its own from it
        if spare is not None:
            spare.close()  # a message about exhausted memory needs some
        return (
            _failed(error, document, is_shown=shows_checks or not isinstance(error, CheckFailed))
            if isinstance(error, HydraError)
            else _usage_or_bug(error, document)
        )
    return 0


def _interrupted(error: BaseException, document: CommandDocument) -> int:
    """Report that the command was interrupted, and return the exit code."""
    from hydractl.cli.output import interrupted

    interrupted(error)
    document.fail(error)
    return INTERRUPTED


def _failed(error: HydraError, document: CommandDocument, *, is_shown: bool = True) -> int:
    """Say why the command failed, and return its exit code."""
    from hydractl.cli.output import fail, leader_is_silent, refusal

    # what the command line alone tells, every rank finds; an interrupted one may have nothing to add
    if is_shown and error.message and (not isinstance(error, UsageError) or leader_is_silent()):
        fail(error)
    document.fail(error) if is_shown else document.write()
    refusal()  # an output that failed on its way to standard output is in part still there
    return error.exit_code


def _usage_or_bug(error: Exception, document: CommandDocument) -> int:
    """Say what typer refuses, and why a file fails, as errors of ours; a bug of ours keeps its traceback."""
    from hydractl.cli.output import leader_is_silent, refusal
    from hydractl.cli.refusals import usage_error

    if (refused := usage_error(error)) is not None:
        return _failed(refused, document)
    show, code = getattr(error, "show", None), getattr(error, "exit_code", None)
    if callable(show) and isinstance(code, int):  # a command without any word has its help
        if leader_is_silent():
            show()
        return code
    if isinstance(error, OSError):
        failed = refusal()  # of what typer prints itself: help, the version
        if failed is None and (error.filename is not None or error.errno in BROKEN_DISK):
            name = "an input or output file" if error.filename is None else os.fsdecode(error.filename)
            failed = InputError(f"{name}: {error.strerror}")
        if failed is not None:
            return _failed(failed, document)
    if (short := short_of_memory(error)) is not None:
        return _failed(short, document)
    raise error
