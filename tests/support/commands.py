"""Command lines that a plan is made of."""

from __future__ import annotations

from itertools import pairwise

from hydractl.cli.app import command_tree
from hydractl.evaluation.options import NamedModels


def check_typed(commands):
    """Refuse commands that no user could type."""
    tree = command_tree()
    for command in commands:
        tree.make_context("hydractl", list(command))
        tree.commands[command[0]].make_context(command[0], list(command[1:]))


def check_plan(plan, *options, ood=True):
    """Refuse a benchmark's plan whose files, rows or report no user could ask for."""
    check_typed([*(made.command for made in plan.files.values()), plan.report("r.json", *options, ood=ood)])
    for row in plan.rows:
        NamedModels.parse(f"{row.name}={','.join(row.models)}")


def check_order(commands, folder, written):
    """Refuse commands that read of a folder what was not `written` and no earlier one makes; `{i}` stands for three files."""
    for command in commands:
        outputs = {path for option, path in pairwise(command) if option in {"-o", "--store"}}
        words = {word for part in command for word in part.replace("=", ",").split(",")}
        assert {word for word in words - outputs if word.startswith(str(folder))} <= written
        written = written | {path.replace("{i}", str(i)) for path in outputs for i in range(3)}
