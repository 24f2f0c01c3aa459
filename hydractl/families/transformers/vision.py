"""What all image models of transformers have in common: how `preprocessor_config.json` says images are read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, cast

from pydantic import ValidationError

from hydractl.errors import CheckpointError, UnsupportedModelError, reason_of
from hydractl.families.transformers.hf_models import check_small, quiet
from hydractl.manifest.document import first_problem
from hydractl.manifest.header import Preprocess

FILES = ("preprocessor_config.json", "processor_config.json")
PLAIN = frozenset({"ViT", "DeiT", "Beit", "Bit", "ChineseCLIP", "CLIP", "Siglip"})
"""Image processors that only resize, crop, rescale and normalize, in this order."""
RESAMPLING = MappingProxyType(
    {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}
)
"""Pillow's numbers of interpolations, as the library stores them."""
WHITE = 255
RGB = 3


def read_image_processor(folder: Path, size: tuple[int, int, int], *, fixed: bool = True) -> Preprocess:
    """Return how a folder of the library says that images are read.

    Args:
        folder: Holds `preprocessor_config.json`.
        size: Channels, height and width of the images that the model was made for.
        fixed: Whether the model takes no other size; one that does takes what the folder says.

    Raises:
        CheckpointError: If the folder does not say it, or cannot be read.
        UnsupportedModelError: If images are read in a way that no preprocessing of ours is.
    """
    return _preprocess(_image_processor(folder), size, f"{folder}: its image processor", fixed=fixed)


def read_images(
    config: Any,  # noqa: ANN401 - transformers is untyped
    folder: Path | None,
    *,
    crop_mode: Literal["squash", "center"] = "squash",
    fixed: bool = True,
) -> Preprocess:
    """Return how a model's images are read.

    Args:
        config: The model's, or its tower's.
        folder: What it lies in, if it has one yet.
        crop_mode: Of a model without a folder.
        fixed: See `read_image_processor`.
    """
    size = image_size(config)
    if folder is None:
        return default_preprocess(size, crop_mode)
    return (
        read_image_processor(folder, size, fixed=fixed)
        if says_images(folder)
        else usual_preprocess(config, size)
    )


def write_image_processor(how: Preprocess) -> dict[str, object]:
    """Return the settings of an image processor that reads images so: the inverse of `read_image_processor`."""
    height, width = how.input_size[1:]
    resized = [math.floor(side / how.crop_pct) for side in (height, width)]
    squashed = how.crop_mode == "squash"
    crops = not squashed or resized != [height, width]
    size = {"height": resized[0], "width": resized[1]} if squashed else {"shortest_edge": min(resized)}
    numbers = {name: number for number, name in RESAMPLING.items()}
    return {
        "image_processor_type": f"{'ViT' if squashed and not crops else 'DeiT' if squashed else 'CLIP'}ImageProcessor",
        "do_convert_rgb": how.transparency == "white",
        "do_resize": True,
        "size": size,
        "resample": numbers[how.interpolation],
        "do_center_crop": crops,
        **({"crop_size": {"height": height, "width": width}} if crops else {}),
        "do_rescale": True,
        "rescale_factor": 1 / WHITE,
        "do_normalize": True,
        "image_mean": list(how.mean),
        "image_std": list(how.std),
    }


def says_images(folder: Path) -> bool:
    """Return whether a folder says how images are read."""
    return any((folder / name).is_file() for name in FILES)


def usual_preprocess(config: Any, size: tuple[int, int, int]) -> Preprocess:  # noqa: ANN401 - transformers is untyped
    """Return how the library reads images for a type of model by default, for images of `size`.

    Raises:
        UnsupportedModelError: If they have neither one channel nor three.
    """
    import transformers
    from transformers.models.auto import image_processing_auto

    plain = default_preprocess(size)
    kind = config.model_type.removesuffix("_vision_model").removesuffix("_with_registers")
    named = image_processing_auto.IMAGE_PROCESSOR_MAPPING_NAMES.get(kind)  # type: ignore[attr-defined]  # as it is typed
    if named is None:
        return plain
    settings = _settings(getattr(transformers, named["torchvision"])())
    library_default = _preprocess(
        settings, (RGB, *size[1:]), f"the library's {named['torchvision']}", fixed=False
    )
    changes = {"input_size": size}
    if size[0] != RGB:  # one number for all, as timm does
        changes |= {name: (sum(getattr(library_default, name)) / RGB,) * size[0] for name in ("mean", "std")}
    return library_default.model_copy(update=changes)


def _preprocess(
    settings: Mapping[str, Any], size: tuple[int, int, int], where: str, *, fixed: bool
) -> Preprocess:
    """Return the preprocessing of an image processor's settings.

    Raises:
        UnsupportedModelError: If a setting is not supported or not a number in its range.
    """
    try:
        cropped, resized, mode = _sizes(settings, where)
        if fixed and cropped != size[1:]:
            raise UnsupportedModelError(
                f"{where} makes images of {_pixels(cropped)} pixels, but the model takes {_pixels(size[1:])}",
                hint="correct `size` or `crop_size` in preprocessor_config.json",
            )
        mean, std = _statistics(settings, size[0], where)
        number = settings.get("resample")
        return Preprocess.model_validate(
            {
                "input_size": (size[0], *cropped),
                "mean": mean,
                "std": std,
                "interpolation": RESAMPLING.get(2 if number is None else int(number), number),
                "crop_pct": _crop_fraction(cropped, resized, where),
                "crop_mode": mode,
                "crop_offset": "nearest" if cropped == resized and mode == "squash" else "before",
                "resize_backend": settings["backend"],
                "transparency": "white" if settings.get("do_convert_rgb") else "drop",
            }
        )
    except ValidationError as error:
        raise UnsupportedModelError(f"{where} is not supported: {first_problem(error)}") from error
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise UnsupportedModelError(
            f"{where} has an invalid size, mean, std or factor: {reason_of(error)}"
        ) from error


