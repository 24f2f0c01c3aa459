"""From an image to a model's input: resizes and crops that compute only the pixels in use, and random augmentation."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from math import ceil, floor, sqrt
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.overrides import TorchFunctionMode
from typing_extensions import override

from hydractl.data.reference import MAX_ITEM
from hydractl.errors import DataError, UsageError
from hydractl.manifest.header import Preprocess, Tokenization
from hydractl.messages import did_you_mean

if TYPE_CHECKING:
    from numpy.typing import NDArray


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
    first, size = steps[0], preprocessing.input_size[1:]
    # a resize to one size has known margins
    odd = not (isinstance(first, Resize) and not isinstance(first.size, int)) or any(
        (resized_side - crop_side) % 2 for resized_side, crop_side in zip(first.size, size, strict=True)
    )
    before = preprocessing.crop_offset == "before" and odd
    if (
        len(steps) == 2
        and isinstance(first, Resize)
        and isinstance(first.size, int)
        and first.size >= max(size)
    ):
        return (
            Middle(
                side=first.size,
                size=size,
                before=before,
                resample=str_to_pil_interp(preprocessing.interpolation),
            ),
        )
    return tuple(CropBefore(size) if before and isinstance(step, CenterCrop) else step for step in steps)


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
        # from release 13 on, Pillow resizes columns before rows if an image becomes lower rather than narrower
        if down.source - down.resized > max(0, 2 * (across.source - across.resized)):
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
            return columns.resize(
                (across.cropped, down.cropped), self.resample, box=_box((0, across.cropped), (above, below))
            )
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


def _box(across: tuple[T, T], down: tuple[T, T]) -> tuple[T, T, T, T]:
    (left, right), (above, below) = across, down
    return left, above, right, below


MODES = MappingProxyType({1: "L", 3: "RGB"})
AUGMENTATIONS = ("rrc", "flip", "shift", "randaugment")
"""Augmentations of training images, in the order of application: a random resized crop of 8 to 100 % of the area;
a horizontal flip of every other image; in one image of five a shift by up to an eighth of the side, filled with
black; two operations of RandAugment at magnitude 12 of 30 (Cubuk et al. 2020)."""

_DRAWS = frozenset(
    {torch.rand, torch.randint, torch.randn, torch.randperm, torch.bernoulli, torch.multinomial, torch.normal}
    | {
        getattr(torch.Tensor, f"{name}_")
        for name in ("uniform", "normal", "random", "bernoulli", "exponential")
    }
)
CROPPING = frozenset({"crop_mode", "crop_offset", "crop_pct", "resize_backend"})
"""Fields of a `Preprocess` that determine the steps of the preprocessing."""
SMALLEST_CROP = 0.08
GAP = 2.0
"""Size factor up to which an image is reduced before resizing, as in Pillow, where the filter makes little difference."""
SHIFT_PROBABILITY = 0.2
SHIFT_FRACTION = 1 / 8


def reading_differences(
    ours: Preprocess | Tokenization, theirs: Preprocess | Tokenization
) -> tuple[str, ...]:
    """Return the fields by which two models make other inputs of an item; those that change no input are left out."""
    if type(ours) is not type(theirs):
        return ("images or texts",)
    fields = tuple(
        name
        for name in type(ours).model_fields
        if name != "pairs" and getattr(ours, name) != getattr(theirs, name)
    )
    if (
        fields
        and isinstance(ours, Preprocess)
        and isinstance(theirs, Preprocess)
        and CROPPING.issuperset(fields)
    ):
        return fields if repr(resizing(ours)) != repr(resizing(theirs)) else ()
    return fields


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalTransform:
    """What images go through that are not augmented. Safe to call from several threads.

    Attributes:
        convert: From an image of any mode to one of the model's.
        least: What sides of an image suffice, in pixels.
        steps: From image to image of input size.
        quick: The same but for rounding, in less time.
        finish: From there to the normalised tensor.
    """

    convert: Callable[[Image.Image], Image.Image]
    least: int
    steps: Steps
    quick: Steps
    finish: Callable[[Image.Image], Tensor]

    def __call__(self, image: Image.Image) -> Tensor:
        """Return the input, float32 of shape (C, H, W)."""
        return self.finish(run_steps(self.steps, self.convert(image)))


def eval_transform(preprocessing: Preprocess) -> EvalTransform:
    """Return the transform that timm evaluates with, after conversion to grey or RGB.

    With `crop_offset` "before" it equals the image processors of transformers; `resize_backend` selects their backend.
    """
    steps = resizing(preprocessing)
    return EvalTransform(
        convert=partial(
            to_channels, channels=preprocessing.input_size[0], transparency=preprocessing.transparency
        ),
        least=_least(preprocessing),
        steps=steps,
        quick=tuple(replace(step, exact=False) if isinstance(step, Middle) else step for step in steps),
        finish=Normalised.of(preprocessing),
    )


def _least(preprocessing: Preprocess, area: float = 1.0) -> int:
    """Return what sides of an image suffice of which this share of the area may be all that is read."""
    return ceil(GAP * max(preprocessing.input_size[1:]) / preprocessing.crop_pct / sqrt(area))


def to_channels(
    image: Image.Image, channels: int, transparency: Literal["drop", "white"] = "drop"
) -> Image.Image:
    """Return an image as mode `L` (1 channel) or `RGB` (3), in the steps of transformers' pipelines.

    Pillow's conversion drops alpha channels and the alpha values of a palette, but keeps a single transparent colour.
    All pixels of this colour become white if `transparency` says so.

    Raises:
        DataError: If the image has more than 8 bits per channel, which a conversion would cut off at white; or a mode that Pillow
            does not convert.
    """
    mode = MODES[channels]
    if image.mode.startswith(("I", "F")):
        raise DataError(
            f"an image of mode `{image.mode}` has more than 8 bits per channel",
            hint="convert the images to 8 bits first",
        )
    if image.mode == "P" and isinstance(image.info.get("transparency"), bytes):
        image = image.convert("RGBA")  # Pillow's direct conversion has the same pixels, but warns
    try:
        if image.mode == "LAB":
            image = image.convert("RGB")  # the only one that Pillow makes of it
        if image.mode != mode:
            image = image.convert(mode)
        if transparency == "white" and image.info.get("transparency") is not None:
            image = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert(mode)
    except ValueError as error:
        raise DataError(
            f"an image of mode `{image.mode}` cannot be read as `{mode}`",
            hint="convert the images to RGB or grey first",
        ) from error
    return image


class PerItem(ABC):
    """What makes an input of an image that hangs on its place in its data set, too."""

    __slots__ = ()

    least: int
    """As in `EvalTransform`."""

    @abstractmethod
    def __call__(self, image: Image.Image, index: int) -> Tensor:
        """Return the input of the data set's item `index`, float32 of shape (C, H, W)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainTransform(PerItem):
    """Random augmentation that depends on the image and on (seed, epoch, index), and on nothing else.

    Safe to call from several threads.

    Attributes:
        convert: As in `EvalTransform`.
        least: As in `EvalTransform`, and a side of the smallest crop.
        resize: Steps from image to image that need no luck.
        random: Random steps from image to image, the result of input size.
        finish: From there to the normalised tensor.
        seed: Of the run.
        epoch: Counted from 0.
    """

    convert: Callable[[Image.Image], Image.Image]
    least: int
    resize: Steps
    random: Steps
    finish: Callable[[Image.Image], Tensor]
    seed: int = 0
    epoch: int = 0

    @override
    def __call__(self, image: Image.Image, index: int) -> Tensor:
        prepared = run_steps(self.resize, self.convert(image))
        if self.random:
            with _Drawing(sample_seed(self.seed, self.epoch, index)):
                prepared = run_steps(self.random, prepared)
        return self.finish(prepared)

    def at(self, *, seed: int, epoch: int) -> TrainTransform:
        """Return the transform of another run's epoch."""
        return replace(self, seed=seed, epoch=epoch)


