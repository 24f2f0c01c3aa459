"""Former names of options fail, and name the new option."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hydractl.cli.app import COMMANDS, command_tree
from hydractl.cli.refusals import RENAMED, renaming
from support.analysed import RESEARCH

NAMES = [name for name in RENAMED if RESEARCH or not name.startswith(("bench", "score --tr", "score --te"))]


def options(command):
    """Return all names of options of a command."""
    return {name for p in command_tree().commands[command].params for name in (*p.opts, *p.secondary_opts)}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", ["{} x", "{}=x"])
def test_a_former_name_fails_with_one_line_that_names_the_new_option(call, name, form):
    command, option = name.split()
    seen = call(command, "m.st", *form.format(option).split(), "-o", "out")

    assert (seen.code, seen.out) == (2, "")
    assert seen.err == f"error: `{option}` is now {RENAMED[name]}\n"
    assert option not in options(command)
    assert set(re.findall(r"--[a-z-]+", RENAMED[name])) <= options(command)


@pytest.mark.parametrize("key", ["merge-trunk", "merge_trunk"])
def test_a_pipeline_with_a_former_name_fails_with_the_same_line(call, tmp_path, monkeypatch, key):
    monkeypatch.chdir(tmp_path)
    Path("p.toml").write_text(
        f'[[stage]]\nname = "f"\ncommand = "fuse"\nmodels = ["a.st"]\n{key} = 3\nout = "h.st"\n'
    )
    seen = call("run", "p.toml")

    assert seen.code == 3
    assert seen.err == f"error: p.toml: stage `f`: {renaming('fuse', '--merge-trunk')}\n"


ROLES = {
    "training data": ("--train", {"make", "finetune", "fuse", "eval", "predict", "bench"}),
    "held-out data": ("--val", {"make", "finetune", "fuse", "eval", "bench"}),
    "a written model": ("--save-model", {"eval", "score"}),
    "a written pipeline": ("--save-pipeline", {"make", "demo"}),
    "heads to keep": ("--keep-heads", {"score", "prune"}),
    "shared first blocks": ("--trunk", {"prune", "finetune", "fuse", "bench"}),
    "cost of a trunk": ("--max-nll-increase", {"make", "fuse"}),
}


@pytest.mark.skipif(not RESEARCH, reason="two commands have fewer options")
@pytest.mark.parametrize("role", ROLES)
def test_a_role_has_one_name_in_all_commands(role):
    option, commands = ROLES[role]

    assert {command for command in COMMANDS if option in options(command)} == commands


def test_the_table_has_all_former_names():
    former = (
        "eval --fit, eval --store, finetune --data, finetune --last-blocks, fuse --data, fuse --fit, fuse --max-loss, "
        "fuse --merge-trunk, fuse --own-from, make --keep, make --max-loss, predict --fit, prune --diverge-from, prune --keep"
    )

    assert {*former.split(", ")} <= RENAMED.keys()
