"""Configuration of `report`. Importing this module does not load torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from hydractl.output.publish import Folder, OutputKind
from hydractl.provenance.command_config import IF_CHANGED, CommandConfig
from hydractl.reporting.report_values import SEEDS, SETS
from hydractl.settings import CheckedSettings, Constraint, Role, Setting, by_default, flag, required, setting
from hydractl.stages import options as shared
from hydractl.strict_json import STDIN

PAGE, TEXT = ".html", ".md"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportConfig(CheckedSettings, CommandConfig):
    """Options of `report`."""

    COMMAND: ClassVar[str] = "report"

    files: tuple[Path, ...] = required(
        Setting(
            "Reports of `eval`, one per seed, or `-` for standard input.",
            positional=True,
            metavar="REPORT...",
            shows_default=False,
            role=Role.FILE,
            needs=Constraint(
                "files",
                message="nothing to report",
                hint="give a report written by `hydractl eval -o report.json`",
            ),
            excludes=Constraint(
                lambda config: config.files.count(STDIN) > 1,
                message="only one report can come from standard input",
            ),
        )
    )
    over: str = setting(
        SEEDS,
        f"Treat several reports as `{SEEDS}` of one experiment or as data `{SETS}` to average over.",
        choices=(SEEDS, SETS),
        only_with=Constraint(
            lambda config: len(config.files) > 1,
            message="`--over sets` has no effect on one report",
            hint="give one report per data set",
        ),
    )
    tests: Path | None = setting(
        None,
        "Report of `eval` with a threshold, known inputs or examples of a row; the page shows these results.",
        metavar="REPORT",
        shows_default=False,
        role=Role.FILE,
    )
    smallest: tuple[shared.Smallest, ...] = by_default((), shared.SMALLEST)
    out: Path | None = setting(
        None,
        "Page in .html or .md, or `-` for Markdown on standard output.",
        metavar="PATH",
        option_names=shared.OUT.option_names,
        check_path=OutputKind(description="a page", suffixes=(PAGE, TEXT), decides=True),
        shows_default=False,
        role=Role.OUTPUT,
    )
    figures: Path | None = setting(
        None,
        "Write each figure as .png and .svg to this folder; a Markdown page links them.",
        parse=Folder,
        metavar="DIR",
        shows_default=False,
        role=Role.OUTPUT,
    )
    force: bool = flag(
        replace(
            shared.FORCE,
            only_with=Constraint(
                lambda config: config.out or config.figures,
                message="`--force` has no effect without an output",
                hint="add `-o report.html`",
            ),
        )
    )
    if_changed: bool = flag(
        replace(
            IF_CHANGED,
            help="Do nothing if the outputs are up to date; else overwrite them.",
        )
    )

    @property
    def form(self) -> str:
        """Format of the page: `.html`, or `.md` for other outputs."""
        return PAGE if self.out is not None and self.out.suffix.lower() == PAGE else TEXT
