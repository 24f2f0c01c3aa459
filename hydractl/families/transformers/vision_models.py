"""transformers' image classifiers: ViT, DeiT, BEiT, DINOv2 with and without registers, and CLIP's and SigLIP's towers.

All are pre-norm with q, k and v apart. Names on disk are older than those in memory, which are the ones used here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hydractl.families.transformers.models import Kind, family_of_kind
from hydractl.families.transformers.vision import default_preprocess, read_image_processor
from hydractl.families.transformers.vision_layouts import NAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from hydractl.families.base import Family
    from hydractl.families.tower import Model
    from hydractl.families.transformers.models import Kept
    from hydractl.manifest import Preprocess

OBLONG = "oblong images: the library resizes positions of squares only"
REFUSES = {
    "beit": f"relative position biases: a column for each head; {OBLONG}",
    "dinov2": OBLONG,
    "dinov2_with_registers": OBLONG,
}


def _family(
    name: str,
    *,
    title: str,
    classes: Mapping[str, str],
    types: Mapping[str, str] | None = None,
    any_size: bool = False,
    refusal: Callable[[Any], str | None] = lambda _: None,
) -> Family:
    """Return a family.

    Args:
        name: Of its `NAMES`.
        title: Its name, without the library's.
        classes: See `Kind`.
        types: See `Kind`; given for models whose configuration holds two towers'.
        any_size: Whether the models take images of other sizes than they were made for.
        refusal: See `Kind`.
    """
    nested = "vision_config" if name == "tower" else None

    def own(config: Any) -> Any:  # noqa: ANN401 - transformers is untyped
        return config if nested is None else getattr(config, nested)

    def wrap(library: Any, kept: Kept) -> Model:  # noqa: ANN401 - as above
        from hydractl.families.transformers.vision_modules import wrap_vision

        return wrap_vision(library, kept, NAMES[name])

    def preprocess(config: Any, folder: Path | None) -> Preprocess:  # noqa: ANN401 - as above
        size = _size(own(config))
        if folder is None:
            return default_preprocess(size)
        return read_image_processor(folder, size, fixed=not any_size)

    return family_of_kind(
        Kind(
            name=f"transformers-{title}",
            covers=", ".join(f"`{name}`" for name in classes.values()),
            refuses=REFUSES.get(name, ""),
            classes=classes,
            types=types or {},
            nested=nested,
            tower="vision",
            layout=NAMES[name].layout(),
            on_disk=NAMES[name].on_disk,
            wrap=wrap,
            preprocess=preprocess,
            refusal=lambda config: refusal(config) or _unusable(own(config), any_size=any_size),
        )
    )


def _unusable(config: Any, *, any_size: bool) -> str | None:  # noqa: ANN401 - as above
    """Return why the library cannot run a model, or None."""
    _, *image = _size(config)
    patch = (config.patch_size,) * 2 if isinstance(config.patch_size, int) else config.patch_size
    if any(p < 1 or p > i for i, p in zip(image, patch, strict=True)):
        return (
            f"its patches of {patch[0]}x{patch[1]} pixels do not fit in its images of {image[0]}x{image[1]}"
        )
    if any_size and image[0] != image[1]:
        return f"the library resizes position embeddings from a square only, not from {image[0]}x{image[1]} pixels"
    return None


def _size(config: Any) -> tuple[int, int, int]:  # noqa: ANN401 - as above
    """Return channels, height and width."""
    side = config.image_size
    height, width = (side, side) if isinstance(side, int) else side
    return config.num_channels, height, width


def _relative(config: Any) -> str | None:  # noqa: ANN401 - as above
    if config.use_relative_position_bias or config.use_shared_relative_position_bias:
        return "its relative position bias has a column of its own for each head"
    return None


VIT = _family("vit", title="vit", classes={"vit": "ViTForImageClassification"})
DISTILLED = "DeiTForImageClassificationWithTeacher"
DEIT = _family(
    "deit",
    title="deit",
    classes={"deit": "DeiTForImageClassification", DISTILLED: DISTILLED},
    types={DISTILLED: "deit"},
)
BEIT = _family(
    "beit",
    title="beit",
    classes={"beit": "BeitForImageClassification"},
    any_size=True,
    refusal=_relative,
)
DINOV2 = _family(
    "dinov2",
    title="dinov2",
    classes={"dinov2": "Dinov2ForImageClassification"},
    any_size=True,
)
DINOV2_REGISTERS = _family(
    "dinov2_with_registers",
    title="dinov2-registers",
    classes={"dinov2_with_registers": "Dinov2WithRegistersForImageClassification"},
    any_size=True,
)
TOWER = _family(
    "tower",
    title="vision-tower",
    classes={name: name for name in ("SiglipForImageClassification", "CLIPForImageClassification")},
    types={"SiglipForImageClassification": "siglip", "CLIPForImageClassification": "clip"},
)
