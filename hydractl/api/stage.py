"""A stage as a function. Its keyword arguments are the options of the command, generated from its configuration."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, cast

from hydractl.hub_client import without_bars
from hydractl.messages import did_you_mean
from hydractl.parsing import configured
from hydractl.progress import Progress, Silent
from hydractl.runtime import enough_memory
from hydractl.settings import Option, Setting, options_of

FIRST_POSITIONAL = inspect.Parameter.POSITIONAL_OR_KEYWORD


class StageFunction(NamedTuple):
    """Description from which a function is made.

    Attributes:
        name: Name of the function.
        does: Summary in one sentence.
        config: Configuration class that declares the options.
        run: Function of the stage, as `MODULE:NAME`; takes a configuration and a `Progress` and returns a report.
        report: Class of the report, as `MODULE:NAME`.
        needs: Options that have a default only on the command line, and are required here.
    """

    name: str
    does: str
    config: type[Any]
    run: str
    report: str
    needs: tuple[str, ...] = ()

    @property
    def options(self) -> tuple[Option, ...]:
        """The options, positional ones first, without those after which a call would have no report to return."""
        call_options = [
            o._replace(default=...) if o.name in self.needs else o
            for o in options_of(self.config)
            if o.name != "if_changed"
        ]
        return tuple(sorted(call_options, key=lambda o: not o.setting.positional))

    @property
    def doc(self) -> str:
        """Docstring of the function."""
        argument_lines = "\n".join(f"    {keyword_of(o)}: {o.setting.help}" for o in self.options)
        return (
            f"{self.does}\n\nArguments are those of `hydractl {self.command}`, and are parsed "
            f"in the same way. None stands for an option that is not given.\n\nArgs:\n{argument_lines}\n    progress: "
            "Receives progress messages: a function of one string, or a `Progress`. If None, the stage "
            "is silent and warns through Python's `warnings`.\n\nReturns:\n    The result that the "
            "command prints with `--json`, as an object.\n\nRaises:\n    HydraError: If the "
            "command fails; `exit_code` is its exit code.\n    TypeError: If an option does not exist.\n"
        )

    @property
    def command(self) -> str:
        """Name of the command."""
        return {"evaluate": "eval"}.get(self.name, self.name)

    def function(self) -> Callable[..., Any]:
        """Return the function; it loads the stage when it is called."""
        options = {keyword_of(o): o for o in self.options}
        signature = inspect.Signature([*map(_parameter, options.values()), _PROGRESS])

        def run(*args: object, **keywords: object) -> Any:  # noqa: ANN401 - the stage's report
            for name in keywords:
                if name not in options and name != "progress":
                    near = did_you_mean(name, options)
                    raise TypeError(f"{self.name}() has no option `{name}`{f'; {near}' if near else ''}")
            from huggingface_hub import utils  # noqa: PLC0415 - loads when a stage runs

            bound = signature.bind(*args, **keywords).arguments
            heard = bound.pop("progress", None)
            command_values = {
                options[name].name: _command_value(options[name], value) for name, value in bound.items()
            }
            config = configured(
                self.config, dict.fromkeys(o.name for o in options_of(self.config)) | command_values
            )
            module, _, function = self.run.partition(":")
            with without_bars(utils), enough_memory(o.name for o in options.values()):
                return getattr(import_module(module), function)(config, _heard(heard))

        run.__name__ = run.__qualname__ = self.name
        run.__module__ = "hydractl"
        run.__doc__ = self.doc
        run.__signature__ = signature  # type: ignore[attr-defined]  # what `help` looks at
        return run


class _Warning(Silent):
    """A `Progress` that only issues warnings, through Python's `warnings`."""

    def warn(self, message: str) -> None:
        warnings.warn(message, UserWarning, stacklevel=2)


class _Calling(Silent):
    """A `Progress` that calls a function with each message."""

    def __init__(self, call: Callable[[str], object]) -> None:
        self._call = call

    def step(self, message: str) -> None:
        self._call(message)

    def warn(self, message: str) -> None:
        self._call(f"warning: {message}")


def _heard(progress: Any) -> Progress:  # noqa: ANN401 - what a caller gave
    if progress is None:
        return _Warning()
    if hasattr(progress, "track"):
        return cast("Progress", progress)
    return _Calling(progress)


def _command_value(option: Option, value: object) -> object:
    """Return a value in the form that the command line has: lists as comma-separated texts, paths as `Path`.

    Raises:
        ValueError: If an item of a comma-separated list contains a comma.
    """
    setting, plural = option.setting, option.kind.startswith("tuple[")
    listed = setting.repeated or (plural and setting.parse is None)
    if plural and setting.parse is not None and isinstance(value, int | float):
        return repr(value)
    if not isinstance(value, list | tuple):
        return [_as_path(option, value)] if listed and value is not None else _as_path(option, value)
    items = [_as_path(option, item) for item in value]
    if listed or not all(isinstance(item, str) for item in items):
        return items if listed else tuple(items)
    if odd := [item for item in items if "," in str(item)]:
        raise ValueError(f"{keyword_of(option)}: `{odd[0]}` contains a comma, which separates items")
    return ",".join(map(str, items))


def _as_path(option: Option, value: object) -> object:
    """Convert a string to a `Path` if the option is a path, and a path to a string otherwise."""
    bare = "Path" in option.kind and option.setting.parse is None
    if isinstance(value, Path):
        return value if bare else str(value)
    return Path(value) if bare and isinstance(value, str) else value


def _parameter(option: Option) -> inspect.Parameter:
    kind = FIRST_POSITIONAL if option.setting.positional else inspect.Parameter.KEYWORD_ONLY
    default = inspect.Parameter.empty if option.default is ... else None
    return inspect.Parameter(keyword_of(option), kind, default=default, annotation=type_of(option))


_PROGRESS = inspect.Parameter(
    "progress",
    inspect.Parameter.KEYWORD_ONLY,
    default=None,
    annotation="Callable[[str], object] | Progress | None",
)


def keyword_of(option: Option) -> str:
    """Return the keyword of an option: `min_lr_rate` for `--min-lr-rate`."""
    named = [
        word[2:].replace("-", "_")
        for form in option.setting.option_names
        for word in form.split("/")
        if word.startswith("--")
    ]
    return option.name if option.name in named or not named else named[0]


def type_of(option: Option) -> str:
    """Return the source text of an argument's type annotation."""
    given_type = _given_type(option.kind.removesuffix(" | None"), option.setting)
    return given_type if option.default is ... else f"{given_type} | None"


def _given_type(kind: str, setting: Setting) -> str:
    words = re.findall(r"\w+", kind)
    path = ["Path"] if setting.positional or {"Path", "DataRef"} & {*words} else []
    item_type = " | ".join(
        ["str", *path, *(name for name in ("int", "float") if name in words and setting.parse)]
    )
    plural = kind.startswith("tuple[") or setting.repeated
    if setting.choices and not plural:
        return f"Literal[{', '.join(map(repr, map(str, setting.choices)))}]".replace("'", '"')
    if plural or (
        kind == "str" and setting.metavar and "," in setting.metavar and "=" not in setting.metavar
    ):
        return f"{item_type} | Sequence[{item_type}]"
    return item_type if setting.parse or "Path" in kind or kind == "str" else kind
