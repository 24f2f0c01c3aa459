"""`hydractl doctor`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hydractl.cli.command import QUIET, command
from hydractl.cli.output import Terminal, table
from hydractl.stages.doctor import DoctorConfig

if TYPE_CHECKING:
    from rich.console import Console

    from hydractl.stages.doctor import DoctorReport


@command(
    DoctorConfig, quiet=replace(QUIET, help="Print nothing; the exit code says whether all checks passed.")
)
def doctor(config: DoctorConfig, terminal: Terminal) -> None:
    """Show versions, devices, cache, Hub and token.

    Exits with 5 if a check fails, and says what to type. `pip check` compares the requirements of libraries. With
    `HF_HUB_OFFLINE=1` it does not use the network. It never shows the token.

    Examples:
      hydractl doctor
      hydractl doctor --json > doctor.json
      HF_HUB_OFFLINE=1 hydractl doctor -q
    """
    from hydractl.stages.doctor import run_doctor

    report = run_doctor(config, terminal.progress())
    terminal.result(report, render)
    report.require_checks()


def render(report: DoctorReport, out: Console) -> None:
    """Show a line for each finding; the error shows how to fix failures."""
    rows = [(f.group, f.name, f.state, f.found) for f in report.findings]
    out.print(table(["", "what", "state", "found"], rows, left=4))
