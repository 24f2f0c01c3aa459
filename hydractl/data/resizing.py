"""The resizes and crops that a model's images go through, of which no more is computed than is kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, floor
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from PIL import Image

from hydractl.data.reference import MAX_ITEM
from hydractl.errors import DataError

if TYPE_CHECKING:
    from hydractl.manifest.header import Preprocess

T = TypeVar("T", int, float)
Steps: TypeAlias = tuple[Callable[[Any], Any], ...]
"""A function from image to image."""
RADIUS = 3
"""Support of Lanczos, the widest of Pillow's filters, in pixels of the coarser side."""
EXACT = 1 << 24
"""Integers below this are exact in single precision, in which Pillow takes the box to resize."""


def resizing(preprocessing: Preprocess) -> Steps:
    """Return the steps from an image of any size to one of input size, to the bit as timm or transformers evaluates.

    Pillow resizes as in timm, torchvision as in the image processors of transformers (`Preprocess.resizes_tensors`).
    With `crop_offset` "before" less is cut on the left and above of an odd margin.
    """
    if preprocessing.resizes_tensors:
        height, width = (floor(side / preprocessing.crop_pct) for side in preprocessing.input_size[1:])
        return (
            TensorResize(
                size=(height, width) if preprocessing.crop_mode == "squash" else None,
                side=height,
                crop=preprocessing.input_size[1:],
                mode={"nearest": "nearest-exact"}.get(
                    preprocessing.interpolation, preprocessing.interpolation
                ),
            ),
        )
    from timm.data import create_transform  # noqa: PLC0415 - describing data must not cost the import of timm
    from timm.data.transforms import str_to_pil_interp  # noqa: PLC0415 - as above
    from torchvision.transforms import CenterCrop, Resize  # noqa: PLC0415 - as above

    steps = tuple(
        create_transform(
            preprocessing.input_size,
            is_training=False,
            interpolation=preprocessing.interpolation,
            mean=preprocessing.mean,
            std=preprocessing.std,
            crop_pct=preprocessing.crop_pct,
            crop_mode=preprocessing.crop_mode,
        ).transforms
    )
    steps = steps[:-2]  # what follows is normalised, to the bit as `Normalised` does in half the time
    size = preprocessing.input_size[1:]
    first = steps[0]
    squashed = isinstance(first, Resize) and not isinstance(
        first.size, int
    )  # to one size, whose margins are known
    odd = not squashed or any(
        (resized_side - crop_side) % 2 for resized_side, crop_side in zip(first.size, size, strict=True)
    )
    before = preprocessing.crop_offset == "before" and odd
    if (
        len(steps) == 2
        and isinstance(first, Resize)
        and isinstance(first.size, int)
        and first.size >= max(size)
    ):
        resample = str_to_pil_interp(preprocessing.interpolation)
        return (Middle(side=first.size, size=size, before=before, resample=resample),)
    return tuple(CropBefore(size) if before and isinstance(step, CenterCrop) else step for step in steps)


def rounded(steps: Steps) -> Steps:
    """Return steps that do the same but for rounding, in less time; these themselves where there are none."""
    return tuple(replace(step, exact=False) if isinstance(step, Middle) else step for step in steps)


class _ResizedSide(NamedTuple):
    """What is kept of one side of a resized image.

    Attributes:
        source: How long the side is.
        resized: How long it would be.
        begin: Where the part begins in that.
        cropped: How long it is.
    """

    source: int
    resized: int
    begin: int
    cropped: int

    @property
    def kept_pixels(self) -> tuple[int, int]:
        """Where the part begins and ends in the whole."""
        return self.begin, self.begin + self.cropped

    @property
    def ends(self) -> tuple[float, float]:
        """Where the part begins and ends in the image."""
        first, last = self.kept_pixels
        return first * self.source / self.resized, last * self.source / self.resized

    @property
    def is_exact(self) -> bool:
        """Whether Pillow gives this part alone as it gives it of the whole: if no place in it has to be rounded."""
        parts = Fraction(self.source, self.resized).denominator
        return parts & (parts - 1) == 0 and self.source * parts < EXACT

    @property
    def read(self) -> tuple[int, int]:
        """Which pixels of the side the part is made of, and perhaps some more."""
        (begin, end), reach = self.ends, RADIUS * max(1.0, self.source / self.resized)
        return max(0, floor(begin - reach)), min(self.source, ceil(end + reach))


