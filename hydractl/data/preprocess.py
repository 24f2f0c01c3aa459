"""Image preprocessing: resizing and cropping, random augmentation for training, and normalization."""

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
"""Functions from image to image, applied in order."""
RADIUS = 3
"""Support of Lanczos, the widest filter of Pillow, in pixels of the coarser of input and output."""
EXACT = 1 << 24
"""Limit below which all integers are exact in float32, the type of Pillow's resize box."""


def resizing(preprocessing: Preprocess) -> Steps:
    """Return the steps from an image of any size to an image of input size.

    The result equals, bit by bit, evaluation with Pillow (timm) or with torchvision (image processors of
    transformers), selected by `Preprocess.resizes_tensors`. For an odd margin, `crop_offset="before"` cuts
    less on the left and above.
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
    steps = steps[:-2]  # drop timm's last two steps: `Normalised` computes the same bits in half the time
    first, size = steps[0], preprocessing.input_size[1:]
    # after a resize to a fixed size, the margins are known
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
            ResizedCrop(
                side=first.size,
                size=size,
                before=before,
                resample=str_to_pil_interp(preprocessing.interpolation),
            ),
        )
    return tuple(
        CenterCropBefore(size) if before and isinstance(step, CenterCrop) else step for step in steps
    )


class _ResizedSide(NamedTuple):
    """Part of one side of a resized image, after a crop.

    Attributes:
        source: Length of the side before the resize, in pixels.
        resized: Length of the side after the resize.
        begin: First remaining pixel of the resized side.
        cropped: Number of remaining pixels.
    """

    source: int
    resized: int
    begin: int
    cropped: int

    @property
    def kept_pixels(self) -> tuple[int, int]:
        """First remaining pixel of the resized side, and the pixel after the last."""
        return self.begin, self.begin + self.cropped

    @property
    def ends(self) -> tuple[float, float]:
        """Start and end of the remaining part, in pixels of the source."""
        first, last = self.kept_pixels
        return first * self.source / self.resized, last * self.source / self.resized

    @property
    def is_exact(self) -> bool:
        """Whether Pillow computes the same bits for this part alone as for the whole side.

        This holds if all positions are exact in float32.
        """
        parts = Fraction(self.source, self.resized).denominator
        return parts & (parts - 1) == 0 and self.source * parts < EXACT

    @property
    def read(self) -> tuple[int, int]:
        """First source pixel that can influence the part, and the pixel after the last."""
        (begin, end), reach = self.ends, RADIUS * max(1.0, self.source / self.resized)
        return max(0, floor(begin - reach)), min(self.source, ceil(end + reach))


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizedCrop:
    """Resize of the shorter side to `side` followed by a center crop, computed for the remaining pixels only.

    Pillow resizes rows, then columns, and rounds to integers in between. An output row does not depend on
    other rows, and an output column does not depend on other columns. Pixels outside the crop are therefore
    left out: before a side is resized if `_ResizedSide.is_exact` (always for the shorter side if `side` is
    256), otherwise after the resize.

    Attributes:
        side: Length of the shorter side after the resize, at least as large as both values of `size`.
        size: (height, width) of the crop.
        before: Whether an odd margin is cut less on the left and above. False rounds like torchvision's
            CenterCrop.
        resample: Filter of Pillow.
        exact: Whether the result has the bits of a resize of the whole image. False is faster and differs by
            rounding.
    """

    side: int
    size: tuple[int, int]
    before: bool
    resample: Image.Resampling
    exact: bool = True

    def __call__(self, image: Image.Image) -> Image.Image:
        """Return the resized and cropped image."""
        across, down = self._parts(image)
        if not self.exact:
            (left, right), (above, below) = across.ends, down.ends
            return image.resize(
                (across.cropped, down.cropped), self.resample, box=(left, above, right, below)
            )
        # Pillow 13 resizes columns before rows if the height shrinks more than the width
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
        """Return the remaining parts of width and height."""
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
    """Resize and center crop of transformers' torchvision backend, computed on uint8 tensors.

    Attributes:
        size: (height, width) before the crop. None keeps the aspect ratio.
        side: Shorter side before the crop, if the aspect ratio is kept.
        crop: (height, width) of the crop.
        mode: Name of the filter in torchvision.
    """

    size: tuple[int, int] | None
    side: int
    crop: tuple[int, int]
    mode: str

    def __call__(self, image: Image.Image) -> Image.Image:
        """Return the resized and cropped image.

        Raises:
            DataError: If the resized image has more than `MAX_ITEM` bytes, because of an extreme aspect
                ratio.
        """
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
        return CenterCropBefore(self.crop)(functional.to_pil_image(pixels))


@dataclass(frozen=True, slots=True)
class CenterCropBefore:
    """Center crop to (height, width). An odd margin is cut less on the left and above."""

    size: tuple[int, int]

    def __call__(self, image: Image.Image) -> Image.Image:
        """Return the cropped image."""
        height, width = self.size
        left, above = (image.width - width) // 2, (image.height - height) // 2
        return image.crop((left, above, left + width, above + height))


def _box(across: tuple[T, T], down: tuple[T, T]) -> tuple[T, T, T, T]:
    (left, right), (above, below) = across, down
    return left, above, right, below


MODES = MappingProxyType({1: "L", 3: "RGB"})
AUGMENTATIONS = ("rrc", "flip", "shift", "randaugment")
"""Augmentations of training images, in the order of their application. `rrc`: a random resized crop of 8 to
100 % of the area. `flip`: a horizontal flip with probability 0.5. `shift`: with probability 0.2 a shift by up
to 1/8 of each side, filled with black. `randaugment`: two operations of RandAugment at magnitude 12 of 30
(Cubuk et al. 2020), the setting of the paper (Appendix D.2)."""

_DRAWS = frozenset(
    {torch.rand, torch.randint, torch.randn, torch.randperm, torch.bernoulli, torch.multinomial, torch.normal}
    | {
        getattr(torch.Tensor, f"{name}_")
        for name in ("uniform", "normal", "random", "bernoulli", "exponential")
    }
)
CROPPING = frozenset({"crop_mode", "crop_offset", "crop_pct", "resize_backend"})
"""Fields of `Preprocess` that determine resizing and cropping."""
SMALLEST_CROP = 0.08
"""Minimum share of the area in a random resized crop, the default of torchvision. Doubling it gives crops
with less variation."""
GAP = 2.0
"""Minimum ratio of the decoded size to the size after resizing, if images are decoded at a smaller size.
Equals the default `reducing_gap` of Pillow's `Image.thumbnail`. Doubling it gives pixels closer to full
decoding, with a smaller gain of speed."""
SHIFT_PROBABILITY = 0.2
"""Probability of a shift. Chosen by hand; doubling it shifts 40 % of the training images."""
SHIFT_FRACTION = 1 / 8
"""Maximum shift as a share of each side. Chosen by hand; doubling it cuts off up to a quarter of each
side."""


def reading_differences(
    ours: Preprocess | Tokenization, theirs: Preprocess | Tokenization
) -> tuple[str, ...]:
    """Return the names of fields by which two models prepare the same item differently.

    Fields without an influence on the inputs are left out. Empty if inputs are equal. The result is `images
    or texts` if only one of the models reads images.
    """
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
    """Preprocessing of an image for evaluation. Safe to call from several threads.

    Attributes:
        convert: Conversion to the model's number of channels.
        least: Minimum side in pixels to which images may be decoded in fast mode.
        steps: Resize and crop to the input size.
        quick: Faster version of `steps` that differs by rounding.
        finish: Conversion to a normalized tensor.
    """

    convert: Callable[[Image.Image], Image.Image]
    least: int
    steps: Steps
    quick: Steps
    finish: Callable[[Image.Image], Tensor]

    def __call__(self, image: Image.Image) -> Tensor:
        """Return the model input, float32 of shape (C, H, W)."""
        return self.finish(run_steps(self.steps, self.convert(image)))


def eval_transform(preprocessing: Preprocess) -> EvalTransform:
    """Return the evaluation transform of timm, after conversion to grey or RGB.

    With `crop_offset="before"` the transform equals the image processors of transformers. `resize_backend`
    selects their backend.
    """
    steps = resizing(preprocessing)
    return EvalTransform(
        convert=partial(
            to_channels, channels=preprocessing.input_size[0], transparency=preprocessing.transparency
        ),
        least=_least(preprocessing),
        steps=steps,
        quick=tuple(replace(step, exact=False) if isinstance(step, ResizedCrop) else step for step in steps),
        finish=Normalised.of(preprocessing),
    )


def _least(preprocessing: Preprocess, area: float = 1.0) -> int:
    """Return the minimum side of a decoded image in fast mode.

    Args:
        preprocessing: Preprocessing of the model.
        area: Minimum share of the image area that a crop reads.
    """
    return ceil(GAP * max(preprocessing.input_size[1:]) / preprocessing.crop_pct / sqrt(area))


def to_channels(
    image: Image.Image, channels: int, transparency: Literal["drop", "white"] = "drop"
) -> Image.Image:
    """Convert an image to mode `L` (1 channel) or `RGB` (3), in the steps of transformers' pipelines.

    Pillow's conversion drops alpha channels and the alpha values of a palette, but keeps a single transparent
    colour in the metadata. `transparency="white"` replaces all pixels of this colour by white.

    Raises:
        DataError: If the image has more than 8 bits per channel, because Pillow's conversion clips to white,
            or has a mode without a conversion.
    """
    mode = MODES[channels]
    if image.mode.startswith(("I", "F")):
        raise DataError(
            f"an image of mode `{image.mode}` has more than 8 bits per channel",
            hint="convert the images to 8 bits first",
        )
    if image.mode == "P" and isinstance(image.info.get("transparency"), bytes):
        image = image.convert("RGBA")  # the direct conversion has the same pixels, but Pillow warns
    try:
        if image.mode == "LAB":
            image = image.convert("RGB")  # Pillow converts `LAB` only to `RGB`
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
    """Transform whose result also depends on the index of the item in its data set."""

    __slots__ = ()

    least: int
    """Minimum side in pixels to which images may be decoded in fast mode."""

    @abstractmethod
    def __call__(self, image: Image.Image, index: int) -> Tensor:
        """Return the model input of item `index`, float32 of shape (C, H, W)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainTransform(PerItem):
    """Random augmentation that depends only on the image and on (seed, epoch, index).

    Safe to call from several threads.

    Attributes:
        convert: Conversion to the model's number of channels.
        least: Minimum side in pixels to which images may be decoded in fast mode.
        resize: Deterministic steps before the random steps.
        random: Random steps. The last one returns an image of input size.
        finish: Conversion to a normalized tensor.
        seed: Seed of the run.
        epoch: Epoch, counted from 0.
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
            with _SeededDraws(sample_seed(self.seed, self.epoch, index)):
                prepared = run_steps(self.random, prepared)
        return self.finish(prepared)

    def at(self, *, seed: int, epoch: int) -> TrainTransform:
        """Return the same transform with another seed and epoch."""
        return replace(self, seed=seed, epoch=epoch)


def train_transform(preprocessing: Preprocess, augment: tuple[str, ...]) -> TrainTransform:
    """Return the training transform. Without augmentations it equals the evaluation transform.

    Args:
        preprocessing: Preprocessing of the model.
        augment: Names of augmentations. They are always applied in the order of `AUGMENTATIONS`.

    Raises:
        UsageError: If a name is unknown or occurs twice.
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
    """Hash integers to a seed in 0..2**63-1. Similar integers give unrelated seeds."""
    return int.from_bytes(hashlib.sha256("/".join(str(part) for part in parts).encode()).digest()[:8]) >> 1


