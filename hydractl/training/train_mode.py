"""How a model is switched to training: one place, as some layers must not follow."""

from __future__ import annotations

from torch import nn


def begin_training(model: nn.Module) -> None:
    """Switch a model to training but for layers with running statistics, which stay in evaluation; their weights train.

    Batch norm in training mode makes a sample hang on the others of its piece, and changes buffers that are no parameters:
    results would hang on pieces and processes, and a file would hold other statistics than were validated.
    """
    model.train()
    for module in _with_statistics(model):
        module.eval()


def keeps_statistics(model: nn.Module) -> bool:
    """Return whether a model has layers that `begin_training` leaves in evaluation."""
    return bool(_with_statistics(model))


def _with_statistics(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if getattr(module, "track_running_stats", False)]
