"""Checks of the command lines in a plan."""

from __future__ import annotations

from itertools import pairwise

from hydractl.cli.app import command_tree
from hydractl.evaluation.options import NamedModels


def check_typed(commands):
    """Parse all commands like the command line. Raises if a command is invalid."""
    tree = command_tree()
    for command in commands:
        tree.make_context("hydractl", list(command))
        tree.commands[command[0]].make_context(command[0], list(command[1:]))


def check_plan(plan, *options, ood=True):
    """Parse all commands of a benchmark's plan: files, rows and report."""
    check_typed([*(made.command for made in plan.files.values()), plan.report("r.json", *options, ood=ood)])
    for row in plan.rows:
        NamedModels.parse(f"{row.name}={','.join(row.models)}")


def check_order(commands, folder, written):
    """Check that commands read only existing files and outputs of earlier commands.

    Args:
        commands: Commands in order.
        folder: Folder of the plan; other paths are ignored.
        written: Existing files.
    """
    for command in commands:
        outputs = {path for option, path in pairwise(command) if option in {"-o", "--save-model"}}
        words = {word for part in command for word in part.replace("=", ",").split(",")}
        assert {word for word in words - outputs if word.startswith(str(folder))} <= written
        written = written | {path.replace("{i}", str(i)) for path in outputs for i in range(3)}
