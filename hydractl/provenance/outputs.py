"""Where the outputs of a command may go, nowhere that it reads from itself; how models get there; what an interrupted run leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydractl.data.reference import DataRef, SourceKind
from hydractl.errors import Interrupted
from hydractl.output.paths import check_folder, check_output, is_folder
from hydractl.output.publish import OutputLock, claimed, is_stream
from hydractl.processes.distributed import HINT
from hydractl.provenance.command_config import CommandConfig

if TYPE_CHECKING:
    from hydractl.families.load import OpenModel


RESUME_SUFFIXES = (".journal", ".state")


def check_outputs(
    outputs: Iterable[Path],
    *,
    force: bool | Callable[[Path], bool],
    models: Iterable[OpenModel] = (),
    data: Iterable[DataRef | str | None] = (),
    files: Iterable[Path | None] = (),
    option: str = "-o",
) -> None:
    """Refuse outputs that cannot or must not be written, before any work is done.

    Args:
        outputs: Where they will go; `-` is standard output.
        force: Whether an existing file may be replaced, or which. What the command reads never may.
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
        may = force(path) if callable(force) else force
        check_output(path, force=may, inputs=inputs, folders=folders, option=option)


def check_models(outputs: Iterable[Path], claim: OutputLock, **read: Any) -> None:  # noqa: ANN401 - what `check_outputs` takes
    """Refuse outputs that are models, of which one may be a folder; see `check_outputs`."""
    from hydractl.hub.layout import of_model  # noqa: PLC0415 - as above
    from hydractl.hub.model_outputs import check_replaces  # noqa: PLC0415 - most outputs are files

    for path in outputs:
        if not is_folder(path):
            check_outputs([path], force=claim.may_replace, **read)
            continue
        check_folder(path)
        files = of_model(path)
        check_outputs(files, force=True, **read)
        check_replaces(path, claim)


@contextmanager
def claim(
    config: CommandConfig, outputs: Iterable[Path | None], *, force: bool | None = None
) -> Iterator[OutputLock]:
    """Have the outputs of a command to oneself as long as the block runs; see `claimed`.

    Args:
        config: What was asked.
        outputs: The outputs that this process writes.
        force: Whether what is there may be replaced; None for what `may_replace_outputs` says.
    """
    from hydractl.provenance.up_to_date import may_replace_outputs  # noqa: PLC0415 - loads pydantic, which `--help` does without

    first = next((path for path in outputs if path is not None and not is_stream(path)), None)
    with claimed(
        first, force=may_replace_outputs(config) if force is None else force, wait=config.wait
    ) as lock:
        yield lock


@contextmanager
def resumable(out: Path, *, force: bool = False) -> Iterator[None]:
    """Add a note or a hint to an interruption: where the progress is saved, and how to resume.

    Args:
        out: The output; a run keeps what it has done in a `.journal` or a `.state` beside it.
        force: Whether the command drops what an earlier run kept.

    Raises:
        KeyboardInterrupt: With a note to print.
        Interrupted: With a hint.
    """
    try:
        yield
    except (KeyboardInterrupt, Interrupted) as error:
        if note := resume_hint(out, force=force):
            error.add_note(note)
            if isinstance(error, Interrupted):
                error.hint = HINT.replace("run the same command again", note)
        raise


def resume_hint(out: Path, *, force: bool) -> str | None:
    """Return what a run that ends now leaves beside its output and what goes on from there, None where it leaves nothing.

    Args:
        out: As in `resumable`.
        force: Likewise.
    """
    resume_paths = [] if is_stream(out) else [out.with_name(out.name + suffix) for suffix in RESUME_SUFFIXES]
    existing = [str(path) for path in resume_paths if path.exists()]
    if not existing:
        return None
    moved = f"move {out} to another place, then " if force and out.exists() else ""
    command_text = "the same command without `--force`" if force else "the same command"
    return f"the progress is saved in {' and '.join(existing)}; {moved}{command_text} resumes it"
