"""Pipeline files: stages and parameters in TOML, and the resulting command lines.

A file computes nothing: `{name}` is the value of a parameter, `{i}` the number of a repetition, and `@STAGE`
the outputs of an earlier stage. `{{name}}` and `@@STAGE` are the texts `{name}` and `@STAGE`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard, cast

import typer

from hydractl.cli.command import CONFIGURATIONS
from hydractl.cli.refusals import usage_error
from hydractl.errors import HydraError, InputError, UsageError
from hydractl.messages import did_you_mean, quoted

if TYPE_CHECKING:
    from typer.core import TyperCommand, TyperGroup

    from hydractl.prediction.class_names import Naming


def check_texts(option: Any, value: object, texts: Sequence[str], place: str) -> None:  # noqa: ANN401 - of a private class of typer's
    """Raise for values that would have another meaning in a command line than in the file.

    Args:
        option: Option or argument of the command.
        value: Value in the file.
        texts: The value as texts of the command line.
        place: Place of the value in messages.

    Raises:
        InputError: If the number of values is wrong, a boolean is given to an option with a value, a text has
            a NUL character, an argument is empty or begins with `-`, or a value in a comma-separated list has
            a comma.
    """
    is_argument, repeats = option.param_type_name == "argument", getattr(option, "multiple", False)
    joins = not (is_argument or repeats) and "," in str(option.metavar).replace("::K=V,...", "")
    if len(texts) != 1 and not (repeats or (texts and (joins or option.nargs != 1))):
        raise InputError(f"{place}: {len(texts)} values are too {'many' if texts else 'few'}")
    if not getattr(option, "is_flag", False) and bool in map(
        type, value if isinstance(value, list) else [value]
    ):
        raise InputError(f"{place}: needs a value")
    for text in texts:
        if "\0" in text or (is_argument and not text):
            raise InputError(f"{place}: {text!r} is empty or has a NUL character")
        if joins and len(texts) > 1 and "," in text:
            raise InputError(f"{place}: `{text}` has a comma, which separates values")
        if is_argument and text.startswith("-") and text != "-":
            raise InputError(
                f"{place}: `{text}` begins with `-`, like an option",
                hint=f"options have their own keys; for a file of that name write `./{text}`",
            )


def typed_option(option: Any, key: str, option_texts: Sequence[str], place: str) -> list[str]:  # noqa: ANN401 - of a private class of typer's
    """Return the words of an option in a command line, for example `["--lr", "0.1"]`.

    Args:
        option: Option of the command.
        key: Key in the file.
        option_texts: Values as texts of the command line.
        place: Place of the value in messages.

    Returns:
        Empty for a flag with the value `false` and no opposite.

    Raises:
        InputError: If a flag has another value than a boolean.
    """
    if option.is_flag:
        if option_texts not in (["true"], ["false"]):
            raise InputError(f"{place}: is a flag: write `{key} = true` or `{key} = false`")
        if f"--{key.replace('_', '-')}" in option.secondary_opts:
            option_texts = ["true" if option_texts == ["false"] else "false"]
        names = option.opts if option_texts == ["true"] else option.secondary_opts
        return [names[0]] if names else []
    name = option.opts[0]
    return [
        part
        for text in (option_texts if option.multiple else [",".join(option_texts)])
        for part in ([f"{name}={text}"] if text.startswith("-") and name.startswith("--") else [name, text])
    ]


Value: TypeAlias = "str | int | float | bool"
NAME = re.compile(r"[A-Za-z_][\w-]*")
_BRACES = re.compile(r"\{(\{)?([A-Za-z_]\w*)\}(?(1)\})")
_OUTPUTS = re.compile(r"(?:^|(?<=[=,]))@(@|[A-Za-z_][\w-]*)")
INDEX, RESERVED_NAMES = "i", {"i", "label"}
"""Placeholders that are not parameters. Some options interpret them."""
MOST_BYTES, MOST_LETTERS, MOST_LINES = 1_000_000, 1_000_000, 10_000
"""Limits: bytes of a file, characters of a value after substitution (also of all parameters together), and
command lines. Chosen by hand; parameters that refer to each other grow exponentially, so twice the limit only
doubles the time until the error."""
MOST_LETTERS_OF_LINES = 10 * MOST_LETTERS
"""Limit of the characters of all command lines."""
_PART = r"""(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')[ \t]*+"""
_DEEP_KEY = re.compile(rf"(?<![\w\"'-])(?:{_PART}\.[ \t]*+){{16}}")
"""A key with 16 or more dots. tomllib needs memory quadratic in the number of parts."""
STAGE_KEYS = ("name", "command", "repeat", "seconds")
KINDS: Mapping[type, str] = {bool: "true or false", int: "a whole number", float: "a number"}
RUNS = {"force", "if_changed", "json", "quiet", "help"}
"""Options that a pipeline file may not set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A stage of a pipeline.

    Attributes:
        name: Name of the stage.
        lines: A command line for each repetition.
        outputs: Output files of the commands.
        seconds: Expected time of a command; 0 if unknown.
    """

    name: str
    lines: tuple[tuple[str, ...], ...]
    outputs: tuple[Path, ...] = ()
    seconds: float = 0.0


def read(path: Path, overrides: Mapping[str, str], tree: TyperGroup) -> tuple[Stage, ...]:
    """Return the stages of a file.

    Args:
        path: The file.
        overrides: Values of `--set`, by parameter.
        tree: Program with all commands and options.

    Raises:
        InputError: If the file cannot be read or is invalid. The message has the stage and the key.
        UsageError: If a parameter of `overrides` does not exist.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    if len(content) > MOST_BYTES:
        raise InputError(f"{path}: has more than {MOST_BYTES:,} bytes")
    try:
        return parsed(path, content.decode("utf-8-sig"), overrides, tree)
    except ValueError as error:
        raise InputError(
            f"{path}: is not TOML: {error}", hint="`hydractl run --example vit` prints a valid file"
        ) from error


def parsed(path: Path, text: str, overrides: Mapping[str, str], tree: TyperGroup) -> tuple[Stage, ...]:
    """Return the stages of a file's text; arguments and errors as in `read`. The file need not exist.

    Raises:
        InputError: If the pipeline is invalid.
        UsageError: If a parameter of `overrides` does not exist.
        ValueError: If the text is not TOML, or exceeds the limits of tomllib.
    """
    if _DEEP_KEY.search(text):
        raise ValueError("a key has too many parts")
    try:
        document = tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("values are nested too deep") from error
    _check_keys(document, ("params", "defaults", "stage"), f"{path}")
    params, defaults, stages = (document.get(key, {}) for key in ("params", "defaults", "stage"))
    if not isinstance(params, dict):
        raise InputError(
            f"{path}: `params` is not a table", hint="write `[params]` and then lines `name = value`"
        )
    if not isinstance(defaults, dict) or not all(isinstance(table, dict) for table in defaults.values()):
        raise InputError(
            f"{path}: `defaults` must have one table per command",
            hint="write `[defaults.finetune]`, and `option = value` below",
        )
    if (
        not isinstance(stages, list)
        or not stages
        or not all(isinstance(stage_table, dict) for stage_table in stages)
    ):
        raise InputError(f"{path}: has no stages", hint="begin each stage with `[[stage]]`")
    _check_keys(
        defaults, [*{str(stage_table.get("command")): None for stage_table in stages}], f"{path}: defaults"
    )
    with_defaults = [
        defaults.get(str(stage_table.get("command")), {}) | stage_table for stage_table in stages
    ]
    return tuple(_Reader(path, _resolved(path, params, overrides), tree).stages(with_defaults))


def _check_keys(table: Mapping[str, object], known_keys: Sequence[str], place: str) -> None:
    for key in table:
        if key not in known_keys:
            raise InputError(
                f"{place}: `{key}` is unknown",
                hint=did_you_mean(key, known_keys) or f"known: {', '.join(known_keys)}",
            )


def _resolved(path: Path, params: Mapping[str, object], overrides: Mapping[str, str]) -> dict[str, Value]:
    """Return the values of all parameters. Each may refer to earlier parameters."""
    for name in overrides:
        if name not in params:
            raise UsageError(
                f"`--set {name}=...`: {path} has no such parameter",
                hint=did_you_mean(name, params) or f"it has {quoted(params) or 'none'}",
            )
    resolved: dict[str, Value] = {}
    letters = 0
    for name, default in params.items():
        place = f"{path}: params.{name}"
        if not _is_value(default):
            raise InputError(f"{place}: is not a string, number or boolean")
        if not NAME.fullmatch(name) or name in RESERVED_NAMES:
            raise InputError(f"{place}: is not a valid name of a parameter")
        value = default if name not in overrides else _parse_override(name, overrides[name], default)
        resolved[name] = _filled(value, resolved, place)
        letters += len(text_of(resolved[name]))
        _check_letters(letters, f"{path}: params")
    return resolved


def _is_value(value: object) -> TypeGuard[Value]:
    """Return whether a value is a string, boolean, float or 64-bit integer."""
    return abs(value) < 2**63 if type(value) is int else isinstance(value, str | int | float)


def _check_letters(number: int, place: str, most: int = MOST_LETTERS) -> None:
    if number > most:
        raise InputError(
            f"{place}: has more than {most:,} characters after substitution",
            hint="parameters may refer to each other too often",
        )


def _substituted(
    pattern: re.Pattern[str], fill: Callable[[re.Match[str]], str], text: str, place: str
) -> str:
    """Replace each match of a pattern in a text by the result of `fill`.

    The length is checked before the result is built.
    """
    letters = len(text)

    def counted(match: re.Match[str]) -> str:
        nonlocal letters
        filled = fill(match)
        letters += len(filled)
        _check_letters(letters, place)
        return filled

    return pattern.sub(counted, text)


def _parse_override(name: str, text: str, default: Value) -> Value:
    """Parse a value of `--set` with the type of the file's own value."""
    if isinstance(default, str):
        return text
    try:
        value = tomllib.loads(f"x = {text}")["x"]
    except ValueError:
        value = text
    kinds = (int, float) if type(default) is float else (type(default),)
    if type(value) not in kinds:
        raise UsageError(
            f"`--set {name}={text}`: must be {KINDS[type(default)]}, like {text_of(default)}",
            hint=f"for example `--set {name}={text_of(default)}`",
        )
    checked: Value = value
    return checked


def _filled(value: Value, params: Mapping[str, Value], place: str) -> Value:
    """Replace parameters in braces by values."""
    if not isinstance(value, str):
        return value
    if (braces := _BRACES.fullmatch(value)) and not braces[1] and braces[2] in params:
        return params[braces[2]]

    def replacement(match: re.Match[str]) -> str:
        escaped, name = match[1], match[2]
        if not escaped and name not in params and name not in RESERVED_NAMES:
            raise InputError(
                f"{place}: unknown parameter `{name}`",
                hint=did_you_mean(name, params) or f"there are {quoted(params) or 'none'}",
            )
        return match[0][1:-1] if escaped else text_of(params[name]) if name in params else match[0]

    return _substituted(_BRACES, replacement, value, place)


def literal(value: Any) -> Any:  # noqa: ANN401 - the type stays
    """Escape placeholders in a value's texts. Reading the file then gives the original value."""
    if isinstance(value, str):
        return _OUTPUTS.sub(r"@\g<0>", _BRACES.sub(r"{\g<0>}", value))
    return [*map(literal, value)] if isinstance(value, list) else value


def text_of(value: object) -> str:
    """Return a value in the form of a command line, for example `true` for True."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def naming_options(naming: Naming) -> dict[str, str | list[str]]:
    """Return the options of a stage that name the classes of a zero-shot model."""
    names, templates, file = naming.names, naming.templates, naming.file
    classes = ",".join(names) if file is None else str(file)
    return ({"classes": classes} if names else {}) | ({"template": list(templates)} if templates else {})


class _Reader:
    """Parser of stages into command lines. It keeps the outputs of earlier stages."""

    def __init__(self, path: Path, params: Mapping[str, Value], tree: TyperGroup) -> None:
        self._path, self._params, self._tree = path, params, tree
        self._outputs = {"@": ["@"]}  # `@@` is a literal `@`.
        self._lines = self._letters = 0

    def stages(self, tables: Sequence[Mapping[str, Any]]) -> Iterator[Stage]:
        for number, table in enumerate(tables):
            name = table.get("name")
            if not isinstance(name, str) or not NAME.fullmatch(name) or name in self._outputs:
                raise InputError(
                    f"{self._path}: stage[{number}]: needs a unique `name` of letters, digits, `-` and `_`"
                )
            place = f"{self._path}: stage `{name}`"
            command = self._command(table.get("command"), place)
            values = {key: value for key, value in table.items() if key not in STAGE_KEYS}
            self._outputs[name] = []
            lines = []
            for params in self._repeated(table, place):
                lines.append(tuple(self._line(command, values, params, place)))
                self._letters += sum(map(len, lines[-1]))
                _check_letters(self._letters, place, MOST_LETTERS_OF_LINES)
                self._outputs[name] += self._parsed(command, lines[-1], place)
            yield Stage(
                name=name,
                lines=tuple(lines),
                outputs=tuple(map(Path, self._outputs[name])),
                seconds=self._seconds(table, place),
            )

    @staticmethod
    def _seconds(table: Mapping[str, Any], place: str) -> float:
        seconds = table.get("seconds", 0)
        if type(seconds) not in (int, float) or not 0 <= seconds < inf:
            raise InputError(
                f"{place}: seconds = {text_of(seconds)}: is not a time of one repetition in seconds"
            )
        return float(seconds)

    def _command(self, name: object, place: str) -> TyperCommand:
        command_names = [known_name for known_name in self._tree.commands if known_name != "run"]
        if name not in command_names:
            problem = "has no `command`" if name is None else f"`{name}` is not a command"
            raise InputError(
                f"{place}: {problem}",
                hint=did_you_mean(str(name), command_names) or f"choose from {', '.join(command_names)}",
            )
        return cast("TyperCommand", self._tree.commands[str(name)])

    def _repeated(self, table: Mapping[str, Any], place: str) -> Iterator[dict[str, Value]]:
        repeat = table.get("repeat", 1)
        times = _filled(repeat, self._params, f"{place}: repeat")
        if type(times) is not int or times < 0:
            raise InputError(
                f"{place}: repeat = {text_of(repeat)}: {times!r} is not a valid number of repetitions"
            )
        self._lines += times
        if self._lines > MOST_LINES:
            raise InputError(f"{place}: gives more than {MOST_LINES:,} command lines in total")
        for i in range(times):
            yield {**self._params, INDEX: i} if "repeat" in table else dict(self._params)

    def _line(
        self, command: TyperCommand, values: Mapping[str, Any], params: Mapping[str, Value], place: str
    ) -> list[str]:
        """Return a command line, positional arguments first."""
        options: dict[str, Any] = {}
        for option in command.params:
            names = [option.name or "", *(o.lstrip("-") for o in (*option.opts, *option.secondary_opts))]
            options |= {name.replace("-", "_"): option for name in names if option.name not in RUNS}
        plain: list[str] = []
        named: list[str] = []
        for key, value in values.items():
            # An option called like a key of the stage is written with dashes.
            chosen = options.get(key.lstrip("-").replace("-", "_"))
            if chosen is None:
                raise InputError(
                    f"{place}: `{key}` is not an option of `hydractl {command.name}`",
                    hint="`run` sets it"
                    if key.lstrip("-").replace("-", "_") in RUNS
                    else did_you_mean(key, options) or f"see `hydractl {command.name} --help`",
                )
            texts = self._values(value, params, f"{place}: {key}")
            check_texts(chosen, value, texts, f"{place}: {key}")
            if chosen.param_type_name == "argument":
                plain += texts
            else:
                named += typed_option(chosen, key, texts, f"{place}: {key}")
        return [str(command.name), *plain, *named]

    def _values(self, value: object, params: Mapping[str, Value], place: str) -> list[str]:
        """Return the texts of a value.

        `@STAGE` alone gives a text per output; within a text, the outputs separated by commas.
        """
        all_texts: list[str] = []
        letters = 0
        for scalar in value if isinstance(value, list) else [value]:
            if not _is_value(scalar):
                raise InputError(f"{place}: is not a string, number, boolean or list of these")
            text = text_of(_filled(scalar, params, place))
            if outputs_match := _OUTPUTS.fullmatch(text):
                texts = self._outputs_of(outputs_match, place)
            else:
                texts = [
                    _substituted(
                        _OUTPUTS, lambda match: ",".join(self._outputs_of(match, place)), text, place
                    )
                ]
            letters += sum(map(len, texts))
            _check_letters(letters, place)
            all_texts += texts
        return all_texts

    def _outputs_of(self, match: re.Match[str], place: str) -> list[str]:
        if match[1] not in self._outputs:
            raise InputError(
                f"{place}: `{match[0]}`: no earlier stage has that name",
                hint=did_you_mean(match[1], self._outputs) or "stages run in the order of the file",
            )
        if not (outputs_of_stage := self._outputs[match[1]]):
            raise InputError(f"{place}: `{match[0]}`: that stage writes nothing")
        return outputs_of_stage

    def _parsed(self, command: TyperCommand, line: Sequence[str], place: str) -> list[str]:
        """Parse a command line with the command's own parser, and return its outputs."""
        configurations: list[Any] = []
        caught = CONFIGURATIONS.set(configurations)
        try:
            # typer prints the help of a command without arguments. With `--` it names the missing argument.
            with command.make_context(f"hydractl {command.name}", [*line[1:]] or ["--"]) as context:
                if hasattr(command.callback, "is_configured"):
                    command.invoke(context)
        except HydraError as error:
            raise InputError(f"{place}: {error.message}", hint=error.hint) from error
        except typer.Exit as error:
            raise InputError(f"{place}: sets `help`") from error
        except Exception as error:
            if (refused := usage_error(error)) is None:
                raise
            raise InputError(f"{place}: {refused.message}", hint=refused.hint) from error
        finally:
            CONFIGURATIONS.reset(caught)
        return [
            f"./{path}" if str(path).startswith("-") else str(path)
            for configuration in configurations
            for path in configuration.outputs()
        ]
