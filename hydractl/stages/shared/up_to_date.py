"""Whether outputs are what a command would write (`--if-changed`), told without computing them. Importing this module does not load torch.

Every output records what made it: the digest of the command's configuration, the digests of what was read in the order of the
settings that name it, and versions; see `output_record`. All of that is determined anew from the configuration.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hydractl.errors import VALUE, HydraError, UsageError, shortened
from hydractl.messages import quoted
from hydractl.output.atomic_write import is_stream
from hydractl.runtime import versions
from hydractl.settings import declared
from hydractl.stages.shared.command_config import CommandConfig, config_digest, input_refs, recorded_argv
from hydractl.stages.shared.output_record import OutputRecord, read_record
from hydractl.stages.shared.settings import IF_CHANGED_BESIDE

MOST_OPTIONS = 4
"""Maximum number of differences in a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpToDate:
    """What `--if-changed` found: all outputs, and why they are to be made; None where they are what would be."""

    paths: tuple[Path, ...]
    reason: str | None


def check_up_to_date(config: CommandConfig) -> UpToDate:
    """Compare outputs with what a command would write.

    Raises:
        UsageError: If there is nothing to compare, or it is a stream.
        OutputExists: If something else has an output's name, or another command made it.
    """
    records = _output_records(config)
    missing = next((path for path, record in records.items() if record is None), None)
    if missing is not None:
        return UpToDate(paths=(*records,), reason=f"{missing} is missing or empty")
    try:
        reason = _reason(config, [record for record in records.values() if record is not None])
    except HydraError:  # the command itself says best which input cannot be read
        reason = "an input cannot be read"
    return UpToDate(paths=(*records,), reason=reason)


def may_replace_outputs(config: CommandConfig) -> bool:
    """Return whether outputs may be replaced: by force, or because this very command made them.

    Raises:
        UsageError: As `check_up_to_date`.
        OutputExists: As `check_up_to_date`.
    """
    if config.if_changed:
        _output_records(config)
    return config.force or config.if_changed


def check_comparable(config: CommandConfig) -> tuple[Path, ...]:
    """Return the paths of all outputs, which are compared with what would be written.

    Raises:
        UsageError: If there is nothing to compare, or it is a stream.
    """
    if config.force:
        raise UsageError("`--force` and `--if-changed` exclude each other", hint="leave one of them out")
    paths = config.output_files()
    streams = [str(path) for path in paths if is_stream(path)]
    streams += [str(input_ref.ref) for input_ref in input_refs(config) if input_ref.is_stream]
    if streams:
        raise UsageError(
            f"`--if-changed` and `{streams[0]}` exclude each other: a stream cannot be compared",
            hint="use a file, or leave out `--if-changed`",
        )
    if config.out is None:
        raise UsageError("`--if-changed` needs an output to compare with", hint="add `-o FILE`")
    return paths


def _output_records(config: CommandConfig) -> dict[Path, OutputRecord | None]:
    """Return what every output says of itself; None of those that are not there."""
    beside = IF_CHANGED_BESIDE in declared(type(config)).values()
    return {path: read_record(path, config.COMMAND, beside=beside) for path in check_comparable(config)}


def _reason(config: CommandConfig, outputs: Sequence[OutputRecord]) -> str | None:
    """Return why outputs are not what would be written; None if they are."""
    recording = [output for output in outputs if output.has_step]
    digest = config_digest(config)
    for output in outputs:
        if output.config_digest != digest and (output.has_step or output.config_digest):
            return "it was made with other options" + _other_options(output.argv, recorded_argv(config))
    for name, version in (pair for output in recording for pair in output.versions.items()):
        if (installed := _installed(name)) != version:
            return f"it was made with {name} {version}, but {installed} is installed"
    masks = [mask for output in recording for mask in output.masks]
    rows = {row for output in recording for row in output.rows}
    if not all(o.intact and o.rows <= rows and all(mask in masks for mask in o.masks) for o in outputs):
        return "its files have changed since they were written"
    if len(recording) == 1:
        return _other_input(config, recording[0].inputs)
    # scores may be of the weights beside them, which then say of what those are
    written = {output.digest for output in recording}
    recording.sort(key=lambda output: not output.masks)
    inputs = dict.fromkeys(
        digest for output in recording for digest in output.inputs if digest not in written
    )
    return _other_input(config, [*inputs])


def _other_options(before: Sequence[str] | None, after: Sequence[str] | None) -> str:
    """Return which arguments and options differ, as they were typed; nothing where one is unknown or they are typed alike."""
    if before is None or after is None:
        return ""
    old, new = Counter(_options(before)), Counter(_options(after))
    removed, added = (quoted(words, most=MOST_OPTIONS) for words in (old - new, new - old))
    text = f"{removed}, now {added or 'left out'}" if removed else f"without {added}"
    return shortened(f": {text}", VALUE) if removed or added else ""


def _options(argv: Sequence[str]) -> list[str]:
    """Return arguments, and options each with its value."""
    options: list[str] = []
    for word in argv:
        last = options[-1] if options else ""
        if last.startswith("--") and not word.startswith("--"):
            options[-1] += f" {word}"
        else:
            options.append(word)
    return options


def _other_input(config: CommandConfig, recorded: Sequence[str]) -> str | None:
    """Return which input is not what outputs were made of; what is named twice may be recorded once."""
    visited: set[str] = set()
    place = 0
    for ref in input_refs(config):
        named = {f"{ref.role} {ref.ref}"}
        digests = named if ref.is_generated else named | ref.digests()
        if place < len(recorded) and (ref.is_generated or recorded[place] in digests):
            visited |= {*digests, recorded[place]}
            place += 1
        elif not digests & visited:
            return f"`{ref.name}` has changed"
    return None if place == len(recorded) else "it was made from more inputs"


def _installed(name: str) -> str:
    try:
        return versions(name)[name]
    except ModuleNotFoundError:  # as `importlib.metadata` has it for packages
        return "none"
