"""`preset:NAME[/SETS][::key=value,...]`: which data that names. Importing it loads nothing but the table."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from hydractl.data.presets.images import IMAGES
from hydractl.data.presets.schema import ROLES, TEST, Listed, Outside, Preset
from hydractl.data.presets.texts import TEXTS
from hydractl.errors import UsageError
from hydractl.messages import did_you_mean, quoted

PREFIX = "preset:"
OPENOOD, SPLIT = "openood", "split"
LISTS = "benchmark_imglist"
"""Folder of OpenOOD's image lists."""
FETCH = "https://github.com/Jingkang50/OpenOOD/blob/main/scripts/download/download.py"
PRESETS: Mapping[str, Preset] = MappingProxyType({preset.name: preset for preset in (*IMAGES, *TEXTS)})


def find(source: str, user_options: Mapping[str, str]) -> tuple[tuple[str, str, dict[str, str]], ...]:
    """Return the data sets that a reference names: of each what tables call it, where it lies, and its options there.

    Args:
        source: `preset:NAME`, or `preset:NAME/SETS` for sets that are out-of-distribution to it: a role, or one's name.
        user_options: What the reference says after `::`.

    Raises:
        UsageError: If there is no such data set, split or list.
    """
    name, slash, sets = source.removeprefix(PREFIX).partition("/")
    preset = of_name(name, reference=source)
    chosen = dict(user_options)
    folder = chosen.pop(OPENOOD, None)
    if folder is not None and preset.benchmark is None:
        raise UsageError(f"`{source}::{OPENOOD}={folder}`: OpenOOD has no lists for it", hint="leave it out")
    if not slash:
        return ((name, *_source_of_split(preset, chosen.pop(SPLIT, TEST), folder, chosen)),)
    if SPLIT in chosen:
        raise UsageError(
            f"`{source}::{SPLIT}={chosen[SPLIT]}`: an OOD set has only one split",
            hint="leave it out, or give the data set under its own name",
        )
    return tuple(
        (ood_set.name, *_outside(preset, ood_set, folder, chosen)) for ood_set in _named(preset, sets)
    )


def of_name(name: str, *, reference: str) -> Preset:
    """Return the data set of that name.

    Raises:
        UsageError: If there is none.
    """
    if name not in PRESETS:
        raise UsageError(
            f"`{reference}`: there is no data set of that name",
            hint=did_you_mean(name, PRESETS) or "`hydractl data list` lists the names",
        )
    return PRESETS[name]


def _named(preset: Preset, sets: str) -> tuple[Outside, ...]:
    ood_sets = tuple(ood_set for ood_set in preset.outside if sets in {ood_set.role, ood_set.name})
    if ood_sets:
        return ood_sets
    if not preset.outside:
        raise UsageError(
            f"`{PREFIX}{preset.name}/{sets}`: has no OOD sets",
            hint=(
                f"data sets with OOD sets: {quoted(preset.name for preset in PRESETS.values() if preset.outside)}"
            ),
        )
    choices = [role for role in ROLES if any(one.role == role for one in preset.outside)]
    choices += [one.name for one in preset.outside]
    raise UsageError(
        f"`{PREFIX}{preset.name}/{sets}`: is neither a role nor one of its sets",
        hint=did_you_mean(sets, choices) or f"available: {quoted(choices)}",
    )


def _source_of_split(
    preset: Preset, split: str, folder: str | None, chosen: Mapping[str, str]
) -> tuple[str, dict[str, str]]:
    parts = preset.listed if folder is not None else preset.parts
    if split not in parts:
        elsewhere = folder is None and split in preset.listed
        raise UsageError(
            f"`{PREFIX}{preset.name}::{SPLIT}={split}`: available splits are {quoted(parts)}",
            hint=f"OpenOOD has a list of that split: {_how(preset)}"
            if elsewhere
            else did_you_mean(split, parts),
        )
    if folder is not None:
        return _of_list(preset, preset.listed[split], folder, chosen)
    return preset.source, {**preset.options, SPLIT: preset.parts[split].split, **chosen}


def _outside(
    preset: Preset, ood_set: Outside, folder: str | None, chosen: Mapping[str, str]
) -> tuple[str, dict[str, str]]:
    if folder is not None and ood_set.listed is not None:
        return _of_list(preset, ood_set.listed, folder, chosen)
    if ood_set.preset is None:
        raise UsageError(
            f"`{PREFIX}{preset.name}/{ood_set.name}`: is a list of OpenOOD without a known data "
            "set on the Hub that has exactly its images",
            hint=_how(preset),
        )
    return _source_of_split(PRESETS[ood_set.preset], ood_set.part, None, chosen)


def _how(preset: Preset) -> str:
    return (
        f"download OpenOOD's lists and images ({FETCH}), then add `{OPENOOD}=DIR` with the folder that contains "
        f"`{LISTS}/{preset.benchmark}/`; or use another set"
    )


def _of_list(
    preset: Preset, listed: Listed, folder: str, chosen: Mapping[str, str]
) -> tuple[str, dict[str, str]]:
    base = folder.rstrip("/") or folder
    return f"{base}/{LISTS}/{preset.benchmark}/{listed.file}", {"root": f"{base}/{listed.images}", **chosen}
