"""`mc:MODEL::passes=10,rate=0.1`, `laplace:MODEL::data=DATA`, `swag:MODEL,MODEL,...`: what a row makes of models. Importing this module does not load torch.

Options follow the first `::`, in any order. The data of `data=` and `val=` may have options of
their own: where the data read a key, as `noise` reads `seed`, it is theirs behind their `::`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from hydractl.data.names import split_source
from hydractl.data.presets import PREFIX
from hydractl.data.reference import KEYS, DataRef
from hydractl.errors import UsageError
from hydractl.parsing import written
from hydractl.plugins import load, plugins
from hydractl.stages.evaluate.baselines.base import DATA, VAL, BaselineOptions

BASELINES: Mapping[str, type[BaselineOptions]] = MappingProxyType(
    {options.KIND: options for plugin in plugins() for options in load(plugin.baselines)}
)
FEWEST = 2
"""Checkpoints needed to estimate a distribution."""


def is_baseline(reference: str) -> bool:
    """Return whether a reference names what is made of a model."""
    return reference.partition(":")[0] in BASELINES and ":" in reference


def is_of_several(reference: str) -> bool:
    """Return whether a reference names what is made of several models, with commas between them."""
    return is_baseline(reference) and BASELINES[reference.partition(":")[0]].SEVERAL


def parse_baseline(reference: str) -> tuple[str, BaselineOptions]:
    """Return the model of a baseline's reference, or several with commas between them, and what is made of it.

    Raises:
        UsageError: If there is no model, or an option is unknown, missing or out of range.
    """
    name, _, reference_text = reference.partition(":")
    kind = BASELINES[name]
    model, _, text = reference_text.partition("::")
    models = model.split(",") if kind.SEVERAL else [model]
    if not all(models) or any(checkpoint.startswith("arch:") for checkpoint in models):
        problem = "a model with random weights cannot be used" if all(models) else "the model is missing"
        raise UsageError(f"`{reference}`: {problem}", hint=f"for example `{kind.EXAMPLE}`")
    if kind.SEVERAL and len(models) < FEWEST:
        raise UsageError(
            f"`{reference}`: needs more than one checkpoint", hint=f"for example `{kind.EXAMPLE}`"
        )
    long = dict.fromkeys((DATA, VAL), _data_of)
    options: BaselineOptions = written(
        kind, text, where=reference, called=f"{name}:", example=kind.EXAMPLE, long=long
    )
    return model, options.made_of(len(models))


def _data_of(text: str, options: Iterable[str]) -> str:
    """Return the data reference at the beginning of a text: up to the next option that is no key of the data."""
    reference = _up_to(text, options)
    source, separator, _ = split_source(reference)
    if not separator or not source or source.startswith(PREFIX):
        return reference
    return _up_to(text, {*options} - KEYS[DataRef(source=source).kind])


def _up_to(text: str, options: Iterable[str]) -> str:
    return text[: min((at for name in options if (at := text.find(f",{name}=")) >= 0), default=len(text))]
