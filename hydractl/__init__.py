"""hydractl prunes a trained transformer into members and fuses these into a single model, an ensemble."""

from __future__ import annotations

from importlib import import_module

from hydractl.auto.register import register_on_import
from hydractl.version import __version__

# Type checkers treat this name as `typing.TYPE_CHECKING`. Importing `typing` would slow down `import
# hydractl`.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from hydractl.fusion.hydra import Hydra
    from hydractl.heads.budget import HeadBudget
    from hydractl.prediction.class_names import Naming
    from hydractl.prediction.loaded_model import load
    from hydractl.prediction.predictions import Predictions
    from hydractl.stages.evaluate.config import EvalConfig, SetOptions
    from hydractl.stages.evaluate.run import run_eval as evaluate
    from hydractl.stages.export.config import ExportConfig
    from hydractl.stages.export.run import run_export as export
    from hydractl.stages.finetune.config import FinetuneConfig
    from hydractl.stages.finetune.run import run_finetune as finetune
    from hydractl.stages.fuse.config import FuseConfig, Measuring
    from hydractl.stages.fuse.run import run_fuse as fuse
    from hydractl.stages.options import Images
    from hydractl.stages.predict.config import PredictConfig
    from hydractl.stages.predict.run import run_predict as predict
    from hydractl.stages.prune.config import DiverseConfig, PruneConfig
    from hydractl.stages.prune.run import run_prune as prune
    from hydractl.stages.push.config import PushConfig
    from hydractl.stages.push.run import run_push as push
    from hydractl.stages.report.config import ReportConfig
    from hydractl.stages.report.run import run_report as report
    from hydractl.stages.score.config import ScoreConfig
    from hydractl.stages.score.run import run_score as score
    from hydractl.training.recipe import Recipe

__all__ = [
    "DiverseConfig",
    "EvalConfig",
    "ExportConfig",
    "FinetuneConfig",
    "FuseConfig",
    "HeadBudget",
    "Hydra",
    "Images",
    "Measuring",
    "Naming",
    "PredictConfig",
    "Predictions",
    "PruneConfig",
    "PushConfig",
    "Recipe",
    "ReportConfig",
    "ScoreConfig",
    "SetOptions",
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
    "DiverseConfig": "hydractl.stages.prune.config",
    "EvalConfig": "hydractl.stages.evaluate.config",
    "ExportConfig": "hydractl.stages.export.config",
    "FinetuneConfig": "hydractl.stages.finetune.config",
    "FuseConfig": "hydractl.stages.fuse.config",
    "HeadBudget": "hydractl.heads.budget",
    "Hydra": "hydractl.fusion.hydra",
    "Images": "hydractl.stages.options",
    "Measuring": "hydractl.stages.fuse.config",
    "Naming": "hydractl.prediction.class_names",
    "PredictConfig": "hydractl.stages.predict.config",
    "Predictions": "hydractl.prediction.predictions",
    "PruneConfig": "hydractl.stages.prune.config",
    "PushConfig": "hydractl.stages.push.config",
    "Recipe": "hydractl.training.recipe",
    "ReportConfig": "hydractl.stages.report.config",
    "ScoreConfig": "hydractl.stages.score.config",
    "SetOptions": "hydractl.stages.evaluate.config",
    "load": "hydractl.prediction.loaded_model",
}
_STAGES = {
    "evaluate": "hydractl.stages.evaluate.run:run_eval",
    "export": "hydractl.stages.export.run:run_export",
    "finetune": "hydractl.stages.finetune.run:run_finetune",
    "fuse": "hydractl.stages.fuse.run:run_fuse",
    "predict": "hydractl.stages.predict.run:run_predict",
    "prune": "hydractl.stages.prune.run:run_prune",
    "push": "hydractl.stages.push.run:run_push",
    "report": "hydractl.stages.report.run:run_report",
    "score": "hydractl.stages.score.run:run_score",
}


def __getattr__(name: str) -> object:
    """Import public names on first access, to keep `import hydractl` fast."""
    if name in _STAGES:
        from hydractl.stage_functions import stage  # noqa: PLC0415 - keeps `import hydractl` fast

        module, _, run = _STAGES[name].partition(":")
        globals()[name] = stage(name, getattr(import_module(module), run))
        return globals()[name]
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    public: object = getattr(import_module(_PLACES[name]), name)
    return public


def __dir__() -> list[str]:
    """Return the public names."""
    return __all__


register_on_import()
