"""report: read reports of `eval`, combine several seeds, and make a page and figures."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from hydractl import progress
from hydractl.errors import InputError, UsageError
from hydractl.manifest.report import Report
from hydractl.output.publish import check_folder, has_content, is_stream
from hydractl.processes.distributed import require_one_process
from hydractl.progress import stage
from hydractl.provenance.output import ForeignOutputError, Output, check_comparable
from hydractl.reporting.chart import Figure
from hydractl.reporting.comparison import Compared, distinct_names
from hydractl.reporting.figures import figures
from hydractl.reporting.matplotlib_figure import MARK, Panel, png, svg
from hydractl.reporting.page import markdown, page
from hydractl.reporting.verdict import judgements, remarks, sentence
from hydractl.stages.report.config import PAGE, ReportConfig
from hydractl.strict_json import STDIN


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportReport:
    """Comparison of reports, and the paths of written or up-to-date files."""

    compared: Compared
    paths: tuple[Path, ...] = ()
    up_to_date: bool = False

    def document(self) -> dict[str, object]:
        """Return the output of `--json`. Quantities have the names of conditions of `eval --fail-if`."""
        return {
            "files": self.compared.files,
            "verdict": sentence(self.compared),
            "judgements": judgements(self.compared),
            "notes": tuple(remarks(self.compared)),
            "rows": self.compared.rows,
            "differences": self.compared.differences,
            "columns": {
                file: {row.name: row.columns for row in report.rows}
                for file, report in zip(self.compared.files, self.compared.reports, strict=True)
            },
            "paths": self.paths,
            "up_to_date": self.up_to_date,
        }


@stage
def run_report(config: ReportConfig) -> ReportReport:
    """Read reports, compare their rows, and optionally write a page and figures.

    Raises:
        InputError: If a file is not a report, two files are the same report, or reports have different
            measurements.
        UsageError: If there are no figures to write, `--if-changed` cannot compare, or there are several
            processes.
        OutputExists: If an output already exists.
    """
    require_one_process("report")
    if config.if_changed:
        check_comparable(config)
    force = config.force or config.if_changed
    with Output.claim(config, [config.out, config.figures], force=force) as output:
        _check([] if config.out is None else [config.out], config, output)
        if config.figures is not None:
            check_folder(config.figures)
        compared = Compared.of(
            _read(config.files),
            over=config.over,
            smallest={s.metric: s.difference for s in config.smallest},
            tests=() if config.tests is None else (Report.read(config.tests),),
        )
        files = _files(config, compared, output)
        if config.if_changed and all(path.exists() and path.read_bytes() == files[path] for path in files):
            return ReportReport(compared=compared, paths=tuple(files), up_to_date=True)
        with output.publish() as begin:
            for path, content in files.items():
                begin(path).write(content)
        return ReportReport(compared=compared, paths=tuple(files))


def _check(paths: Sequence[Path], config: ReportConfig, output: Output, *, option: str = "-o") -> None:
    """Check that outputs may be written. `--if-changed` replaces only pages written by hydractl."""
    inputs = [path for path in (*config.files, config.tests) if path not in {STDIN, None}]
    output.check(*paths, files=inputs, option=option)
    for path in paths:
        if config.if_changed and has_content(path) and MARK.encode() not in path.read_bytes():
            raise ForeignOutputError(
                path,
                "was not written by hydractl",
                command=ReportConfig.COMMAND,
                hint="choose another name, move it to another place, or replace `--if-changed` by `--force`",
            )


def _read(paths: Sequence[Path]) -> dict[str, Report]:
    paths_by_digest: dict[str, Path] = {}
    reports: list[Report] = []
    for path in paths:
        reports.append(Report.read(path))
        first_path = paths_by_digest.setdefault(reports[-1].digest(), path)
        if len(paths_by_digest) < len(reports):
            raise InputError(f"{path}: is the same report as {first_path}", hint="give each report once")
    names = distinct_names(["stdin" if path == STDIN else str(path) for path in paths])
    return dict(zip(names, reports, strict=True))


def _files(config: ReportConfig, compared: Compared, output: Output) -> dict[Path, bytes]:
    figure_list = tuple(figures(compared))
    files = {} if config.figures is None else _pictures(config, config.figures, figure_list, output)
    if config.out is not None:
        is_html = config.form == PAGE
        text = page(compared, figure_list) if is_html else markdown(compared, figure_list, _folder(config))
        files[config.out] = text.encode()
    return files


def _pictures(
    config: ReportConfig, folder: Path, figure_list: Sequence[Figure], output: Output
) -> dict[Path, bytes]:
    if not figure_list:
        raise UsageError(
            "`--figures`: the reports have no curves to draw",
            hint="run `hydractl eval` again without `--no-curves`",
        )
    kinds: dict[str, Callable[[Panel], bytes]] = {
        ".png": png,
        ".svg": lambda sheet: svg(sheet, standalone=True).encode(),
    }
    places = [
        (folder / f"{figure.name}{suffix}", figure, draw)
        for figure in figure_list
        for suffix, draw in kinds.items()
    ]
    if folder.is_dir():
        _check([path for path, _, _ in places], config, output, option="--figures")
    tracked = progress.track(places, label="figures", total=len(places))
    return {path: draw(figure.sheet()) for path, figure, draw in tracked}


def _folder(config: ReportConfig) -> str | None:
    """Return the URL of the figures' folder relative to the Markdown page; None without figures."""
    if config.figures is None:
        return None
    beside = Path() if config.out is None or is_stream(config.out) else config.out.parent
    return quote(Path(os.path.relpath(config.figures, beside)).as_posix())
