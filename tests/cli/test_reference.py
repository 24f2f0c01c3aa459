"""The page with every command and option."""

from __future__ import annotations

import re

import pytest
import typer.core

from hydractl.cli.app import COMMANDS, command_tree
from hydractl.cli.completion import reference_page

ROW = re.compile(r"^\| `(?P<name>.+?)` \| (?P<told>.+) \|$", re.MULTILINE)


@pytest.fixture(scope="module")
def sections() -> dict[str, str]:
    """Return the page's section of each command, by heading."""
    parts = reference_page(command_tree()).split("\n## ")
    return {part.partition("\n")[0]: part for part in parts[1:]}


def test_every_command_has_a_section_and_a_link_to_it(sections):
    links = re.findall(r"^- \[`([\w-]+)`\]\(#([\w-]+)\): .+", reference_page(command_tree()), re.MULTILINE)

    assert list(sections) == [f"hydractl {name}" for name in COMMANDS]
    assert links == [(name, f"hydractl-{name}") for name in COMMANDS]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_one_row_that_says_what_it_does(sections, name):
    parameters = command_tree().commands[name].params
    options = [p for p in parameters if isinstance(p, typer.core.TyperOption)]
    arguments = [p for p in parameters if isinstance(p, typer.core.TyperArgument)]
    rows = {row["name"]: row["told"] for row in ROW.finditer(sections[f"hydractl {name}"])}
    typed = [
        word for row in rows for word in re.findall(r"(?<![\w-])--?[a-z0-9][\w-]*", row.partition("<")[0])
    ]

    assert sorted(typed) == sorted(
        word for option in options for word in (*option.opts, *option.secondary_opts)
    )
    assert {a.metavar or a.name.upper() for a in arguments} <= {*rows}
    assert all(told.strip() for told in rows.values())
