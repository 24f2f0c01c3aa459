"""Configurations, models and image preprocessing of transformers, and unsupported model types."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, cast

from pydantic import ValidationError

from hydractl.errors import CheckpointError, UnsupportedModelError, reason_of
from hydractl.families.config_checks import OptionsError, building, check_options, check_values
from hydractl.manifest.document import first_error_text
from hydractl.manifest.header import Preprocess
from hydractl.strict_json import MAX_BYTES

if TYPE_CHECKING:
    import torch

    from hydractl.manifest.header import Architecture


REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "align": "its image tower is an EfficientNet, which has no heads",
        "albert": "its layers share one set of weights, so heads of one layer cannot be removed",
        "deberta": "its queries, keys and values are interleaved head by head in one matrix; DeBERTa-v2 and v3 are "
        "supported",
        **dict.fromkeys(
            ("big_bird", "longformer"), "its attention is sparse: a token attends to a few others only"
        ),
        "esmc": "its queries and keys are normalized over all heads",
        **dict.fromkeys(
            ("flaubert", "xlm"),
            "it stores attention, norms and MLPs in separate lists, not by layer",
        ),
        "mobilebert": "its layers reduce the width of the stream before attention",
        "roc_bert": "it also reads shapes and sounds of characters",
        "squeezebert": "its projections are grouped convolutions",
        "xmod": "its layers have one adapter per language, which another input selects",
        "siglip2": "its images are lists of patches with separate grids; SigLIP 2 with a fixed size "
        "has the supported type `siglip`",
        **dict.fromkeys(
            ("donut-swin", "swin", "swinv2"),
            "its attention is within windows, and its width changes from stage to stage",
        ),
        **dict.fromkeys(
            ("bart", "mbart", "mt5", "t5", "umt5"),
            "it has an encoder and decoder, of which the decoder answers",
        ),
        **dict.fromkeys(
            ("deepseek_v2", "deepseek_v3", "minicpm3"),
            "its keys and values are latent (MLA): no head has rows of its own",
        ),
        "gemma2": "its attention scores have soft caps",
        **dict.fromkeys(
            ("gemma3", "gemma3_text"), "its blocks also have norms after attention and after the MLP"
        ),
        **dict.fromkeys(
            ("gpt_oss", "jetmoe", "mixtral", "olmoe", "phimoe", "qwen2_moe", "qwen3_moe"),
            "its MLPs are mixtures of experts: a router chooses some for each token",
        ),
        **dict.fromkeys(("jamba", "qwen3_5", "qwen3_next"), "some of its layers have no attention"),
        **dict.fromkeys(("cohere2", "llama4", "smollm3"), "some of its layers have no positions (NoPE)"),
        "dinov3_vit": "the library has no classifier for it; timm's DINOv3 models are supported",
    }
)


UNDECLARED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        **dict.fromkeys(
            ("deit", "dinov2", "dinov2_with_registers", "esm", "gte", "ijepa", "jina_embeddings_v3", "qwen2", "vit", "vit_msn"),
            ("head_dim",),
        ),
        "beit": ("head_dim", "segmentation_indices"),
        **dict.fromkeys(("altclip", "chinese_clip", "clip", "clipseg", "metaclip_2"), ("text_config_dict", "vision_config_dict")),
        "deberta-v2": (
            "attention_head_size", "cls_dropout", "conv_act", "conv_groups", "conv_kernel_size", "embedding_size",
            "norm_rel_ebd", "position_buckets", "share_att_key",
        ),
        "modernbert": (
            "global_attn_every_n_layers", "global_rope_theta", "head_dim", "local_rope_theta", "rope_scaling",
        ),
        "roformer": ("summary_activation", "summary_type"),
        "ultrabert": ("attention_windows", "rope_theta"),
    }
)  # fmt: skip
"""Undeclared options that a configuration or its model reads, by `model_type`."""


TOWERS = ("text_config", "vision_config")
LABELS = ("id2label", "label2id")
NOT_ARCHITECTURE = (
    *LABELS,
    "transformers_version",
    "_name_or_path",
    "architectures",
    "dtype",
    "problem_type",
)
"""Fields of a configuration that do not describe the architecture."""
TRAINING_ONLY = (
    "attention_dropout", "attention_probs_dropout_prob", "auxiliary_loss_weight", "classifier_dropout",
    "classifier_dropout_prob", "cls_dropout", "decoder_attention_dropout", "deterministic_flash_attn", "drop_path_rate",
    "dropout", "embedding_dropout", "hidden_dropout_prob", "initializer_cutoff_factor", "initializer_factor",
    "initializer_range", "layer_scale_init_value", "layerscale_value", "logit_scale_init_value", "mlp_dropout",
    "output_attentions", "output_hidden_states", "pooler_dropout", "qa_dropout", "return_dict", "semantic_loss_ignore_index",
    "seq_classif_dropout", "sparse_pred_ignore_index", "summary_last_dropout", "use_cache",
)  # fmt: skip
"""Options that change no output of trained weights: dropout rates, initialization, and additional outputs."""
OLD_ROPE = ("partial_rotary_factor", "rope_scaling", "rope_theta")
"""Former options that are now part of `rope_parameters`."""


def configured(name: str, options: Mapping[str, object]) -> Any:  # noqa: ANN401 - untyped
    """Return the library's configuration of a `model_type`, with the allowed options only.

    Other fields of files are dropped. The library would otherwise read the location of attention code and
    weights, and the quantization, from these fields.

    Raises:
        OptionsError: If the configuration does not accept the options.
    """
    from transformers import AutoConfig

    allowed = _allowed(_config_class(name), _with_real_angles(options))
    for key in allowed.keys() - set(LABELS):
        check_values(name, key, allowed[key])
    try:
        with quiet():
            return AutoConfig.for_model(name, **allowed)
    except Exception as error:  # validators of configurations may raise any error
        raise OptionsError(f"transformers cannot configure `{name}`: {reason_of(error)}") from error


def _with_real_angles(options: Mapping[str, object]) -> dict[str, object]:
    """Return options with `rope_theta` as a float, because the base may exceed the limit of integers."""
    return {
        key: float(value)
        if key == "rope_theta" and isinstance(value, int)
        else _with_real_angles(value)
        if isinstance(value, dict)
        else value
        for key, value in options.items()
    }


def checked_config(name: str, options: Mapping[str, object]) -> Any:  # noqa: ANN401 - untyped
    """Return the configuration for typed options.

    Raises:
        OptionsError: If an option is unknown, or the configuration does not accept a value.
    """
    config_class = _config_class(name)
    within = _within(config_class)
    check_options(name, {k: v for k, v in options.items() if k not in within}, _known_keys(config_class))
    for key, kind in within.items():
        if isinstance(tower_options := options.get(key), dict):
            check_options(name, tower_options, _known_keys(kind), prefix=f"{key.partition('_')[0]}.")
    return configured(name, options)


def evaluation_config(model_class: str, options: Mapping[str, object]) -> Mapping[str, object]:
    """Return the options with effect on the outputs of trained weights, with defaults."""
    unread = {*NOT_ARCHITECTURE, *TRAINING_ONLY, "text_config_dict", "vision_config_dict"}

    def filtered(config: Mapping[str, Any]) -> dict[str, object]:
        return {
            key: filtered(value) if key in TOWERS and isinstance(value, dict) else value
            for key, value in config.items()
            if key not in unread
        }

    config = configured(class_named(model_class).config_class.model_type, options)
    return {"model_class": model_class, **filtered(config.to_dict())}


def _config_class(name: str) -> Any:  # noqa: ANN401 - untyped
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return CONFIG_MAPPING[name]


def _allowed(config_class: Any, options: Mapping[str, object]) -> dict[str, object]:  # noqa: ANN401 - untyped
    """Return the options that describe the architecture, including those of nested configurations."""
    within, known_keys = _within(config_class), _known_keys(config_class)
    allowed = {key: value for key, value in options.items() if key in known_keys}
    for key in within.keys() & allowed.keys():
        if isinstance(tower_options := allowed[key], dict):
            allowed[key] = {k: v for k, v in _allowed(within[key], tower_options).items() if k not in LABELS}
    return allowed


@cache
def _known_keys(config_class: Any) -> frozenset[str]:  # noqa: ANN401 - untyped
    """Return the names of allowed options: declared by the configuration, or in `UNDECLARED`."""
    with quiet():
        declared = config_class().to_dict().keys()
    names = {
        *declared,
        *config_class.attribute_map,
        *UNDECLARED.get(config_class.model_type, ()),
        "num_labels",
    }
    old = OLD_ROPE if "rope_parameters" in names else ()
    return frozenset({*names, *old} - {*NOT_ARCHITECTURE, "model_type"} | {*LABELS})


@cache
def _within(config_class: Any) -> Mapping[str, Any]:  # noqa: ANN401 - untyped
    """Return the nested configuration classes of a two-tower model, by option name."""
    parts: Mapping[str, Any] = config_class.sub_configs
    return {f"{key}{form}": parts[key] for key in TOWERS if key in parts for form in ("", "_dict")}


def empty_model(model_class: str, architecture: Architecture, spared: Sequence[str] = ()) -> Any:  # noqa: ANN401 - untyped
    """Return the library's model with parameters on the meta device, and real buffers.

    Args:
        model_class: Name of the library's class.
        architecture: The architecture.
        spared: Paths of modules to remove.
    """
    from transformers.initialization import no_init_weights

    from hydractl.families.tower import without_weights

    with without_weights(), no_init_weights():
        return without_modules(_build_library_model(model_class, architecture), spared)


def random_state(
    model_class: str, architecture: Architecture, seed: int, spared: Sequence[str] = ()
) -> dict[str, torch.Tensor]:
    """Return random weights by the library's own rules, determined by the seed."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return dict(without_modules(_build_library_model(model_class, architecture), spared).state_dict())


