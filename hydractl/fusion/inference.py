"""Predictions of a model on batches: one forward pass each, without gradients.

Axes: M members, B batch, N samples, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import torch

from hydractl.errors import InputError
from hydractl.manifest.header import MOST_MEMBERS
from hydractl.metrics.per_sample import Responses
from hydractl.model_inputs import Inputs, batch_of, inputs_like, without_absent
from hydractl.runtime import on_cpu

if TYPE_CHECKING:
    from hydractl.data.batches import Batch

NOT_FINITE = "use `--dtype fp32`; if that does not help, the weights are damaged"
"""Hint for outputs that are not finite."""


class Answers(Protocol):
    """Interface of a model for inference; a model on another runtime can implement it."""

    @property
    def device(self) -> torch.device:
        """Device of its inputs."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of its inputs."""
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
    """Return the predictions of each member on a batch, with a single wait for the device.

    Args:
        model: In evaluation mode, on its device and in its dtype.
        inputs: Inputs on any device.
        name: Name of the model for errors.
        data: Name of the data for errors.
        extra_outputs: Returns further outputs of the pass that has just ended, on the device.

    Returns:
        On the CPU: log-softmax of the logits (M, B, C) and their logsumexp (M, B), computed in float32, and `extra_outputs`.
        Where each word is answered, (M, B, Q, C) and (M, B, Q), not-a-number for the words that a text has not.

    Raises:
        InputError: If a logit is not finite, or the device has too little memory.
    """
    try:
        with torch.inference_mode():
            like = torch.empty(0, device=model.device, dtype=model.dtype)
            logits = model.member_logits(inputs_like(inputs, like))
            log_probs, logsumexp = logits.float().log_softmax(-1), logits.float().logsumexp(-1)
            # also finite: differences of logits, and sums over members
            finite = log_probs.isfinite().all() & (MOST_MEMBERS * logsumexp).isfinite().all()
            finite, *answers = on_cpu(finite, log_probs, logsumexp, *extra_outputs())
    except torch.OutOfMemoryError as error:
        raise InputError(
            f"{name}: the device has too little memory for {batch_of(inputs)} samples at once",
            hint="use a smaller `--batch-size`",
        ) from error
    if not finite:
        raise InputError(
            f"{name}: has logits that are not finite on `{data}`",
            hint=NOT_FINITE,
        )
    log_probs, logsumexp, *extra = answers
    return without_absent(log_probs, inputs), without_absent(logsumexp, inputs), *extra


def responses(
    model: Answers,
    batches: Iterable[Batch[Inputs]],
    *,
    name: str,
    data: str,
    extra_outputs: Callable[[], Sequence[torch.Tensor]] = tuple,
) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield for each batch the indices of its items and the outputs of `respond`; arguments as for `respond`."""
    for batch in batches:
        yield batch.indices, *respond(model, batch.inputs, name=name, data=data, extra_outputs=extra_outputs)


def respond_to_all(
    model: Answers, batches: Iterable[Batch[Inputs]], *, count: int, name: str, data: str
) -> Responses:
    """Return the predictions of each member on a data set; memory holds the result and one batch.

    Args:
        model: As for `respond`.
        batches: All batches of the data, in any order.
        count: N, at least 1.
        name: Name of the model for errors.
        data: Name of the data for errors.

    Returns:
        As for `respond`, (M, N, C) and (M, N), in the order of the data.

    Raises:
        InputError: As for `respond`.
        DataError: If an item cannot be read.
    """
    return gathered(responses(model, batches, name=name, data=data), count=count, data=data)


def gathered(batches: Iterable[Sequence[torch.Tensor]], *, count: int, data: str) -> Responses:
    """Return the outputs of batches, as yielded by `responses`, in the order of the data; see `respond_to_all`."""
    return Responses(*collected(batches, count=count, data=data))


def collected(
    batches: Iterable[Sequence[torch.Tensor]], *, count: int, data: str
) -> tuple[torch.Tensor, ...]:
    """Return the outputs of batches in the order of the data: parts (A, B, ...) of batches as tensors (A, N, ...).

    Args:
        batches: Indices (B,) of the items of each batch, and its parts.
        count: N.
        data: Name of the data for errors.
    """
    tensors: tuple[torch.Tensor, ...] = ()
    count_so_far = 0
    for indices, *parts in batches:
        tensors = tensors or tuple(part.new_empty(len(part), count, *part.shape[2:]) for part in parts)
        for gathered, part in zip(tensors, parts, strict=True):
            gathered[:, indices] = part
        count_so_far += len(indices)
    if count_so_far != count:
        raise ValueError(f"{data}: {count_so_far} of {count} items were read")
    return tensors
