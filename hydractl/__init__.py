"""hydractl: one trained transformer in, a pruned and fused ensemble out."""

from __future__ import annotations

TYPE_CHECKING = False  # as type checkers take it; `typing` takes longer to load than a signal to come
if TYPE_CHECKING:
    from hydractl.fusion.hydra import Hydra, load

__all__ = ["Hydra", "__version__", "load"]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Import the public names when they are first asked for, so that `import hydractl` costs nothing."""
    if name in {"Hydra", "load"}:
        from hydractl.fusion import hydra  # noqa: PLC0415 - torch loads only when a model is wanted

        return getattr(hydra, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