class _SeededDraws(TorchFunctionMode):
    """Context in which torch's random functions draw from a separate generator.

    torchvision's transforms draw from the global generator, which threads share. The context affects only the
    current thread.
    """

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
    """Apply the steps of a transform in order."""
    for step in steps:
        value = step(value)
    return value


@dataclass(frozen=True, slots=True)
class Normalised:
    """Normalization of an image: converts 0..255 to 0..1, subtracts `mean` and divides by `std`.

    Uses numpy, because torch would start threads for each of these small operations in each decoding thread.

    Attributes:
        mean: Shape (C,).
        std: Shape (C,).
    """

    mean: NDArray[np.float32]
    std: NDArray[np.float32]

    @classmethod
    def of(cls, preprocessing: Preprocess) -> Normalised:
        """Return the normalization of a model."""
        return cls(
            *(np.array(statistic, np.float32) for statistic in (preprocessing.mean, preprocessing.std))
        )

    def __call__(self, image: Image.Image) -> Tensor:
        """Return the model input, float32 of shape (C, H, W)."""
        planes = np.empty((len(self.mean), image.height, image.width), np.float32)
        for i, band in enumerate(image.split()):
            np.divide(np.asarray(band), np.float32(255), out=planes[i], dtype=np.float32)
            planes[i] -= self.mean[i]
            planes[i] /= self.std[i]
        return torch.from_numpy(planes)

    def into(self, pixels: Tensor, out: Tensor) -> None:
        """Normalize uint8 pixels (B, C, H, W) into `out`, float32, with the same bits as `__call__`."""
        mean, std = (torch.from_numpy(statistic)[:, None, None] for statistic in (self.mean, self.std))
        out.copy_(pixels).div_(255).sub_(mean).div_(std)


def pixels(image: Image.Image) -> Tensor:
    """Convert an image of mode `L` or `RGB` to a tensor (C, H, W), uint8, a quarter of the bytes of float32."""
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
