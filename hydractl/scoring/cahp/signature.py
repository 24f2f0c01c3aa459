"""What each head's attention looks like on a sample, whatever its length: CAHP's padding-aware signatures.

Axes: B batch, T tokens, H heads of a layer, N heads of a tower (layer after layer), D = size² numbers of a signature.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch.nn import functional as F  # noqa: N812 - the field's own name

from hydractl.errors import DataError
from hydractl.families.attention import Attention
from hydractl.families.tower import Model
from hydractl.model_inputs import Inputs
from hydractl.scoring.attention_hooks import AttentionTap, tapped


def signatures(model: Model, tower: str, inputs: Inputs, *, size: int) -> torch.Tensor:
    """Return every head's signature (B, N, D) on the model's inputs (B, ...), in fp32 or the model's wider dtype.

    Only the one tower runs. Attention weights are held for a layer at a time: B H T² numbers.

    Raises:
        DataError: If attention is not finite, a text has no token, or padding is not on the right.
    """
    tower_inputs = model.routed(inputs)[tower]
    lengths = text_lengths(tower_inputs)
    layer_signatures: list[torch.Tensor] = []

    def watched(name: str, layer: int, attention: Attention) -> Attention:
        del name, layer
        return AttentionTap(
            attention, lambda weights, _: layer_signatures.append(signature(weights, lengths, size=size))
        )

    with torch.no_grad(), tapped(model, [tower], watched):
        model.tower(tower)(tower_inputs)
    signed = torch.cat(layer_signatures, dim=1)
    if not signed.isfinite().all():
        raise DataError("the model attends with weights that are not finite on this data")
    return signed


def signature(weights: torch.Tensor, lengths: torch.Tensor | None, *, size: int) -> torch.Tensor:
    """Return attention maps at a common size (CAHP, section "signature").

    The weights between a sample's own L tokens are resized to size x size: bilinear, corners not aligned, not smoothed
    beforehand, so that a map of more than `size` tokens is sampled; rows do not sum to 1. So padding never counts.

    Args:
        weights: Of all tokens, (B, H, T, T).
        lengths: L of each sample, (B,), 1 to T; None where none is padded.
        size: Of the signature.

    Returns:
        (B, H, size²).
    """
    weights = weights.to(torch.promote_types(weights.dtype, torch.float32))
    if lengths is None:
        return _resized(weights, size)
    signed = weights.new_empty(*weights.shape[:2], size * size)
    for length in lengths.unique().tolist():
        same_length = lengths == length
        signed[same_length] = _resized(weights[same_length][..., :length, :length], size)
    return signed


def text_lengths(inputs: Inputs) -> torch.Tensor | None:
    """Return how many tokens of each sample (B,) are its own; None for images and for texts without a mask.

    Taken from the inputs, because what a layer is given may be a window around each token.

    Raises:
        DataError: If a text has no token, or padding is not on the right.
    """
    if not isinstance(inputs, Mapping) or "attention_mask" not in inputs:
        return None
    mask = inputs["attention_mask"].bool()
    if not mask[:, 0].all() or (mask[:, 1:] & ~mask[:, :-1]).any():
        raise DataError("texts must begin with a token of their own and be padded on the right")
    return mask.sum(dim=-1)


def _resized(maps: torch.Tensor, size: int) -> torch.Tensor:
    resize: Callable[..., torch.Tensor] = F.interpolate
    return resize(maps, size=(size, size), mode="bilinear", align_corners=False).flatten(2)
