"""Settings: what a user may set, each declared once, as a field of a frozen dataclass with its help, range and choices.

Options of commands, help, completions and validation follow from the declaration. Importing this loads no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import MISSING, dataclass, field, fields
from enum import Enum, auto
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from hydractl.errors import UsageError
from hydractl.wording import did_you_mean, exactly

C = TypeVar("C")
P = ParamSpec("P")
_MADE_OF: ContextVar[tuple[object, tuple[tuple[Declared, object], ...]] | None] = ContextVar(
    "made_of", default=None
)
LARGEST_SEED = 2**63 - 1  # what torch and numpy can begin with
PLACEHOLDERS = ("{i}", "{name}")
"""What some commands replace in the name of an output: by a number, and by the name of an input."""
KEY = "setting"
"""Where a field's metadata hold its declaration."""


class Role(Enum):
    """What a setting's value is to the command's output."""

    SHAPES = auto()
    """Its value decides what is written."""
    ASIDE = auto()
    """It decides where or how fast, not what."""
    MODEL = auto()
    """Names models that are read."""
    DATA = auto()
    """Names data that are read."""
    FILE = auto()
    """Names files that are read, each an input of the lineage."""
    CONTENT = auto()
    """A text, or the name of a file or folder that says it."""
    OUTPUT = auto()
    """Names what is written."""


@dataclass(frozen=True, slots=True)
class Setting:
    """How one setting is explained, typed and checked; `required`, `by_default`, `setting` or `flag` makes a field of it.

    Attributes:
        help: What its option says.
        metavar: What stands for its value there; None for the name of its type.
        panel: The group of options that it is shown in.
        choices: What it, or each item of it, may be; any where empty.
        low: The least value.
        high: The greatest one.
        above: What it must exceed.
        below: What it must stay below.
        finite: Whether the message about `above` adds that it must be finite.
        tells: Whether the help shows `low` and `high`, and the parser of the command line refuses what is outside.
        parse: Reads the text that was typed; None where the field's type says how.
        repeated: Whether what is parsed may be given several times; one text may be parsed to a tuple of several.
        positional: Whether it is an argument without a name.
        spelled: The option's names, of which messages use the first; by default the field's with dashes.
        shows: Whether the help shows a default.
        after: The option that it follows in the help; None where it follows the field before it.
        holds: Of an output: refuses a name that does not fit what is written there, told the option and the path.
        role: What its value is to the output.
        placeholders: Of an output: what may stand in its name for a part that differs from file to file.
    """

    help: str
    metavar: str | None = None
    panel: str | None = None
    choices: Sequence[str] = ()
    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None
    finite: bool = False
    tells: bool = True
    parse: Callable[[str], object] | None = None
    repeated: bool = False
    positional: bool = False
    spelled: tuple[str, ...] = ()
    shows: bool = True
    after: str | None = None
    holds: Callable[[str, Path], None] | None = None
    role: Role = Role.SHAPES
    placeholders: tuple[str, ...] = ()

    def read(self, typed: object) -> object:
        """Return the field's value of what a command line holds.

        Raises:
            UsageError: If `parse` refuses it.
        """
        if isinstance(typed, list):
            found = map(self.read, typed)
            return tuple(one for each in found for one in (each if isinstance(each, tuple) else (each,)))
        if self.parse is not None and isinstance(typed, str):
            return self.parse(typed)
        # the choice itself, which may be of an enumeration; another text is refused by `check`
        return next((choice for choice in self.choices if choice == typed), typed)

    def check(self, name: str, value: object) -> None:
        """Refuse a value, or an item of one, that is no choice or out of range.

        Args:
            name: The field's.
            value: What it holds; None is let through.

        Raises:
            UsageError: With what is allowed.
        """
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, str):
                self._check_choice(name, item)
            elif isinstance(item, int | float):
                self._check_range(name, item)
            elif isinstance(item, Path):
                self._check_placeholders(name, item)
                if self.holds is not None:
                    self.holds(self.option(name), item)

    def option(self, name: str) -> str:
        """Return the option of a field of that name as it is typed, without that of a flag's opposite."""
        return self.spelled[0].split("/")[0] if self.spelled else spelled(name)

    def hint(self, name: str, hint: str | None) -> str | None:
        """Return a hint for what its option was given, with the option's form where that names things and the hint does not say it."""
        if not (self.metavar or "").startswith("NAME=") or "NAME=" in (hint or ""):
            return hint
        form = f"`{self.option(name)} {self.metavar}`"
        return f"{form}: {hint}" if hint else f"as in {form}"

    def _check_choice(self, name: str, value: str) -> None:
        if self.choices and value not in self.choices:
            hint = did_you_mean(value, self.choices) or f"choose from {', '.join(self.choices)}"
            raise UsageError(f"`{self.option(name)} {value}`: unknown", hint=hint)

    def _check_placeholders(self, name: str, path: Path) -> None:
        other = next((p for p in PLACEHOLDERS if p in path.name and p not in self.placeholders), None)
        if self.role is Role.OUTPUT and other is not None:
            raise UsageError(
                f"`{self.option(name)} {path}`: `{other}` stands for nothing here: this command writes one file",
                hint=f"name it without, for example `{path.with_name(path.name.replace(other, '0'))}`",
            )

    def _check_range(self, name: str, value: float) -> None:
        refused = f"`{self.option(name)} {exactly(value)}`: must be "
        low, high, below = _or(self.low, -inf), _or(self.high, inf), _or(self.below, inf)
        if self.above is not None and not self.above < value < inf:
            most = "" if self.high is None else f" and at most {exactly(self.high)}"
            raise UsageError(f"{refused}above {self.above:g}{most}{' and finite' if self.finite else ''}")
        if {self.low, self.high, self.below} != {None} and not (low <= value <= high and value < below):
            told = {"at least": self.low, "above": self.above, "below": self.below, "at most": self.high}
            wanted = [f"{word} {exactly(bound)}" for word, bound in told.items() if bound is not None]
            between = f"between {exactly(low)} and {exactly(high)}" * (None not in {self.low, self.high})
            raise UsageError(refused + (between or " and ".join(wanted)))


