"""Weights that training changed, as a checkpoint stores them: what the stages that train have in common."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import TYPE_CHECKING

from hydractl.errors import CheckFailed
from hydractl.stages.shared.finite import as_stored

if TYPE_CHECKING:
    import torch

    from hydractl.checkpoint import Checkpoint


def stored_tensors(
    checkpoint: Checkpoint, found: Mapping[str, torch.Tensor], *, trained: Container[str], hint: str
) -> dict[str, torch.Tensor]:
    """Return a trained model's tensors in the dtypes that its checkpoint stores.

    Args:
        checkpoint: Of the model as training began.
        found: The model's tensors by the library's names.
        trained: Names of those that trained.
        hint: What to type if training went wrong.

    Raises:
        CheckFailed: If a weight does not fit its dtype, or a trained one is not finite.
    """
    tensors = {}
    for name, spec in checkpoint.specs.items():
        tensors[name] = as_stored(name, found[name].detach(), spec, hint=hint)
        if name in trained and not tensors[name].isfinite().all():
            raise CheckFailed(f"tensor `{name}` is not finite after training; nothing was written", hint=hint)
    return tensors
