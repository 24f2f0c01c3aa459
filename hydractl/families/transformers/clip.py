"""transformers' CLIP and SigLIP: two towers that compare images with texts, classified zero-shot.

Names in memory are those of the whole model (`CLIPModel`, `SiglipModel`), for both towers at once.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydractl.errors import UnsupportedModelError
from hydractl.families.base import Described, Family, HeadTensor, Role, TowerLayout, projections_apart
from hydractl.families.transformers.library import adopted_state, blank, checked, configured, random_state
from hydractl.families.transformers.models import LIBRARY, NOT_ARCHITECTURE
from hydractl.families.transformers.tokenizers import read_tokenizer, text_preprocess
from hydractl.manifest import Architecture, Preprocess, Prompting, TowerHeads

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

    from hydractl.families.tower import Model
    from hydractl.manifest import Tokenization, TowerKeep

HEADS = (
    *projections_apart("self_attn.{part}_proj", "qkv"),
    HeadTensor(name="self_attn.out_proj.weight", axis=1, copies=1, role=Role.OUTPUT),
)


def _layout(
    tower: str, *, embed: tuple[str, ...], readout: tuple[str, ...], head: tuple[str, ...]
) -> TowerLayout:
    return TowerLayout(
        block=f"{tower}_model.encoder.layers.{{layer}}.",
        heads=HEADS,
        attention=("self_attn.",),
        mlp=("mlp.",),
        embed=embed,
        readout=readout,
        head=head,
    )


ANSWER = ("logit_scale", "logit_bias", "class_embeddings")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A two-tower model of transformers.

    Attributes:
        name: The family's.
        model_type: As `config.json` has it.
        model_class: The class that holds both towers.
        layouts: Of each tower.
        padding: How texts are padded.
        scalars: See `Family`.
        refusal: Why the library cannot run a model with this configuration, or None.
        refuses: See `Family`.
    """

    name: str
    model_type: str
    model_class: str
    layouts: Mapping[str, TowerLayout]
    padding: str
    scalars: frozenset[str] = frozenset()
    refusal: Callable[[Any], str | None] = lambda _: None
    refuses: str = ""


def _family(pair: Pair) -> Family:
    def matches(config: Mapping[str, object]) -> bool:
        trained = config.get("architectures") or [pair.model_class]
        return config.get("model_type") == pair.model_type and pair.model_class in (
            trained if isinstance(trained, list) else [trained]
        )

    def describe(name: str, options: Mapping[str, object]) -> Described:
        given = dict(options)
        tokenizer = given.pop("tokenizer", None)
        config = checked(name, _nested(given))
        return _described(pair, config, None, tokenizer=None if tokenizer is None else Path(str(tokenizer)))

    def read_config(config: Mapping[str, object], folder: Path) -> Described:
        made = configured(pair.model_type, {k: v for k, v in config.items() if k != "model_type"})
        return _described(pair, made, folder, tokenizer=folder)

    def build(
        architecture: Architecture, mask: Mapping[str, TowerKeep], state: Mapping[str, torch.Tensor] | None
    ) -> Model:
        from hydractl.families.dismantling import cut_heads, fill
        from hydractl.families.transformers.clip_modules import wrap

        library = blank(pair.model_class, architecture)
        cut_heads(library, pair.layouts, architecture, mask)
        own = None if state is None else {k: v for k, v in state.items() if k != "class_embeddings"}
        fill(library, own)
        classes = None if state is None else state.get("class_embeddings")
        return wrap(library, {name: keep.keep for name, keep in mask.items()}, classes).eval()

    return Family(
        name=pair.name,
        library=LIBRARY,
        covers=f"`{pair.model_class}`, both towers, zero-shot",
        refuses=pair.refuses,
        towers=pair.layouts,
        matches=matches,
        claims=lambda name: name == pair.model_type,
        read_config=read_config,
        describe=describe,
        build=build,
        initialise=lambda architecture, seed: random_state(pair.model_class, architecture, seed),
        adopt=lambda folder, architecture: adopted_state(pair.model_class, folder, architecture),
        scalars=pair.scalars,
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
    length = text.max_position_embeddings
    how = (
        text_preprocess(text, None, max_length=length)
        if tokenizer is None
        else read_tokenizer(tokenizer, text, max_length=length)
    )
    return Described(
        architecture=Architecture(
            library=LIBRARY,
            name=pair.model_type,
            family=pair.name,
            config=json.loads(json.dumps(kept, sort_keys=True)),
            towers={"text": _heads(text), "vision": _heads(vision)},
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
    says = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return "attention_mask" in says.get("model_input_names", ("attention_mask",))


def _heads(config: Any) -> TowerHeads:  # noqa: ANN401 - as above
    return TowerHeads(
        layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        head_dim=config.hidden_size // config.num_attention_heads,
    )


def _images(config: Any, folder: Path | None) -> Preprocess:  # noqa: ANN401 - as above
    size = (config.num_channels, config.image_size, config.image_size)
    if folder is not None:
        from hydractl.families.transformers.vision import read_image_processor

        return read_image_processor(folder, size)
    if size[0] not in {1, 3}:
        raise UnsupportedModelError(f"images of {size[0]} channels are not supported")
    return Preprocess(input_size=size, mean=(0.5,) * size[0], std=(0.5,) * size[0])


def _incomparable(config: Any) -> str | None:  # noqa: ANN401 - as above
    if not getattr(config.vision_config, "vision_use_head", True):
        return "its image tower does not pool (vision_use_head)"
    images, texts = config.vision_config.hidden_size, config.text_config.projection_size
    return None if images == texts else f"it has embeddings of {images} numbers for images, {texts} for texts"


CLIP = _family(
    Pair(
        name="transformers-clip",
        model_type="clip",
        model_class="CLIPModel",
        layouts={
            "text": _layout(
                "text",
                embed=("text_model.embeddings.",),
                readout=("text_model.final_layer_norm.", "text_projection."),
                head=(),
            ),
            "vision": _layout(
                "vision",
                embed=("vision_model.embeddings.", "vision_model.pre_layrnorm."),
                readout=("vision_model.post_layernorm.", "visual_projection."),
                head=ANSWER,
            ),
        },
        padding="longest",
        scalars=frozenset({"logit_scale"}),
    )
)
SIGLIP = _family(
    Pair(
        name="transformers-siglip",
        model_type="siglip",
        model_class="SiglipModel",
        layouts={
            "text": _layout(
                "text",
                embed=("text_model.embeddings.",),
                readout=("text_model.final_layer_norm.", "text_model.head."),
                head=(),
            ),
            "vision": _layout(
                "vision",
                embed=("vision_model.embeddings.",),
                readout=("vision_model.post_layernorm.", "vision_model.head."),
                head=ANSWER,
            ),
        },
        padding="max_length",
        refusal=_incomparable,
        refuses="towers whose embeddings differ in width or are not pooled: the library cannot compare them",
    )
)
