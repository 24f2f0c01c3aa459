"""Layout of `--help`: usage, description, examples, and options by panel; equal on a terminal and in a pipe.

rich is not used, because loading rich takes longer than all other imports for help.
"""

from __future__ import annotations

import inspect
import os
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import typer
import typer.core
from typing_extensions import override

HELP, HELP_SUMMARY = "help", "Show the options and examples of a command."
"""`hydractl help COMMAND` equals `hydractl COMMAND --help`."""
ALL = "--all"
"""`--help --all` shows all options of a command, `--help` only the common ones."""
ARGUMENTS, OPTIONS = "Arguments", "Options"
NAMES_WIDTH = 24
"""Maximum width of the column of names. A longer name has its own line. Chosen by hand: 24 of 80 columns
leave 52 for the text; twice the width would leave 28."""
BOLD, CYAN = 1, 36
DETAILS = re.compile("\v.*?\v", re.DOTALL)
"""Parts of help texts between the marks of `hydractl.settings.details`."""
Command: TypeAlias = typer.core.TyperCommand | typer.core.TyperGroup
Parameter: TypeAlias = typer.core.TyperOption | typer.core.TyperArgument
Rows: TypeAlias = list[tuple[str, str]]


class Helped(typer.core.TyperCommand):
    """A command with the layout of this module."""

    @override
    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(command_help(self, ctx, width=formatter.width))


def command_help(
    command: Command, context: typer.Context, *, width: int, commands: Mapping[str, Rows] | None = None
) -> str:
    """Return a command's help. Lines are wrapped at `width` characters, except examples.

    Args:
        command: The command.
        context: Context of the command.
        width: Width of a line.
        commands: Names and summaries of commands by group, for the program.
    """
    usage = "\n  ".join(_wrapped(f"Usage: {_usage(command, context)}", width - 2))
    sections = [
        usage.replace("Usage:", _styled("Usage:", BOLD), 1),
        *(text if is_block(text) else "\n".join(_wrapped(text, width)) for text in paragraphs(command)),
    ]
    every = panels(command, context)
    listed = every if context.meta.get(ALL) else panels(command, context, common=True)
    tables = {**(commands or {}), **listed}
    longest = max(len(name) for rows in tables.values() for name, _ in rows)
    sections += [
        "\n".join([_styled(f"{title}:", BOLD), *_rows(rows, min(longest, NAMES_WIDTH), width)])
        for title, rows in tables.items()
    ]
    if hidden_count := sum(map(len, every.values())) - sum(map(len, listed.values())):
        sections.append(f"`{context.command_path} --help {ALL}` shows {hidden_count} more options.")
    return "\n\n".join([*sections, *filter(None, [command.epilog])]) + "\n"


def paragraphs(command: Command) -> list[str]:
    """Return the paragraphs of a command's docstring.

    Prose is on a single line; blocks (for example, examples) keep all lines.
    """
    texts = inspect.cleandoc(command.help or "").split("\n\n")
    return [text if is_block(text) else " ".join(text.split()) for text in texts]


def is_block(paragraph: str) -> bool:
    """Return whether a paragraph is a title with indented lines, which are not wrapped."""
    return "\n  " in paragraph


def panels(command: Command, context: typer.Context, *, common: bool = False) -> dict[str, Rows]:
    """Return names and help texts of arguments and options by panel, the main ones first.

    With `common`, only arguments and common options, in two panels. Some commands have no such choice.
    """
    chosen = getattr(command.callback, "common", ()) if common else ()
    by_title: dict[str, Rows] = {ARGUMENTS: [], OPTIONS: []}
    for parameter in command.get_params(context):
        if isinstance(parameter, Parameter) and (record := parameter.get_help_record(context)) is not None:
            is_option = isinstance(parameter, typer.core.TyperOption)
            if chosen and is_option and parameter.name not in {*chosen, "help"}:
                continue
            panel = None if chosen else parameter.rich_help_panel
            text = DETAILS.sub(" ", record[1]) if chosen else record[1]
            title = panel or (OPTIONS if is_option else ARGUMENTS)
            by_title.setdefault(title, []).append(
                (record[0] if is_option else _metavar(parameter), " ".join(text.split()))
            )
    return {title: rows for title, rows in by_title.items() if rows}


def _metavar(parameter: Parameter) -> str:
    return parameter.metavar or str(parameter.name).upper()


def _usage(command: Command, context: typer.Context) -> str:
    """Return the usage line: arguments, and options without default."""
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
    """Return a text in bold or colour. typer removes the escape sequences in a pipe."""
    plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    return text if plain else f"\x1b[{code}m{text}\x1b[0m"