def train_transform(preprocessing: Preprocess, augment: tuple[str, ...]) -> TrainTransform:
    """Return the training transform with the named augmentations; with none it is the evaluation's.

    They apply in the order of `AUGMENTATIONS`, whatever the order given.

    Raises:
        UsageError: If a name is unknown or given twice.
    """
    for name in augment:
        if name not in AUGMENTATIONS:
            raise UsageError(
                f"unknown augmentation `{name}`; known augmentations: {', '.join(AUGMENTATIONS)}",
                hint=did_you_mean(name, AUGMENTATIONS),
            )
        if augment.count(name) > 1:
            raise UsageError(f"augmentation `{name}` appears twice")
    return TrainTransform(
        convert=partial(
            to_channels, channels=preprocessing.input_size[0], transparency=preprocessing.transparency
        ),
        least=_least(preprocessing, SMALLEST_CROP if "rrc" in augment else 1.0),
        resize=() if "rrc" in augment else resizing(preprocessing),
        random=tuple(_augmentation(name, preprocessing) for name in AUGMENTATIONS if name in augment),
        finish=Normalised.of(preprocessing),
    )


def sample_seed(*parts: int) -> int:
    """Return a seed in 0..2**63-1 that mixes whole numbers; near ones give unrelated seeds."""
    return int.from_bytes(hashlib.sha256("/".join(str(part) for part in parts).encode()).digest()[:8]) >> 1


