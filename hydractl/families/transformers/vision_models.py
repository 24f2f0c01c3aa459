"""Vision encoders of transformers, and CLIP and SigLIP."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from typing_extensions import override

from hydractl.families.base import SCALE
from hydractl.families.head_slicing import TowerLayout
from hydractl.families.transformers.encoder import EncoderNames, Paired
from hydractl.families.transformers.hf_models import image_size, read_images
from hydractl.families.transformers.models import CLASS_EMBEDDINGS, FamilyRow, family_of_row
from hydractl.families.transformers.text import BERT, read_texts
from hydractl.manifest.header import Preprocess, Tokenization

if TYPE_CHECKING:
    import torch

    from hydractl.families.stream import Stream
    from hydractl.families.tower import HeadNumbers, Model


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
    """The two-tower models of transformers in a family.

    Attributes:
        text: The text tower.
        vision: The image tower.
        unused: Function from the text tower's configuration to the number of unused positions.
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
        return {
            "text": self.text.encoder.layout(),
            "vision": replace(self.vision.encoder.layout(), head=ANSWER),
        }

    @property
    @override
    def nested(self) -> Mapping[str, str]:
        return {"text": "text_config", "vision": "vision_config"}

    @override
    def wrap(self, library: Any, head_numbers: Mapping[str, HeadNumbers]) -> Model:
        from hydractl.families.transformers.modules import wrap

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
_PAIR_ROWS = (
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
        unused=lambda config: config.pad_token_id + 1,  # positions start after the id of the padding token
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
PAIRS = tuple(family_of_row(row) for row in _PAIR_ROWS)


OBLONG = "non-square images: the library resizes only square position embeddings"


@dataclass(frozen=True, slots=True, kw_only=True)
class Readout:
    """Computation of logits from the last tokens, for one class of the library.

    Attributes:
        logits: Function from the library's classifier model, the encoder and tokens (N, T, D) to logits (N,
            C).
        read_tokens: Function from the configuration to the tokens to read, or None for all.
        unread: Prefixes of tensors without effect on the outputs, relative to the encoder.
    """

    logits: Callable[[Any, Any, torch.Tensor], Any]
    read_tokens: Callable[[Any], slice | None] = lambda _: None
    unread: tuple[str, ...] = ()


def _class_token(host: Any, model: Any, x: torch.Tensor) -> Any:  # noqa: ANN401 - transformers is untyped
    return host.classifier(model.layernorm(x[:, 0]))


def _mean(host: Any, model: Any, x: torch.Tensor) -> Any:  # noqa: ANN401 - as above
    return host.classifier(model.layernorm(x).mean(dim=1))


def _pooled(host: Any, model: Any, x: torch.Tensor) -> Any:  # noqa: ANN401 - as above
    """Return logits (N, C) of the normed mean of the patches, or of the normed class token."""
    return host.classifier(model.pooler(model.layernorm(x)))


def _mean_of_patches(host: Any, model: Any, x: torch.Tensor) -> Any:  # noqa: ANN401 - as above
    """Return SigLIP's logits (N, C) without attention pooling. All tokens are patches."""
    return host.classifier(model.post_layernorm(x).mean(dim=1))


def _mean_without_norm(host: Any, _: Any, x: torch.Tensor) -> Any:  # noqa: ANN401 - as above
    """Return CLIP's logits (N, C), without the final norm."""
    return host.classifier(x[:, 1:].mean(dim=1))


def _two_tokens(host: Any, model: Any, x: torch.Tensor) -> Any:  # noqa: ANN401 - as above
    """Return the mean (N, C) of the logits of class token and distillation token."""
    by_class, by_teacher = model.layernorm(x[:, :2]).unbind(dim=1)
    return (host.cls_classifier(by_class) + host.distillation_classifier(by_teacher)) / 2


def _class_token_and_mean(host: Any, model: Any, x: torch.Tensor) -> Any:  # noqa: ANN401 - as above
    """Return logits (N, C) of the normed class token and the mean of the patches, without registers."""
    import torch

    normed, prefix = model.layernorm(x), 1 + getattr(host.config, "num_register_tokens", 0)
    return host.classifier(torch.cat((normed[:, 0], normed[:, prefix:].mean(dim=1)), dim=1))


_CLASS_TOKEN = Readout(logits=_class_token, read_tokens=lambda _: slice(0, 1))
_POOLER = Readout(
    logits=_pooled,
    read_tokens=lambda config: None if config.use_mean_pooling else slice(0, 1),
    unread=("embeddings.mask_token",),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRow(FamilyRow):
    """The image classifiers of one encoder.

    Attributes:
        encoder: Names of the encoder's parts.
        readout: Computation of logits in the library's classes.
        otherwise: Computations for other classes, by class name.
        within: Name of the nested configuration of the image tower; empty if the configuration is not nested.
        resizes: Whether the library resizes position embeddings. It can only resize square ones.
        one_size: Function from the configuration to whether a model with `resizes` still accepts no other
            size.
    """

    encoder: EncoderNames
    readout: Readout
    otherwise: Mapping[str, Readout] = field(default_factory=dict)
    within: str = ""
    resizes: bool = False
    one_size: Callable[[Any], bool] = lambda _: False

    @property
    @override
    def towers(self) -> Mapping[str, TowerLayout]:
        return {"vision": self.encoder.layout()}

    @property
    @override
    def nested(self) -> Mapping[str, str]:
        return {"vision": self.within} if self.within else {}

    @override
    def refused(self, config: Any) -> str | None:
        _, height, width = image_size(getattr(config, self.within) if self.within else config)
        if self.resizes and height != width:
            return (
                f"the library resizes only square position embeddings, not those of {height}x{width} pixels"
            )
        return None

    @override
    def wrap(self, library: Any, head_numbers: Mapping[str, HeadNumbers]) -> Model:
        from hydractl.families.tower import Model
        from hydractl.families.transformers.modules import Ends, embed_images, set_aside, tower

        readout = self.otherwise.get(type(library).__name__, self.readout)
        model = self.encoder.model
        set_aside(library, tuple(f"{model}.{name}" for name in readout.unread))
        ends = Ends(
            embed=partial(embed_images, encoder=self.encoder),
            read=partial(_read, model=model, logits=readout.logits),
            read_tokens=readout.read_tokens(library.config),
        )
        return Model({"vision": tower(library, self.encoder, head_numbers["vision"], ends)})

    @override
    def images(self, config: Any, folder: Path | None) -> Preprocess:
        return read_images(config, folder, fixed=not self.resizes or self.one_size(config))


def _read(
    host: Any,  # noqa: ANN401 - as above
    stream: Stream,
    *,
    model: str,
    logits: Callable[[Any, Any, torch.Tensor], Any],
) -> torch.Tensor:
    return cast("torch.Tensor", logits(host, getattr(host, model), stream.tokens))


def _relative(config: Any) -> bool:  # noqa: ANN401 - as above
    return cast("bool", config.use_relative_position_bias or config.use_shared_relative_position_bias)


_ATTENTION_ON_DISK = (
    (r"\.attention\.attention\.(q|k|v)(?:uery|ey|alue)\.", r".attention.\1_proj."),
    (r"\.attention\.output\.dense\.", ".attention.o_proj."),
)
_BLOCK_ON_DISK = (
    (r"\.encoder\.layer\.", ".layers."),
    *_ATTENTION_ON_DISK,
    (r"\.intermediate\.dense\.", ".mlp.fc1."),
    (r"\.output\.dense\.", ".mlp.fc2."),
)
_VIT = EncoderNames(
    model="vit",
    layers="layers",
    final=("layernorm",),
    qkv=("attention.q_proj", "attention.k_proj", "attention.v_proj"),
    output="attention.o_proj",
    norms=("layernorm_before", "layernorm_after"),
    drops=("dropout", "dropout"),
)
_BEIT = replace(
    _VIT,
    model="beit",
    final=("layernorm", "pooler"),
    scales=("lambda_1", "lambda_2"),
    drop_path=True,
    bias="relative_position_bias",
    shared_bias="shared_position_bias",
)
_DINOV2 = replace(
    _VIT,
    model="dinov2",
    layers="encoder.layer",
    norms=("norm1", "norm2"),
    scales=("layer_scale1.lambda1", "layer_scale2.lambda1"),
    drops=None,
    drop_path=True,
)
_CLIP = replace(VISION, final=("post_layernorm", "head"), head=("classifier",), projection=())

_DISTILLED = "DeiTForImageClassificationWithTeacher"
_TOWERS = {
    "SiglipForImageClassification": "siglip",
    "CLIPForImageClassification": "clip",
    "MetaClip2ForImageClassification": "metaclip_2",
}
_ROWS = (
    ImageRow(
        title="vit",
        encoder=_VIT,
        classes={"vit": "ViTForImageClassification", "vit_msn": "ViTMSNForImageClassification"},
        # in pretraining, the encoder reads only a part of the patches; in classification it reads all
        others={"vit_mae": "vit"},
        readout=_CLASS_TOKEN,
        # names in which the library stores ViT-MSN
        on_disk=((r"^encoder\.", "vit.encoder."), *_BLOCK_ON_DISK),
    ),
    ImageRow(
        title="deit",
        encoder=replace(_VIT, model="deit", head=("classifier", "cls_classifier", "distillation_classifier")),
        classes={"deit": "DeiTForImageClassification", _DISTILLED: _DISTILLED},
        readout=_CLASS_TOKEN,
        otherwise={_DISTILLED: Readout(logits=_two_tokens, read_tokens=lambda _: slice(0, 2))},
        types={_DISTILLED: "deit"},
        on_disk=_BLOCK_ON_DISK,
    ),
    ImageRow(
        title="ijepa",
        encoder=replace(_VIT, model="ijepa"),
        classes={"ijepa": "IJepaForImageClassification"},
        readout=Readout(logits=_mean),
        on_disk=_BLOCK_ON_DISK,
    ),
    ImageRow(
        title="beit",
        encoder=_BEIT,
        classes={"beit": "BeitForImageClassification"},
        readout=_POOLER,
        resizes=True,
        one_size=_relative,
        refuses=OBLONG,
        on_disk=(
            (r"\.encoder\.relative_position_bias\.", ".shared_position_bias."),
            (r"\.attention\.attention\.relative_position_bias\.", ".relative_position_bias."),
            *_BLOCK_ON_DISK,
        ),
    ),
    ImageRow(
        title="data2vec-vision",
        encoder=replace(
            _BEIT,
            model="data2vec_vision",
            layers="encoder.layer",
            qkv=("attention.attention.query", "attention.attention.key", "attention.attention.value"),
            output="attention.output.dense",
            bias="attention.attention.relative_position_bias",
            shared_bias="encoder.relative_position_bias",
            mlp=("intermediate", "output"),
            drops=("attention.output.dropout", ""),
        ),
        classes={"data2vec-vision": "Data2VecVisionForImageClassification"},
        readout=_POOLER,
        resizes=True,
        one_size=_relative,
        refuses=OBLONG,
    ),
    *(
        ImageRow(
            title=title,
            encoder=replace(_DINOV2, model=model),
            classes={model: model_class},
            readout=Readout(logits=_class_token_and_mean, unread=("embeddings.mask_token",)),
            resizes=True,
            refuses=OBLONG,
            on_disk=_ATTENTION_ON_DISK,
        )
        for title, model, model_class in (
            ("dinov2", "dinov2", "Dinov2ForImageClassification"),
            ("dinov2-registers", "dinov2_with_registers", "Dinov2WithRegistersForImageClassification"),
        )
    ),
    ImageRow(
        title="vision-tower",
        encoder=_CLIP,
        classes={model_class: model_class for model_class in _TOWERS},
        types=_TOWERS,
        others={f"{kind}_vision_model": name for name, kind in _TOWERS.items()},
        bare=((r"^(embeddings|encoder|pre_layrnorm|post_layernorm|head)\.", r"vision_model.\1."),),
        readout=Readout(logits=_mean_without_norm, unread=("post_layernorm.",)),
        otherwise={"SiglipForImageClassification": Readout(logits=_mean_of_patches, unread=("head.",))},
        within="vision_config",
    ),
)
IMAGES = tuple(family_of_row(row) for row in _ROWS)