def without_modules(library: Any, spared: Sequence[str]) -> Any:  # noqa: ANN401 - as above
    """Replace modules of a model by identities, and return the model."""
    from torch import nn

    for path in spared:
        holder, _, name = path.rpartition(".")
        parts = library.get_submodule(holder)._modules
        if name in parts:
            parts[name] = nn.Identity()
    return library


def _build_library_model(model_class: str, architecture: Architecture) -> Any:  # noqa: ANN401 - untyped
    config = configured(class_named(model_class).config_class.model_type, architecture.config)
    with building("transformers", architecture.name), quiet():
        return class_named(model_class)(config)


def check_small(folder: Path, patterns: Iterable[str]) -> None:
    """Raise if a file for the library is larger than `MAX_BYTES`, because the library reads whole files.

    Raises:
        CheckpointError: With the name of the first larger file.
    """
    for path in (match for pattern in patterns for match in sorted(folder.glob(pattern))):
        if path.stat().st_size > MAX_BYTES:
            raise CheckpointError(f"{path}: has more than {MAX_BYTES} bytes")


def classes_of(config: Mapping[str, object], default: str) -> list[str]:
    """Return the class names in a `config.json`, by default `[default]`."""
    trained = config.get("architectures")
    return [str(name) for name in trained] if isinstance(trained, list) and trained else [default]


