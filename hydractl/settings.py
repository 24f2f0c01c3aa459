"""Settings: what a user may set, each declared once, as a field of a frozen dataclass with its help, range and choices; their parsing.

Options of commands, help, completions and validation follow from the declaration. Importing this module does not load torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import MISSING, dataclass, field, fields
from enum import Enum, auto
from functools import cache
from math import inf, isfinite
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeAlias, TypeVar

from hydractl.errors import UsageError
from hydractl.messages import did_you_mean, exactly
from hydractl.plugins import load, plugins

C = TypeVar("C")
P = ParamSpec("P")
LARGEST_SEED = 2**63 - 1  # what torch and numpy can begin with
PLACEHOLDERS = ("{i}", "{name}")
"""Placeholders in output names: for a number, and for the name of an input."""
KEY = "setting"
"""Key of a field's metadata that holds its declaration."""


class Role(Enum):
    """What a setting's value is to the command's output."""

    SHAPES = auto()  # its value decides what is written
    EXECUTION = auto()  # it decides where or how fast, not what
    MODEL = auto()  # names models that are read
    DATA = auto()  # names data that are read
    FILE = auto()  # names files that are read, each an input of the lineage
    CONTENT = auto()  # a text, or the name of a file or folder that says it
    OUTPUT = auto()  # names what is written


@dataclass(frozen=True, slots=True)
class Constraint:
    """Another setting that one setting needs or excludes.

    Attributes:
        field_name: Field or property of the configuration, or a function of the configuration that returns whether the constraint
            is met. A dot leads into a nested configuration.
        values: Values of the field, or of its items, that meet the constraint. If empty, any value that is set meets it.
        for_values: Values of the first setting to which the constraint applies, the default included. If empty, all but the default.
        option: Field that messages name if `field_name` is a property.
        why: Reason for the message.
        message: The whole message; in it and in its hint `{config.NAME}` is replaced by a value.
        hint: What to type instead. By default: add or leave out one of the two settings; none with a `message`.
    """

    field_name: str | Callable[[Any], object]
    values: Sequence[object] = ()
    for_values: Sequence[object] = ()
    option: str | None = None
    why: str | None = None
    message: str = ""
    hint: str | None = None

    def is_met(self, config: object) -> bool:
        """Return whether a configuration holds the other setting, with one of the values."""
        getter = attrgetter(self.field_name) if isinstance(self.field_name, str) else self.field_name
        current = getter(config)
        if self.values:
            return _includes(current, self.values)
        return current is not None and current is not False and current != ()

    def refusal(self, config: object, name: str, relation: str) -> UsageError:
        """Return what a user is told of a field `name` for which it is violated."""
        if self.message:
            message, hint = (text.format(config=config) for text in (self.message, self.hint or ""))
            return UsageError(message, hint=hint or None)
        option_text = f"`{_as_typed(config, name)}`"
        subject = f"`{_as_typed(config, name, getattr(config, name))}`" if self.for_values else option_text
        other_field = self.option or str(self.field_name)
        current = f"`{_as_typed(config, other_field, attrgetter(other_field)(config))}`"
        other_text = f"`{_as_typed(config, other_field, *self.values[:1])}`"
        example = self.values[:1] or (_setting_of(config, other_field).example,)
        hint = f"add `{_as_typed(config, other_field, *example)}`, or leave {option_text} out"
        if relation == "excludes":
            second_text = current if self.values else other_text
            message, hint = f"{subject} and {second_text} exclude each other", "leave one of them out"
        elif relation == "needs":
            message = f"{subject} needs {other_text}"
        elif self.option is not None or len(self.values) > 1:
            message, hint = f"{subject} has no effect with {current}", f"leave {option_text} out"
        else:
            message = f"{subject} has no effect without {other_text}"
        return UsageError(message + (f": {self.why}" if self.why else ""), hint=self.hint or hint)


