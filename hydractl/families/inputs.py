"""What a model is asked: images, or texts with their masks, batch axis first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

Inputs: TypeAlias = "torch.Tensor | Mapping[str, torch.Tensor]"
"""Images (B, C, height, width), or named tensors (B, ...): `input_ids`, `attention_mask`, `token_type_ids`."""


def map_inputs(change: Callable[[torch.Tensor], torch.Tensor], inputs: Inputs) -> Inputs:
    """Return inputs with every tensor changed."""
    if isinstance(inputs, Mapping):
        return {name: change(tensor) for name, tensor in inputs.items()}
    return change(inputs)


def batch_of(inputs: Inputs) -> int:
    """Return B."""
    first = next(iter(inputs.values())) if isinstance(inputs, Mapping) else inputs
    return first.shape[0]


def inputs_like(inputs: Inputs, weight: torch.Tensor) -> Inputs:
    """Return inputs on the device of `weight`, floating-point ones in its dtype."""
    return map_inputs(lambda x: x.to(weight if x.is_floating_point() else weight.device), inputs)


def split_inputs(inputs: Inputs, parts: int) -> list[Inputs]:
    """Cut the batch axis into `parts` equal pieces."""
    if isinstance(inputs, Mapping):
        pieces = {name: split_batch(tensor, parts) for name, tensor in inputs.items()}
        return [{name: tensors[i] for name, tensors in pieces.items()} for i in range(parts)]
    return list(split_batch(inputs, parts))


def split_batch(x: torch.Tensor, parts: int) -> Sequence[torch.Tensor]:
    """Cut the first axis into `parts` equal pieces."""
    pieces: tuple[torch.Tensor, ...] = x.unflatten(0, (parts, -1)).unbind(0)
    return pieces


def repeat_batch(x: torch.Tensor, times: int) -> torch.Tensor:
    """Return x (B, ...) `times` times over: (times B, ...)."""
    return x.unsqueeze(0).expand(times, *x.shape).flatten(0, 1)


def cut_batch(inputs: Inputs, size: int) -> list[Inputs]:
    """Cut the batch axis into pieces of `size`, the last as small as need be."""
    bounds = range(0, batch_of(inputs), size)
    return [map_inputs(lambda x, at=at: x[at : at + size], inputs) for at in bounds]  # type: ignore[misc]
