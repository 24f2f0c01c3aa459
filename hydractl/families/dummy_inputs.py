"""Seeded random inputs, and how far two models' logits on them are apart."""

from __future__ import annotations

import torch

from hydractl.manifest.header import Header, Preprocess, Tokenization
from hydractl.model_inputs import Inputs

TOLERANCE = 1e-5
PROBE_TOKENS = 24
BLANK_TOKENS = 128


def probe_inputs(header: Header, *, batch: int = 2, seed: int = 0) -> Inputs:
    """Return random inputs for a model, a function of the seed alone.

    Images are standard normal (B, C, height, width), fp32. Texts are random tokens (B, T), T at most `PROBE_TOKENS`, all
    but the first of random length, so that padding is part of what is compared; a second segment begins halfway. A zero-shot
    model is asked about images (B, ...) and texts (B, ...): its logits are (B, B).
    """
    generator = torch.Generator().manual_seed(seed)
    how = header.preprocess
    if isinstance(how, Tokenization):
        return _texts(how, batch, generator)
    images = torch.randn(batch, *how.input_size, generator=generator)
    if header.prompting is None:
        return images
    return {"pixel_values": images} | _texts(header.prompting.tokenization, batch, generator)


def _texts(how: Tokenization, batch: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
    length = min(PROBE_TOKENS, how.max_length) if how.padding == "longest" else how.max_length
    ids = torch.randint(how.vocab_size, (batch, length), generator=generator)
    ids[ids == how.pad_id] = (how.pad_id + 1) % how.vocab_size
    lengths = torch.randint(1, length + 1, (batch,), generator=generator)
    lengths[:1] = length
    positions = torch.arange(length)
    token_mask = positions < lengths[:, None]
    if how.padding_side == "left":
        token_mask = token_mask.flip(1)
    segments = (token_mask & (positions >= length // 2)).long()
    return _named(how, ids.masked_fill(~token_mask, how.pad_id), token_mask.long(), segments)


def blank_inputs(how: Preprocess | Tokenization, batch: int, *, device: torch.device | str) -> Inputs:
    """Return inputs to measure cost with: images (B, C, height, width), or texts of `BLANK_TOKENS` tokens at most."""
    if not isinstance(how, Tokenization):
        return torch.zeros(batch, *how.input_size, device=device)
    ids = torch.zeros(batch, min(BLANK_TOKENS, how.max_length), dtype=torch.long, device=device)
    return _named(how, ids + (how.pad_id + 1) % how.vocab_size, torch.ones_like(ids), ids)


def _named(
    how: Tokenization, ids: torch.Tensor, token_mask: torch.Tensor, segments: torch.Tensor
) -> dict[str, torch.Tensor]:
    named = {"attention_mask": token_mask, "token_type_ids": segments}
    return {"input_ids": ids} | {name: named[name] for name in how.names}


def largest_difference(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Return max |found - expected| in units of max(1, max |expected|); infinite where either is not finite.

    Logits of size ten carry ten times the rounding error of logits of size one, so the scale is theirs.
    """
    if not (actual.isfinite().all() and expected.isfinite().all()):
        return float("inf")
    return ((actual - expected).abs().max() / expected.abs().max().clamp(min=1.0)).item()