@dataclass(frozen=True, slots=True, kw_only=True)
class Middle:
    """What a resize of the shorter side to `side` leaves of an image after a crop to its middle.

    Pillow resizes rows, then columns, and rounds between. What becomes of a row hangs on no other row, and of a column on no
    other column, so that those which are cut off may be left out: before a side is resized where that needs no rounding (to 256
    pixels, as most models do, of the shorter side always), else after it.

    Attributes:
        side: At least as long as what is kept.
        size: That, (height, width).
        before: Of an odd margin, whether less is cut on the left and above, or what torchvision's crop does.
        resample: Pillow's filter.
        exact: Whether the result is to the bit that of the whole image's resize, or but for rounding in less time.
    """

    side: int
    size: tuple[int, int]
    before: bool
    resample: Image.Resampling
    exact: bool = True

    def __call__(self, image: Image.Image) -> Image.Image:
        """Return the part."""
        across, down = self._parts(image)
        if not self.exact:
            (left, right), (above, below) = across.ends, down.ends
            return image.resize(
                (across.cropped, down.cropped), self.resample, box=(left, above, right, below)
            )
        if _columns_first(across, down):
            whole = image.resize((across.resized, down.resized), self.resample)
            return whole.crop(_box(across.kept_pixels, down.kept_pixels))
        begin, end = down.read if down.is_exact else (0, down.source)
        strip = image.crop(_box((0, across.source), (begin, end)))
        rows = (0, end - begin)
        if across.is_exact:
            columns = strip.resize((across.cropped, end - begin), self.resample, box=_box(across.ends, rows))
        else:
            columns = strip.resize((across.resized, end - begin), self.resample)
            columns = columns.crop(_box(across.kept_pixels, rows))
        if down.is_exact:
            above, below = (place - begin for place in down.ends)
            box = _box((0, across.cropped), (above, below))
            return columns.resize((across.cropped, down.cropped), self.resample, box=box)
        resized = columns.resize((across.cropped, down.resized), self.resample)
        return resized.crop(_box((0, across.cropped), down.kept_pixels))

    def _parts(self, image: Image.Image) -> tuple[_ResizedSide, _ResizedSide]:
        """Return what is kept across and down."""
        short = min(image.size)
        across, down = (
            _ResizedSide(
                source,
                resized,
                (resized - cropped) // 2 if self.before else round((resized - cropped) / 2),
                cropped,
            )
            for source, cropped in zip(image.size, reversed(self.size), strict=True)
            for resized in [self.side if source == short else int(self.side * source / short)]
        )
        return across, down


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorResize:
    """Resize and center crop of transformers' torchvision backend, which works on uint8 tensors.

    Attributes:
        size: (height, width) before the crop; None keeps the aspect ratio.
        side: Shorter side before the crop, if the aspect ratio is kept.
        crop: (height, width).
        mode: Name of the filter in torchvision.
    """

    size: tuple[int, int] | None
    side: int
    crop: tuple[int, int]
    mode: str

    def __call__(self, image: Image.Image) -> Image.Image:
        """Return the resized and cropped image."""
        from torchvision.transforms.v2 import InterpolationMode, functional  # noqa: PLC0415 - as above

        short = min(image.size)
        height, width = self.size or (
            self.side if side == short else int(self.side * side / short) for side in reversed(image.size)
        )
        if (size := height * width * len(image.getbands())) > MAX_ITEM:
            raise DataError(
                f"an image of {image.width} x {image.height} pixels is resized to {size} bytes, more than {MAX_ITEM}",
                hint="crop the image to a less extreme aspect ratio",
            )
        pixels = functional.pil_to_tensor(image)
        pixels = functional.resize(pixels, [height, width], interpolation=InterpolationMode(self.mode))
        return CropBefore(self.crop)(functional.to_pil_image(pixels))


@dataclass(frozen=True, slots=True)
class CropBefore:
    """Cuts the middle (height, width) out of an image that is no smaller; of an odd margin less on the left and above."""

    size: tuple[int, int]

    def __call__(self, image: Image.Image) -> Image.Image:
        """Return it."""
        height, width = self.size
        left, above = (image.width - width) // 2, (image.height - height) // 2
        return image.crop((left, above, left + width, above + height))


def _columns_first(across: _ResizedSide, down: _ResizedSide) -> bool:
    """Return whether Pillow resizes columns before rows: from release 13 on, of images that become lower rather than narrower."""
    lower, narrower = down.source - down.resized, across.source - across.resized
    return lower > max(0, 2 * narrower)


def _box(across: tuple[T, T], down: tuple[T, T]) -> tuple[T, T, T, T]:
    (left, right), (above, below) = across, down
    return left, above, right, below
