"""doctor: checks libraries, machine and Hub, and says what to type if a check fails."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hydractl.errors import CheckFailed
from hydractl.messages import counted, quoted
from hydractl.progress import SILENT, Progress
from hydractl.stages.doctor.config import DoctorConfig
from hydractl.stages.doctor.finding import Finding, FindingState
from hydractl.stages.doctor.hub import hub
from hydractl.stages.doctor.libraries import libraries
from hydractl.stages.doctor.machine import machine


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorReport:
    """Report of `doctor`."""

    findings: tuple[Finding, ...]
    paths: tuple[Path, ...] = ()

    def require_checks(self) -> None:
        """Raise an error if a check failed.

        Raises:
            CheckFailed: If a check failed; the message names it.
        """
        failed = [finding for finding in self.findings if finding.state is FindingState.FAILED]
        if failed:
            raise CheckFailed(
                f"{counted(len(failed), 'check')} failed: {quoted(finding.name for finding in failed)}",
                hint="; ".join(finding.fix for finding in failed if finding.fix),
            )


def run_doctor(config: DoctorConfig, progress: Progress = SILENT) -> DoctorReport:
    """Run all checks. Changes nothing, and uses the network only for one request to the Hub."""
    progress.step("Checking libraries, devices and the Hub")
    return DoctorReport(findings=(*libraries(), *machine(), *hub(config.timeout)))
