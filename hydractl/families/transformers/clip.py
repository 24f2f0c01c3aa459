"""transformers' CLIP, SigLIP and their kin: two towers that compare images with texts, classified zero-shot.

Names in memory are those of the whole model (`CLIPModel`, `SiglipModel`), for both towers at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from hydractl.families.base import SCALE, TowerLayout
from hydractl.families.transformers.encoder import EncoderNames, Paired
from hydractl.families.transformers.models import CLASS_EMBEDDINGS, FamilyRow, family_of_row
from hydractl.families.transformers.text import BERT
from hydractl.families.transformers.tokenizers import read_texts
from hydractl.families.transformers.vision import read_images
from hydractl.manifest.header import Preprocess, Tokenization

if TYPE_CHECKING:
    from hydractl.families.surgery import HeadNumbers
    from hydractl.families.tower import Model

ANSWER = (*SCALE, CLASS_EMBEDDINGS)
TEXT = EncoderNames(
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
class PairRow(FamilyRow):
    """The two-tower models of transformers that one family reads.

    Attributes:
        text: The tower of texts.
        vision: The tower of images.
        unused: Positions that no token takes, given the configuration of the tower of texts.
    """

    text: Paired
    vision: Paired
    unused: Callable[[Any], int] = lambda _: 0
    remark: str = ", both towers, zero-shot"
    scalars: frozenset[str] = frozenset({"logit_scale"})
    exact: frozenset[str] = frozenset(SCALE)

    @property
    @override
    def towers(self) -> Mapping[str, TowerLayout]:
        vision = replace(self.vision.encoder.layout(), head=ANSWER)
        return {"text": self.text.encoder.layout(), "vision": vision}

    @property
    @override
    def nested(self) -> Mapping[str, str]:
        return {"text": "text_config", "vision": "vision_config"}

    @override
    def wrap(self, library: Any, head_numbers: Mapping[str, HeadNumbers]) -> Model:
        from hydractl.families.transformers.clip_modules import wrap

        return wrap(library, {"text": self.text, "vision": self.vision}, head_numbers)

    @override
    def images(self, config: Any, folder: Path | None) -> Preprocess:
        return read_images(config, folder, crop_mode="center")

    @override
    def texts(self, config: Any, source: Path | None) -> Tokenization:
        return read_texts(config, source, unused=self.unused(config), padding=self.padding)


def _incomparable(config: Any) -> str | None:  # noqa: ANN401 - as above
    if not getattr(config.vision_config, "vision_use_head", True):
        return "its image tower has no pooling (vision_use_head)"
    images, texts = config.vision_config.hidden_size, config.text_config.projection_size
    return (
        None
        if images == texts
        else f"its embeddings have {images} dimensions for images, but {texts} for texts"
    )


_CLIP_VISION = Paired(encoder=VISION, pick="first")
_ROWS = (
    PairRow(
        title="clip",
        classes={"clip": "CLIPModel", "metaclip_2": "MetaClip2Model", "clipseg": "CLIPSegModel"},
        text=Paired(encoder=TEXT, pick="end", causal=True),
        vision=_CLIP_VISION,
    ),
    PairRow(
        title="chinese-clip",
        classes={"chinese_clip": "ChineseCLIPModel"},
        text=Paired(encoder=_BERT, pick="first", extra_inputs=BERT.extra_inputs),
        vision=_CLIP_VISION,
    ),
    PairRow(
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
            extra_inputs=BERT.extra_inputs,
        ),
        vision=_CLIP_VISION,
        unused=lambda config: config.pad_token_id + 1,  # positions are counted from behind the padding token
        on_disk=((r"\.encoder\.layer\.", ".encoder.layers."),),
    ),
    PairRow(
        title="siglip",
        classes={"siglip": "SiglipModel"},
        text=Paired(encoder=replace(TEXT, final=("final_layer_norm", "head"), projection=()), pick="last"),
        vision=Paired(encoder=replace(VISION, final=("post_layernorm", "head"), projection=()), pick="all"),
        padding="max_length",
        scalars=frozenset(),
        refusal=_incomparable,
        refuses="towers with embeddings of different widths or without pooling, which the library cannot compare",
    ),
)
PAIRS = tuple(family_of_row(row) for row in _ROWS)
