"""hydractl: one trained transformer in, a pruned and fused ensemble out."""

from __future__ import annotations

from importlib import import_module

from hydractl.auto.import_hook import listen
from hydractl.version import __version__

TYPE_CHECKING = False  # as type checkers take it; `typing` takes longer to load than a signal to come
if TYPE_CHECKING:
    from hydractl.api.stages import evaluate, export, finetune, fuse, predict, prune, push, report, score
    from hydractl.fusion.hydra import Hydra
    from hydractl.fusion.loaded_model import load
    from hydractl.fusion.predictions import Predictions

__all__ = [
    "Hydra",
    "Predictions",
    "__version__",
    "evaluate",
    "export",
    "finetune",
    "fuse",
    "load",
    "predict",
    "prune",
    "push",
    "report",
    "score",
]
_PLACES = {
    "Hydra": "hydractl.fusion.hydra",
    "Predictions": "hydractl.fusion.predictions",
    "load": "hydractl.fusion.loaded_model",
    **dict.fromkeys(
        ("score", "prune", "finetune", "fuse", "evaluate", "report", "predict", "export", "push"),
        "hydractl.api.stages",
    ),
}


def __getattr__(name: str) -> object:
    """Import the public names when they are first asked for, so that `import hydractl` costs nothing."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    public: object = getattr(import_module(_PLACES[name]), name)
    return public


def __dir__() -> list[str]:
    """Return what is public."""
    return __all__


listen()
