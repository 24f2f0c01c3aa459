"""How strong each corruption of images is, as those who made the benchmarks have it.

From `make_cifar_c.py`, `make_tinyimagenet_c.py` and `make_imagenet_c.py` of github.com/hendrycks/robustness. Lengths are pixels.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

Strengths: TypeAlias = Mapping[str, tuple[Any, ...]]


def strengths(side: int) -> Strengths:
    """Return the parameters of each severity for images whose shorter side is this long: of the benchmark that is nearest.

    CIFAR-10-C's were made for 32 pixels, Tiny ImageNet-C's for 64, ImageNet-C's for 224; between them the geometric mean decides.
    """
    return next((benchmark for end, benchmark in ((46, CIFAR), (120, TINY)) if side < end), IMAGENET)


def frost_scale(side: int) -> float:
    """Return what photographs of frost are scaled by, likewise."""
    return next((scale for end, scale in ((46, 0.2), (120, 0.3)) if side < end), 1.0)


def _elastic(size: int, *shares: tuple[float, float, float]) -> tuple[tuple[float, ...], ...]:
    """Return strength, smoothness and the corners' moves, given as shares of a side."""
    return tuple(tuple(size * share for share in severity) for severity in shares)


IMAGENET: Strengths = MappingProxyType(
    {
        "gaussian-noise": (0.08, 0.12, 0.18, 0.26, 0.38),
        "shot-noise": (60, 25, 12, 5, 3),
        "impulse-noise": (0.03, 0.06, 0.09, 0.17, 0.27),
        "defocus-blur": ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
        "glass-blur": ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
        "motion-blur": ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
        "zoom-blur": ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
        "snow": (
            (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
            (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
            (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
            (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
            (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
        ),
        "frost": ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
        "fog": ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
        "brightness": (0.1, 0.2, 0.3, 0.4, 0.5),
        "contrast": (0.4, 0.3, 0.2, 0.1, 0.05),
        # 244 is theirs
        "elastic": _elastic(
            244, (2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02)
        ),
        "pixelate": (0.6, 0.5, 0.4, 0.3, 0.25),
        "jpeg": (25, 18, 15, 10, 7),
    }
)
_SMALL: Strengths = MappingProxyType(
    {"zoom-blur": ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01))}
)
TINY: Strengths = MappingProxyType(
    {
        **_SMALL,
        "gaussian-noise": (0.04, 0.08, 0.12, 0.15, 0.18),
        "shot-noise": (250, 100, 50, 30, 15),
        "impulse-noise": (0.01, 0.02, 0.05, 0.08, 0.14),
        "defocus-blur": ((0.5, 0.6), (1, 0.1), (1.5, 0.1), (2.5, 0.01), (3, 0.1)),
        "glass-blur": ((0.1, 1, 1), (0.5, 1, 1), (0.6, 1, 2), (0.7, 2, 1), (0.9, 2, 2)),
        "motion-blur": ((10, 1), (10, 1.5), (10, 2), (10, 2.5), (12, 3)),
        "snow": (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.8),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.8),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.7),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.65),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.6),
        ),
        "frost": ((1, 0.3), (0.9, 0.4), (0.8, 0.45), (0.75, 0.5), (0.7, 0.55)),
        "fog": ((0.4, 3), (0.7, 3), (1, 2.5), (1.5, 2), (2, 1.75)),
        "brightness": (0.1, 0.2, 0.3, 0.4, 0.5),
        "contrast": (0.4, 0.3, 0.2, 0.1, 0.05),
        "elastic": _elastic(
            64, (0, 0, 0.08), (0.05, 0.3, 0.06), (0.1, 0.08, 0.06), (0.1, 0.03, 0.03), (0.16, 0.03, 0.02)
        ),
        "pixelate": (0.9, 0.8, 0.7, 0.6, 0.5),
        "jpeg": (65, 58, 50, 40, 25),
    }
)
CIFAR: Strengths = MappingProxyType(
    {
        **_SMALL,
        "gaussian-noise": (0.04, 0.06, 0.08, 0.09, 0.10),
        "shot-noise": (500, 250, 100, 75, 50),
        "impulse-noise": (0.01, 0.02, 0.03, 0.05, 0.07),
        "defocus-blur": ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
        "glass-blur": ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
        "motion-blur": ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
        "snow": (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
        "frost": ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
        "fog": ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
        "brightness": (0.05, 0.1, 0.15, 0.2, 0.3),
        "contrast": (0.75, 0.5, 0.4, 0.3, 0.15),
        "elastic": _elastic(
            32, (0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)
        ),
        "pixelate": (0.95, 0.9, 0.85, 0.75, 0.65),
        "jpeg": (80, 65, 58, 50, 40),
    }
)
