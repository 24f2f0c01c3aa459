"""`preset:NAME[/SETS][::key=value,...]`: which data that names. Importing it loads nothing but the table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from hydractl.data.presets.images import IMAGES
from hydractl.data.presets.preset import ROLES, TEST, Listed, Outside, Preset
from hydractl.data.presets.texts import TEXTS
from hydractl.errors import UsageError
from hydractl.wording import did_you_mean, quoted

PREFIX = "preset:"
OPENOOD, SPLIT = "openood", "split"
LISTS = "benchmark_imglist"
"""OpenOOD's folder of lists."""
FETCH = "https://github.com/Jingkang50/OpenOOD/blob/main/scripts/download/download.py"
PRESETS: Mapping[str, Preset] = MappingProxyType({one.name: one for one in (*IMAGES, *TEXTS)})


@dataclass(frozen=True, slots=True)
class Found:
    """One data set of those that a reference names.

    Attributes:
        name: What tables call it.
        source: Where it lies.
        options: What a reference says after `::`.
    """

    name: str
    source: str
    options: Mapping[str, str]


def find(source: str, given: Mapping[str, str]) -> tuple[Found, ...]:
    """Return the data sets that a reference names.

    Args:
        source: `preset:NAME`, or `preset:NAME/SETS` for sets that are out-of-distribution to it: a role, or one's name.
        given: What the reference says after `::`.

    Raises:
        UsageError: If there is no such data set, split or list.
    """
    name, slash, sets = source.removeprefix(PREFIX).partition("/")
    preset = of_name(name, typed=source)
    chosen = dict(given)
    folder = chosen.pop(OPENOOD, None)
    if folder is not None and preset.benchmark is None:
        raise UsageError(f"`{source}::{OPENOOD}={folder}`: OpenOOD has no lists for it", hint="leave it out")
    if not slash:
        split = chosen.pop(SPLIT, TEST)
        return (Found(name, *_own(preset, split, folder, chosen)),)
    if SPLIT in chosen:
        raise UsageError(
            f"`{source}::{SPLIT}={chosen[SPLIT]}`: what is out-of-distribution has one part",
            hint="leave it out, or name the set by itself",
        )
    return tuple(Found(one.name, *_outside(preset, one, folder, chosen)) for one in _named(preset, sets))


def of_name(name: str, *, typed: str) -> Preset:
    """Return the data set of that name.

    Raises:
        UsageError: If there is none.
    """
    if name not in PRESETS:
        raise UsageError(
            f"`{typed}`: there is no data set of that name",
            hint=did_you_mean(name, PRESETS) or "`hydractl data list` names all",
        )
    return PRESETS[name]


def _named(preset: Preset, sets: str) -> tuple[Outside, ...]:
    found = tuple(one for one in preset.outside if sets in {one.role, one.name})
    if found:
        return found
    if not preset.outside:
        raise UsageError(
            f"`{PREFIX}{preset.name}/{sets}`: names no sets that are out-of-distribution to it",
            hint=f"those that have some are {quoted(one.name for one in PRESETS.values() if one.outside)}",
        )
    known = [role for role in ROLES if any(one.role == role for one in preset.outside)]
    known += [one.name for one in preset.outside]
    raise UsageError(
        f"`{PREFIX}{preset.name}/{sets}`: is neither a role nor one of its sets",
        hint=did_you_mean(sets, known) or f"there are {quoted(known)}",
    )


def _own(
    preset: Preset, split: str, folder: str | None, chosen: Mapping[str, str]
) -> tuple[str, dict[str, str]]:
    parts = preset.listed if folder is not None else preset.parts
    if split not in parts:
        elsewhere = folder is None and split in preset.listed
        raise UsageError(
            f"`{PREFIX}{preset.name}::{SPLIT}={split}`: it has {quoted(parts)}",
            hint=f"OpenOOD has a list of it: {_how(preset)}" if elsewhere else did_you_mean(split, parts),
        )
    if folder is not None:
        return _of_list(preset, preset.listed[split], folder, chosen)
    return preset.source, {**preset.options, SPLIT: preset.parts[split].split, **chosen}


def _outside(
    preset: Preset, one: Outside, folder: str | None, chosen: Mapping[str, str]
) -> tuple[str, dict[str, str]]:
    if folder is not None and one.listed is not None:
        return _of_list(preset, one.listed, folder, chosen)
    if one.preset is None:
        raise UsageError(
            f"`{PREFIX}{preset.name}/{one.name}`: is a list of OpenOOD's, and on the Hub is no data set known to hold just its images",
            hint=_how(preset),
        )
    return _own(PRESETS[one.preset], one.part, None, chosen)


def _how(preset: Preset) -> str:
    return (
        f"fetch OpenOOD's lists and images ({FETCH}), then add `{OPENOOD}=DIR`, where `{LISTS}/{preset.benchmark}/` lies; "
        "or name another set"
    )


def _of_list(
    preset: Preset, listed: Listed, folder: str, chosen: Mapping[str, str]
) -> tuple[str, dict[str, str]]:
    base = folder.rstrip("/") or folder
    return f"{base}/{LISTS}/{preset.benchmark}/{listed.file}", {"root": f"{base}/{listed.images}", **chosen}
