"""What a training script saved about its model: the architecture, its options, and how images are read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from hydractl.stages.importing.records import attributes, to_plain

HOLDERS = (
    "args", "hyper_parameters", "training_args", "hparams", "config", "cfg", "opt", "model_cfg", "model_config",
)  # fmt: skip
"""Keys under which training scripts save their options: timm and DeiT, Lightning, transformers, others."""
ARCH = ("arch", "model", "model_name", "architecture", "model_type", "backbone", "model_name_or_path")
KWARGS = ("model_kwargs", "model_args")
"""Keys under which timm and other scripts save the options of the architecture."""
NUM_CLASSES = ("num_classes", "nb_classes", "n_classes", "num_labels")
SIZES: Mapping[str, tuple[str, ...]] = {
    "timm": ("img_size", "in_chans", "patch_size", "embed_dim", "depth"),
    "transformers": (
        "hidden_size", "num_hidden_layers", "intermediate_size", "vocab_size", "max_position_embeddings",
    ),
}  # fmt: skip
"""Options of architectures that scripts save among their own, and that tensor shapes confirm."""
UNSHAPED = {"timm": ("num_heads", "global_pool"), "transformers": ("num_attention_heads",)}
"""Options of architectures that no tensor shape shows."""
FILES = ("tokenizer",)
"""Options that name files; a checkpoint may not set them."""
TEXTS = {"global_pool", "interpolation", "crop_mode"}
IMAGES = ("mean", "std", "interpolation", "crop_pct", "crop_mode")
OPEN_CLIP_RUN = re.compile(r"(?:^|-)model_(.+?)-lr_")
"""Pattern of the run name that open_clip saves in its checkpoints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """What a training script saved about its model; all of it may be missing.

    Attributes:
        arch: What it calls the architecture, in the order of how likely each is the name of one.
        sizes: Options that the shapes of tensors bear out, found among those of the script, by library.
        options: Other options of the architecture, without the number of classes, by library.
        num_classes: How many classes it tells apart.
        images: Fields of a `Preprocess`.
        complete: Whether all options of the architecture are among these: what is not is as the architecture has it.
    """

    arch: tuple[str, ...] = ()
    sizes: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    options: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    num_classes: int | None = None
    images: Mapping[str, object] = field(default_factory=dict)
    complete: bool = False


def metadata_of(saved: Mapping[object, object]) -> Metadata:
    """Return what a file says besides its tensors."""
    holders = list(_holders(saved))
    option_sets = (attributes(h.get(key)) for h in holders for key in KWARGS)
    kwargs = {key: to_plain(item) for key, item in next(filter(None, option_sets), {}).items()}
    number = _first([kwargs, *holders], NUM_CLASSES)
    stated_options = {k: v for k, v in kwargs.items() if k not in {*NUM_CLASSES, *FILES} and v is not None}
    synonyms = _in_other_words(holders)
    return Metadata(
        arch=tuple(dict.fromkeys(_names(holders))),
        sizes={library: _values(holders, keys, synonyms) for library, keys in SIZES.items()},
        options={
            library: _values(holders, keys, synonyms) | stated_options for library, keys in UNSHAPED.items()
        },
        num_classes=number if isinstance(number, int) and number > 0 else None,
        images=_values(holders, IMAGES, {}),
        complete=any(key in h for h in holders for key in KWARGS),
    )


def _holders(saved: Mapping[object, object]) -> Iterator[Mapping[str, object]]:
    """Yield the file's own keys, the dictionaries and namespaces of options among them, and those within these."""
    outer = attributes(saved)
    yield outer
    for key in HOLDERS:
        if holder := attributes(outer.get(key)):
            yield holder
            yield from filter(None, (attributes(holder.get(inner)) for inner in (*HOLDERS, "model")))


def _names(holders: list[Mapping[str, object]]) -> Iterator[str]:
    for h in holders:
        yield from (name for key in ARCH if isinstance(name := to_plain(h.get(key)), str) and name)
    for h in holders:
        if isinstance(run := h.get("name"), str):
            yield from OPEN_CLIP_RUN.findall(run)
            yield run


def _first(holders: list[Mapping[str, object]], keys: tuple[str, ...]) -> object:
    """Return the first value that is a number, a text, or a list of numbers; None where there is none."""
    for h in holders:
        for key in keys:
            value = to_plain(h.get(key))
            is_numbers = isinstance(value, list) and all(isinstance(item, int | float) for item in value)
            if is_numbers or isinstance(value, int | float | str):
                return value
    return None


def _values(
    holders: list[Mapping[str, object]], keys: tuple[str, ...], synonyms: Mapping[str, object]
) -> dict[str, object]:
    """Return what the keys hold, or what is said in other words: numbers, and texts where an option is one."""
    by_key = {key: _first(holders, (key,)) for key in keys}
    by_key = {key: synonyms.get(key) if value in (None, "", []) else value for key, value in by_key.items()}
    return {
        key: value
        for key, value in by_key.items()
        if value not in (None, "", [])
        and not isinstance(value, bool)
        and isinstance(value, str) == (key in TEXTS)
    }


def _in_other_words(holders: list[Mapping[str, object]]) -> dict[str, object]:
    """Return what scripts call a pooling (`gp`), and a size of inputs: a side, or channels, height and width."""
    synonyms: dict[str, object] = {"global_pool": _first(holders, ("gp",))}
    match _first(holders, ("input_size",)):
        case int(side):
            synonyms["img_size"] = side
        case [int(channels), int(height), int(width)]:
            synonyms |= {"in_chans": channels, "img_size": height if height == width else [height, width]}
        case _:
            pass
    return synonyms
