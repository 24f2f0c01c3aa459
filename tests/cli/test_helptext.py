from __future__ import annotations

import inspect
import re

import pytest
import typer.core

from hydractl.cli.app import COMMANDS, function_of, main
from hydractl.cli.helptext import literal_help, unescaped


def examples(name: str) -> list[str]:
    """Return a command's example lines as its docstring has them, indentation left out."""
    block = next(p for p in inspect.getdoc(function_of(name)).split("\n\n") if p.startswith("Examples:"))
    return [line.strip() for line in block.splitlines()[1:]]


@pytest.mark.parametrize("rich", [False, True], ids=["plain", "rich"])
@pytest.mark.parametrize("name", COMMANDS)
def test_examples_keep_their_lines(capsys, monkeypatch, name, rich):
    monkeypatch.setattr(typer.core, "HAS_RICH", rich)
    monkeypatch.setenv("COLUMNS", "200")

    main([name, "--help"])

    shown = [re.sub(r"\x1b\[[0-9;]*m", "", line).strip(" │") for line in capsys.readouterr().out.splitlines()]
    assert [line for line in shown if line in examples(name)] == examples(name)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_example_is_a_command_line_of_this_command(name):
    lines = examples(name)

    assert lines
    assert any(re.search(rf"hydractl {name}\b", line) for line in lines)


@pytest.mark.parametrize("rich", [False, True], ids=["plain", "rich"])
def test_brackets_are_not_markup(capsys, monkeypatch, rich):
    monkeypatch.setattr(typer.core, "HAS_RICH", rich)
    monkeypatch.setenv("COLUMNS", "200")

    main(["prune", "--help"])

    shown = capsys.readouterr().out
    assert "org/name[@revision]" in shown
    assert "NAME[::K=V,...]" in shown
    assert "\\[" not in shown


@pytest.mark.parametrize("rich", [False, True])
def test_unescaping_gives_the_text_back(rich):
    text = "First [red] line.\n\nExamples:\n  a [x]\n  b"

    assert unescaped(literal_help(text, rich=rich)) == text


def test_prose_is_joined_for_the_terminal_to_wrap():
    assert literal_help("One\ntwo.\n\nThree\nfour.", rich=False) == "One two.\n\nThree four."