Constraints: TypeAlias = str | Constraint | tuple[str | Constraint, ...]
"""Other settings that satisfy the constraint; a string names a field that may have any value."""


@dataclass(frozen=True, slots=True)
class Setting:
    """How one setting is explained, typed and checked; `required`, `by_default`, `setting` or `flag` makes a field of it.

    Attributes:
        help: What its option says.
        metavar: What stands for its value there; None for the name of its type.
        panel: The group of options that it is shown in.
        choices: What it, or each item of it, may be; any where empty.
        suggestions: What shells offer for it where it has no choices.
        low: The least value.
        high: The greatest one.
        above: What it must exceed.
        below: What it must stay below.
        finite: Whether the message about `above` adds that it must be finite.
        range_hint: What to type instead of a number that is out of range.
        shows_range: Whether the help shows `low` and `high`, and the parser of the command line refuses what is outside.
        parse: Reads the text that was typed; None where the field's type says how.
        repeated: Whether what is parsed may be given several times; one text may be parsed to a tuple of several.
        positional: Whether it is an argument without a name.
        option_names: The option's names, of which messages use the first; by default the field's with dashes.
        shows_default: Whether the help shows a default.
        after: The option that it follows in the help; None where it follows the field before it.
        check_path: Of an output: refuses a name that does not fit what is written there, told the option and the path.
        role: What its value is to the output.
        placeholders: Of an output: what may stand in its name for a part that differs from file to file.
        needs: What must be set too.
        only_with: Without what it has no effect.
        excludes: What must not be set too.
    """

    help: str
    metavar: str | None = None
    panel: str | None = None
    choices: Sequence[str] = ()
    suggestions: Sequence[str] = ()
    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None
    finite: bool = False
    range_hint: str | None = None
    shows_range: bool = True
    parse: Callable[[str], object] | None = None
    repeated: bool = False
    positional: bool = False
    option_names: tuple[str, ...] = ()
    shows_default: bool = True
    after: str | None = None
    check_path: Callable[[str, Path], None] | None = None
    role: Role = Role.SHAPES
    placeholders: tuple[str, ...] = ()
    needs: Constraints = ()
    only_with: Constraints = ()
    excludes: Constraints = ()

    def read(self, command_value: object) -> object:
        """Return the field's value of what a command line holds.

        Raises:
            UsageError: If `parse` refuses it.
        """
        if isinstance(command_value, list):
            return tuple(
                element
                for part in map(self.read, command_value)
                for element in (part if isinstance(part, tuple) else (part,))
            )
        if self.parse is not None and isinstance(command_value, str):
            return self.parse(command_value)
        # the choice itself, which may be of an enumeration; another text is refused by `check`
        return next((choice for choice in self.choices if choice == command_value), command_value)

    def typed(self, name: str, kind: str, value: Any) -> Any:  # noqa: ANN401 - of any field
        """Return a value in the type of its field, of annotation `kind`: lists as tuples, texts parsed as on the command line."""
        if kind.startswith("tuple[") and value is not None:
            read = self.read(value) if isinstance(value, str) else value
            items = read if isinstance(read, list | tuple) else (read,)
            parts = [(item, self.typed(name, kind.removeprefix("tuple["), item)) for item in items]
            # a text may stand for several items
            groups = (p if isinstance(item, str) and isinstance(p, tuple) else (p,) for item, p in parts)
            return tuple(x for group in groups for x in group)
        types = {*re.findall(r"\w+", kind)}
        if isinstance(value, Path) and "Path" not in types:
            value = str(value)
        if not isinstance(value, str) or types & {"str", "Literal"}:
            return value
        if self.parse is None and types & {"int", "float", "bool"}:
            raise UsageError(f"`{self.option(name)} {value}`: is a text, not a number or a truth value")
        return Path(value) if "Path" in types and self.parse is None else self.read(value)

    def check(self, name: str, value: object) -> None:
        """Raise a UsageError if the value of a field, or an item of a tuple, is not a choice or out of range."""
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, str):
                self._check_choice(name, item)
            elif isinstance(item, int | float):
                self._check_range(name, item)
            elif isinstance(item, Path):
                self._check_placeholders(name, item)
                if self.check_path is not None:
                    self.check_path(self.option(name), item)

    def option(self, name: str) -> str:
        """Return the option of a field of that name as it is typed, without that of a flag's opposite."""
        return self.option_names[0].split("/")[0] if self.option_names else long_option(name)

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
        placeholder = next((p for p in PLACEHOLDERS if p in path.name and p not in self.placeholders), None)
        if self.role is Role.OUTPUT and placeholder is not None:
            raise UsageError(
                f"`{self.option(name)} {path}`: this command writes one file, so its name must not "
                f"contain `{placeholder}`",
                hint=f"for example `{path.with_name(path.name.replace(placeholder, '0'))}`",
            )

    def _check_range(self, name: str, value: float) -> None:
        refused = f"`{self.option(name)} {exactly(value)}`: must be "
        low = -inf if self.low is None else self.low
        high, below = (inf if bound is None else bound for bound in (self.high, self.below))
        if self.above is not None and not self.above < value < inf:
            most = "" if self.high is None else f" and at most {exactly(self.high)}"
            raise UsageError(
                f"{refused}above {self.above:g}{most}{' and finite' if self.finite else ''}",
                hint=self.range_hint,
            )
        if {self.low, self.high, self.below} != {None} and not (low <= value <= high and value < below):
            bounds = {"at least": self.low, "above": self.above, "below": self.below, "at most": self.high}
            bound_texts = [f"{word} {exactly(bound)}" for word, bound in bounds.items() if bound is not None]
            between = f"between {exactly(low)} and {exactly(high)}" * (None not in {self.low, self.high})
            raise UsageError(refused + (between or " and ".join(bound_texts)), hint=self.range_hint)

    @property
    def example(self) -> str | None:
        """What stands for its value in a hint: the metavar without what may follow."""
        return (self.metavar or "").split("[::")[0] or None

    def constraints(self, relation: str) -> list[Constraint]:
        """Return the other settings that it `needs`, is `only_with` or `excludes`."""
        others = getattr(self, relation)
        return [
            Constraint(constraint) if isinstance(constraint, str) else constraint
            for constraint in (others if isinstance(others, tuple) else (others,))
        ]


