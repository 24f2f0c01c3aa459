"""Configuration of members and hydras in transformers."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from transformers import PreTrainedConfig

from hydractl.errors import UsageError
from hydractl.hub.layout import TYPE
from hydractl.runtime import DTYPES


class HydraConfig(PreTrainedConfig):  # type: ignore[no-untyped-call]  # transformers is untyped here
    """Configuration of a member or a hydra. Its key `hydractl` has the header of the checkpoint."""

    model_type = TYPE
    # `Trainer` concatenates outputs along the first axis, but the first axis of member logits is the member.
    # `compute_metrics` expects logits only.
    keys_to_ignore_at_inference: ClassVar[list[str]] = [
        "member_logits",
        "entropy",
        "mutual_information",
        "ood_score",
        "sets",
        "accepted",
        "is_known",
    ]

    def __post_init__(self, **kwargs: Any) -> None:  # noqa: ANN401 - as the library has it
        """Set derived attributes.

        Raises:
            UsageError: If the dtype is not valid.
        """
        self.dtype = floating(self.dtype or kwargs.pop("torch_dtype", None))
        super().__post_init__(**kwargs)  # type: ignore[no-untyped-call]  # as above


def floating(dtype: Any) -> torch.dtype | None:  # noqa: ANN401 - a dtype, or the name of one
    """Return a floating-point dtype, or None for the dtype of the checkpoint.

    Args:
        dtype: A dtype, its name or `bf16`, `fp16`, `fp32`; `auto` or None for the dtype of the checkpoint.

    Raises:
        UsageError: If the dtype is not floating-point.
    """
    if dtype is None or dtype == "auto":
        return None
    torch_dtype = getattr(torch, DTYPES.get(dtype, dtype), None) if isinstance(dtype, str) else dtype
    if not isinstance(torch_dtype, torch.dtype) or not torch_dtype.is_floating_point:
        raise UsageError(
            f"`dtype={dtype!r}`: is not a floating-point dtype",
            hint=f"use one of {', '.join(DTYPES.values())}, or `auto`",
        )
    return torch_dtype
