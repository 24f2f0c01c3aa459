"""Settings of users: fields of frozen dataclasses, each with help text, range and choices, and their parsing.

Options of commands, help, completions and validation are derived from the fields. Importing this module does
not load torch.
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
from hydractl.messages import did_you_mean, number_text
from hydractl.plugins import load, plugins

C = TypeVar("C")
P = ParamSpec("P")
LARGEST_SEED = 2**63 - 1
"""Largest seed that both torch and numpy accept."""
PLACEHOLDERS = ("{i}", "{name}")
"""Placeholders in output names: for a number, and for the name of an input."""
KEY = "setting"
"""Key of the declaration in a field's metadata."""


class Role(Enum):
    """Role of a setting for the output of the command."""

    SHAPES = auto()  # The value determines the content of the output.
    EXECUTION = auto()  # The value determines device or speed, not the content.
    MODEL = auto()  # Models to read.
    DATA = auto()  # Data to read.
    FILE = auto()  # Files to read. They are recorded in the provenance.
    CONTENT = auto()  # A text, or a file or folder with the text.
    OUTPUT = auto()  # Outputs.


@dataclass(frozen=True, slots=True)
class Constraint:
    """A dependency between two settings: the first needs or excludes the second.

    Attributes:
        field_name: Field or property of the configuration, or a function of the configuration that returns
            whether the constraint is met. A dot leads into a nested configuration.
        values: Valid values of the field or of items of a tuple. If empty, every value except None, False and
            () is valid.
        for_values: Values of the first setting to which the constraint applies, including the default. If
            empty, all but the default.
        option: Field to name in messages if `field_name` is a property.
        why: Reason for the message.
        message: The whole message. `{config.NAME}` in message and hint is replaced by a value.
        hint: Advice. By default: add or remove a setting; no hint with a `message`.
    """

    field_name: str | Callable[[Any], object]
    values: Sequence[object] = ()
    for_values: Sequence[object] = ()
    option: str | None = None
    why: str | None = None
    message: str = ""
    hint: str | None = None

    def is_met(self, config: object) -> bool:
        """Return whether the other setting has a valid value."""
        getter = attrgetter(self.field_name) if isinstance(self.field_name, str) else self.field_name
        current = getter(config)
        if self.values:
            return _includes(current, self.values)
        return current is not None and current is not False and current != ()

    def refusal(self, config: object, name: str, relation: str) -> UsageError:
        """Return the error for a violated constraint.

        Args:
            config: The configuration.
            name: Field with the constraint.
            relation: `needs`, `only_with` or `excludes`.
        """
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
"""Settings that meet a constraint. A string is a field that may have any value."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Declaration of a setting.

    `required`, `by_default`, `setting` or `flag` turn the declaration into a field.

    Attributes:
        help: Help text of the option.
        metavar: Placeholder of the value in help; None for the name of the type.
        panel: Group of options in help.
        choices: Allowed values, or allowed items of a tuple. Empty for no restriction.
        suggestions: Completions of shells for a setting without choices.
        low: Smallest value.
        high: Largest value.
        above: Exclusive lower bound.
        below: Exclusive upper bound.
        finite: Whether the message about `above` also demands a finite value.
        range_hint: Advice for a number out of range.
        shows_range: Whether help shows `low` and `high`, and the parser of the command line checks them.
        parse: Parses the typed text. None to parse by the type of the field.
        repeated: Whether the option may be given several times. `parse` may return a tuple of several items.
        positional: Whether the setting is an argument without a name.
        option_names: Names of the option; messages use the first. By default the field name with dashes.
        shows_default: Whether help shows a default.
        after: Preceding option in help. By default the order of the fields.
        check_path: For outputs: raises if a file name does not fit, given the option and the path.
        role: Role of the value for the output.
        placeholders: For outputs: permitted placeholders in the name.
        needs: Other settings that must be set.
        only_with: Settings without which this setting has no effect.
        excludes: Other settings that must not be set.
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
        """Convert a value from the command line to the field's value.

        Raises:
            UsageError: If `parse` rejects the text.
        """
        if isinstance(command_value, list):
            return tuple(
                element
                for part in map(self.read, command_value)
                for element in (part if isinstance(part, tuple) else (part,))
            )
        if self.parse is not None and isinstance(command_value, str):
            return self.parse(command_value)
        # Returns the choice itself, possibly a member of an enumeration. `check` rejects unknown texts.
        return next((choice for choice in self.choices if choice == command_value), command_value)

    def typed(self, name: str, kind: str, value: Any) -> Any:  # noqa: ANN401 - of any field
        """Convert a value to the type of the field: lists to tuples, and texts as on the command line.

        Args:
            name: Name of the field.
            kind: Annotation of the field, as text.
            value: Value from Python code.

        Raises:
            UsageError: If a text is given for a number or a boolean, or `parse` rejects the text.
        """
        if kind.startswith("tuple[") and value is not None:
            read = self.read(value) if isinstance(value, str) else value
            items = read if isinstance(read, list | tuple) else (read,)
            parts = [(item, self.typed(name, kind.removeprefix("tuple["), item)) for item in items]
            # `parse` may return several items for a text.
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
        """Raise a UsageError if the value, or an item of a tuple, is out of range or not a choice."""
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
        """Return the option for the field `name`. For a flag, the positive name."""
        return self.option_names[0].split("/")[0] if self.option_names else long_option(name)

    def hint(self, name: str, hint: str | None) -> str | None:
        """Add the form of the option to a hint, for options with the metavar `NAME=...`."""
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
        refused = f"`{self.option(name)} {number_text(value)}`: must be "
        low = -inf if self.low is None else self.low
        high, below = (inf if bound is None else bound for bound in (self.high, self.below))
        if self.above is not None and not self.above < value < inf:
            most = "" if self.high is None else f" and at most {number_text(self.high)}"
            raise UsageError(
                f"{refused}above {self.above:g}{most}{' and finite' if self.finite else ''}",
                hint=self.range_hint,
            )
        if {self.low, self.high, self.below} != {None} and not (low <= value <= high and value < below):
            bounds = {"at least": self.low, "above": self.above, "below": self.below, "at most": self.high}
            bound_texts = [
                f"{word} {number_text(bound)}" for word, bound in bounds.items() if bound is not None
            ]
            between = f"between {number_text(low)} and {number_text(high)}" * (
                None not in {self.low, self.high}
            )
            raise UsageError(refused + (between or " and ".join(bound_texts)), hint=self.range_hint)

    @property
    def example(self) -> str | None:
        """Example value for hints: the metavar without optional parts; None without a metavar."""
        return (self.metavar or "").split("[::")[0] or None

    def constraints(self, relation: str) -> list[Constraint]:
        """Return the constraints in `needs`, `only_with` or `excludes`."""
        others = getattr(self, relation)
        return [
            Constraint(constraint) if isinstance(constraint, str) else constraint
            for constraint in (others if isinstance(others, tuple) else (others,))
        ]


def _includes(value: object, values: Sequence[object]) -> bool:
    """Return whether a value, or an item of a tuple, is in `values`."""
    return any(item in values for item in (value if isinstance(value, tuple) else (value,)))


def _setting_of(config: object, name: str) -> Setting:
    """Return the declaration of a field, possibly of a nested configuration."""
    return next(
        option.setting for option in options_of(type(config)) if option.name == name.rpartition(".")[-1]
    )


def _as_typed(config: object, name: str, *values: object) -> str:
    """Return a setting with values as typed: `--option value`, or `option=value` in a reference."""
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
    """A setting with name and type.

    Attributes:
        name: Name of the field.
        kind: Annotation of the field, as text.
        setting: Declaration.
        default: Value if nothing is typed; `...` if the option is required.
    """

    name: str
    kind: str
    setting: Setting
    default: object = None

    @classmethod
    def of(cls, config: type[Any]) -> tuple[Option, ...]:
        """Return the declared fields of a dataclass, in order.

        The default is None, the value of an absent option.
        """
        kinds = {f.name: str(f.type) for f in fields(config)}
        return tuple(cls(name, kinds[name], setting) for name, setting in declared(config).items())


@dataclass(frozen=True, slots=True)
class OptionGroup:
    """Several options for the value of a single field.

    Attributes:
        make: Function from the typed values by name to the value of the field.
        options: Options of the group.
        extra_names: Additional arguments of `make`: options of other fields.
    """

    make: Callable[[dict[str, Any]], object]
    options: tuple[Option, ...] = ()
    extra_names: tuple[str, ...] = ()


def required(declaration: Setting | OptionGroup) -> Any:  # noqa: ANN401 - as `dataclasses.field` has it
    """Return a dataclass field without default."""
    return field(metadata={KEY: declaration})


def by_default(value: object, declaration: Setting | OptionGroup) -> Any:  # noqa: ANN401 - as above
    """Return a dataclass field with a default. A dictionary is copied for each instance."""
    if isinstance(value, dict):
        return field(default_factory=value.copy, metadata={KEY: declaration})
    return field(default=value, metadata={KEY: declaration})


def _setting(declare: Callable[P, Setting]) -> Callable[Concatenate[object, P], Any]:
    return lambda default, /, *args, **declared_as: by_default(default, declare(*args, **declared_as))


setting = _setting(Setting)
"""Return a dataclass field from its default and the arguments of `Setting`."""


def flag(setting: Setting, *, on: bool = False) -> Any:  # noqa: ANN401 - as above
    """Return a dataclass field for a flag, off unless `on`."""
    return by_default(on, setting)


def declared(config: type[Any]) -> Mapping[str, Setting]:
    """Return the declarations of a dataclass by field name, in order.

    Fields with an `OptionGroup` are left out.
    """
    return MappingProxyType(
        {f.name: f.metadata[KEY] for f in fields(config) if isinstance(f.metadata.get(KEY), Setting)}
    )


def check(config: object, *, may_idle: bool = False) -> None:
    """Convert values to the types of the fields, and raise if values contradict the declarations.

    Args:
        config: The configuration, changed in place.
        may_idle: Whether settings without effect are permitted.

    Raises:
        UsageError: For the first invalid value.
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
    """Base of dataclasses with a check of the declarations on construction."""

    __slots__ = ()

    def __post_init__(self) -> None:
        check(self)