def _includes(value: object, values: Sequence[object]) -> bool:
    """Return whether a value, or an item of it, is among others."""
    return any(item in values for item in (value if isinstance(value, tuple) else (value,)))


def _setting_of(config: object, name: str) -> Setting:
    """Return the declaration of a field, also of a configuration within."""
    return next(
        option.setting for option in options_of(type(config)) if option.name == name.rpartition(".")[-1]
    )


def _as_typed(config: object, name: str, *values: object) -> str:
    """Return a setting's option with values, as a command line or a reference has it."""
    setting = _setting_of(config, name)
    if any(value is False for value in values):
        return setting.option_names[0].split("/")[-1]
    option = setting.option(name.rpartition(".")[-1])
    texts = [
        ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        for value in values
        if value is not True and value is not None
    ]
    return (" " if option.startswith("-") else "=").join((option, *texts))


class Option(NamedTuple):
    """A setting by its name; `kind` is its type as it is written, `default` what holds where nothing is typed."""

    name: str
    kind: str
    setting: Setting
    default: object = None

    @classmethod
    def of(cls, config: type[Any]) -> tuple[Option, ...]:
        """Return what a dataclass declares, in order, without what fields are by default: what is absent is None."""
        kinds = {f.name: str(f.type) for f in fields(config)}
        return tuple(cls(name, kinds[name], setting) for name, setting in declared(config).items())


@dataclass(frozen=True, slots=True)
class OptionGroup:
    """How several options make one field.

    Attributes:
        make: Takes what was typed, by name, and returns the field's value.
        options: Those options.
        extra_names: Options of other fields that `make` is told of.
    """

    make: Callable[[dict[str, Any]], object]
    options: tuple[Option, ...] = ()
    extra_names: tuple[str, ...] = ()


