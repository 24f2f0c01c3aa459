"""Models as outputs, files or folders."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hydractl.errors import OutputExists
from hydractl.model_source import WEIGHTS
from hydractl.output.paths import is_folder
from hydractl.output.publish import OutputLock, Sink, has_content, publish_together

if TYPE_CHECKING:
    from hydractl.manifest.header import Header


def check_replaces(path: Path, claim: OutputLock) -> None:
    """Refuse a folder that holds a model which may not be replaced.

    Raises:
        OutputExists: Naming one of its files.
    """
    from hydractl.hub.layout import of_model  # noqa: PLC0415 - most outputs are files

    if remaining := [
        file
        for file in of_model(path)
        if has_content(file) and not (claim.may_replace(path) or claim.may_replace(file))
    ]:
        raise OutputExists(
            f"{path}: already contains a model (`{remaining[0].name}`)",
            hint="add `--force` to replace it, or choose another name with `-o`",
        )


@contextmanager
def publish_models(claim: OutputLock) -> Iterator[Callable[[Path, Header | None], Sink]]:
    """Open models for writing, and publish all of them if the block ends well, or none.

    One that is a folder comes with what libraries read besides weights; what a former model had there, and this one has not,
    goes.

    Yields:
        What opens one by its path and its header, of which the lineage may not be final yet; None for a file that is no model.
    """
    stale: list[Path] = []
    with publish_together(claim) as begin:

        def model(path: Path, header: Header | None) -> Sink:
            if header is None or not is_folder(path):
                return begin(path)
            from hydractl.hub.layout import files_of, of_model  # noqa: PLC0415 - as above

            files = files_of(header)
            stale.extend(file for file in of_model(path) if file.name not in {*files, WEIGHTS})
            for name, content in files.items():
                begin(path / name).write(content)
            return begin(path / WEIGHTS)

        yield model
    for path in stale:
        path.unlink()
