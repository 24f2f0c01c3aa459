"""Report of `eval`. Importing this module does not load torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hydractl.errors import CheckFailed
from hydractl.manifest.report import Report
from hydractl.metrics.selective import fewest
from hydractl.stages.evaluate.config import EvalConfig
from hydractl.stages.evaluate.fail_if import OPTION, risk_text


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalReport:
    """Measurements of `eval`, and the files written."""

    document: Report
    paths: tuple[Path, ...]
    config: EvalConfig

    def require_checks(self) -> None:
        """Raise an error if a condition holds or no threshold was found; call it after the report has been shown.

        Raises:
            CheckFailed: If a condition holds or no threshold was found; the message has the measured values.
        """
        config, row, checks = self.config, self.document.rows[0], self.document.checks
        if row.threshold is not None and row.threshold.below is None:
            stored = f"; {config.store} stores this for `predict`" if config.store else ""
            least = fewest(row.threshold.risk, config.chance)
            raise CheckFailed(
                f"`{OPTION} {risk_text(config.threshold_for)}`: {row.name}: {row.threshold.summary}{stored}",
                hint=(
                    "use more samples"
                    + f" (at least {least})" * (row.threshold.count < least)
                    + ", allow more risk, or try another `--ood-score`"
                ),
            )
        failed = [check for check in checks if check.failed]
        if failed:
            conditions = ", ".join(f"`{c.condition}` (measured {c.found:.6g})" for c in failed)
            raise CheckFailed(f"{len(failed)} of {len(checks)} checks failed for `{row.name}`: {conditions}")