def _or(bound: float | None, default: float) -> float:
    return default if bound is None else bound


class Declared(NamedTuple):
    """A setting by its name; `kind` is its type as it is written, `default` what holds where nothing is typed."""

    name: str
    kind: str
    setting: Setting
    default: object = None

    @classmethod
    def of(cls, config: type[Any]) -> tuple[Declared, ...]:
        """Return what a dataclass declares, in order, without what fields are by default: what is absent is None."""
        kinds = {f.name: str(f.type) for f in fields(config)}
        return tuple(cls(name, kinds[name], told) for name, told in declared(config).items())


@dataclass(frozen=True, slots=True)
class Composed:
    """How several options make one field.

    Attributes:
        make: Takes what was typed, by name, and returns the field's value.
        options: Those options.
        also: Options of other fields that `make` is told of.
    """

    make: Callable[[dict[str, Any]], object]
    options: tuple[Declared, ...] = ()
    also: tuple[str, ...] = ()


def required(told: Setting | Composed) -> Any:  # noqa: ANN401 - as `dataclasses.field` has it
    """Return a field so declared that has no default."""
    return field(metadata={KEY: told})


def by_default(value: object, told: Setting | Composed) -> Any:  # noqa: ANN401 - as above
    """Return a field so declared; a dictionary is made anew for each configuration."""
    if isinstance(value, dict):
        return field(default_factory=value.copy, metadata={KEY: told})
    return field(default=value, metadata={KEY: told})


def _setting(declare: Callable[P, Setting]) -> Callable[Concatenate[object, P], Any]:
    def made(default: object, /, *args: P.args, **told: P.kwargs) -> Any:  # noqa: ANN401 - as above
        return by_default(default, declare(*args, **told))

    return made


setting = _setting(Setting)
"""Returns a field by its default and what `Setting` takes."""


def flag(told: Setting, *, on: bool = False) -> Any:  # noqa: ANN401 - as above
    """Return a field so declared that is a flag."""
    return by_default(on, told)


def declared(config: type[Any]) -> Mapping[str, Setting]:
    """Return the declarations of a dataclass's fields by their names, in order."""
    told = {f.name: f.metadata.get(KEY) for f in fields(config)}
    return MappingProxyType({name: found for name, found in told.items() if isinstance(found, Setting)})


def check(config: object) -> None:
    """Refuse values that contradict their declarations.

    Raises:
        UsageError: Naming the first.
    """
    for name, setting in declared(type(config)).items():
        setting.check(name, getattr(config, name))


def options_of(config: type[Any]) -> tuple[Declared, ...]:
    """Return every option that makes a configuration, in the order of help."""
    found: list[Declared] = []
    for f in fields(config):
        told = f.metadata.get(KEY)
        if isinstance(told, Setting):
            found.append(Declared(f.name, str(f.type), told, ... if f.default is MISSING else f.default))
        elif isinstance(told, Composed):
            found.extend(told.options)
    for option in [o for o in found if o.setting.after]:
        found.remove(option)
        found.insert([o.name for o in found].index(option.setting.after or "") + 1, option)
    return tuple(found)


def configured(config: type[C], typed: Mapping[str, object]) -> C:
    """Return the configuration that options make; what is None was not typed.

    Raises:
        UsageError: If a text cannot be read, or the configuration refuses itself.
    """
    values: dict[str, Any] = {}
    kind: type[Any] = config
    asked = tuple((o, typed[o.name]) for o in options_of(config) if typed[o.name] is not None)
    given = {o.name: _read(o, value) for o, value in asked}
    for option, _ in asked:  # what several options make knows its own bounds, under names that nobody typed
        option.setting.check(option.name, given[option.name])
    for f in fields(kind):
        told = f.metadata.get(KEY)
        if isinstance(told, Setting) and f.name in given:
            values[f.name] = given[f.name]
        elif isinstance(told, Composed):
            names = (*(o.name for o in told.options), *told.also)
            values[f.name] = told.make({name: given[name] for name in names if name in given})
    made = config(**values)
    _MADE_OF.set((made, asked))
    return made


def _read(option: Declared, typed: object) -> object:
    try:
        return option.setting.read(typed)
    except UsageError as error:
        error.hint = option.setting.hint(option.name, error.hint)
        raise


def made_of(config: object) -> tuple[tuple[Declared, object], ...] | None:
    """Return the options that `configured` made a configuration of, and what was typed; None if it was not the last one made."""
    latest, options = _MADE_OF.get() or (None, None)
    return options if latest is config else None


def spelled(name: str) -> str:
    """Return a setting's option as it is typed."""
    return f"--{name.replace('_', '-')}"