def required(declaration: Setting | OptionGroup) -> Any:  # noqa: ANN401 - as `dataclasses.field` has it
    """Return a field so declared that has no default."""
    return field(metadata={KEY: declaration})


def by_default(value: object, declaration: Setting | OptionGroup) -> Any:  # noqa: ANN401 - as above
    """Return a field so declared; a dictionary is made anew for each configuration."""
    if isinstance(value, dict):
        return field(default_factory=value.copy, metadata={KEY: declaration})
    return field(default=value, metadata={KEY: declaration})


def _setting(declare: Callable[P, Setting]) -> Callable[Concatenate[object, P], Any]:
    return lambda default, /, *args, **declared_as: by_default(default, declare(*args, **declared_as))


setting = _setting(Setting)
"""Return a dataclass field from its default and the arguments of `Setting`."""


def flag(setting: Setting, *, on: bool = False) -> Any:  # noqa: ANN401 - as above
    """Return a field so declared that is a flag."""
    return by_default(on, setting)


def declared(config: type[Any]) -> Mapping[str, Setting]:
    """Return the declarations of a dataclass's fields by their names, in order."""
    return MappingProxyType(
        {f.name: f.metadata[KEY] for f in fields(config) if isinstance(f.metadata.get(KEY), Setting)}
    )


def check(config: object, *, may_idle: bool = False) -> None:
    """Convert values to the types of their fields, and refuse those that contradict their declarations.

    Args:
        config: The configuration.
        may_idle: Whether a setting may be given that another leaves without effect.

    Raises:
        UsageError: Naming the first.
    """
    settings, kinds = declared(type(config)), {f.name: str(f.type) for f in fields(config)}  # type: ignore[arg-type]
    for name, setting in settings.items():
        object.__setattr__(config, name, setting.typed(name, kinds[name], getattr(config, name)))
        setting.check(name, getattr(config, name))
    defaults = {f.name: f.default for f in fields(config)}  # type: ignore[arg-type]  # a dataclass, as `declared` takes it
    for relation in ("needs", "excludes") if may_idle else ("needs", "only_with", "excludes"):
        for name, constraint in violations(config, relation):
            if constraint.for_values or getattr(config, name) not in (None, defaults[name]):
                raise constraint.refusal(config, name, relation)


class CheckedSettings:
    """A base of dataclasses that refuse what contradicts their declarations as soon as they are made."""

    __slots__ = ()

    def __post_init__(self) -> None:
        check(self)


def violations(config: object, relation: str) -> Iterator[tuple[str, Constraint]]:
    """Yield each setting, given or not, of which a constraint is not met, and that constraint."""
    for name, setting in declared(type(config)).items():
        for constraint in setting.constraints(relation):
            concerned = not constraint.for_values or _includes(getattr(config, name), constraint.for_values)
            if concerned and constraint.is_met(config) == (relation == "excludes"):
                yield name, constraint


def options_of(config: type[Any]) -> tuple[Option, ...]:
    """Return every option that makes a configuration, in the order of help."""
    options: list[Option] = []
    for f in fields(config):
        declaration = f.metadata.get(KEY)
        if isinstance(declaration, Setting):
            options.append(
                Option(f.name, str(f.type), declaration, ... if f.default is MISSING else f.default)
            )
        elif isinstance(declaration, OptionGroup):
            options.extend(declaration.options)
    names = {option.name for option in options}
    # `after` of an extension may name an option of the command, which the command's own call resolves
    for option in [o for o in options if o.setting.after in names]:
        options.remove(option)
        options.insert([o.name for o in options].index(option.setting.after or "") + 1, option)
    return tuple(options)


