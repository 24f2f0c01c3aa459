"""Model types of transformers with a classifier or zero-shot image classification, in several configurations."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

from architectures_check import Case
from architectures_variants import TINY, VARIANTS, Options
from transformers.models.auto import modeling_auto

from hydractl.families.registry import family_for_config
from hydractl.families.transformers.hf_models import quiet
from support.text_folders import save_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hydractl.families.base import ModelDescription

MAPPINGS = (
    "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    "MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES",
)


def cases() -> list[Case]:
    """Return a case for every class of the mappings, and for each variant of a supported class."""
    return [
        Case(
            name="/".join((model_type, model_class, *(f"{k}={v}" for k, v in changes.items()))),
            group=model_class,
            describe=partial(described, model_type, model_class, changes),
            save=save,
        )
        for model_type, model_class in classes()
        for changes in ({}, *VARIANTS.get(_name(model_type, model_class), ()))
    ]


def classes() -> Iterator[tuple[str, str]]:
    """Yield `model_type` and class name of every class in the mappings."""
    for mapping in MAPPINGS:
        for model_type, found in getattr(modeling_auto, mapping).items():
            for model_class in (found,) if isinstance(found, str) else found:
                yield model_type, model_class


def _name(model_type: str, model_class: str) -> str:
    """Return the key of a class in `TINY` and `VARIANTS`: its own name if listed, else its model type."""
    return model_class if model_class in TINY else model_type


def described(model_type: str, model_class: str, changes: Options) -> ModelDescription:
    """Describe a class in a small configuration, by the family for its config.json.

    Raises:
        UnsupportedModelError: If no family supports the class, or the family refuses the configuration.
    """
    config = {"model_type": model_type, "architectures": [model_class]}
    family = family_for_config(config, place=model_class)
    name = model_class if family.claims(model_class) else model_type
    return family.describe(name, {**TINY[name], **changes})


def save(library: Any, folder: Path) -> None:  # noqa: ANN401 - transformers is untyped
    """Write a model with the library, and add a tokenizer and an image processor."""
    with quiet():
        library.save_pretrained(folder)
    save_tokenizer(folder)
    config = library.config
    config = getattr(config, "vision_config", config)
    side = getattr(config, "image_size", 1)
    height, width = (side, side) if isinstance(side, int) else side
    processor = {
        "image_processor_type": "ViTImageProcessor",
        "size": {"height": height, "width": width},
        "image_mean": [0.5] * getattr(config, "num_channels", 3),
        "image_std": [0.5] * getattr(config, "num_channels", 3),
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