def class_named(model_class: str) -> Any:  # noqa: ANN401 - untyped
    """Return a class of transformers.

    Raises:
        UnsupportedModelError: If the installed release does not have the class.
    """
    import transformers

    library_class = getattr(transformers, model_class, None)
    if library_class is None:
        raise UnsupportedModelError(
            f"transformers {transformers.__version__} has no `{model_class}`",
            hint="pip install --upgrade transformers",
        )
    return library_class


def labels_as_config(names: Sequence[str]) -> dict[str, object]:
    """Return class names as the fields `id2label` and `label2id` of a configuration."""
    return {
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
    }


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hide progress bars and log messages of the library inside the `with` statement.

    Errors are still raised.
    """
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars
    from transformers.utils import logging

    level, bars, hubs = (
        logging.get_verbosity(),
        logging.is_progress_bar_enabled(),
        not are_progress_bars_disabled(),
    )
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]
        if not hubs:  # enabling transformers' progress bars also enables those of huggingface_hub
            disable_progress_bars()


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
    """Return the preprocessing in a folder's image processor.

    Args:
        folder: Folder with `preprocessor_config.json`.
        size: Channels, height and width of the model's images.
        fixed: Whether the model accepts no other size. Otherwise the folder determines the size.

    Raises:
        CheckpointError: If the image processor cannot be read.
        UnsupportedModelError: If a setting is not supported.
    """
    return _preprocess(_image_processor(folder), size, f"{folder}: its image processor", fixed=fixed)


def read_images(
    config: Any,  # noqa: ANN401 - transformers is untyped
    folder: Path | None,
    *,
    crop_mode: Literal["squash", "center"] = "squash",
    fixed: bool = True,
) -> Preprocess:
    """Return the preprocessing of a model's images.

    Args:
        config: Configuration of the model or of its image tower.
        folder: Folder of the model, or None. A folder without an image processor has the library's default
            for the model type.
        crop_mode: Crop mode of a model without a folder.
        fixed: See `read_image_processor`.

    Raises:
        CheckpointError: If the image processor cannot be read.
        UnsupportedModelError: If a setting is not supported.
    """
    size = image_size(config)
    if folder is None:
        return default_preprocess(size, crop_mode)
    return (
        read_image_processor(folder, size, fixed=fixed)
        if reads_images(folder)
        else usual_preprocess(config, size)
    )


def write_image_processor(preprocess: Preprocess) -> dict[str, object]:
    """Return the settings of an image processor: the inverse of `read_image_processor`."""
    height, width = preprocess.input_size[1:]
    resized = [math.floor(side / preprocess.crop_pct) for side in (height, width)]
    squashed = preprocess.crop_mode == "squash"
    crops = not squashed or resized != [height, width]
    size = {"height": resized[0], "width": resized[1]} if squashed else {"shortest_edge": min(resized)}
    numbers = {name: number for number, name in RESAMPLING.items()}
    return {
        "image_processor_type": f"{'ViT' if squashed and not crops else 'DeiT' if squashed else 'CLIP'}ImageProcessor",
        "do_convert_rgb": preprocess.transparency == "white",
        "do_resize": True,
        "size": size,
        "resample": numbers[preprocess.interpolation],
        "do_center_crop": crops,
        **({"crop_size": {"height": height, "width": width}} if crops else {}),
        "do_rescale": True,
        "rescale_factor": 1 / WHITE,
        "do_normalize": True,
        "image_mean": list(preprocess.mean),
        "image_std": list(preprocess.std),
    }


def reads_images(folder: Path) -> bool:
    """Return whether a folder has an image processor."""
    return any((folder / name).is_file() for name in FILES)


def usual_preprocess(config: Any, size: tuple[int, int, int]) -> Preprocess:  # noqa: ANN401 - transformers is untyped
    """Return the library's default preprocessing for a type of model, with images of `size`.

    Raises:
        UnsupportedModelError: If images have neither 1 nor 3 channels.
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
    if size[0] != RGB:  # For other numbers of channels, use the mean over RGB, as timm does.
        changes |= {name: (sum(getattr(library_default, name)) / RGB,) * size[0] for name in ("mean", "std")}
    return library_default.model_copy(update=changes)