def field_values(config: type[Any], parsed_values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a configuration's fields from the parsed values of options; fields of omitted options are left out."""
    values: dict[str, Any] = {}
    for f in fields(config):
        declaration = f.metadata.get(KEY)
        if isinstance(declaration, Setting) and f.name in parsed_values:
            values[f.name] = parsed_values[f.name]
        elif isinstance(declaration, OptionGroup):
            names = (*(o.name for o in declaration.options), *declaration.extra_names)
            values[f.name] = declaration.make(
                {name: parsed_values[name] for name in names if name in parsed_values}
            )
    return values


class Extension(CheckedSettings):
    """Base of the settings that a plugin adds to a command: frozen dataclasses whose fields all have defaults.

    A stage defines a subclass with the methods that it calls at fixed points of a run. Plugins override these methods.
    """

    __slots__ = ()

    def check_config(self, config: Any) -> None:  # noqa: ANN401 - the configuration of the extended command
        """Check the options together with those of the command.

        Raises:
            UsageError: If they contradict each other.
        """


@cache
def extension_classes(command: str) -> tuple[type[Extension], ...]:
    """Return the extensions that plugins define for a command."""
    return tuple(load(path) for plugin in plugins() if (path := plugin.extensions.get(command)))


def extension_field(command: str) -> Any:  # noqa: ANN401 - as `dataclasses.field` has it
    """Return a field of type `tuple[Extension, ...]`, which `check_extensions` completes."""
    classes = extension_classes(command)
    return by_default(
        (),
        OptionGroup(
            lambda parsed_values: tuple(kind(**field_values(kind, parsed_values)) for kind in classes),
            tuple(option for kind in classes for option in options_of(kind)),
        ),
    )


def check_extensions(config: Any) -> None:  # noqa: ANN401 - a configuration with a field `extensions`
    """Complete the extensions of a configuration by their defaults, and check them together with its other settings.

    Raises:
        UsageError: If an item is no extension of the command, or options contradict each other.
    """
    classes = extension_classes(config.COMMAND)
    given = config.extensions if isinstance(config.extensions, list | tuple) else (config.extensions,)
    for extension in given:
        if type(extension) not in classes:
            raise UsageError(
                f"`extensions`: {extension!r} is no extension of `{config.COMMAND}`",
                hint="pass a tuple of the settings that a plugin adds to the command",
            )
    by_class = {type(extension): extension for extension in given}
    extensions = tuple(by_class.get(kind) or kind() for kind in classes)
    object.__setattr__(config, "extensions", extensions)
    for extension in extensions:
        extension.check_config(config)


def long_option(name: str) -> str:
    """Return a setting's option as it is typed."""
    return f"--{name.replace('_', '-')}"


Cut: TypeAlias = Callable[[str, Iterable[str]], str]
SHORT: Mapping[str, Cut] = MappingProxyType({})
_MADE_OF: ContextVar[tuple[object, tuple[tuple[Option, object], ...]] | None] = ContextVar(
    "made_of", default=None
)


def configured(config: type[C], command_values: Mapping[str, object]) -> C:
    """Return the configuration that options make; what is None was not typed.

    Raises:
        UsageError: If a text cannot be read, or the configuration refuses itself.
    """
    option_values = tuple(
        (o, command_values[o.name]) for o in options_of(config) if command_values[o.name] is not None
    )
    parsed_values = {o.name: _read(o, value) for o, value in option_values}
    # what several options make knows its own bounds, under names that nobody typed
    for option, _ in option_values:
        option.setting.check(option.name, parsed_values[option.name])
    configuration = config(**field_values(config, parsed_values))
    _MADE_OF.set((configuration, option_values))
    return configuration


def _read(option: Option, command_value: object) -> object:
    try:
        return option.setting.read(command_value)
    except UsageError as error:
        error.hint = option.setting.hint(option.name, error.hint)
        raise


def made_of(config: object) -> tuple[tuple[Option, object], ...] | None:
    """Return the options that `configured` made a configuration of, and what was typed; None if it was not the last one made."""
    latest, options = _MADE_OF.get() or (None, None)
    return options if latest is config else None


def words(option: str, text: str) -> tuple[str, ...]:
    """Split a comma-separated list; `none` is the empty one.

    Raises:
        UsageError: If an item is empty.
    """
    words_of_list = () if text == "none" else tuple(item.strip() for item in text.split(","))
    if not all(words_of_list):
        raise UsageError(f"`{option} {text}`: an item of the list is empty")
    return words_of_list


def number(option: str, text: str) -> float:
    """Read a finite number.

    Raises:
        UsageError: If it is none.
    """
    try:
        value = float(text)
    except ValueError as error:
        raise UsageError(f"`{option}`: `{text}` is not a number") from error
    if not isfinite(value):
        raise UsageError(f"`{option}`: `{text}` is not finite")
    return value


def written(
    kind: type[C], text: str, *, where: str, called: str, example: str, long: Mapping[str, Cut] = SHORT
) -> C:
    """Return the settings that `option=value,...` says: a reference's own, each declared as a field.

    Args:
        kind: A dataclass of declared fields.
        text: What was typed; may be empty.
        where: The whole reference, for messages.
        called: What has these options, likewise.
        example: A reference that is right, for hints.
        long: Options whose value may hold commas: each with what cuts it off a text, given the names of all options.

    Raises:
        UsageError: If one is unknown, missing, given twice or out of range.
    """
    settings = {d.name: d.setting for d in Option.of(kind)}
    option_texts: dict[str, str] = {}
    while text:
        key, equals, remainder = text.partition("=")
        value = long[key](remainder, {*settings, *long}) if key in long else remainder.partition(",")[0]
        text = remainder[len(value) + 1 :]
        if not equals or not key or not value:
            raise UsageError(
                f"`{where}`: expected option=value, found `{key}{equals}`", hint=f"for example `{example}`"
            )
        if key in option_texts:
            raise UsageError(f"`{where}`: the option `{key}` appears twice")
        if key not in settings:
            hint = did_you_mean(key, settings) or (f"there are {', '.join(settings)}" if settings else None)
            raise UsageError(f"`{where}`: `{called}` has no option `{key}`", hint=hint)
        option_texts[key] = value
    for setting_field in fields(kind):  # type: ignore[arg-type]  # a dataclass, which its bound cannot say
        if setting_field.default is MISSING and setting_field.name not in option_texts:
            raise UsageError(
                f"`{where}`: `{called}` needs `{setting_field.name}=`", hint=f"for example `{example}`"
            )
    try:
        return kind(**{option: settings[option].read(value) for option, value in option_texts.items()})
    except UsageError as error:
        raise UsageError(f"`{where}`: {error.message}", hint=error.hint) from error


def whole_number(text: str) -> int:
    """Read a whole number.

    Raises:
        UsageError: If it is none.
    """
    try:
        return int(text)
    except ValueError as error:
        raise UsageError(f"`{text}` is not a whole number") from error


_UNITS = {"": 1, "B": 1} | {
    f"{letter}{kind}": base ** (i + 1)
    for i, letter in enumerate("KMGT")
    for kind, base in (("B", 1000), ("IB", 1024))
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([A-Za-z]*)")


def bytes_of(option: str, text: str) -> int:
    """Return how many bytes a size such as `2GiB`, `512MB` or `1000000` is.

    KB, MB, GB and TB are powers of 1000, KiB, MiB, GiB and TiB of 1024; upper and lower case are the same.

    Args:
        option: Where it was given, for messages.
        text: What was given.

    Raises:
        UsageError: If it is no size, or less than one byte.
    """
    match = _SIZE.fullmatch(text.strip())
    size = float(match[1]) * _UNITS.get(match[2].upper(), 0) if match else 0.0
    if not 1 <= size < 1 << 63:
        raise UsageError(
            f"`{option} {text}`: is not a memory size",
            hint="write a number and a unit, such as 512MB or 2GiB; a number without a unit means bytes",
        )
    return int(size)
