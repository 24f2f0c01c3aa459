"""OpenCLIP's models with open_clip's own text transformers, and vision transformers of its own or timm's, classified zero-shot.

Names in memory are those of the whole model, for both towers at once: of `CLIP`, whose text tower has no prefix, or of
`CustomTextCLIP`, whose text tower is called `text`; an image tower of timm's is called `visual.trunk`. Their configurations
look alike, so each family may describe all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError

from hydractl.errors import CheckpointError, UnsupportedModelError
from hydractl.families.base import SCALE, Described, Family, TowerLayout
from hydractl.families.config_checks import building, check_patches
from hydractl.families.head_tensors import HeadTensor, TensorRole
from hydractl.families.model_folder import COMMON_RULES
from hydractl.families.openclip import config as configs
from hydractl.families.timm.models import LAYOUT, tower_heads
from hydractl.manifest.document import first_problem
from hydractl.manifest.head_mask import TowerHeads, TowerKeep
from hydractl.manifest.header import Architecture, Preprocess, Prompting
from hydractl.model_source import OPEN_CLIP_CONFIG
from hydractl.strict_json import plain

if TYPE_CHECKING:
    import torch

    from hydractl.families.tower import Model

LIBRARY = FAMILY = "openclip"
TIMM, CUSTOM_TEXT = "-timm", "-custom-text"
ANSWER = (*SCALE, "class_embeddings")
HEADS = (
    HeadTensor(name="attn.in_proj_weight", axis=0, copies=3, role=TensorRole.INPUT),
    HeadTensor(name="attn.in_proj_bias", axis=0, copies=3, role=TensorRole.BIAS),
    HeadTensor(name="attn.out_proj.weight", axis=1, copies=1, role=TensorRole.OUTPUT),
)
OPENAI_MEAN, OPENAI_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
CROPS = {"shortest": "center", "squash": "squash"}


TEXT = TowerLayout(
    block="transformer.resblocks.{layer}.",
    heads=HEADS,
    attention=("attn.",),
    mlp=("mlp.",),
    embed=("token_embedding.", "positional_embedding"),
    readout=("ln_final.", "text_projection"),
    head=(),
)
VISION = replace(
    TEXT,
    embed=("conv1.", "class_embedding", "positional_embedding", "ln_pre."),
    readout=("attn_pool.", "ln_post.", "proj"),
).under("visual.")
TRUNK = LAYOUT.under("visual.trunk.")
TRUNK = replace(TRUNK, embed=("visual.trunk.",), readout=(*TRUNK.readout, *TRUNK.head, "visual.head."))


def _family(name: str, *, covers: str, refuses: str) -> Family:
    layouts = {
        "text": TEXT.under("text.") if name.endswith(CUSTOM_TEXT) else TEXT,
        "vision": replace(TRUNK if TIMM in name else VISION, head=ANSWER),
    }

    def matches(config: Mapping[str, object]) -> bool:
        return "model_cfg" in config and name == _family_name(config["model_cfg"])

    def build(
        architecture: Architecture, mask: Mapping[str, TowerKeep], state: Mapping[str, torch.Tensor] | None
    ) -> Model:
        from hydractl.families.openclip.modules import wrap
        from hydractl.families.surgery import cut_heads, fill
        from hydractl.families.timm.modules import complete

        config: dict[str, Any] = dict(architecture.config)
        library = configs.created(config, architecture.name, weights=False)
        cut_heads(library, layouts, architecture, mask)
        fill(library, None if state is None else {k: v for k, v in state.items() if k != "class_embeddings"})
        if configs.timm_name(config):
            complete(library.visual.trunk)
        if config["vision_cfg"].get("pos_embed_type") == "sin_cos_2d":
            library.visual.positional_embedding.requires_grad_(requires_grad=False)
        classes = None if state is None else state.get("class_embeddings")
        head_numbers = {tower: keep.keep for tower, keep in mask.items()}
        return wrap(library, head_numbers, classes, width=config["embed_dim"]).eval()

    return Family(
        name=name,
        library=configs.DISTRIBUTION,
        covers=covers,
        refuses=refuses,
        towers=layouts,
        matches=matches,
        matches_encoder=lambda _: False,
        # one of the four, which describes all
        claims=lambda name_in_registry: (
            name == FAMILY
            and (name_in_registry == configs.ANY or name_in_registry.startswith(configs.PREFIX))
        ),
        read_config=read_config,
        write_config=write_config,
        describe=describe,
        build=build,
        initialise=lambda architecture, seed: configs.random_state(
            architecture.config, architecture.name, seed
        ),
        evaluation_config=lambda architecture: configs.evaluation_config(architecture.config),
        texts=lambda architecture: configs.text_sizes(architecture.config),
        adopt=adopt,
        rules=COMMON_RULES,
        scalars=frozenset(SCALE),
        exact=frozenset(SCALE),
    )


def describe(name: str, options: Mapping[str, object]) -> Described:
    """Return a model of open_clip's registry, `openclip:ViT-B-32`; option `tokenizer` is a file or folder.

    Raises:
        UnsupportedModelError: If the registry does not have it, or heads cannot be cut in it.
    """
    config_options = dict(options)
    tokenizer = config_options.pop("tokenizer", None)
    config = configs.registered(name, config_options)
    return _described(name, config, {}, tokenizer=None if tokenizer is None else Path(str(tokenizer)))


def read_config(config: Mapping[str, object], folder: Path) -> Described:
    """Return the model of a folder in open_clip's layout, from its `open_clip_config.json`.

    Raises:
        CheckpointError: If it has no `model_cfg` with two towers.
        UnsupportedModelError: If heads cannot be cut in it.
    """
    model, images = config.get("model_cfg"), config.get("preprocess_cfg") or {}
    if not isinstance(model, dict) or not isinstance(images, dict):
        raise CheckpointError(
            f"{folder}: model_cfg and preprocess_cfg of open_clip_config.json must be objects"
        )
    for tower in configs.TOWERS:
        if not isinstance(model.get(f"{tower}_cfg"), dict):
            raise CheckpointError(
                f"{folder}: model_cfg.{tower}_cfg of open_clip_config.json is not an object"
            )
    return _described(configs.name_of(model), model, images, tokenizer=folder)


def write_config(described: Described) -> dict[str, Mapping[str, object]]:
    """Return an `open_clip_config.json`."""
    how = cast("Preprocess", described.preprocess)
    images = {
        "mean": list(how.mean),
        "std": list(how.std),
        "interpolation": how.interpolation,
        "resize_mode": next(name for name, mode in CROPS.items() if mode == how.crop_mode),
    }
    return {OPEN_CLIP_CONFIG: {"model_cfg": described.architecture.config, "preprocess_cfg": images}}


def adopt(
    where: str,  # noqa: ARG001 - as other families take it
    architecture: Architecture,
    state: Mapping[str, torch.Tensor],
) -> dict[str, torch.Tensor]:
    """Return a folder's tensors, those of a text tower without a prefix named as `CustomTextCLIP` names them.

    open_clip reads such files too: models were saved so before they had a `custom_text`.
    """
    if configs.is_custom(architecture.config):
        prefixes = (TEXT.block.partition(".")[0] + ".", *TEXT.embed, *TEXT.readout)
        state = {f"text.{k}" if k.startswith(prefixes) else k: v for k, v in state.items()}
    return dict(state)


def _described(
    name: str, config: Mapping[str, Any], images: Mapping[str, Any], *, tokenizer: Path | None
) -> Described:
    from hydractl.families.openclip.tokenizer import tokenization

    library = configs.created(config, name, weights=False)
    with building("open_clip", name):
        text = library.text if configs.is_custom(config) else library
        towers = {"text": _heads(text.transformer.resblocks), "vision": _image_heads(name, config, library)}
    return Described(
        architecture=Architecture(
            library=LIBRARY,
            name=name,
            family=_family_name(config),
            config=plain(config),
            towers=towers,
            num_classes=0,
        ),
        preprocess=_images(library.visual.image_size, images),
        prompting=Prompting(
            tokenization=tokenization(config["text_cfg"], tokenizer, (text.context_length, text.vocab_size))
        ),
    )


def _heads(blocks: Any) -> TowerHeads:  # noqa: ANN401 - open_clip is untyped
    attention = blocks[0].attn
    return TowerHeads(layers=len(blocks), num_heads=attention.num_heads, head_dim=attention.head_dim)


def _image_heads(name: str, config: Mapping[str, Any], library: Any) -> TowerHeads:  # noqa: ANN401 - as above
    """Return the heads of an image tower.

    Raises:
        UnsupportedModelError: If it is timm's, and they cannot be cut in it.
    """
    timm = configs.timm_name(config)
    if not timm:
        check_patches(name, image=library.visual.image_size, patch=library.visual.patch_size)
        return _heads(library.visual.transformer.resblocks)
    if reason := configs.refusal_of_timm(library.visual):
        raise UnsupportedModelError(
            f"`{name}` is not supported: its image tower is timm's `{timm}`: {reason}", hint=configs.SUPPORTED
        )
    return tower_heads(library.visual.trunk)


def _family_name(config: object) -> str:
    """Return the name of the family that reads a model's configuration."""
    if not isinstance(config, Mapping):
        return FAMILY
    vision = config.get("vision_cfg")
    timm = isinstance(vision, Mapping) and configs.timm_name(config)
    return f"{FAMILY}{TIMM if timm else ''}{CUSTOM_TEXT if configs.is_custom(config) else ''}"


