"""transformers' CLIP, SigLIP and their kin: two towers that compare images with texts, classified zero-shot.

Names in memory are those of the whole model (`CLIPModel`, `SiglipModel`), for both towers at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from hydractl.families.transformers.encoder import Encoder, Paired
from hydractl.families.transformers.models import CLASS_EMBEDDINGS, Kind, family_of_kind
from hydractl.families.transformers.text import BERT
from hydractl.families.transformers.tokenizers import texts_of
from hydractl.families.transformers.vision import default_preprocess, image_size, read_image_processor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from hydractl.families.base import Family
    from hydractl.families.dismantling import Kept
    from hydractl.families.tower import Model
    from hydractl.manifest.header import Preprocess

ANSWER = ("logit_scale", "logit_bias", CLASS_EMBEDDINGS)
TEXT = Encoder(
    model="text_model",
    layers="encoder.layers",
    final=("final_layer_norm",),
    projection=("text_projection",),
    head=(),
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    output="self_attn.out_proj",
    norms=("layer_norm1", "layer_norm2"),
    attention_dropout="attention_dropout",
)
VISION = replace(
    TEXT,
    model="vision_model",
    embed=("embeddings", "pre_layrnorm"),
    final=("post_layernorm",),
    projection=("visual_projection",),
)
"""CLIP's towers; other models have the same blocks."""
_BERT = replace(BERT, model="text_model", final=(), projection=("text_projection",), head=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The two-tower models of transformers that one family reads.

    Attributes:
        title: The family's name, without the library's.
        classes: For each `model_type` the class that holds both towers.
        text: The tower of texts.
        vision: The tower of images.
        padding: See `Kind`.
        scalars: See `Family`.
        unused: Positions that no token takes, given the configuration of the tower of texts.
        refusal: See `Kind`.
        refuses: See `Family`.
        on_disk: See `Family`.
    """

    title: str
    classes: Mapping[str, str]
    text: Paired
    vision: Paired
    padding: Literal["longest", "max_length"] = "longest"
    scalars: frozenset[str] = frozenset({"logit_scale"})
    unused: Callable[[Any], int] = lambda _: 0
    refusal: Callable[[Any], str | None] = lambda _: None
    refuses: str = ""
    on_disk: tuple[tuple[str, str], ...] = ()


def _family(pair: Pair) -> Family:
    towers = {"text": pair.text, "vision": pair.vision}
    layouts = {name: paired.encoder.layout() for name, paired in towers.items()}
    layouts["vision"] = replace(layouts["vision"], head=ANSWER)

    def wrap(library: Any, kept: Mapping[str, Kept]) -> Model:  # noqa: ANN401 - transformers is untyped
        from hydractl.families.transformers.clip_modules import wrap

        return wrap(library, towers, kept)

    return family_of_kind(
        Kind(
            name=f"transformers-{pair.title}",
            covers=", ".join(f"`{name}`" for name in pair.classes.values()) + ", both towers, zero-shot",
            refuses=pair.refuses,
            classes=pair.classes,
            towers=layouts,
            nested={name: f"{name}_config" for name in towers},
            wrap=wrap,
            images=_images,
            texts=texts_of(pair.unused),
            padding=pair.padding,
            refusal=pair.refusal,
            on_disk=pair.on_disk,
            scalars=pair.scalars,
        )
    )


def _images(config: Any, folder: Path | None) -> Preprocess:  # noqa: ANN401 - as above
    size = image_size(config)
    return default_preprocess(size, "center") if folder is None else read_image_processor(folder, size)


def _incomparable(config: Any) -> str | None:  # noqa: ANN401 - as above
    if not getattr(config.vision_config, "vision_use_head", True):
        return "its image tower does not pool (vision_use_head)"
    images, texts = config.vision_config.hidden_size, config.text_config.projection_size
    return None if images == texts else f"it has embeddings of {images} numbers for images, {texts} for texts"


_CLIP_VISION = Paired(encoder=VISION, pick="first")
_PAIRS = (
    Pair(
        title="clip",
        classes={"clip": "CLIPModel", "metaclip_2": "MetaClip2Model", "clipseg": "CLIPSegModel"},
        text=Paired(encoder=TEXT, pick="end", causal=True),
        vision=_CLIP_VISION,
    ),
    Pair(
        title="chinese-clip",
        classes={"chinese_clip": "ChineseCLIPModel"},
        text=Paired(encoder=_BERT, pick="first", takes=BERT.takes),
        vision=_CLIP_VISION,
    ),
    Pair(
        title="altclip",
        classes={"altclip": "AltCLIPModel"},
        text=Paired(
            encoder=replace(
                _BERT,
                model="text_model.roberta",
                layers="encoder.layers",
                projection=("text_model.pre_LN", "text_model.transformation", "text_projection"),
            ),
            pick="first",
            takes=BERT.takes,
        ),
        vision=_CLIP_VISION,
        unused=lambda config: config.pad_token_id + 1,  # positions are counted from behind the padding token
        on_disk=((r"\.encoder\.layer\.", ".encoder.layers."),),
    ),
    Pair(
        title="siglip",
        classes={"siglip": "SiglipModel"},
        text=Paired(encoder=replace(TEXT, final=("final_layer_norm", "head"), projection=()), pick="last"),
        vision=Paired(encoder=replace(VISION, final=("post_layernorm", "head"), projection=()), pick="all"),
        padding="max_length",
        scalars=frozenset(),
        refusal=_incomparable,
        refuses="towers whose embeddings differ in width or are not pooled: the library cannot compare them",
    ),
)
PAIRS = tuple(_family(pair) for pair in _PAIRS)