def _preprocess(
    settings: Mapping[str, Any], size: tuple[int, int, int], place: str, *, fixed: bool
) -> Preprocess:
    """Return the preprocessing for the settings of an image processor.

    Raises:
        UnsupportedModelError: If a setting is not supported or out of range.
    """
    try:
        cropped, resized, mode = _sizes(settings, place)
        if fixed and cropped != size[1:]:
            raise UnsupportedModelError(
                f"{place} makes images of {_pixels(cropped)} pixels, but the model takes {_pixels(size[1:])}",
                hint="correct `size` or `crop_size` in preprocessor_config.json",
            )
        mean, std = _statistics(settings, size[0], place)
        number = settings.get("resample")
        return Preprocess.model_validate(
            {
                "input_size": (size[0], *cropped),
                "mean": mean,
                "std": std,
                "interpolation": RESAMPLING.get(2 if number is None else int(number), number),
                "crop_pct": _crop_fraction(cropped, resized, place),
                "crop_mode": mode,
                "crop_offset": "nearest" if cropped == resized and mode == "squash" else "before",
                "resize_backend": settings["backend"],
                "transparency": "white" if settings.get("do_convert_rgb") else "drop",
            }
        )
    except ValidationError as error:
        raise UnsupportedModelError(f"{place} is not supported: {first_error_text(error)}") from error
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise UnsupportedModelError(
            f"{place} has an invalid size, mean, std or factor: {reason_of(error)}"
        ) from error


def default_preprocess(
    size: tuple[int, int, int], crop_mode: Literal["squash", "center"] = "squash"
) -> Preprocess:
    """Return the preprocessing of a model without a folder: pixels in -1..1, and torchvision's resizing.

    Raises:
        UnsupportedModelError: If images have neither 1 nor 3 channels.
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
    """Return channels, height and width of a model's images."""
    side = config.image_size
    height, width = (side, side) if isinstance(side, int) else side
    return config.num_channels, height, width


