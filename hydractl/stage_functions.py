"""Python functions for the stages: `hydractl.fuse(FuseConfig(models=["a.st", "b.st"], out="hydra.st"))`."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import is_dataclass
from functools import wraps
from typing import Any

from hydractl.hub_client import without_bars
from hydractl.progress import Progress, Silent
from hydractl.runtime import enough_memory
from hydractl.settings import options_of


class PythonWarnings(Silent):
    """A `Progress` that only issues warnings, through Python's `warnings`."""

    def warn(self, message: str) -> None:
        """Issue a `UserWarning`."""
        warnings.warn(message, UserWarning, stacklevel=2)


def stage(name: str, run: Callable[..., Any]) -> Callable[..., Any]:
    """Return the run function of a stage for Python: `PythonWarnings` by default, and no bars of libraries.

    The function raises a TypeError for options instead of a configuration.
    """

    @wraps(run)
    def function(config: Any = None, progress: Progress | None = None, **options: object) -> Any:  # noqa: ANN401 - as `run` declares them
        from huggingface_hub import utils  # noqa: PLC0415 - loads when a stage runs

        if options or not is_dataclass(config):  # Earlier releases took options instead of a configuration.
            call = f"hydractl.{name}({name.removesuffix('uate').capitalize()}Config(...))"
            raise TypeError(f"{name}() takes a configuration: `{call}`")

        with without_bars(utils), enough_memory(option.name for option in options_of(type(config))):
            return run(config, progress or PythonWarnings())

    return function