def _images(size: tuple[int, int], preprocess_cfg: Mapping[str, Any]) -> Preprocess:
    """Read a `preprocess_cfg`; what it leaves out is as OpenAI's models have it.

    Raises:
        UnsupportedModelError: If a field has a value that no preprocessing of ours has.
    """
    mode, interpolation = (
        str(preprocess_cfg.get("resize_mode") or "shortest"),
        preprocess_cfg.get("interpolation"),
    )
    if mode not in CROPS:
        raise UnsupportedModelError(
            f"its preprocessing is not supported: resize_mode `{mode}`",
            hint=f"supported: {', '.join(CROPS)}",
        )
    try:
        return Preprocess.model_validate(
            {
                "input_size": (3, *size),
                "mean": tuple(preprocess_cfg.get("mean") or OPENAI_MEAN),
                "std": tuple(preprocess_cfg.get("std") or OPENAI_STD),
                "interpolation": "bicubic" if interpolation in (None, "random") else interpolation,
                "crop_mode": CROPS[mode],
            }
        )
    except ValidationError as error:
        raise UnsupportedModelError(f"its preprocessing is not supported: {first_problem(error)}") from error
    except TypeError as error:
        raise UnsupportedModelError(f"its preprocessing has invalid mean or std: {error}") from error


REFUSES = (
    "CoCa: a third stack of blocks; ResNets: no heads; towers of transformers; scales and norms that span the heads; "
    "text towers with a class token; poolings with several answers"
)
OPENCLIP = (
    _family(
        FAMILY,
        covers="`CLIP` with open_clip's own towers, zero-shot: ViT-B-32, ViT-L-14, CLIPA, ...",
        refuses=REFUSES,
    ),
    _family(
        f"{FAMILY}{CUSTOM_TEXT}",
        covers="`CustomTextCLIP` with open_clip's own towers, zero-shot",
        refuses=f"as `{FAMILY}`",
    ),
    _family(
        f"{FAMILY}{TIMM}",
        covers="`CLIP` with an image tower of timm's families, zero-shot",
        refuses=f"as `{FAMILY}` and timm's families; ConvNeXt, Swin: no vision transformers",
    ),
    _family(
        f"{FAMILY}{TIMM}{CUSTOM_TEXT}",
        covers="`CustomTextCLIP` with an image tower of timm's families, zero-shot: SigLIP, perception encoder, EVA, "
        "ViTamin, MobileCLIP",
        refuses=f"as `{FAMILY}{TIMM}`",
    ),
)
