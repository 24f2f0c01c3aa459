"""data: tell of the data sets that have names, and how each is asked for. Nothing is read or fetched."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hydractl.data.presets.registry import OPENOOD, PREFIX, PRESETS, SPLIT
from hydractl.data.presets.schema import Listed, Outside, Preset
from hydractl.data.reference import DataRef
from hydractl.progress import SILENT, Progress
from hydractl.stages.datasets.config import LIST, DataConfig

FOLDER = "DIR"
"""What stands for the folder with OpenOOD's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Some samples, and how they are asked for.

    Attributes:
        name: What they are called: of parts theirs, of sets that are out-of-distribution what tables call them.
        typed: As it is typed.
        read: What that reads.
        samples: How many there are, where that is known.
    """

    name: str
    typed: str
    read: str
    samples: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownDataset:
    """A data set that has a name.

    Attributes:
        parts: Its parts: of the Hub, then of OpenOOD's lists.
        outside: By role, the sets that are out-of-distribution to it.
    """

    name: str
    holds: str
    about: str
    classes: int | None
    samples: int
    licence: str
    home: str
    note: str | None
    zero_shot: bool
    parts: tuple[Data, ...]
    outside: dict[str, tuple[Data, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataReport:
    """The data sets that were asked for.

    Attributes:
        briefly: Whether they are listed.
    """

    sets: tuple[KnownDataset, ...]
    briefly: bool
    paths: tuple[Path, ...] = ()


def run_data(config: DataConfig, progress: Progress = SILENT) -> DataReport:  # noqa: ARG001 - as every stage
    """Tell of some data sets, or of all."""
    names = config.names or tuple(PRESETS)
    return DataReport(
        sets=tuple(_describe_preset(PRESETS[name]) for name in names), briefly=config.action == LIST
    )


def _describe_preset(preset: Preset) -> KnownDataset:
    reference = f"{PREFIX}{preset.name}"
    return KnownDataset(
        name=preset.name,
        holds=preset.content,
        about=preset.about,
        classes=preset.classes,
        samples=preset.parts["test"].samples,
        licence=preset.licence,
        home=preset.home,
        note=preset.note,
        zero_shot=preset.zero_shot,
        parts=(
            *(
                _data(name, f"{reference}::{SPLIT}={name}", part.samples)
                for name, part in preset.parts.items()
            ),
            *(
                _listed(name, f"{reference}::{SPLIT}={name},", listed)
                for name, listed in preset.listed.items()
            ),
        ),
        outside={
            role: tuple(_outside(reference, ood_set) for ood_set in preset.outside if ood_set.role == role)
            for role in dict.fromkeys(one.role for one in preset.outside)
        },
    )


def _outside(reference: str, ood_set: Outside) -> Data:
    set_reference = f"{reference}/{ood_set.name}"
    if ood_set.preset is not None:
        return _data(ood_set.name, set_reference, PRESETS[ood_set.preset].parts[ood_set.part].samples)
    if ood_set.listed is None:
        raise ValueError(f"{set_reference} lies nowhere")
    return _listed(ood_set.name, f"{set_reference}::", ood_set.listed)


def _listed(name: str, reference_start: str, listed: Listed) -> Data:
    return _data(name, f"{reference_start}{OPENOOD}={FOLDER}", listed.samples)


def _data(name: str, reference: str, samples: int | None) -> Data:
    return Data(name=name, typed=reference, read=str(DataRef.parse(reference)), samples=samples)
