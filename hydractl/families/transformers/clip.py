"""transformers' CLIP, SigLIP and their kin: two towers that compare images with texts, classified zero-shot.

Names in memory are those of the whole model (`CLIPModel`, `SiglipModel`), for both towers at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hydractl.errors import UnsupportedModelError
from hydractl.families.base import Described, Family
from hydractl.families.transformers.encoder import Encoder, Paired, heads_of
from hydractl.families.transformers.library import adopted_state, blank, checked, configured, random_state
from hydractl.families.transformers.models import LIBRARY, NOT_ARCHITECTURE
from hydractl.families.transformers.tokenizers import read_tokenizer, text_preprocess
from hydractl.families.transformers.vision import default_preprocess, image_size, read_image_processor
from hydractl.jsonfile import plain, read_object
from hydractl.manifest.header import Architecture, Prompting

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

    from hydractl.families.tower import Model
    from hydractl.manifest.header import Preprocess, Tokenization
    from hydractl.manifest.heads import TowerKeep

ANSWER = ("logit_scale", "logit_bias", "class_embeddings")
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
_BERT = Encoder(
    model="text_model",
    layers="encoder.layer",
    projection=("text_projection",),
    head=(),
    qkv=("attention.self.query", "attention.self.key", "attention.self.value"),
    output="attention.output.dense",
    post_norm=True,
    norms=("attention.output.LayerNorm", "output.LayerNorm"),
    mlp=("intermediate", "output.dense"),
    drops=("attention.output.dropout", "output.dropout"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The two-tower models of transformers that one family reads.

    Attributes:
        name: The family's.
        classes: For each `model_type` the class that holds both towers.
        text: The tower of texts.
        vision: The tower of images.
        padding: How texts are padded.
        scalars: See `Family`.
        unused: Positions that no token takes, given the configuration of the tower of texts.
        refusal: Why the library cannot run a model with this configuration, or None.
        refuses: See `Family`.
        on_disk: See `Family`.
    """

    name: str
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

    def matches(config: Mapping[str, object]) -> bool:
        model_class = pair.classes.get(str(config.get("model_type")))
        trained = config.get("architectures") or [model_class]
        return model_class is not None and model_class in (
            trained if isinstance(trained, list) else [trained]
        )

    def describe(name: str, options: Mapping[str, object]) -> Described:
        given = dict(options)
        tokenizer = given.pop("tokenizer", None)
        config = checked(name, _nested(given))
        return _described(pair, config, None, tokenizer=None if tokenizer is None else Path(str(tokenizer)))

    def read_config(config: Mapping[str, object], folder: Path) -> Described:
        made = configured(str(config["model_type"]), {k: v for k, v in config.items() if k != "model_type"})
        return _described(pair, made, folder, tokenizer=folder)

    def build(
        architecture: Architecture, mask: Mapping[str, TowerKeep], state: Mapping[str, torch.Tensor] | None
    ) -> Model:
        from hydractl.families.dismantling import cut_heads, fill
        from hydractl.families.transformers.clip_modules import wrap

        library = blank(pair.classes[architecture.name], architecture)
        cut_heads(library, layouts, architecture, mask)
        own = None if state is None else {k: v for k, v in state.items() if k != "class_embeddings"}
        fill(library, own)
        classes = None if state is None else state.get("class_embeddings")
        kept = {name: keep.keep for name, keep in mask.items()}
        return wrap(library, towers, kept, classes).eval()

    return Family(
        name=pair.name,
        library=LIBRARY,
        covers=", ".join(f"`{name}`" for name in pair.classes.values()) + ", both towers, zero-shot",
        refuses=pair.refuses,
        towers=layouts,
        matches=matches,
        claims=lambda name: name in pair.classes,
        read_config=read_config,
        describe=describe,
        build=build,
        initialise=lambda architecture, seed: random_state(
            pair.classes[architecture.name], architecture, seed
        ),
        adopt=lambda folder, architecture: adopted_state(
            pair.classes[architecture.name], folder, architecture
        ),
        scalars=pair.scalars,
        on_disk=pair.on_disk,
    )


def _nested(options: Mapping[str, object]) -> dict[str, object]:
    """Return options with `text.x=1` and `vision.x=1` as the two configurations within."""
    nested: dict[str, object] = {}
    for tower in ("text", "vision"):
        given = options.get(f"{tower}_config") or {}
        own = {k.removeprefix(f"{tower}."): v for k, v in options.items() if k.startswith(f"{tower}.")}
        nested[f"{tower}_config"] = {**(given if isinstance(given, dict) else {}), **own}
    return nested | {k: v for k, v in options.items() if "." not in k and not k.endswith("_config")}


def _described(
    pair: Pair,
    config: Any,  # noqa: ANN401 - transformers is untyped
    folder: Path | None,
    *,
    tokenizer: Path | None,
) -> Described:
    if reason := pair.refusal(config):
        raise UnsupportedModelError(f"`{config.model_type}` is not supported here: {reason}")
    text, vision = config.text_config, config.vision_config
    kept = {k: v for k, v in config.to_dict().items() if k not in {*NOT_ARCHITECTURE, "model_type"}}
    for tower in ("text_config", "vision_config"):
        kept[tower] = {k: v for k, v in kept[tower].items() if k not in NOT_ARCHITECTURE}
    length = text.max_position_embeddings - pair.unused(text)
    how = (
        text_preprocess(text, None, max_length=length)
        if tokenizer is None
        else read_tokenizer(tokenizer, text, max_length=length)
    )
    return Described(
        architecture=Architecture(
            library=LIBRARY,
            name=config.model_type,
            family=pair.name,
            config=plain(kept),
            towers={"text": heads_of(text), "vision": heads_of(vision)},
            num_classes=0,
        ),
        preprocess=_images(vision, folder),
        prompting=Prompting(tokenization=_padded(how, pair.padding, folder)),
    )


def _padded(how: Tokenization, padding: str, folder: Path | None) -> Tokenization:
    """Return how texts are padded, and whether the model is told where; one that always sees as many tokens seldom is."""
    told = padding == "longest" or (folder is not None and _tells_padding(folder))
    return how.model_copy(update={"padding": padding, "names": how.names if told else ()})


def _tells_padding(folder: Path) -> bool:
    path = folder / "tokenizer_config.json"
    says = read_object(path) if path.is_file() else {}
    return "attention_mask" in says.get("model_input_names", ("attention_mask",))


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
        name="transformers-clip",
        classes={"clip": "CLIPModel", "metaclip_2": "MetaClip2Model", "clipseg": "CLIPSegModel"},
        text=Paired(encoder=TEXT, pick="end", causal=True),
        vision=_CLIP_VISION,
    ),
    Pair(
        name="transformers-chinese-clip",
        classes={"chinese_clip": "ChineseCLIPModel"},
        text=Paired(encoder=_BERT, pick="first", takes=("token_type_ids",)),
        vision=_CLIP_VISION,
    ),
    Pair(
        name="transformers-altclip",
        classes={"altclip": "AltCLIPModel"},
        text=Paired(
            encoder=replace(
                _BERT,
                model="text_model.roberta",
                layers="encoder.layers",
                projection=("text_model.pre_LN", "text_model.transformation", "text_projection"),
            ),
            pick="first",
            takes=("token_type_ids",),
        ),
        vision=_CLIP_VISION,
        unused=lambda config: config.pad_token_id + 1,  # positions are counted from behind the padding token
        on_disk=((r"\.encoder\.layer\.", ".encoder.layers."),),
    ),
    Pair(
        name="transformers-siglip",
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
