"""What `eval` tells. Importing it loads no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hydractl.errors import CheckFailed
from hydractl.manifest.report import Report, Row
from hydractl.stages.evaluate.config import EvalConfig
from hydractl.stages.evaluate.risk import OPTION, told


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalReport:
    """What `eval` measured and where it was written."""

    document: Report
    paths: tuple[Path, ...]
    config: EvalConfig

    def require_checks(self) -> None:
        """Raise if a condition came true, or no threshold was found; call it once the report has been shown.

        Raises:
            CheckFailed: Naming each such condition and the number found.
        """
        require_threshold(self.config, self.document.rows[0])
        failed = [check for check in self.document.checks if check.failed]
        if failed:
            what = ", ".join(f"`{c.condition}` (found {c.found:.6g})" for c in failed)
            raise CheckFailed(
                f"{len(failed)} of {len(self.document.checks)} checks failed for "
                f"`{self.document.rows[0].name}`: {what}"
            )


def require_threshold(config: EvalConfig, row: Row) -> None:
    """Raise if the model has no threshold that was asked for; call it once the report has been shown.

    Raises:
        CheckFailed: If that is so.
    """
    if config.threshold_for is not None and row.threshold is None:
        kept = "; nothing was stored" if config.store else ""
        raise CheckFailed(
            f"`{OPTION} {told(config.threshold_for)}`: no threshold on `{config.scores[0]}` keeps it for `{row.name}`{kept}",
            hint="give more samples, allow more risk, or try another `--ood-score`",
        )
