"""Docstrings as help: literal text whose examples keep their lines, in typer's plain and in its rich layout."""

from __future__ import annotations

import inspect

KEEP_LINES = "\b\n"


def escaped(text: str) -> str:
    """Return text that rich prints as it stands."""
    from rich.markup import escape

    return escape(text)


def literal_help(docstring: str, *, rich: bool) -> str:
    """Return a docstring as typer shows it unchanged.

    Args:
        docstring: Paragraphs; one with an indented line is a block of examples.
        rich: Whether typer lays it out with rich, which keeps the lines of paragraphs and reads markup.
    """
    paragraphs = []
    for paragraph in inspect.cleandoc(docstring).split("\n\n"):
        if "\n  " in paragraph:
            paragraphs.append(paragraph if rich else KEEP_LINES + paragraph)
        else:
            paragraphs.append(paragraph.replace("\n", " "))
    text = "\n\n".join(paragraphs)
    return escaped(text) if rich else text


def unescaped(text: str) -> str:
    """Return a help text as a person reads it, without what keeps its lines or hides its brackets."""
    return text.replace(KEEP_LINES, "").replace("\\[", "[")