def violations(config: object, relation: str) -> Iterator[tuple[str, Constraint]]:
    """Yield each violated constraint with the name of its field, even for a default value.

    Args:
        config: The configuration.
        relation: `needs`, `only_with` or `excludes`.
    """
    for name, setting in declared(type(config)).items():
        for constraint in setting.constraints(relation):
            concerned = not constraint.for_values or _includes(getattr(config, name), constraint.for_values)
            if concerned and constraint.is_met(config) == (relation == "excludes"):
                yield name, constraint


def options_of(config: type[Any]) -> tuple[Option, ...]:
    """Return all options of a configuration, in the order of help."""
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
    # `after` of an extension may name an option of the command. The call for the command's own configuration
    # resolves it.
    for option in [o for o in options if o.setting.after in names]:
        options.remove(option)
        options.insert([o.name for o in options].index(option.setting.after or "") + 1, option)
    return tuple(options)


def field_values(config: type[Any], parsed_values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a configuration's fields, from the parsed values of options.

    Fields of omitted options are left out, but a field with an `OptionGroup` always has a value.
    """
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
    """Base of the settings of a plugin for a command: frozen dataclasses with defaults for all fields.

    A stage defines a subclass with methods for fixed points of a run. Plugins override these methods.
    """

    __slots__ = ()

    def check_config(self, config: Any) -> None:  # noqa: ANN401 - the configuration of the extended command
        """Check the options together with the options of the command.

        Raises:
            UsageError: If options contradict each other.
        """


@cache
def extension_classes(command: str) -> tuple[type[Extension], ...]:
    """Return the extensions of plugins for a command."""
    return tuple(load(path) for plugin in plugins() if (path := plugin.extensions.get(command)))


def extension_field(command: str) -> Any:  # noqa: ANN401 - as `dataclasses.field` has it
    """Return a field of type `tuple[Extension, ...]`. `check_extensions` adds missing extensions."""
    classes = extension_classes(command)
    return by_default(
        (),
        OptionGroup(
            lambda parsed_values: tuple(kind(**field_values(kind, parsed_values)) for kind in classes),
            tuple(option for kind in classes for option in options_of(kind)),
        ),
    )


def check_extensions(config: Any) -> None:  # noqa: ANN401 - a configuration with a field `extensions`
    """Add missing extensions to a configuration, with default settings, and check all extensions.

    Raises:
        UsageError: If an item is not an extension of the command, or options contradict each other.
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


def details(text: str) -> str:
    """Mark a part of a help text that `--help` leaves out and `--help --all` shows."""
    return f"\v{text}\v"


def long_option(name: str) -> str:
    """Return the option of a field: `--` and the name with dashes."""
    return f"--{name.replace('_', '-')}"


Cut: TypeAlias = Callable[[str, Iterable[str]], str]
SHORT: Mapping[str, Cut] = MappingProxyType({})
_MADE_OF: ContextVar[tuple[object, tuple[tuple[Option, object], ...]] | None] = ContextVar(
    "made_of", default=None
)


def configured(config: type[C], command_values: Mapping[str, object]) -> C:
    """Return the configuration for the values of options.

    Args:
        config: Class of the configuration.
        command_values: Value of every option of the class by name; None for options that were not typed.

    Raises:
        UsageError: If a text cannot be parsed, or the configuration is invalid.
    """
    option_values = tuple(
        (o, command_values[o.name]) for o in options_of(config) if command_values[o.name] is not None
    )
    parsed_values = {o.name: _read(o, value) for o, value in option_values}
    # Check the options first: an object of several options would report its own field names, not the typed
    # options.
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


def typed_options(config: object) -> tuple[tuple[Option, object], ...] | None:
    """Return the typed options of a configuration, with values.

    Other configurations than the last result of `configured` give None.
    """
    latest, options = _MADE_OF.get() or (None, None)
    return options if latest is config else None


def words(option: str, text: str) -> tuple[str, ...]:
    """Split a comma-separated list. `none` is the empty list.

    Raises:
        UsageError: If an item is empty.
    """
    words_of_list = () if text == "none" else tuple(item.strip() for item in text.split(","))
    if not all(words_of_list):
        raise UsageError(f"`{option} {text}`: an item of the list is empty")
    return words_of_list


def number(option: str, text: str) -> float:
    """Parse a finite number.

    Raises:
        UsageError: If the text is not a finite number.
    """
    try:
        value = float(text)
    except ValueError as error:
        raise UsageError(f"`{option}`: `{text}` is not a number") from error
    if not isfinite(value):
        raise UsageError(f"`{option}`: `{text}` is not finite")
    return value


def parse_reference_options(
    kind: type[C], text: str, *, place: str, called: str, example: str, long: Mapping[str, Cut] = SHORT
) -> C:
    """Parse the settings `option=value,...` of a reference.

    Args:
        kind: Dataclass of declared fields.
        text: The settings, possibly empty.
        place: The whole reference, for messages.
        called: Owner of the options, for messages.
        example: A valid reference, for hints.
        long: Options whose value may contain commas. Each has a function to cut the value off a text, given
            the names of all options.

    Raises:
        UsageError: If an option is unknown, missing, given twice or out of range.
    """
    settings = {d.name: d.setting for d in Option.of(kind)}
    option_texts: dict[str, str] = {}
    while text:
        key, equals, remainder = text.partition("=")
        value = long[key](remainder, {*settings, *long}) if key in long else remainder.partition(",")[0]
        text = remainder[len(value) + 1 :]
        if not equals or not key or not value:
            raise UsageError(
                f"`{place}`: expected option=value, found `{key}{equals}`", hint=f"for example `{example}`"
            )
        if key in option_texts:
            raise UsageError(f"`{place}`: the option `{key}` appears twice")
        if key not in settings:
            hint = did_you_mean(key, settings) or (f"there are {', '.join(settings)}" if settings else None)
            raise UsageError(f"`{place}`: `{called}` has no option `{key}`", hint=hint)
        option_texts[key] = value
    for setting_field in fields(kind):  # type: ignore[arg-type]  # a dataclass, which its bound cannot say
        if setting_field.default is MISSING and setting_field.name not in option_texts:
            raise UsageError(
                f"`{place}`: `{called}` needs `{setting_field.name}=`", hint=f"for example `{example}`"
            )
    try:
        return kind(**{option: settings[option].read(value) for option, value in option_texts.items()})
    except UsageError as error:
        raise UsageError(f"`{place}`: {error.message}", hint=error.hint) from error


def whole_number(text: str) -> int:
    """Parse an integer.

    Raises:
        UsageError: If the text is not an integer.
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
    """Parse a size such as `2GiB`, `512MB` or `1000000` and return the bytes.

    KB, MB, GB and TB are powers of 1000; KiB, MiB, GiB and TiB are powers of 1024. Case is ignored.

    Args:
        option: Name of the option, for messages.
        text: The size.

    Raises:
        UsageError: If the text is not a size, or the size is 0.
    """
    match = _SIZE.fullmatch(text.strip())
    size = float(match[1]) * _UNITS.get(match[2].upper(), 0) if match else 0.0
    if not 1 <= size < 1 << 63:
        raise UsageError(
            f"`{option} {text}`: is not a memory size",
            hint="write a number and a unit, such as 512MB or 2GiB; a number without a unit means bytes",
        )
    return int(size)
