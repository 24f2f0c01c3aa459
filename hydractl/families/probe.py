"""Seeded random inputs, and how far two models' logits on them are apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from hydractl.manifest import Header

TOLERANCE = 1e-5


def probe_inputs(header: Header, *, batch: int = 2, seed: int = 0) -> torch.Tensor:
    """Return standard normal images (B, C, height, width) for a model, fp32, a function of the seed alone."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, *header.preprocess.input_size, generator=generator)


def largest_difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Return max |found - expected| in units of max(1, max |expected|); infinite where either is not finite.

    Logits of size ten carry ten times the rounding error of logits of size one, so the scale is theirs.
    """
    if not (found.isfinite().all() and expected.isfinite().all()):
        return float("inf")
    return ((found - expected).abs().max() / expected.abs().max().clamp(min=1.0)).item()
