"""`--help`: equal text in a pipe and on a terminal, lines of 80 characters, main options first."""

from __future__ import annotations

import re

import pytest
import typer
import typer.core

from hydractl.cli.app import COMMANDS, GROUPS, command_tree
from hydractl.cli.helptext import ARGUMENTS, OPTIONS, command_help, panels, paragraphs
from hydractl.cli.summaries import SUMMARIES
from support.analysed import RESEARCH

WIDTH = 80
STYLE = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture(autouse=True)
def plain_terminal(monkeypatch):
    """A terminal of 80 columns with colours."""
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)


def sections(shown: str) -> dict[str, list[str]]:
    """Return the lines under each title, without indentation."""
    found: dict[str, list[str]] = {}
    for block in shown.split("\n\n"):
        title, *lines = block.rstrip().splitlines()
        if lines and all(line.startswith("  ") for line in lines):
            found[title.removesuffix(":")] = [line[2:] for line in lines]
    return found


def names(lines: list[str]) -> list[str]:
    """Return the first column of a table."""
    return [re.split(" {2,}", line)[0] for line in lines if not line.startswith(" ")]


def examples(name: str) -> list[str]:
    """Return the example lines in a command's docstring."""
    block = next(p for p in paragraphs(command_tree().commands[name]) if p.startswith("Examples:"))
    return block.splitlines()[1:]


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_every_line_fits_and_none_is_cut_off(call, name):
    tree = command_tree()
    shown = call(*filter(None, [name]), "--help", *["--all"] * bool(name)).out
    whole = " ".join(shown.split())

    assert max(map(len, shown.splitlines())) <= WIDTH
    for parameter in (tree.commands[name] if name else tree).params:
        assert f" {' '.join(parameter.help.split())} " in f"{whole} "
    for text in paragraphs(tree.commands[name] if name else tree):
        assert text in shown or text in whole


def test_commands_are_listed_by_what_they_are_for(call):
    listed = sections(call("--help").out)

    for title, group in GROUPS.items():
        assert names(listed[title]) == [*group, *["help"] * (title == "Automate")]
    assert [*listed][: len(GROUPS)] == [*GROUPS]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_summary_is_one_whole_sentence_on_one_line(call, name):
    lines = [line.split(maxsplit=1) for line in call("--help").out.splitlines() if line.startswith("  ")]

    assert [name, SUMMARIES[name]] in lines
    assert re.fullmatch(r"[A-Z][^.]*(\.\w+[^.]*)?\.", SUMMARIES[name])


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_a_terminal_has_the_words_of_a_pipe(call, name):
    tree = command_tree()
    context = typer.Context(tree, info_name="hydractl", **tree.context_settings)
    if name:
        context = typer.Context(tree.commands[name], info_name=name, parent=context)
    styled = context.get_help()

    assert "\x1b[1m" in styled
    assert STYLE.sub("", styled).strip() == call(*filter(None, [name]), "--help").out.strip()


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_no_style_where_none_is_wanted(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    command = command_tree().commands["fuse"]

    assert "\x1b" not in command_help(command, typer.Context(command, info_name="fuse"), width=WIDTH)


@pytest.mark.parametrize("name", COMMANDS)
def test_what_must_be_given_is_in_the_usage_and_in_the_first_panels(call, name):
    command = command_tree().commands[name]
    shown = call(name, "--help").out
    first = sections(shown)
    usage = " ".join(shown.split("\n\n")[0].split())

    for parameter in command.params:
        if parameter.required:
            word = parameter.opts[0] if parameter.param_type_name == "option" else parameter.metavar
            assert f" {word or parameter.name.upper()}" in usage
            listed = names(first[OPTIONS if parameter.param_type_name == "option" else ARGUMENTS])
            assert any((word or parameter.name.upper()) in row for row in listed)
    assert usage.startswith(f"Usage: hydractl {name} ")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_in_one_panel(call, name):
    listed = [row for lines in sections(call(name, "--help", "--all").out).values() for row in names(lines)]
    options = [p for p in command_tree().commands[name].params if p.param_type_name == "option"]

    for option in options:
        for spelling in (*option.opts, *option.secondary_opts):
            pattern = re.compile(rf"(^|[ ,/]){re.escape(spelling)}($|[ ,])")
            assert len([row for row in listed if row.startswith("-") and pattern.search(row)]) == 1, spelling


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_the_common_options_and_counts_the_others(call, name):
    command = command_tree().commands[name]
    options = {p.name for p in command.params if p.param_type_name == "option"}
    common = getattr(command.callback, "common", ())
    shown = call(name, "--help").out
    last = shown.rstrip().splitlines()[-1]

    assert bool(common) == (len(options) >= 13)
    assert {*common} <= options
    if common:
        assert 8 <= len(common) <= 12
        listed = sections(shown)
        assert len(names(listed[OPTIONS])) == len(common) + 1
        assert last == f"`hydractl {name} --help --all` shows {len(options) - len(common)} more options."
        assert call("help", name, "--all").out == call(name, "-h", "--all").out != shown
    else:
        assert call(name, "--help", "--all").out == shown


@pytest.mark.parametrize("name", COMMANDS)
def test_help_leaves_lists_of_details_to_all(call, name):
    command = command_tree().commands[name]
    context = typer.Context(command, info_name=name)
    if getattr(command.callback, "common", ()):
        short = panels(command, context, common=True)
        assert max(len(text) for rows in short.values() for _, text in rows) <= 170
    assert "\v" not in call(name, "--help", "--all").out


@pytest.mark.parametrize(
    "name", ["score", "prune", "finetune", "eval", "predict", *(["bench"] if RESEARCH else [])]
)
def test_a_command_of_many_options_shows_few_of_them_first(call, name):
    panels = sections(call(name, "--help", "--all").out)

    assert len(names(panels[OPTIONS])) <= 13
    assert len(panels) >= 5
    assert {*names(panels["Output"])} >= {"--force", "--json", "-q, --quiet"}


def test_a_long_list_of_choices_is_told_in_the_help(call):
    shown = " ".join(call("finetune", "--help", "--all").out.split())

    assert (
        "--schedule NAME Learning rate schedule after the warm-up (default: cosine). One of constant, cosine"
        in shown
    )
    assert "--optimizer sgd|adamw " in shown


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_keep_their_lines(call, name):
    shown = call(name, "--help").out

    assert "\n".join(["Examples:", *examples(name)]) in shown
    assert any(re.search(rf"hydractl {name}\b", line) for line in examples(name))


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_is_that_of_its_option(call, name):
    asked, usual = call("help", name), call(name, "--help")

    assert (asked.code, asked.out, asked.err) == (0, usual.out, "")


def test_help_alone_lists_the_commands(call):
    assert call("help").out == call("--help").out


def test_help_of_no_command_names_the_nearest(call):
    seen = call("help", "prun")

    assert (seen.code, seen.out) == (2, "")
    assert seen.err == "error: `prun` is not a command of `hydractl`\n\nhint: did you mean `prune`?\n"


def test_brackets_are_no_markup(call):
    shown = call("prune", "--help").out

    assert "org/name[@revision]" in shown
    assert "NAME[::K=V,...]" in shown


def test_prose_is_joined_and_blocks_are_kept():
    command = typer.core.TyperCommand(
        "one",
        help="""First
    line.

    Examples:
      one [x]
      two \\
        more
    """,
    )

    assert paragraphs(command) == ["First line.", "Examples:\n  one [x]\n  two \\\n    more"]
