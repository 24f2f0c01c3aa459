"""`--help`: usage, what a command does, examples, then its options by subject; the same words in a pipe as on a terminal.

No rich is loaded: it takes longer than all that help needs beside it.
"""

from __future__ import annotations

import inspect
import os
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import typer
import typer.core
from typing_extensions import override

HELP, HELP_SUMMARY = "help", "Show the options and examples of a command."
"""`hydractl help COMMAND` is `hydractl COMMAND --help`."""
ARGUMENTS, OPTIONS = "Arguments", "Options"
NAMES_WIDTH = 24
"""Maximum width of the column of names; a longer name gets its own line."""
BOLD, CYAN = 1, 36
Command: TypeAlias = typer.core.TyperCommand | typer.core.TyperGroup
Parameter: TypeAlias = typer.core.TyperOption | typer.core.TyperArgument
Rows: TypeAlias = list[tuple[str, str]]


class Helped(typer.core.TyperCommand):
    """A command whose help this module lays out."""

    @override
    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(command_help(self, ctx, width=formatter.width))


def command_help(
    command: Command, context: typer.Context, *, width: int, commands: Mapping[str, Rows] | None = None
) -> str:
    """Return a command's help. Lines that are no options wrap at `width` characters, but for examples.

    Args:
        command: The command.
        context: Its context.
        width: Of a line.
        commands: Of a program, names and summaries of its commands by group.
    """
    usage = "\n  ".join(_wrapped(f"Usage: {_usage(command, context)}", width - 2))
    sections = [
        usage.replace("Usage:", _styled("Usage:", BOLD), 1),
        *(text if is_block(text) else "\n".join(_wrapped(text, width)) for text in paragraphs(command)),
    ]
    tables = {**(commands or {}), **panels(command, context)}
    longest = max(len(name) for rows in tables.values() for name, _ in rows)
    sections += [
        "\n".join([_styled(f"{title}:", BOLD), *_rows(rows, min(longest, NAMES_WIDTH), width)])
        for title, rows in tables.items()
    ]
    return "\n\n".join([*sections, *filter(None, [command.epilog])]) + "\n"


def paragraphs(command: Command) -> list[str]:
    """Return what a command's docstring says: prose, each paragraph on one line, and blocks such as examples as they stand."""
    texts = inspect.cleandoc(command.help or "").split("\n\n")
    return [text if is_block(text) else " ".join(text.split()) for text in texts]


def is_block(paragraph: str) -> bool:
    """Return whether a paragraph is a title and lines that are not to be wrapped."""
    return "\n  " in paragraph


def panels(command: Command, context: typer.Context) -> dict[str, Rows]:
    """Return the names and help of a command's arguments and options by subject, first those that everybody needs."""
    by_title: dict[str, Rows] = {ARGUMENTS: [], OPTIONS: []}
    for parameter in command.get_params(context):
        if isinstance(parameter, Parameter) and (record := parameter.get_help_record(context)) is not None:
            is_option = isinstance(parameter, typer.core.TyperOption)
            title = parameter.rich_help_panel or (OPTIONS if is_option else ARGUMENTS)
            by_title.setdefault(title, []).append(
                (record[0] if is_option else _metavar(parameter), " ".join(record[1].split()))
            )
    return {title: rows for title, rows in by_title.items() if rows}


def _metavar(parameter: Parameter) -> str:
    return parameter.metavar or str(parameter.name).upper()


def _usage(command: Command, context: typer.Context) -> str:
    """Return what must be typed: the arguments and the options that have no default."""
    words = [context.command_path]
    if isinstance(command, typer.core.TyperGroup):
        words.append("COMMAND")
    for parameter in command.params:
        if isinstance(parameter, typer.core.TyperArgument):
            words.append(_metavar(parameter))
        elif isinstance(parameter, typer.core.TyperOption) and parameter.required:
            words.append(f"{parameter.opts[0]} {_metavar(parameter).partition('[::')[0]}")
    return " ".join([*words, "[OPTIONS]"])


def _rows(rows: Iterable[tuple[str, str]], names_width: int, width: int) -> Iterator[str]:
    """Yield the lines of a table of two columns."""
    indent = names_width + 4
    for name, text in rows:
        lines = _wrapped(text, width - indent)
        if len(name) > names_width:
            yield f"  {_styled(name, CYAN)}"
        else:
            yield f"  {_styled(name, CYAN)}{' ' * (names_width - len(name))}  {lines.pop(0)}"
        yield from (" " * indent + line for line in lines)


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)


def _styled(text: str, code: int) -> str:
    """Return a text as a terminal shows it in bold or in colour; in a pipe typer leaves the escapes out."""
    plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    return text if plain else f"\x1b[{code}m{text}\x1b[0m"
