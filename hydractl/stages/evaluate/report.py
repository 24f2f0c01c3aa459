"""What `eval` tells. Importing it loads no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hydractl.errors import CheckFailed
from hydractl.manifest.report import Report
from hydractl.stages.evaluate.config import EvalConfig
from hydractl.stages.evaluate.fail_if import OPTION, risk_text


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalReport:
    """What `eval` measured and where it was written."""

    document: Report
    paths: tuple[Path, ...]
    config: EvalConfig

    def require_checks(self) -> None:
        """Raise if a condition came true, or no threshold was found; call it once the report has been shown.

        Raises:
            CheckFailed: Naming each such condition and the number found, or the threshold that was asked for.
        """
        config, row, checks = self.config, self.document.rows[0], self.document.checks
        if row.threshold is not None and row.threshold.below is None:
            stored = f"; {config.store} says so to `predict`" if config.store else ""
            raise CheckFailed(
                f"`{OPTION} {risk_text(config.threshold_for)}`: {row.name}: {row.threshold.summary}{stored}",
                hint="give more samples, allow more risk, or try another `--ood-score`",
            )
        failed = [check for check in checks if check.failed]
        if failed:
            conditions = ", ".join(f"`{c.condition}` (found {c.found:.6g})" for c in failed)
            raise CheckFailed(f"{len(failed)} of {len(checks)} checks failed for `{row.name}`: {conditions}")
