"""How checkpoints were made, as supply-chain tools read it: an in-toto Statement v1 with a SLSA provenance v1 predicate.

All of it is told by the checkpoints' own lineage, so equal work gives equal statements. Left out are what lineage does not know:
`metadata` (when it ran, and in which invocation), and the machine, of which a platform's own attestation tells.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hydractl.checkpoint import Checkpoint
from hydractl.errors import InputError, OutputExists, UsageError
from hydractl.manifest.header import Step
from hydractl.model_source import WEIGHTS
from hydractl.output.atomic_write import is_stream, publish_text
from hydractl.output.paths import check_output, is_folder
from hydractl.output.sync import has_content
from hydractl.runtime import digest_file
from hydractl.stages.shared.command_config import CommandConfig, input_refs
from hydractl.strict_json import NotJSONError, canonical, parse

STATEMENT, PREDICATE = "https://in-toto.io/Statement/v1", "https://slsa.dev/provenance/v1"
BUILD = "https://github.com/hydractl/hydractl/blob/main/docs/serving.md#provenance"


def check_statement(path: Path, config: CommandConfig) -> None:
    """Refuse a statement that cannot or must not be written, before any work is done.

    Raises:
        UsageError: If it or an output is a stream.
        OutputExists: If something else has its name.
        OutputError: If it cannot be written.
    """
    outputs = config.output_files()
    streams = [path_of_output for path_of_output in (path, *outputs) if is_stream(path_of_output)]
    if streams:
        raise UsageError(
            f"`--provenance {path}`: `{streams[0]}` is a stream, which has no digest",
            hint="use files, or leave out `--provenance`",
        )
    if any(path.resolve() == path_of_output.resolve() for path_of_output in outputs):
        raise UsageError(f"`--provenance {path}`: is also an output", hint="choose another name")
    inputs = [Path(str(input_ref.ref)) for input_ref in input_refs(config)]
    check_output(path, force=_is_statement(path), inputs=[*inputs, *outputs], option="--provenance")


def write_statement(path: Path, config: CommandConfig) -> None:
    """Write the statement of outputs that are there.

    Raises:
        OutputExists: If something else has its name by now.
        OutputError: If it cannot be written.
    """
    paths = config.output_files()
    files = [
        file
        for path_of_output in paths
        for file in (sorted(path_of_output.iterdir()) if is_folder(path_of_output) else [path_of_output])
    ]
    first = paths[0] / WEIGHTS if is_folder(paths[0]) else paths[0]
    header = Checkpoint.open(first).header
    if header is None or header.made_by is None:
        raise InputError(f"{first}: does not record how it was made")
    if has_content(path) and not _is_statement(path):
        raise OutputExists(f"{path}: already exists", hint="choose another name with `--provenance`")
    publish_text(path, canonical(statement(files, header.made_by)))


def statement(files: list[Path], step: Step) -> dict[str, object]:
    """Return the statement of files that one step made."""
    return {
        "_type": STATEMENT,
        "subject": [{"name": file.name, "digest": _digest(digest_file(file))} for file in files],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD,
                "externalParameters": {
                    "command": step.command,
                    "options": {name: value for name, value in step.options.items() if name != "member"},
                    "seed": step.seed,
                },
                "resolvedDependencies": [*_inputs(step)],
            },
            "runDetails": {
                "builder": {
                    "id": f"pkg:pypi/hydractl@{step.versions.get('hydractl', 'unknown')}",
                    "version": dict(step.versions),
                }
            },
        },
    }


def _inputs(step: Step) -> Iterator[dict[str, object]]:
    """Yield what a step read, and what was installed."""
    for file in step.inputs:
        annotations = {} if file.made_by is None else {"annotations": {"made_by": file.made_by.command}}
        yield {"name": file.name, "digest": _digest(file.sha256), **annotations}
    for name, version in sorted(step.versions.items()):
        yield {"name": name, "uri": f"pkg:pypi/{name}@{version}"}


def _digest(text: str) -> dict[str, str]:
    return dict([text.split(":", 1)])


def _is_statement(path: Path) -> bool:
    """Return whether a file is a statement of ours, which another may replace."""
    try:
        return bool(
            parse(path.read_text(encoding="utf-8"))["predicate"]["buildDefinition"]["buildType"] == BUILD
        )
    except (OSError, UnicodeDecodeError, NotJSONError, KeyError, TypeError):
        return False
