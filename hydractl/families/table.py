"""The table of families. Importing it loads no model library."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from hydractl.errors import UnsupportedModelError
from hydractl.families.timm_vit import TIMM_VIT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hydractl.families.base import Family
    from hydractl.manifest import Architecture

FAMILIES: Mapping[str, Family] = MappingProxyType({family.name: family for family in (TIMM_VIT,)})


def family_of(architecture: Architecture) -> Family:
    """Return the family that a checkpoint names.

    Raises:
        UnsupportedModelError: If this version does not have it.
    """
    family = FAMILIES.get(architecture.family)
    if family is None:
        raise UnsupportedModelError(
            f"{architecture.name}: family `{architecture.family}` is unknown here",
            hint=f"this version knows: {', '.join(FAMILIES)}",
        )
    return family


def family_for_config(config: Mapping[str, object], *, where: str) -> Family:
    """Return the family whose library wrote a `config.json`.

    Raises:
        UnsupportedModelError: If none did.
    """
    for family in FAMILIES.values():
        if family.matches(config):
            return family
    kind = config.get("model_type") or config.get("architectures") or "unknown"
    raise UnsupportedModelError(
        f"{where}: models of type `{kind}` are not supported",
        hint=f"supported families: {', '.join(FAMILIES)}",
    )
