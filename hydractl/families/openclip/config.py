"""open_clip's model configurations: the registry, what is refused and why, and the library's own model."""

from __future__ import annotations

import copy
import dataclasses
import difflib
import inspect
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from hydractl.errors import UnsupportedModelError
from hydractl.families.config_checks import building, check_options

if TYPE_CHECKING:
    import torch

DISTRIBUTION = "open_clip_torch"
ANY = "openclip"
PREFIX = "openclip:"
TOWERS = ("vision", "text")
CLIP_TOKENS = 49408
SUPPORTED = (
    "supported: open_clip's own VisionTransformer and TextTransformer, as in ViT-B-32 or ViT-L-14, and vision transformers "
    "of timm, as in ViT-B-16-SigLIP"
)
UNCUT = {
    "scale_heads": "each head has a scale parameter",
    "scaled_cosine_attn": "cosine attention with a temperature per head",
    "scale_attn_inner": "a norm over all heads, whose statistics change when a head is removed",
}
"""Options of attention that prevent the removal of heads, with the reason."""


BESIDE = frozenset({"timm_model_pretrained", "hf_tokenizer_name", "tokenizer_kwargs", "tokenizer_mode"})
"""Options of towers that are handled elsewhere, or that name a source of weights, which is not used."""
LOADS = frozenset({"hf_model_name", "hf_model_pretrained", "hf_proj_type", "hf_pooler_type"})
"""Options of a text tower that are read from the Hub."""
TRAINING_ONLY = frozenset(
    {"init_logit_bias", "init_logit_scale", "ls_init_value", "patch_dropout", "timm_drop", "timm_drop_path"}
)
"""Options that change neither the outputs of trained weights nor the tensors, unless they are None."""
LONGEST = 4096
"""Limit of text tokens; the constructor builds a causal mask with their square as size."""


def library() -> Any:  # noqa: ANN401 - open_clip is untyped
    """Return the package.

    Raises:
        UnsupportedModelError: If it is not installed.
    """
    try:
        import open_clip
    except ImportError as error:
        raise UnsupportedModelError(
            f"OpenCLIP models need open_clip, which cannot be imported: {error}",
            hint="`pip install 'hydractl[openclip]'`",
        ) from error
    return open_clip


def registered(name: str, options: Mapping[str, object]) -> dict[str, Any]:
    """Return the configuration of a name in open_clip's registry, changed by options.

    Args:
        name: With the prefix `openclip:`; `openclip` alone is an empty configuration, all of which is in the options.
        options: `embed_dim=64`, `vision.layers=3`, `text.width=32`, `custom_text=true`, ...

    Raises:
        UnsupportedModelError: If the registry does not have it.
    """
    open_clip, registry_name = library(), name.removeprefix(PREFIX)
    names = open_clip.list_models()
    if name != ANY and registry_name not in names:
        close = difflib.get_close_matches(registry_name, names, n=3)
        raise UnsupportedModelError(
            f"open_clip has no model `{registry_name}`",
            hint=f"did you mean {', '.join(f'`{PREFIX}{c}`' for c in close)}?" if close else None,
        )
    config: dict[str, Any] = {} if name == ANY else open_clip.get_model_config(registry_name)
    for tower in TOWERS:
        tower_config = options.get(f"{tower}_cfg") or {}
        tower_options = {
            k.removeprefix(f"{tower}."): v for k, v in options.items() if k.startswith(f"{tower}.")
        }
        config[f"{tower}_cfg"] = {
            **config.get(f"{tower}_cfg", {}), **(tower_config if isinstance(tower_config, dict) else {}), **tower_options
        }  # fmt: skip
    return config | {k: v for k, v in options.items() if "." not in k and not k.endswith("_cfg")}


def name_of(config: Mapping[str, object]) -> str:
    """Return the registry's name of a configuration, or `openclip` for one that it does not have."""
    open_clip = library()
    named = (PREFIX + n for n in open_clip.list_models() if open_clip.get_model_config(n) == config)
    return next(named, ANY)


def evaluation_config(config: Mapping[str, Any]) -> Mapping[str, object]:
    """Return what of a configuration changes the answers of trained weights, defaults filled in."""
    full_config = {**config, "custom_text": is_custom(config)}
    for name, kind in (("vision_cfg", library().CLIPVisionCfg), ("text_cfg", library().CLIPTextCfg)):
        tower = dataclasses.asdict(kind(**config[name]))
        full_config[name] = {k: v for k, v in tower.items() if k not in BESIDE | TRAINING_ONLY}
    return {k: v for k, v in full_config.items() if k not in TRAINING_ONLY}


