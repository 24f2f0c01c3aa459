"""`hydractl doctor`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hydractl.cli.command import QUIET, command
from hydractl.cli.output import Terminal, line, table
from hydractl.stages.doctor.config import DoctorConfig

if TYPE_CHECKING:
    from rich.console import Console

    from hydractl.stages.doctor.run import DoctorReport


@command(
    DoctorConfig, quiet=replace(QUIET, help="Print nothing; the exit code says whether all checks passed.")
)
def doctor(config: DoctorConfig, terminal: Terminal) -> None:
    """Check libraries, devices, cache, Hub and token.

    Exits with 5 if a check fails, and says what to type. With `HF_HUB_OFFLINE=1` it does not use the network. It never shows the
    token.

    Examples:
      hydractl doctor
      hydractl doctor --json > doctor.json
      HF_HUB_OFFLINE=1 hydractl doctor -q
    """
    from hydractl.stages.doctor.run import run_doctor

    report = run_doctor(config, terminal.progress())
    terminal.result(report, render)
    report.require_checks()


def render(report: DoctorReport, out: Console) -> None:
    """Show a line a finding, and how to mend what is not as it should be; the error says that of what failed."""
    from hydractl.stages.doctor.finding import FindingState

    rows = [(f.group, f.name, f.state.value, f.found) for f in report.findings]
    out.print(table(["", "what", "state", "found"], rows, left=4))
    for finding in report.findings:
        if finding.fix and finding.state is not FindingState.FAILED:
            line(out, f"{finding.state.value}: {finding.name}: {finding.fix}")
