"""Where a command's outputs may go: nowhere that it reads from itself, `--force` or not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hydractl.data.reference import DataRef, SourceKind
from hydractl.publish import check_output

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hydractl.families.opening import OpenModel


def check_outputs(
    outputs: Iterable[Path],
    *,
    force: bool,
    models: Iterable[OpenModel] = (),
    data: Iterable[DataRef | str | None] = (),
    files: Iterable[Path | None] = (),
    option: str = "-o",
) -> None:
    """Refuse outputs that cannot or must not be written, before any work is done.

    Args:
        outputs: Where they will go; `-` is standard output.
        force: Whether an existing file may be replaced. What the command reads never may.
        models: Those that are read, with whatever lies beside their weights.
        data: The data that are read: a file, or whatever lies in a folder. Images that a table only names are not looked for.
        files: Other files that are read: scores, masks, lists of names.
        option: What names the outputs on the command line, for hints.

    Raises:
        OutputExists: If one is an input, or exists and `force` is off.
        OutputError: If one cannot be written.
        UsageError: If a reference to data is malformed.
    """
    refs = [DataRef.parse(ref) if isinstance(ref, str) else ref for ref in data if ref is not None]
    inputs = [
        *(path for model in models for path in model.files),
        *(Path(ref.source) for ref in refs if ref.kind is SourceKind.FILE),
        *(path for path in files if path is not None),
    ]
    folders = [Path(ref.source) for ref in refs if ref.kind is SourceKind.FOLDER]
    for path in outputs:
        check_output(path, force=force, inputs=inputs, folders=folders, option=option)
