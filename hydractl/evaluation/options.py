"""What `eval` measures, as written on the command line: `NAME=DATA` and `NAME=MODEL[,MODEL...]`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, NamedTuple, Self

from hydractl.data.reference import DataRef, SourceKind, continues, split_keys
from hydractl.errors import UsageError
from hydractl.manifest.terms import ID_NAME
from hydractl.messages import quoted
from hydractl.metrics.registry import FIT, TEMPERATURE, VAL
from hydractl.model_source import named, split_options, unclosed
from hydractl.plugins import added
from hydractl.provenance.command_config import NamedInputs
from hydractl.settings import Role, Setting

# `=` and `,` part names from references, `:` marks one, brackets belong to conditions, `/` parts tensor names.
NAME = re.compile(r"[^=,:/\[\]\s](?:[^=,:/\[\]]*[^=,:/\[\]\s])?")
OPTION_NAME = re.compile(r"[\w-]+=")
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
    """One row of the table: a model, or several that answer together. Plugins define rows of models that they derive.

    Attributes:
        is_derived: Whether a plugin derives other models from these.
        name: Name in tables.
        models: References of models.
        typed: The row as it was typed; empty if it was made in Python.
    """

    is_derived: ClassVar[bool] = False
    name: str
    models: tuple[str, ...]
    typed: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        check_name(self.name)
        if not self.models or not all(self.models):
            raise UsageError(
                f"`{self.name}`: an empty model reference",
                hint="for example `'Deep ensemble=a.st,b.st,c.st'`",
            )

    @property
    def trains(self) -> bool:
        """Whether models are trained while the row is measured."""
        return False

    @staticmethod
    def parse(text: str) -> NamedModels:
        """Read `NAME=MODEL[,MODEL...]`, or bare models named after the first.

        Raises:
            UsageError: If the name or a reference is malformed.
        """
        name, row = _split_name(text)
        syntaxes: list[RowSyntax] = added("rows")
        if derived := next(filter(None, (syntax.parse(name, row) for syntax in syntaxes)), None):
            return derived
        models = split_models(row)
        return NamedModels(name=model_name(models[0]) if name is None else name, models=models, typed=row)


class RowSyntax(NamedTuple):
    """Rows that a plugin adds to `--compare`.

    Attributes:
        parse: Reads a row, given its name or None and its text; returns None for a row of plain models.
        kinds: Prefixes of references, without `:`.
        help: End of the option's help.
    """

    parse: Callable[[str | None, str], NamedModels | None]
    kinds: tuple[str, ...]
    help: str


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


def _split_name(text: str) -> tuple[str | None, str]:
    """Split at the first `=`, unless what stands before it is the beginning of a reference."""
    name, equals, reference = text.partition("=")
    if not equals or ":" in name or "/" in name:
        return None, text
    return name, reference


def split_models(text: str, belongs: Callable[[str, str], bool] = lambda *_: False) -> tuple[str, ...]:
    """Split at commas, except inside a reference: between options of an architecture, and where `belongs` says so."""
    models: list[str] = []
    for part in text.split(","):
        if models and (_is_of_arch(models[-1], part) or belongs(models[-1], part)):
            models[-1] += f",{part}"
        else:
            models.append(part)
    return tuple(models)


def _is_of_arch(reference: str, part: str) -> bool:
    last, has_options, options = reference.partition("::")
    if not (has_options and last.startswith("arch:")):
        return False
    return unclosed(split_options(options)[-1]) or continues_options(options, part)


def continues_options(options: str, part: str) -> bool:
    """Return whether a part is one more option, or renames one more class of the data that the last option names."""
    return bool(OPTION_NAME.match(part)) or continues(split_keys(options.rpartition("::")[2])[-1], part)


def _source_name(ref: DataRef) -> str:
    if ref.kind is SourceKind.HUB:
        return ref.repo_id.rpartition("/")[2]
    path = Path(ref.source)
    return path.stem if ref.kind is SourceKind.FILE else path.resolve().name
