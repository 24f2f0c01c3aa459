"""From uint8 pixels to a model's images within the exported graph: `eval_transform` in the arithmetic of Pillow or torchvision.

Pillow resizes along one axis after the other, in whole numbers: each is a matrix, of which only the rows that the crop keeps are
made. In double precision every product and sum of them is exact, so the pixels are Pillow's own, but where it takes the height
first, as it does with some tall images: then a few are one step of 255 off. Torchvision resizes rows first, with weights of 16
bits; their scale depends on the largest weight, here among the rows that the crop keeps.

Axes: B batch, C channels; H, W pixels given, h, w pixels kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor, nn
from typing_extensions import override

from hydractl.manifest.header import Preprocess

BITS = 1 << 22
"""Pillow's weights are multiples of 1 / BITS."""
LARGEST_INT16 = (1 << 15) - 0.5
"""Upper bound of a weight in torchvision, before rounding to 16 bits."""


def _box(x: Tensor) -> Tensor:
    return ((x > -0.5) & (x <= 0.5)).to(x.dtype)


def _bilinear(x: Tensor) -> Tensor:
    return (1 - x.abs()).clamp(min=0)


def _hamming(x: Tensor) -> Tensor:
    return torch.where(x.abs() < 1, _sinc(x) * (0.54 + 0.46 * torch.cos(math.pi * x)), 0.0)


def _bicubic(x: Tensor) -> Tensor:
    x = x.abs()
    near, far = (1.5 * x - 2.5) * x * x + 1, (((x - 5) * x + 8) * x - 4) * -0.5
    return torch.where(x < 1, near, torch.where(x < 2, far, 0.0))


def _lanczos(x: Tensor) -> Tensor:
    return torch.where((x >= -3) & (x < 3), _sinc(x) * _sinc(x / 3), 0.0)


def _sinc(x: Tensor) -> Tensor:
    turned = torch.where(x == 0, 1.0, math.pi * x)
    return torch.where(x == 0, 1.0, torch.sin(turned) / turned)


class Filter(NamedTuple):
    """How Pillow weighs pixels: by a function of the distance that is 0 beyond `support`."""

    weigh: Callable[[Tensor], Tensor]
    support: float


FILTERS: Mapping[str, Filter] = MappingProxyType(
    {
        "box": Filter(_box, 0.5),
        "bilinear": Filter(_bilinear, 1.0),
        "hamming": Filter(_hamming, 1.0),
        "bicubic": Filter(_bicubic, 2.0),
        "lanczos": Filter(_lanczos, 3.0),
    }
)
"""Interpolations that are weighted sums. `nearest` is not: the pixel it takes depends on how Pillow's loop rounds."""


class Pixels(nn.Module):
    """Resize, crop and normalise, for images of any size: (B, H, W, C) uint8 to (B, C, h, w) float32."""

    mean: Tensor
    std: Tensor
    fill: Tensor

    def __init__(self, how: Preprocess) -> None:
        """Take what a header says; its interpolation is one of `FILTERS`."""
        super().__init__()
        self.how = how
        self.kept = how.input_size[1:]
        self.scaled = tuple(math.floor(side / how.crop_pct) for side in self.kept)
        shape = (len(how.mean), 1, 1)
        self.register_buffer("mean", torch.tensor(how.mean).view(shape))
        self.register_buffer("std", torch.tensor(how.std).view(shape))
        fill = [round(255 * v) if how.crop_mode == "border" else 0 for v in how.mean]
        self.register_buffer("fill", torch.tensor(fill, dtype=torch.float64).view(shape))

    @override
    def forward(self, images: Tensor) -> Tensor:
        x = images.movedim(-1, 1).double()
        height, width = (torch.ones_like(x[0, 0, 0, :] if along else x[0, 0, :, 0]).sum() for along in (0, 1))
        resized = self._resized(height, width)
        rows, columns = (
            self._weights(x.shape[axis], side, self.kept[axis - 2], resized[axis - 2])
            for axis, side in ((2, height), (3, width))
        )
        x = _resampled(x, columns[0])
        x = _resampled(x.transpose(2, 3), rows[0]).transpose(2, 3)
        x = torch.where(rows[1][:, None] & columns[1], x, self.fill)
        return (x.float() / 255 - self.mean) / self.std

    def _resized(self, height: Tensor, width: Tensor) -> tuple[Tensor, Tensor]:
        """Return the height and width that images are resized to, as timm and torchvision reckon them."""
        to_height, to_width = self.scaled
        if self.how.crop_mode == "squash":
            return torch.full_like(height, to_height), torch.full_like(width, to_width)
        if self.how.crop_mode == "center" and to_height == to_width:
            short = torch.minimum(height, width)
            return (to_height * height / short).floor(), (to_width * width / short).floor()
        down, across = height / to_height, width / to_width
        pick = torch.maximum if self.how.crop_mode == "border" else torch.minimum
        ratio = pick(down, across)
        return (height / ratio).round(), (width / ratio).round()

    def _weights(self, count: int, side: Tensor, crop_size: int, resized: Tensor) -> tuple[Tensor, Tensor]:
        """Return what pixels along an axis of `count` weigh in each that is kept, (kept, count), and which of these are there.

        Args:
            count: Of pixels, as a number.
            side: The same as a tensor.
            crop_size: How many remain after the crop.
            resized: How many there are before it.
        """
        places = torch.arange(crop_size, dtype=torch.float64) + self._begin(resized, crop_size)
        inside = (places >= 0) & (places < resized)
        taps = torch.arange(count, dtype=torch.float64)
        scale = side / resized
        centers = ((places + 0.5) * scale)[:, None]
        weigh, support = FILTERS[self.how.interpolation]
        stretch = scale.clamp(min=1)
        reach = support * stretch
        first = (centers - reach + 0.5).floor().clamp(min=0)
        last = torch.minimum((centers + reach + 0.5).floor(), side)
        weights = torch.where(
            (taps >= first) & (taps < last), weigh((taps - centers + 0.5) * (1 / stretch)), 0.0
        )
        total = weights.sum(1, keepdim=True)
        weights = weights / torch.where(total == 0, 1.0, total)
        scale = torch.tensor(BITS, dtype=torch.float64)
        if self.how.resizes_tensors:
            scale = torch.exp2((LARGEST_INT16 / weights.max()).log2().ceil() - 1).clamp(max=BITS)
        return ((weights * scale).abs() + 0.5).floor() * weights.sign() / scale, inside

    def _begin(self, resized: Tensor, crop_size: int) -> Tensor:
        """Return where a crop begins: before the first pixel where there are too few."""
        margin = resized - crop_size
        if self.how.crop_offset == "before" and self.how.crop_mode != "border":
            return (margin / 2).floor()
        return torch.where(margin < 0, -(-margin / 2).floor(), (margin / 2).round())


def _resampled(x: Tensor, weights: Tensor) -> Tensor:
    """Return x (..., n) resized along its last axis by weights (m, n), in whole numbers of 8 bits."""
    return (torch.matmul(x, weights.t()) + 0.5).floor().clamp(0, 255)