def refusal(config: Mapping[str, Any]) -> str | None:
    """Return why heads cannot be cut in a model with this configuration, or None."""
    vision, text = config["vision_cfg"], config["text_cfg"]
    if "multimodal_cfg" in config:
        return "a CoCa model, which writes captions with a third stack of blocks"
    if isinstance(vision.get("layers"), list | tuple):
        return "its image tower is a ResNet (ModifiedResNet), which has no heads"
    if hugging_face := text.get("hf_model_name"):
        return f"its text tower is transformers' `{hugging_face}`; open_clip's own text transformers are supported"
    if text.get("embed_cls"):
        return "its text tower has a class token (embed_cls), as in CoCa"
    if text.get("tokenizer_mode"):
        return f"tokenizer mode `{text['tokenizer_mode']}`: texts end in a class token after the padding"
    if text.get("proj_type") == "none" and text.get("width") != config.get("embed_dim"):
        return "its text tower does not project (proj_type), and its width differs from its embeddings"
    if config.get("nonscalar_logit_scale"):
        return "its temperature is not a scalar (nonscalar_logit_scale)"
    return _refusal_of_pooling(vision, text) or _refusal_of_attention(config)


def _refusal_of_pooling(vision: Mapping[str, Any], text: Mapping[str, Any]) -> str | None:
    pool = vision.get("attentional_pool")
    if isinstance(pool, str):
        return f"attentional pooling of kind `{pool}`: two poolers, and one embedding per query"
    for tower, options in (("image", vision), ("text", text)):
        if options.get("pool_type") == "none":
            return f"its {tower} tower does not pool: it returns one embedding per token"
    return None


def _refusal_of_attention(config: Mapping[str, Any]) -> str | None:
    for tower in TOWERS:
        for option, reason in UNCUT.items():
            if config[f"{tower}_cfg"].get(option):
                return f"{option} of the {tower} tower: {reason}"
    return None


def refusal_of_timm(visual: Any) -> str | None:  # noqa: ANN401 - open_clip is untyped
    """Return why heads cannot be cut in an image tower of timm's, on the meta device, or None if they can."""
    import torch

    from hydractl.families.timm.families import refusal_of_tower

    if reason := refusal_of_tower(visual.trunk):
        return reason
    made_for = visual.trunk.patch_embed.img_size
    if tuple(visual.image_size) != tuple(made_for):
        try:  # some take images of any size
            with torch.no_grad():
                visual.trunk(torch.empty(1, 3, *visual.image_size, device="meta"))
        except (AssertionError, RuntimeError):
            return f"it accepts images of {made_for}, not of {visual.image_size}"
    return None


def timm_name(config: Mapping[str, Any]) -> str:
    """Return the name of timm's model that is the image tower, empty where it is open_clip's own."""
    return str(config["vision_cfg"].get("timm_model_name") or "")


def text_sizes(config: Mapping[str, Any]) -> tuple[int, int]:
    """Return how many tokens a text has, and how many different ones there are."""
    kind = library().CLIPTextCfg
    return tuple(
        config["text_cfg"].get(name, getattr(kind, name)) for name in ("context_length", "vocab_size")
    )


def is_custom(config: Mapping[str, object]) -> bool:
    """Return whether the text tower is a module of its own (`CustomTextCLIP`), whose names have the prefix `text.`."""
    return bool(config.get("custom_text", False))


def created(config: Mapping[str, Any], name: str, *, weights: bool = True) -> Any:  # noqa: ANN401 - as above
    """Return the library's model, with random weights or with parameters on the meta device.

    Raises:
        UnsupportedModelError: If heads cannot be cut in it, it is told what is not for an architecture, or the library cannot
            build it.
    """
    import torch

    from hydractl.families.surgery import without_weights

    with building("open_clip", name):
        if reason := refusal(config):
            raise UnsupportedModelError(f"`{name}` is not supported: {reason}", hint=SUPPORTED)
        make = library().CustomTextCLIP if is_custom(config) else library().CLIP
        kwargs = _constructor_kwargs(config, name, inspect.signature(make).parameters.keys())
        if weights:
            return make(**kwargs)
        # timm's constructors may run a part of the model, and know how to compute their buffers again
        with torch.device("meta") if timm_name(config) else without_weights():
            return make(**kwargs)


def _constructor_kwargs(config: Mapping[str, Any], name: str, parameters: Collection[str]) -> dict[str, Any]:
    """Return what of a configuration the constructor is told."""
    options = {k: v for k, v in copy.deepcopy(dict(config)).items() if k != "custom_text"}
    for tower, kind in (("vision", library().CLIPVisionCfg), ("text", library().CLIPTextCfg)):
        tower_options = {k: v for k, v in options[f"{tower}_cfg"].items() if k not in BESIDE}
        check_options(
            name, tower_options, inspect.signature(kind).parameters.keys() - LOADS, prefix=f"{tower}."
        )
        options[f"{tower}_cfg"] = tower_options
    top_level = {k: v for k, v in options.items() if not k.endswith("_cfg")}
    check_options(name, top_level, set(parameters) - {"cast_dtype", "output_dict"})
    if options["text_cfg"].get("context_length", 0) > LONGEST:
        raise UnsupportedModelError(f"`{name}`: its texts have more than {LONGEST} tokens")
    return options


def random_state(config: Mapping[str, Any], name: str, seed: int) -> dict[str, torch.Tensor]:
    """Return random weights by the library's own rules, a function of the seed alone."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return dict(created(config, name).state_dict())
