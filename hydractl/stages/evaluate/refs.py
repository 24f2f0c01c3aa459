"""What `eval` measures, as written on the command line: `NAME=DATA` and `NAME=MODEL[,MODEL...]`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from hydractl.data.names import continues, split_keys
from hydractl.data.reference import DataRef, SourceKind
from hydractl.errors import UsageError
from hydractl.manifest.shift_groups import ID_NAME
from hydractl.messages import quoted
from hydractl.metrics.registry import FIT, TEMPERATURE, VAL
from hydractl.model_source import named, split_options, unclosed
from hydractl.settings import Role, Setting
from hydractl.stages.evaluate.baselines.base import BaselineOptions
from hydractl.stages.evaluate.baselines.registry import BASELINES, is_baseline, is_of_several, parse_baseline
from hydractl.stages.shared.command_config import NamedInputs

# `=` and `,` part names from references, `:` marks one, brackets belong to conditions, `/` parts tensor names.
NAME = re.compile(r"[^=,:/\[\]\s](?:[^=,:/\[\]]*[^=,:/\[\]\s])?")
OPTION = re.compile(r"[\w-]+=")
RESERVED = (ID_NAME, "near", "far", "all", TEMPERATURE, FIT, VAL)
WEIGHTS_SUFFIXES = {".st", ".safetensors"}


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedData(NamedInputs):
    """An OOD data set and what tables call it."""

    name: str
    ref: DataRef

    def __post_init__(self) -> None:
        check_name(self.name)
        if self.name.casefold() in RESERVED:
            raise UsageError(
                f"an OOD data set cannot be called `{self.name}`",
                hint=f"{quoted(RESERVED)} are reserved names in a report",
            )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what names one data set, as `parse_all` does.

        Raises:
            UsageError: As there, or if it names several.
        """
        name, reference = _split_name(text)
        ref = DataRef.parse(reference)
        ((preset_name, _),) = DataRef.parse_all(reference)
        return cls(name=name or preset_name or _source_name(ref), ref=ref)

    @classmethod
    def parse_all(cls, text: str) -> tuple[Self, ...]:
        """Read `NAME=DATA`, or a bare DATA named after its source; of a preset's sets each with its name.

        Raises:
            UsageError: If the name or the reference is malformed, or one name is for several sets.
        """
        name, reference = _split_name(text)
        sets = DataRef.parse_all(reference)
        if name is not None and len(sets) > 1:
            raise UsageError(
                f"`{text}`: one name stands for {len(sets)} data sets",
                hint=f"leave out the name: the sets of `{reference}` have their own",
            )
        return tuple(cls(name=name or preset_name or _source_name(ref), ref=ref) for preset_name, ref in sets)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedModels(NamedInputs):
    """One row of the table: a model, or several that answer together.

    Attributes:
        name: What tables call it.
        models: References of models.
        rivals: What is made of each before it answers, of several that one thing is made of the same; empty where each answers as
            it is.
        typed: All of that as it was written; empty where it was not.
    """

    name: str
    models: tuple[str, ...]
    rivals: tuple[BaselineOptions | None, ...] = ()
    typed: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        check_name(self.name)
        if not self.models or not all(self.models):
            raise UsageError(
                f"`{self.name}`: an empty model reference",
                hint="for example `'Deep ensemble=a.st,b.st,c.st'`",
            )
        refused_kinds = next(
            (rival for rival in self.rivals if rival is not None and rival.REFUSED_AS_MEMBER), None
        )
        if len(self.models) > 1 and refused_kinds is not None:
            raise UsageError(
                f"`{self.name}`: `{refused_kinds.KIND}:` {refused_kinds.REFUSED_AS_MEMBER}",
                hint="add it as a separate row",
            )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `NAME=MODEL[,MODEL...]`, or bare models named after the first.

        Raises:
            UsageError: If the name or a reference is malformed.
        """
        name, row = _split_name(text)
        parsed = [parse_baseline(ref) if is_baseline(ref) else (ref, None) for ref in _split_models(row)]
        checkpoints = [
            (model, rival)
            for refs, rival in parsed
            for model in (refs.split(",") if rival is not None and rival.SEVERAL else [refs])
        ]
        models, rivals = tuple(zip(*checkpoints, strict=True))
        if name is None:
            name = model_name(models[0]) + ("" if rivals[0] is None else f" {rivals[0].KIND}")
        return cls(name=name, models=models, rivals=rivals if any(rivals) else (), typed=row)

    def each(self) -> Iterator[tuple[str, BaselineOptions | None]]:
        """Yield every model with what is made of it."""
        return zip(self.models, self.rivals or (None,) * len(self.models), strict=True)


OOD_SETS = Setting(
    "Near OOD data.",
    parse=NamedData.parse_all,
    repeated=True,
    metavar="NAME=DATA",
    role=Role.DATA,
)
ROWS = Setting(
    "Add a row, as in `eval --compare`.",
    parse=NamedModels.parse,
    repeated=True,
    metavar="NAME=MODEL[,MODEL...]",
    suggestions=tuple(f"{kind}:" for kind in BASELINES),
    role=Role.MODEL,
)


def model_name(reference: str) -> str:
    """Return what tables call a model without a name of its own: its file's name without suffix.

    Raises:
        UsageError: If it has none, as the root of the file system.
    """
    if reference == "-":
        return "stdin"
    last = named(Path(reference.removeprefix("arch:").partition("::")[0]))
    if not last.name:
        raise UsageError(
            f"`{reference}`: needs a name for the tables",
            hint="use `--name NAME` for MODEL and `NAME=...` for other rows",
        )
    return last.stem if last.suffix in WEIGHTS_SUFFIXES else last.name


def check_name(name: str) -> None:
    """Refuse a name that cannot stand in options, tables and files.

    Raises:
        UsageError: If it is empty, begins or ends blank, or holds one of `= , : / [ ]`.
    """
    if not NAME.fullmatch(name):
        raise UsageError(
            f"`{name}` is not a valid name: it begins or ends with a space, or contains one of `= , : / [ ]`"
            if name
            else "a name is empty",
            hint="choose another: use `--name NAME` for MODEL and `NAME=...` for other rows",
        )


def check_distinct(names: Sequence[str], *, kind: str, option: str) -> None:
    """Refuse two rows or data sets of one name.

    Raises:
        UsageError: Naming it.
    """
    for name in names:
        if names.count(name) > 1:
            raise UsageError(
                f"{names.count(name)} {kind} have the name `{name}`",
                hint=f"give each its own name: `{option} NAME=...`",
            )


def check_rivals(model: str, compared: Sequence[NamedModels], fitted: Sequence[str]) -> None:
    """Refuse to make something of MODEL, and of any model beside scores that are fitted on models' features.

    Raises:
        UsageError: If that is asked for.
    """
    if is_baseline(model):
        raise UsageError(
            f"`{model}`: MODEL must be a model, not a baseline",
            hint=f"add it as another row: `--compare NAME={model}`",
        )
    rival_rows = [row.name for row in compared if any(row.rivals)]
    if rival_rows and fitted:
        raise UsageError(
            f"`--ood-score {fitted[0]}`: feature-based scores are not available for the baseline `{rival_rows[0]}`",
            hint="leave that row out, or measure it in a separate report with a logit-based score",
        )


def _split_name(text: str) -> tuple[str | None, str]:
    """Split at the first `=`, unless what stands before it is the beginning of a reference."""
    name, equals, reference = text.partition("=")
    if not equals or ":" in name or "/" in name:
        return None, text
    return name, reference


def _split_models(text: str) -> tuple[str, ...]:
    """Split at commas, except at those between the models or the options of a reference that has some."""
    models: list[str] = []
    for part in text.split(","):
        last, has_options, options = models[-1].partition("::") if models else ("", "", "")
        arch = has_options and last.startswith("arch:")
        takes_options = has_options and (arch or is_baseline(last))
        joins = models and not has_options and is_of_several(last) and not is_baseline(part)
        goes_on = arch and unclosed(split_options(options)[-1])
        if joins or goes_on or (takes_options and (OPTION.match(part) or _continues(options, part))):
            models[-1] += f",{part}"
        else:
            models.append(part)
    return tuple(models)


def _continues(options: str, part: str) -> bool:
    """Return whether a part renames one more class of the data that the last option names."""
    return continues(split_keys(options.rpartition("::")[2])[-1], part)


def _source_name(ref: DataRef) -> str:
    if ref.kind is SourceKind.HUB:
        return ref.repo_id.rpartition("/")[2]
    path = Path(ref.source)
    return path.stem if ref.kind is SourceKind.FILE else path.resolve().name
