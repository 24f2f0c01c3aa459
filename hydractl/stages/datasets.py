"""data: list the named data sets and their references, without reading or downloading data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hydractl.data.presets import OPENOOD, PREFIX, PRESETS, SPLIT, Outside, Preset, of_name
from hydractl.data.reference import DataRef
from hydractl.errors import UsageError
from hydractl.messages import did_you_mean
from hydractl.progress import stage
from hydractl.provenance.command_config import CommandConfig
from hydractl.settings import Setting, required

LIST, SHOW = "list", "show"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig(CommandConfig):
    """Options of `data`."""

    words: tuple[str, ...] = required(
        Setting(
            "`list` lists all data sets; `show NAME...` shows all details of some.",
            positional=True,
            metavar="ACTION [NAME...]",
            suggestions=(LIST, SHOW, *PRESETS),
            shows_default=False,
        )
    )

    def __post_init__(self) -> None:
        if self.action not in {LIST, SHOW}:
            suggestion = f"`hydractl data {SHOW} {self.action}`" if self.action in PRESETS else None
            near = did_you_mean(self.action, (LIST, SHOW))
            raise UsageError(
                f"`{self.action}`: expected `{LIST}` or `{SHOW} NAME...`", hint=suggestion or near
            )
        if self.action == LIST and self.names:
            raise UsageError(
                f"`{LIST} {self.names[0]}`: `{LIST}` takes no name",
                hint=f"`hydractl data {SHOW} {self.names[0]}` shows one data set",
            )
        if self.action == SHOW and not self.names:
            raise UsageError(
                f"`{SHOW}` needs the name of a data set", hint="`hydractl data list` lists the names"
            )
        for name in self.names:
            of_name(name, reference=name)

    @property
    def action(self) -> str:
        """`list` or `show`."""
        return self.words[0]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the data sets to show."""
        return self.words[1:]


IN_FOLDER = f"{OPENOOD}=DIR"
"""Key of references to the data sets of OpenOOD, with a placeholder for their folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """A part of a data set, or an OOD set, with its reference.

    Attributes:
        name: Name of the part, or name of the OOD set in tables.
        typed: Reference as typed.
        read: Full reference after parsing.
        samples: Number of samples; None if unknown.
    """

    name: str
    typed: str
    read: str
    samples: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownDataset:
    """A named data set.

    Attributes:
        name: Name after `preset:`.
        holds: `images` or `texts`.
        about: Description in a few words.
        classes: Number of classes; None without labels.
        samples: Number of samples of the part `test`.
        licence: Licence on the Hub.
        home: Page about the data set.
        note: Advice for users, or None.
        zero_shot: Whether the paper evaluates zero-shot classification on this data set.
        parts: Parts from the Hub, then parts from OpenOOD's lists.
        outside: OOD sets by role.
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
    """Result of `data`.

    Attributes:
        sets: The data sets.
        briefly: Whether data sets are only listed.
        paths: Written files: always empty.
    """

    sets: tuple[KnownDataset, ...]
    briefly: bool
    paths: tuple[Path, ...] = ()


@stage
def run_data(config: DataConfig) -> DataReport:
    """Describe the named data sets, or all data sets if no name is given."""
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
                _data(name, f"{reference}::{SPLIT}={name},{IN_FOLDER}", listed.samples)
                for name, listed in preset.listed.items()
            ),
        ),
        outside={
            role: tuple(_outside(reference, ood_set) for ood_set in preset.outside if ood_set.role == role)
            for role in dict.fromkeys(ood_set.role for ood_set in preset.outside)
        },
    )


def _outside(reference: str, ood_set: Outside) -> Data:
    set_reference = f"{reference}/{ood_set.name}"
    if ood_set.preset is not None:
        return _data(ood_set.name, set_reference, PRESETS[ood_set.preset].parts[ood_set.part].samples)
    if ood_set.listed is None:
        raise ValueError(f"{set_reference} has no location")
    return _data(ood_set.name, f"{set_reference}::{IN_FOLDER}", ood_set.listed.samples)


def _data(name: str, reference: str, samples: int | None) -> Data:
    return Data(name=name, typed=reference, read=str(DataRef.parse(reference)), samples=samples)
