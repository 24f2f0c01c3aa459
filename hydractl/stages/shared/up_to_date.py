"""`--if-changed`: whether outputs are what a command would write, told without computing them, or importing torch.

Every output says what made it: a digest of what was asked, the digests of what was read in the order of the settings that
name it, and the versions. All of that is told anew of the configuration.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hydractl.errors import VALUE, HydraError, UsageError, shortened
from hydractl.messages import quoted
from hydractl.output.atomic_write import is_stream
from hydractl.runtime import versions
from hydractl.settings import Role, declared
from hydractl.stages.shared.cache_key import Stage, asked_of, references, settings_of, typed_by
from hydractl.stages.shared.settings import IF_CHANGED_BESIDE

if TYPE_CHECKING:
    from hydractl.stages.shared.output_record import Made


MOST_OPTIONS = 4
"""That differ and are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What `--if-changed` found: all outputs, and why they are to be made; None where they are what would be."""

    paths: tuple[Path, ...]
    why: str | None


def looked(config: Stage) -> Looked:
    """Compare outputs with what a command would write.

    Raises:
        UsageError: If there is nothing to compare, or it is a stream.
        OutputExists: If something else has an output's name, or another command made it.
    """
    found = _made(config)
    missing = next((path for path, made in found.items() if made is None), None)
    if missing is not None:
        return Looked(paths=(*found,), why=f"{missing} is not there yet")
    try:
        why = _why(config, [made for made in found.values() if made is not None])
    except HydraError:  # the command itself says best which input cannot be read
        why = "an input cannot be read"
    return Looked(paths=(*found,), why=why)


def replaces(config: Stage) -> bool:
    """Return whether outputs may be replaced: by force, or because this very command made them.

    Raises:
        UsageError: As `looked`.
        OutputExists: As `looked`.
    """
    if config.if_changed:
        _made(config)
    return config.force or config.if_changed


def outputs_of(config: Stage) -> tuple[Path, ...]:
    """Return the paths of all that a command writes."""
    written = getattr(config, "written", None)
    if written is not None:
        return tuple(written())
    return tuple(value for option, value in settings_of(config) if option.setting.role is Role.OUTPUT)


def check_comparable(config: Stage) -> tuple[Path, ...]:
    """Return the paths of all outputs, which are compared with what would be written.

    Raises:
        UsageError: If there is nothing to compare, or it is a stream.
    """
    if config.force:
        raise UsageError("`--force` and `--if-changed` exclude each other", hint="leave one of them out")
    paths = outputs_of(config)
    streams = [str(path) for path in paths if is_stream(path)]
    streams += [str(one.ref) for one in references(config) if one.is_stream]
    if streams:
        raise UsageError(
            f"`--if-changed` and `{streams[0]}` exclude each other: what came through a stream is gone",
            hint="name a file, or leave `--if-changed` out",
        )
    if getattr(config, "out", None) is None:
        raise UsageError("`--if-changed` compares with an output, and none is named", hint="add `-o FILE`")
    return paths


def _made(config: Stage) -> dict[Path, Made | None]:
    """Return what every output says of itself; None of those that are not there."""
    from hydractl.stages.shared.output_record import made_by  # noqa: PLC0415 - loads pydantic, which `--help` does without

    beside = IF_CHANGED_BESIDE in declared(type(config)).values()
    return {path: made_by(path, config.COMMAND, beside=beside) for path in check_comparable(config)}


def _why(config: Stage, outputs: Sequence[Made]) -> str | None:
    """Return why outputs are not what would be written; None if they are."""
    tell = [made for made in outputs if made.records]
    asked = asked_of(config)
    for made in outputs:
        if made.asked != asked and (made.records or made.asked):
            return "it was made with other options" + _other_options(made.typed, typed_by(config))
    for name, version in (pair for made in tell for pair in made.versions.items()):
        if (here := _installed(name)) != version:
            return f"it was made with {name} {version}, and here is {here}"
    masks, rows = [mask for made in tell for mask in made.masks], {row for made in tell for row in made.rows}
    if not all(
        made.whole and made.rows <= rows and all(mask in masks for mask in made.masks) for made in outputs
    ):
        return "its files are not as they were written"
    if len(tell) == 1:
        return _other_input(config, tell[0].inputs)
    own = {
        made.digest for made in tell
    }  # scores may be of the weights beside them, which then say of what those are
    tell.sort(key=lambda made: not made.masks)
    inputs = dict.fromkeys(digest for made in tell for digest in made.inputs if digest not in own)
    return _other_input(config, [*inputs])


def _other_options(before: Sequence[str] | None, now: Sequence[str] | None) -> str:
    """Return which arguments and options differ, as they were typed; nothing where one is unknown or they are typed alike."""
    if before is None or now is None:
        return ""
    old, new = Counter(_options(before)), Counter(_options(now))
    gone, added = (quoted(words, most=MOST_OPTIONS) for words in (old - new, new - old))
    text = f"{gone}, now {added or 'left out'}" if gone else f"without {added}"
    return shortened(f": {text}", VALUE) if gone or added else ""


def _options(typed: Sequence[str]) -> Iterator[str]:
    """Yield arguments, and options each with its value."""
    option = ""
    for word in typed:
        if word.startswith("--"):
            yield from filter(None, [option])
            option = word
        else:
            yield f"{option} {word}".lstrip()
            option = ""
    yield from filter(None, [option])


def _other_input(config: Stage, recorded: Sequence[str]) -> str | None:
    """Return which input is not what outputs were made of; what is named twice may be recorded once."""
    met: set[str] = set()
    place = 0
    for one in references(config):
        called = {f"{one.role} {one.ref}"}
        digests = called if one.is_made else called | one.digests()
        if place < len(recorded) and (one.is_made or recorded[place] in digests):
            met |= {*digests, recorded[place]}
            place += 1
        elif not digests & met:
            return f"`{one.name}` is not what it was made of"
    return None if place == len(recorded) else "it was made of more"


def _installed(name: str) -> str:
    from importlib.metadata import PackageNotFoundError  # noqa: PLC0415 - `--help` does without

    try:
        return versions(name)[name]
    except PackageNotFoundError:
        return "none"