class _Drawing(TorchFunctionMode):
    """Lets what draws from torch's global generator, in this thread, draw from one of its own."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)

    @override
    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        generator_argument = {"generator": self.generator} if func in _DRAWS else {}
        return func(*args, **(kwargs or {}), **generator_argument)


def run_steps(steps: Steps, value: Any) -> Any:  # noqa: ANN401 - images, as libraries take them
    """Apply the steps of a transform to an image."""
    for step in steps:
        value = step(value)
    return value


@dataclass(frozen=True, slots=True)
class Normalised:
    """Makes an image of mode `L` or `RGB` a tensor (C, H, W), less a mean (C,) and divided by `std` (C,).

    With numpy: torch would divide so little among threads, of which each that decodes would have its own.
    """

    mean: NDArray[np.float32]
    std: NDArray[np.float32]

    @classmethod
    def of(cls, preprocessing: Preprocess) -> Normalised:
        """Return what a model's inputs are normalised by."""
        return cls(
            *(np.array(statistic, np.float32) for statistic in (preprocessing.mean, preprocessing.std))
        )

    def __call__(self, image: Image.Image) -> Tensor:
        """Return the input (C, H, W), float32."""
        planes = np.empty((len(self.mean), image.height, image.width), np.float32)
        for i, band in enumerate(image.split()):
            np.divide(np.asarray(band), np.float32(255), out=planes[i], dtype=np.float32)
            planes[i] -= self.mean[i]
            planes[i] /= self.std[i]
        return torch.from_numpy(planes)

    def into(self, pixels: Tensor, out: Tensor) -> None:
        """Do the same to the bit with pixels (B, C, H, W), uint8, into `out`, float32."""
        mean, std = (torch.from_numpy(statistic)[:, None, None] for statistic in (self.mean, self.std))
        out.copy_(pixels).div_(255).sub_(mean).div_(std)


def pixels(image: Image.Image) -> Tensor:
    """Return an image of mode `L` or `RGB` as a tensor (C, H, W), uint8: in place of a `finish`, with a quarter of its bytes."""
    return torch.from_numpy(np.stack([np.asarray(band) for band in image.split()]))


def _augmentation(name: str, preprocessing: Preprocess) -> Callable[[Any], Any]:
    from timm.data.transforms import str_to_interp_mode  # noqa: PLC0415 - as above
    from torchvision.transforms import v2  # noqa: PLC0415 - as above

    builders: dict[str, Callable[[], Callable[[Any], Any]]] = {
        "rrc": lambda: v2.RandomResizedCrop(
            preprocessing.input_size[1:],
            scale=(SMALLEST_CROP, 1.0),
            interpolation=str_to_interp_mode(preprocessing.interpolation),
        ),
        "flip": v2.RandomHorizontalFlip,
        "shift": lambda: v2.RandomApply(
            [v2.RandomAffine(degrees=0, translate=(SHIFT_FRACTION, SHIFT_FRACTION), fill=0)],
            p=SHIFT_PROBABILITY,
        ),
        "randaugment": lambda: v2.RandAugment(num_ops=2, magnitude=12),
    }
    return builders[name]()
