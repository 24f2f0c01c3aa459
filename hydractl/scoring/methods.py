"""Registry of scoring methods. Importing the module does not load torch."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from hydractl.errors import UsageError
from hydractl.messages import did_you_mean
from hydractl.plugins import load, plugins
from hydractl.scoring.settings import (
    PANELS,
    CahpSettings,
    CircuitSettings,
    MagnitudeSettings,
    Method,
    Settings,
    TaylorSettings,
)
from hydractl.settings import Option, declared, long_option

if TYPE_CHECKING:
    from hydractl.manifest.document import OptionValue


METHODS: Mapping[str, Method] = MappingProxyType(
    {
        method.name: method
        for method in (
            Method(
                name="circuit",
                summary="greedy removal by an objective on validation data",
                run="hydractl.scoring.circuit.search:score_circuit",
                settings=CircuitSettings,
                searches=True,
            ),
            Method(
                name="taylor",
                summary="|weight × gradient| of q, k and v",
                run="hydractl.scoring.weight_importance:score_taylor",
                settings=TaylorSettings,
            ),
            Method(
                name="cahp",
                summary="one head of each group of similar heads; determines the number of groups (CAHP)",
                run="hydractl.scoring.cahp:score_cahp",
                settings=CahpSettings,
                seeded=True,  # Seed of t-SNE and of the first medoids.
                as_given=True,  # Salience uses the first batches.
            ),
            Method(
                name="magnitude",
                summary="mean |weight|, a control",
                run="hydractl.scoring.weight_importance:score_magnitude",
                settings=MagnitudeSettings,
                needs_data=False,
            ),
            Method(
                name="random",
                summary="random scores, a control",
                run="hydractl.scoring.weight_importance:score_random",
                needs_data=False,
                seeded=True,
            ),
            *(method for plugin in plugins() if plugin.scores for method in load(plugin.scores)),
        )
    }
)


_BY_NAME = {option.name: option for method in METHODS.values() for option in Option.of(method.settings)}
_PANELS = [*dict.fromkeys((*PANELS, *(option.setting.panel for option in _BY_NAME.values())))]
SETTINGS = tuple(sorted(_BY_NAME.values(), key=lambda option: _PANELS.index(option.setting.panel)))
"""All settings of all methods as options, sorted by panel. Settings of the same name appear once."""


def settings_for(method: str, options: Mapping[str, OptionValue]) -> Settings:
    """Return the settings of a method.

    Args:
        method: Name from `METHODS`.
        options: Values by name. Missing settings have their defaults.

    Raises:
        UsageError: If the method is unknown, does not have a setting, or a value is not allowed.
    """
    if method not in METHODS:
        raise UsageError(
            f"unknown method `{method}`",
            hint=did_you_mean(method, METHODS) or f"methods: {', '.join(METHODS)}",
        )
    known_settings = declared(METHODS[method].settings)
    for name in options:
        if name not in known_settings:
            takers = [m.name for m in METHODS.values() if name in declared(m.settings)]
            raise UsageError(
                f"`{long_option(name)}` has no effect with `--method {method}`",
                hint=f"it applies to {', '.join(f'`--method {m}`' for m in takers)}",
            )
    return METHODS[method].settings(**options)
