"""The names of timm's architectures."""

from __future__ import annotations

from collections.abc import Iterable

from hydractl.errors import UnsupportedModelError
from hydractl.messages import did_you_mean


def check_known(name: str, others: Iterable[str] = ()) -> None:
    """Refuse a name that is none of timm's.

    Args:
        name: Of an architecture.
        others: Names that may have been meant, of other libraries' architectures.

    Raises:
        UnsupportedModelError: With the nearest name.
    """
    import timm

    if not timm.is_model(name):
        hint = did_you_mean(name, {*timm.list_models(), *others}) or "see `timm.list_models()`"
        raise UnsupportedModelError(f"timm has no architecture `{name}`", hint=hint)


def untagged(name: str) -> str:
    """Return an architecture's name without timm's tag of pretrained weights, which is no part of the architecture."""
    return name.partition(".")[0]
