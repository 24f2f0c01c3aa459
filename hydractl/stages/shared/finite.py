"""Weights that are numbers: what the stages ask for before they make anything of a model."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from hydractl.errors import CheckpointError
from hydractl.fusion.responding import NOT_FINITE
from hydractl.wording import counted


def check_finite(tensors: Mapping[str, torch.Tensor], *, where: str, dtype: str | None = None) -> None:
    """Refuse weights that are not numbers: whatever is made of them answers with none.

    Args:
        tensors: By name.
        where: What the message calls the model.
        dtype: What `--dtype` made of them: it may be too small for one.

    Raises:
        CheckpointError: Naming the first tensor.
    """
    for name, tensor in tensors.items():
        finite = tensor.isfinite() if tensor.is_floating_point() else None
        if finite is not None and not finite.all():
            count = finite.numel() - int(finite.sum())
            raise CheckpointError(
                f"{where}: tensor `{name}` holds {counted(count, 'number')} of {finite.numel()} that "
                f"{'is' if count == 1 else 'are'} not finite",
                hint=NOT_FINITE if dtype else "did the training diverge? take an earlier checkpoint of it",
            )
