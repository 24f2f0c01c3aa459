"""What a model says of batches: one forward pass each, without gradients.

Axes: M members, B batch, N samples, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import torch

from hydractl.errors import InputError
from hydractl.metrics.per_sample import Responses
from hydractl.model_inputs import Inputs, batch_of, inputs_like
from hydractl.runtime import on_cpu

if TYPE_CHECKING:
    from hydractl.data.batches import Batch

NOT_FINITE = "try `--dtype fp32`; if that does not help, the weights are broken"
"""The hint where a model computes with numbers that are not finite."""


class Answers(Protocol):
    """What answers as a model does; one that runs elsewhere does too."""

    @property
    def device(self) -> torch.device:
        """Where it takes its inputs."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that it takes them in."""
        ...

    def member_logits(self, inputs: Inputs) -> torch.Tensor:
        """Return each member's logits (M, B, C) for inputs (B, ...)."""
        ...


def respond(
    model: Answers,
    inputs: Inputs,
    *,
    name: str,
    data: str,
    extra_outputs: Callable[[], Sequence[torch.Tensor]] = tuple,
) -> tuple[torch.Tensor, ...]:
    """Return what each of a model's members says of a batch; its device is waited for once.

    Args:
        model: In evaluation mode, on the device and in the dtype that it shall run in.
        inputs: Wherever they are.
        name: What errors call the model.
        data: What errors call the data.
        extra_outputs: Gives what else is wanted of the pass that has just ended, on the device.

    Returns:
        On the CPU: log-softmax of the logits (M, B, C) and their logsumexp (M, B), in and taken in float32; and `extra_outputs`.

    Raises:
        InputError: If a logit is not finite, or the device's memory does not suffice.
    """
    try:
        with torch.inference_mode():
            like = torch.empty(0, device=model.device, dtype=model.dtype)
            logits = model.member_logits(inputs_like(inputs, like))
            log_probs, logsumexp = logits.float().log_softmax(-1), logits.float().logsumexp(-1)
            finite, *answers = on_cpu(logits.isfinite().all(), log_probs, logsumexp, *extra_outputs())
    except torch.OutOfMemoryError as error:
        raise InputError(
            f"{name}: the device has not enough memory for {batch_of(inputs)} samples at once",
            hint="choose a smaller `--batch-size`",
        ) from error
    if not finite:
        raise InputError(
            f"{name}: gives logits that are not finite on `{data}`",
            hint=NOT_FINITE,
        )
    return tuple(answers)


def responses(
    model: Answers,
    batches: Iterable[Batch[Inputs]],
    *,
    name: str,
    data: str,
    extra_outputs: Callable[[], Sequence[torch.Tensor]] = tuple,
) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield for each batch the places of its items and what `respond` says of them; arguments as there."""
    for batch in batches:
        yield batch.indices, *respond(model, batch.inputs, name=name, data=data, extra_outputs=extra_outputs)


def respond_to_all(
    model: Answers, batches: Iterable[Batch[Inputs]], *, count: int, name: str, data: str
) -> Responses:
    """Return what each of a model's members says of a whole data set; memory holds one batch beside the result.

    Args:
        model: As for `respond`.
        batches: All of the data, in any order.
        count: N, at least 1.
        name: What errors call the model.
        data: What errors call the data.

    Returns:
        As `respond`, (M, N, C) and (M, N), in the order of the data.

    Raises:
        InputError: As `respond`.
        DataError: If an item cannot be read.
    """
    return gathered(responses(model, batches, name=name, data=data), count=count, data=data)


def gathered(batches: Iterable[Sequence[torch.Tensor]], *, count: int, data: str) -> Responses:
    """Return what batches give, each as `responses` yields it, in the order of the data; see `respond_to_all`."""
    return Responses(*collected(batches, count=count, data=data))


def collected(
    batches: Iterable[Sequence[torch.Tensor]], *, count: int, data: str
) -> tuple[torch.Tensor, ...]:
    """Return what batches give in the order of the data, each part (A, B, ...) of a batch as one (A, N, ...).

    Args:
        batches: The places (B,) of the items of a batch, and its parts.
        count: N.
        data: What errors call the data.
    """
    tensors: tuple[torch.Tensor, ...] = ()
    count_so_far = 0
    for indices, *parts in batches:
        tensors = tensors or tuple(part.new_empty(len(part), count, *part.shape[2:]) for part in parts)
        for gathered, part in zip(tensors, parts, strict=True):
            gathered[:, indices] = part
        count_so_far += len(indices)
    if count_so_far != count:
        raise ValueError(f"{data}: {count_so_far} of {count} items came")
    return tensors
