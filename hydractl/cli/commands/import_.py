"""`hydractl import`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hydractl.cli.command import command
from hydractl.cli.output import Terminal, line, size, table
from hydractl.messages import count
from hydractl.output.paths import is_folder
from hydractl.stages.importing.config import ImportConfig
from hydractl.stages.shared.outputs import check_outputs

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from hydractl.stages.importing.run import ImportReport


@command(ImportConfig, compares=True)
def import_weights(config: ImportConfig, terminal: Terminal) -> None:
    r"""Make a base from weights that a training script saved.

    Finds the state dict in the file, strips the prefixes of DataParallel, torch.compile and Lightning, and reads the
    architecture, number of classes, mean and std that the script saved (timm, Lightning, transformers, open_clip). Refuses
    options that contradict them. Reads pickles as data: no code in them runs. Several files become one base each.

    Examples:
      hydractl import model_best.pth.tar -o base.st
      hydractl import model_best.pth.tar --ema -o base.st
      hydractl import seed-0.pth.tar seed-1.pth.tar -o '{name}.st'
      hydractl import weights.pth --arch vit_tiny_patch16_224 \
        --labels cat,dog -o base.st
    """
    from hydractl.stages.importing.run import ImportReport, ImportReports, run_import
    from hydractl.stages.shared.provenance import check_up_to_date

    progress = terminal.progress()
    if len(config.sources) > 1:  # before the first is written
        files = [path for path in config.output_files() if not is_folder(path)]
        check_outputs(files, force=config.force or config.if_changed, files=map(Path, config.sources))
    reports, unchanged_paths = list[ImportReport](), list[Path]()
    for single_config in config.one_by_one():
        state = check_up_to_date(single_config) if single_config.if_changed else None
        if state is not None and state.reason is None:
            unchanged_paths += state.paths
            continue
        if state is not None:
            progress.step(f"Not up to date: {state.reason}")
        reports.append(run_import(single_config, progress))
    if not reports:
        terminal.up_to_date(unchanged_paths)
    elif len(config.sources) == 1:
        terminal.result(reports[0], render)
    else:
        terminal.result(
            ImportReports(imports=tuple(reports)),
            lambda several, out: out.print(_table(several.imports, named=True)),
        )


def render(report: ImportReport, out: Console) -> None:
    """Show what one file held."""
    out.print(_table([report]))
    place = [f"under `{report.wrapper}`"] if report.wrapper else []
    place += [f"with the prefix `{report.prefix}`"] if report.prefix else []
    if place:
        line(out, f"Found {' and '.join(place)}")


def _table(reports: Sequence[ImportReport], *, named: bool = False) -> RenderableType:
    rows = [
        (
            *([report.path.name] if named else []),
            report.architecture,
            str(report.num_classes),
            str(report.heads),
            count(report.parameters),
            size(report.size_bytes),
        )
        for report in reports
    ]
    columns = ["architecture", "classes", "heads", "parameters", "bytes"]
    return table([*(["base"] if named else []), *columns], rows)
