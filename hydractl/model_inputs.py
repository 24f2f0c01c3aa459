"""Inputs of models: images, or texts with their masks, batch axis first."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias, cast

from hydractl.runtime import on_device

if TYPE_CHECKING:
    import torch

Inputs: TypeAlias = "torch.Tensor | Mapping[str, torch.Tensor]"
"""Images (B, C, height, width), or named tensors (B, ...): `input_ids`, `attention_mask`, `token_type_ids`,
`word_starts`."""


WORDS = "word_starts"
"""For classification of tokens: the first token of each word, (B, Q), int64, -1 for absent words. Without
this input, the logits of all tokens are returned."""
TEXTS = ("input_ids", "attention_mask", "token_type_ids", WORDS)
PIXELS = "pixel_values"
IMAGE_AXES = 4
LARGEST_SIDE = 4096
"""Maximum side of an image, in pixels. It bounds the memory that a configuration file can request. Chosen by
hand; twice the side takes four times the memory."""


def checked_inputs(
    inputs: Inputs | None, named: Mapping[str, torch.Tensor], towers: Collection[str]
) -> Inputs:
    """Combine the arguments of a model's call: images (B, C, height, width), or tensors by name.

    Args:
        inputs: The positional argument, if any.
        named: Keyword arguments.
        towers: `text`, `vision` or both.

    Raises:
        TypeError: If the arguments do not fit the towers.
    """
    expected = (*(TEXTS if "text" in towers else ()), *((PIXELS,) if "vision" in towers else ()))
    if inputs is None or isinstance(inputs, Mapping):
        named_inputs = {**(inputs or {}), **named}
        strange = [name for name in named_inputs if name not in expected]
        required = PIXELS if "vision" in towers else TEXTS[0]
        if strange or required not in named_inputs:
            description = (
                f"`{strange[0]}`"
                if strange
                else f"{', '.join(named_inputs) or 'nothing'} without `{required}`"
            )
            raise TypeError(f"{_expected(towers)}; found {description}")
        for name, tensor in named_inputs.items():
            if not hasattr(tensor, "dtype"):
                raise TypeError(f"{_expected(towers)}; `{name}` is of type {type(tensor).__name__}")
        return named_inputs[PIXELS] if named_inputs.keys() == {PIXELS} else named_inputs
    if named:
        raise TypeError(f"{_expected(towers)}: give one positional argument or keywords, not both")
    if not hasattr(inputs, "dtype"):
        raise TypeError(
            f"{_expected(towers)}; found {type(inputs).__name__}: convert items to tensors with `model.encode`"
        )
    if "vision" not in towers or inputs.ndim != IMAGE_AXES:
        raise TypeError(f"{_expected(towers)}; found one tensor of shape {tuple(inputs.shape)}")
    return inputs


def _expected(towers: Collection[str]) -> str:
    """Describe the expected inputs for a message."""
    texts = "`input_ids` and `attention_mask` by name, as a dict or by keyword, as `model.encode(texts)` makes them"
    images = "images (B, C, height, width)"
    if "vision" not in towers:
        return f"the model reads texts and expects {texts}"
    beside = f", or `{PIXELS}` with {texts}" if "text" in towers else ""
    return f"the model reads images and expects {images}{beside}"


def word_mask(inputs: Inputs) -> torch.Tensor | None:
    """Return whether each word exists, (B, Q), boolean; None for inputs without words."""
    return inputs[WORDS] >= 0 if isinstance(inputs, Mapping) and WORDS in inputs else None


def mask_absent_words(outputs: torch.Tensor, inputs: Inputs) -> torch.Tensor:
    """Return outputs (k, B, Q, ...) with NaN for absent words. Outputs of inputs without words are unchanged."""
    has_word = word_mask(inputs)
    if has_word is None:
        return outputs
    absent = on_device(~has_word, outputs.device)
    return outputs.masked_fill(absent[(..., *(None,) * (outputs.ndim - 1 - absent.ndim))], math.nan)


def map_inputs(change: Callable[[torch.Tensor], torch.Tensor], inputs: Inputs) -> Inputs:
    """Apply a function to every tensor."""
    if isinstance(inputs, Mapping):
        return {name: change(tensor) for name, tensor in inputs.items()}
    return change(inputs)


def batch_of(inputs: Inputs) -> int:
    """Return the batch size B."""
    first = next(iter(inputs.values())) if isinstance(inputs, Mapping) else inputs
    return first.shape[0]


def inputs_like(inputs: Inputs, weight: torch.Tensor) -> Inputs:
    """Move inputs to the device of `weight`, and convert floating-point tensors to its dtype."""
    return map_inputs(
        lambda x: on_device(x, weight.device, weight.dtype if x.is_floating_point() else None), inputs
    )


def inputs_on(inputs: Inputs, device: torch.device) -> Inputs:
    """Move inputs to a device."""
    return map_inputs(lambda x: on_device(x, device), inputs)


def split_inputs(inputs: Inputs, parts: int) -> list[Inputs]:
    """Split the batch axis into `parts` equal pieces. B must be a multiple of `parts`."""
    if isinstance(inputs, Mapping):
        pieces = {name: split_batch(tensor, parts) for name, tensor in inputs.items()}
        return [{name: tensors[i] for name, tensors in pieces.items()} for i in range(parts)]
    return list(split_batch(inputs, parts))


def split_batch(x: torch.Tensor, parts: int) -> Sequence[torch.Tensor]:
    """Split the first axis into `parts` equal pieces."""
    return cast("tuple[torch.Tensor, ...]", x.unflatten(0, (parts, -1)).unbind(0))


def repeat_batch(x: torch.Tensor, times: int) -> torch.Tensor:
    """Repeat x (B, ...) along the batch axis: (times B, ...)."""
    return x.repeat(times, *(1,) * (x.ndim - 1))


def cut_batch(inputs: Inputs, size: int) -> list[Inputs]:
    """Split the batch axis into pieces of `size`. The last piece may be smaller."""
    bounds = range(0, batch_of(inputs), size)
    return [map_inputs(lambda x, at=at: x[at : at + size], inputs) for at in bounds]  # type: ignore[misc]