def _image_processor(folder: Path) -> dict[str, Any]:
    """Return the settings of a folder's image processor, with class defaults.

    Raises:
        CheckpointError: If the library cannot read the image processor.
        UnsupportedModelError: If its class is not in `PLAIN`.
    """
    from transformers import AutoImageProcessor

    check_small(folder, FILES)
    try:
        with quiet():
            processor = AutoImageProcessor.from_pretrained(  # type: ignore[no-untyped-call]
                folder, local_files_only=True, trust_remote_code=False
            )
    except Exception as error:  # the library may raise any error of its parsers
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
    """Return the settings of an image processor, and `backend`: `torchvision` or `pillow`."""
    return cast("dict[str, Any]", processor.to_dict()) | {
        "backend": processor.backend.replace("pil", "pillow")
    }


def _sizes(settings: Mapping[str, Any], place: str) -> tuple[tuple[int, int], tuple[int, int], str]:
    """Return the size of inputs, the size after resizing (height, width), and the crop mode of `Preprocess`.

    Raises:
        UnsupportedModelError: If images are not resized, are padded, or a size has another form.
    """
    if not settings.get("do_resize") or settings.get("do_pad"):
        odd = "pads images" if settings.get("do_pad") else "does not resize images"
        raise UnsupportedModelError(f"{place} {odd}, which is not supported")
    size = {k: v for k, v in dict(settings["size"]).items() if v is not None}
    crop = dict(settings.get("crop_size") or {}) if settings.get("do_center_crop") else {}
    cropped = _pair(crop) if crop else None
    if size.keys() == {"height", "width"}:
        resized = _pair(size)
        return cropped or resized, resized, "squash"
    if size.keys() != {"shortest_edge"} or cropped is None or cropped[0] != cropped[1]:
        raise UnsupportedModelError(
            f"{place} resizes to {size} and {f'crops to {crop}' if crop else 'does not crop'}, which is not supported",
            hint="supported: a `height` and a `width`, or a `shortest_edge` and a square crop",
        )
    return cropped, (int(size["shortest_edge"]),) * 2, "center"


def _crop_fraction(cropped: tuple[int, int], resized: tuple[int, int], place: str) -> float:
    """Return the fraction of a side kept by the crop, exact enough to recover `resized`.

    Raises:
        UnsupportedModelError: If the crop keeps different fractions of the sides, or more than all.
    """
    for slack in (0.0, 0.5):  # the resized side is rounded down after an inexact division
        fraction = cropped[0] / (resized[0] + slack)
        if (
            all(math.floor(c / fraction) == r for c, r in zip(cropped, resized, strict=True))
            and fraction <= 1
        ):
            return fraction
    raise UnsupportedModelError(
        f"{place} resizes to {_pixels(resized)} pixels and crops to {_pixels(cropped)}, which is not supported",
        hint="the crop must keep the same fraction of both sides, and no more than all of it",
    )


def _statistics(
    settings: Mapping[str, Any], channels: int, place: str
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return means and standard deviations, for pixels in 0..1."""
    white = WHITE * float(settings["rescale_factor"] if settings.get("do_rescale") else 1)
    if math.isclose(white, 1.0, rel_tol=1e-6):
        white = 1.0
    mean, std = (
        _one_a_channel(settings, key, channels, place)
        if settings.get("do_normalize")
        else (neutral,) * channels
        for key, neutral in (("image_mean", 0.0), ("image_std", 1.0))
    )
    return tuple(m / white for m in mean), tuple(s / white for s in std)


def _one_a_channel(settings: Mapping[str, Any], key: str, channels: int, place: str) -> tuple[float, ...]:
    stored = settings.get(key)
    values = tuple(stored) if isinstance(stored, Iterable) else (stored,) * channels
    numbers = tuple(float(v) for v in values if isinstance(v, int | float))
    if len(values) != channels or len(numbers) != channels:
        raise UnsupportedModelError(
            f"{place} has `{key}` {stored}, but the model takes images with {channels} channels"
        )
    return numbers


def _pair(size: Mapping[str, Any]) -> tuple[int, int]:
    return int(size["height"]), int(size["width"])


def _pixels(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"
