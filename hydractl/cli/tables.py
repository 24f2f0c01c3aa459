"""Tables and maps of literal texts that fit the terminal without losing text.

Loaded when a result is printed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import IO, Any

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from hydractl.errors import escape_line

NARROWEST_FIRST_COLUMN = 14
"""Minimum width of a folded first column. Chosen by hand, so that names stay readable; twice the width leaves
less space for numbers."""
KEPT_DROPPED = (("■", "·"), ("#", "."))
GAP = 3
"""Spaces between columns."""
ASCII = str.maketrans({"↑": "^", "↓": "v", "−": "-", "±": "+-", "×": "x"})
"""Replacements for streams without these characters."""
COMMANDS_OF_RUNNER = re.compile(r"(?m)^(\s*)(?=::)|(?=##\[)")


class PipedConsole(Console):
    """A console with an error for a closed pipe, like other streams."""

    def on_broken_pipe(self) -> None:
        """Raise the error again. rich would end the program."""
        raise BrokenPipeError


class WorkflowLog:
    """A stream of a GitHub Actions job, with escapes for the lines that the runner executes.

    The runner executes lines that begin with `::` or contain `##[`.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text from the beginning of a line."""
        return self._stream.write(COMMANDS_OF_RUNNER.sub(r"\1\\", text))

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - of any attribute
        return getattr(self._stream, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Literals:
    """Base of tables with foreign texts. Each text becomes a single line without control characters."""

    def __post_init__(self) -> None:
        """Escape every text before widths are measured."""
        for name, escaped in _each_text(self, escape_line).items():
            object.__setattr__(self, name, escaped)


def _each_text(literals: Literals, change: Callable[[str], str]) -> dict[str, Any]:
    """Return every field with `change` applied to its texts."""

    def changed(value: Any) -> Any:  # noqa: ANN401 - of any field
        if isinstance(value, str):
            return change(value)
        return tuple(map(changed, value)) if isinstance(value, tuple) else value

    return {field.name: changed(getattr(literals, field.name)) for field in fields(literals)}


def _in_ascii(text: str) -> str:
    """Replace arrows and signs of the tables by ASCII characters."""
    return text.translate(ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid(Literals):
    """A table of texts, right-aligned except for the first `left` columns.

    If the table is too wide for the terminal, these steps are tried in order: headings wider than their
    column are split into words, the first column is folded, and the columns are divided among several tables,
    which all repeat the first column. Cells are never shortened.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str | None = None
    left: int = 1

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Print the first possible layout."""
        grid = replace(self, **_each_text(self, _in_ascii)) if options.ascii_only else self
        yield from grid._laid_out(console, options)

    def _laid_out(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        if self.title:
            yield Text(f"\n{self.title}", style="bold", overflow="fold")
        stacked = tuple(
            name if cell_len(name) <= self._widest(i) else name.replace(" ", "\n")
            for i, name in enumerate(self.columns)
        )
        for headings in (self.columns, stacked):
            if self._width(console, options, headings) <= width:
                yield self._table(headings, range(len(headings)))
                return
        first = self._natural(stacked, 0)
        for part in self._parts(console, options, stacked):
            remaining_width = width - (self._width(console, options, stacked, part) - first)
            yield self._table(stacked, part, first=min(first, max(remaining_width, NARROWEST_FIRST_COLUMN)))

    def _natural(self, headings: Sequence[str], column: int) -> int:
        return max(*(cell_len(word) for word in headings[column].split("\n")), self._widest(column))

    def _widest(self, column: int) -> int:
        return max((cell_len(row[column]) for row in self.rows), default=0)

    def _parts(
        self, console: Console, options: ConsoleOptions, headings: Sequence[str]
    ) -> Iterator[list[int]]:
        """Divide the columns among tables that fit with the narrowest first column."""
        spare = max(0, self._natural(headings, 0) - NARROWEST_FIRST_COLUMN)
        part = [0]
        for column in range(1, len(headings)):
            fits = self._width(console, options, headings, [*part, column]) - spare <= options.max_width
            if not fits and len(part) > 1:
                yield part
                part = [0]
            part = [*part, column]
        yield part

    def _width(
        self,
        console: Console,
        options: ConsoleOptions,
        headings: Sequence[str],
        part: Sequence[int] | None = None,
    ) -> int:
        grid = self._table(headings, range(len(headings)) if part is None else part)
        return Measurement.get(console, options.update(max_width=100_000), grid).maximum

    def _table(self, headings: Sequence[str], part: Sequence[int], *, first: int | None = None) -> Table:
        grid = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        for column in part:
            folded = column == 0 and first is not None
            grid.add_column(
                Text(headings[column]),
                justify="left" if column < self.left else "right",
                vertical="bottom" if folded else "top",
                no_wrap=not folded,
                overflow="fold",
                max_width=first if folded else None,
            )
        for row in self.rows:
            grid.add_row(*(Text(row[column]) for column in part))
        return grid


def facts(rows: Sequence[tuple[str, str]]) -> Table:
    """Return a table of names and values, one per line. Long values are folded."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    for name, value in rows:
        grid.add_row(Text(escape_line(name)), Text(escape_line(value)))
    return grid


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadMaps(Literals):
    """Kept and removed heads of one tower, layers by heads: a map per member, side by side if possible.

    Attributes:
        names: Names of the members.
        keep: Kept heads of each layer of each member.
        num_heads: Number of heads per layer of the base.
    """

    names: tuple[str, ...]
    keep: tuple[tuple[tuple[int, ...], ...], ...]
    num_heads: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Print maps side by side. Maps beyond the width of the terminal follow below."""
        digits = len(str(self.num_heads))
        width = max(self.num_heads + 1 + digits, *(cell_len(name) for name in self.names))
        count = max(1, (options.max_width - len("layer")) // (width + GAP))
        for begin in range(0, len(self.names), count):
            end = begin + count
            if begin:
                yield Text("")
            heading = "".join(" " * GAP + name.ljust(width) for name in self.names[begin:end])
            yield Text("layer" + heading.rstrip(), style="bold", overflow="fold")
            for layer in range(len(self.keep[0])):
                text = Text(f"{layer:>5}")
                for member in range(begin, min(end, len(self.names))):
                    heads = set(self.keep[member][layer])
                    text.append(" " * GAP)
                    for head, sign in enumerate(self._signs(member, layer, ascii_only=options.ascii_only)):
                        text.append(sign, style="" if head in heads else "dim")
                    text.append(f" {len(heads):>{digits}}".ljust(width - self.num_heads))
                text.rstrip()
                yield text

    def _signs(self, member: int, layer: int, *, ascii_only: bool) -> str:
        """Return a character per head."""
        stay = set(self.keep[member][layer])
        kept_sign, dropped = KEPT_DROPPED[ascii_only]
        return "".join(kept_sign if head in stay else dropped for head in range(self.num_heads))


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMap:
    """Ranks of a tower's heads, layers by heads, with rank 1 as the most important.

    The first quarter of ranks is bold, the last dim. A head without a rank is shown as `-`.

    Attributes:
        ranks: Rank of each head of each layer; None for no rank.
        total: Largest rank.
    """

    ranks: tuple[tuple[int | None, ...], ...]
    total: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Print a line per layer. Heads beyond the width of the terminal follow below."""
        width = max(len(str(self.total)), len("h0")) + 1
        heads = len(self.ranks[0])
        count = max(1, (options.max_width - len("layer")) // width)
        for begin in range(0, heads, count):
            if begin:
                yield Text("")
            names = (f"h{head}".rjust(width) for head in range(begin, min(begin + count, heads)))
            yield Text("layer" + "".join(names), style="bold")
            for layer, row in enumerate(self.ranks):
                text = Text(f"{layer:>5}")
                for rank in row[begin : begin + count]:
                    text.append(("-" if rank is None else str(rank)).rjust(width), style=self._style(rank))
                yield text

    def _style(self, rank: int | None) -> str:
        if rank is None or 4 * rank <= self.total:
            return "bold"
        return "dim" if 4 * rank > 3 * self.total else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Newspaper(Literals):
    """Short lines in columns, read downwards: the maximum number of columns, with at least ten lines each."""

    lines: tuple[str, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Print the lines in columns."""
        width = max((cell_len(line) for line in self.lines), default=0)
        fit = max(1, (options.max_width + GAP) // (width + GAP))
        height = max(10, -(-len(self.lines) // fit))
        for row in range(min(height, len(self.lines))):
            yield Text((" " * GAP).join(line.ljust(width) for line in self.lines[row::height]).rstrip())
