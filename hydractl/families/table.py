"""The table of families. Importing it loads no model library."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from hydractl.errors import UnsupportedModelError
from hydractl.families.openclip import OPENCLIP, OPENCLIP_CUSTOM_TEXT
from hydractl.families.timm_eva import TIMM_EVA
from hydractl.families.timm_vit import TIMM_VIT
from hydractl.families.transformers_bert import BERT, ELECTRA, ROBERTA
from hydractl.families.transformers_clip import CLIP, SIGLIP
from hydractl.families.transformers_deberta import DEBERTA
from hydractl.families.transformers_distilbert import DISTILBERT
from hydractl.families.transformers_modernbert import MODERNBERT
from hydractl.families.transformers_mpnet import MPNET
from hydractl.families.transformers_refused import REFUSED
from hydractl.families.transformers_vision_models import BEIT, DEIT, DINOV2, DINOV2_REGISTERS, TOWER, VIT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hydractl.families.base import Family
    from hydractl.manifest import Architecture

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        family.name: family
        for family in (
            CLIP,
            SIGLIP,
            BERT,
            ROBERTA,
            ELECTRA,
            DISTILBERT,
            MODERNBERT,
            DEBERTA,
            MPNET,
            VIT,
            DEIT,
            BEIT,
            DINOV2,
            DINOV2_REGISTERS,
            TOWER,
            OPENCLIP,
            OPENCLIP_CUSTOM_TEXT,
            TIMM_EVA,
            TIMM_VIT,
        )
    }
)


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


def family_for_name(name: str) -> Family:
    """Return the family that reads an architecture name; timm's comes last and takes any.

    Raises:
        UnsupportedModelError: If heads cannot be cut in it.
    """
    _refuse(name, where=name)
    return next(family for family in FAMILIES.values() if family.claims(name))


def family_for_config(config: Mapping[str, object], *, where: str) -> Family:
    """Return the family whose library wrote a `config.json`.

    Raises:
        UnsupportedModelError: If none did.
    """
    for family in FAMILIES.values():
        if family.matches(config):
            return family
    _refuse(config.get("model_type"), where=where)
    kind = config.get("model_type") or config.get("architectures") or "unknown"
    raise UnsupportedModelError(
        f"{where}: models of type `{kind}` are not supported",
        hint=f"supported families: {', '.join(FAMILIES)}",
    )


def _refuse(kind: object, *, where: str) -> None:
    if isinstance(kind, str) and (reason := REFUSED.get(kind)):
        raise UnsupportedModelError(f"{where}: models of type `{kind}` are not supported: {reason}")
