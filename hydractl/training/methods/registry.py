"""`NAME::option=value,...`: how `finetune --method` trains. Importing this module does not load torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from types import MappingProxyType

from hydractl.errors import UsageError
from hydractl.messages import did_you_mean
from hydractl.parsing import written
from hydractl.plugins import load, plugins
from hydractl.training.methods.base import TrainingMethod

METHODS: Mapping[str, type[TrainingMethod]] = MappingProxyType(
    {method.KIND: method for plugin in plugins() for method in load(plugin.methods)}
)


def parse_method(text: str) -> TrainingMethod:
    """Return what a method's name and its options say.

    Raises:
        UsageError: If there is no such method, or an option is unknown or out of range.
    """
    name, _, options = text.partition("::")
    if name not in METHODS:
        hint = did_you_mean(name, METHODS) or f"choose from {', '.join(METHODS)}"
        raise UsageError(f"`--method {name}`: unknown", hint=hint)
    kind = METHODS[name]
    method: TrainingMethod = written(
        kind, options, where=f"--method {text}", called=name, example=kind.EXAMPLE
    )
    return method


def method_reference(method: TrainingMethod) -> str:
    """Return the reference that says all of a method."""
    options = ",".join(f"{key}={number:g}" for key, number in asdict(method).items())
    return f"{method.KIND}::{options}"


def is_one_network(reference: str) -> bool:
    """Return whether the method of a lineage trains one network with several classifiers."""
    kind = reference.partition("::")[0]
    return kind in METHODS and METHODS[kind].ONE_NETWORK