def default_preprocess(
    size: tuple[int, int, int], crop_mode: Literal["squash", "center"] = "squash"
) -> Preprocess:
    """Return the preprocessing of a model without a folder: values in -1..1, resized as image processors resize by default.

    Raises:
        UnsupportedModelError: If they have neither one channel nor three.
    """
    half = (0.5,) * size[0]
    try:
        return Preprocess(
            input_size=size,  # type: ignore[arg-type]
            mean=half,
            std=half,
            crop_mode=crop_mode,
            crop_offset="before" if crop_mode == "center" else "nearest",
            resize_backend="torchvision",
        )
    except ValidationError as error:
        raise UnsupportedModelError(f"images with {size[0]} channels are not supported") from error


def image_size(config: Any) -> tuple[int, int, int]:  # noqa: ANN401 - transformers is untyped
    """Return channels, height and width of the images that a model was made for."""
    side = config.image_size
    height, width = (side, side) if isinstance(side, int) else side
    return config.num_channels, height, width


def _image_processor(folder: Path) -> dict[str, Any]:
    """Return the settings of a folder's image processor, the defaults of its class filled in."""
    from transformers import AutoImageProcessor

    check_small(folder, FILES)
    try:
        with quiet():
            processor = AutoImageProcessor.from_pretrained(  # type: ignore[no-untyped-call]
                folder, local_files_only=True, trust_remote_code=False
            )
    except Exception as error:  # the library raises whatever its parsers do
        raise CheckpointError(
            f"{folder}: its image processor cannot be read: {reason_of(error)}",
            hint=f"correct `{FILES[0]}`, or move it away to use the usual preprocessing of such models",
        ) from error
    name = type(processor).__name__
    if name.removesuffix("Fast").removesuffix("Pil").removesuffix("ImageProcessor") not in PLAIN:
        raise UnsupportedModelError(
            f"{folder}: its image processor {name} is not supported",
            hint=f"supported: {', '.join(f'{kind}ImageProcessor' for kind in sorted(PLAIN))}",
        )
    return _settings(processor)


def _settings(processor: Any) -> dict[str, Any]:  # noqa: ANN401 - transformers is untyped
    """Return the settings of an image processor, and its backend: `torchvision` or `pillow`."""
    return cast("dict[str, Any]", processor.to_dict()) | {
        "backend": processor.backend.replace("pil", "pillow")
    }


def _sizes(settings: Mapping[str, Any], where: str) -> tuple[tuple[int, int], tuple[int, int], str]:
    """Return the height and width of an input, those that an image is resized to, and how (see `Preprocess`)."""
    if not settings.get("do_resize") or settings.get("do_pad"):
        odd = "pads images" if settings.get("do_pad") else "does not resize images"
        raise UnsupportedModelError(f"{where} {odd}, which is not supported")
    size = {k: v for k, v in dict(settings["size"]).items() if v is not None}
    crop = dict(settings.get("crop_size") or {}) if settings.get("do_center_crop") else {}
    cropped = _pair(crop) if crop else None
    if size.keys() == {"height", "width"}:
        resized = _pair(size)
        return cropped or resized, resized, "squash"
    if size.keys() != {"shortest_edge"} or cropped is None or cropped[0] != cropped[1]:
        raise UnsupportedModelError(
            f"{where} resizes to {size} and {f'crops to {crop}' if crop else 'does not crop'}, which is not supported",
            hint="supported: a `height` and a `width`, or a `shortest_edge` and a square crop",
        )
    return cropped, (int(size["shortest_edge"]),) * 2, "center"


def _crop_fraction(cropped: tuple[int, int], resized: tuple[int, int], where: str) -> float:
    """Return the fraction of a side that the crop keeps, such that the other way round gives `resized` exactly."""
    for slack in (0.0, 0.5):  # the size to resize to is rounded down, after a division that is not exact
        fraction = cropped[0] / (resized[0] + slack)
        if (
            all(math.floor(c / fraction) == r for c, r in zip(cropped, resized, strict=True))
            and fraction <= 1
        ):
            return fraction
    raise UnsupportedModelError(
        f"{where} resizes to {_pixels(resized)} pixels and crops to {_pixels(cropped)}, which is not supported",
        hint="the crop must keep the same fraction of both sides, and no more than all of it",
    )


def _statistics(
    settings: Mapping[str, Any], channels: int, where: str
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return means and standard deviations on the scale where white is 1."""
    white = WHITE * float(settings["rescale_factor"] if settings.get("do_rescale") else 1)
    if math.isclose(white, 1.0, rel_tol=1e-6):
        white = 1.0
    mean, std = (
        _one_a_channel(settings, key, channels, where)
        if settings.get("do_normalize")
        else (neutral,) * channels
        for key, neutral in (("image_mean", 0.0), ("image_std", 1.0))
    )
    return tuple(m / white for m in mean), tuple(s / white for s in std)


def _one_a_channel(settings: Mapping[str, Any], key: str, channels: int, where: str) -> tuple[float, ...]:
    stored = settings.get(key)
    values = tuple(stored) if isinstance(stored, Iterable) else (stored,) * channels
    numbers = tuple(float(v) for v in values if isinstance(v, int | float))
    if len(values) != channels or len(numbers) != channels:
        raise UnsupportedModelError(
            f"{where} has `{key}` {stored}, but the model takes images with {channels} channels"
        )
    return numbers


def _pair(size: Mapping[str, Any]) -> tuple[int, int]:
    return int(size["height"]), int(size["width"])


def _pixels(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"
