"""What stands before and after the blocks of transformers' text classifiers, and what is code in the blocks of some."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, cast

import torch
from torch import nn
from typing_extensions import override

from hydractl.families.attention_bias import AttentionExtras
from hydractl.families.head_group import HeadGroup, HeadParts
from hydractl.families.stream import Stream
from hydractl.families.surgery import HeadNumbers
from hydractl.families.tower import Model
from hydractl.families.transformers import deberta_modules as deberta
from hydractl.families.transformers.encoder import TextEncoderNames
from hydractl.families.transformers.encoder_modules import (
    FULL,
    LOCAL,
    EncoderBlock,
    Ends,
    key_mask,
    set_aside,
    tower,
)
from hydractl.model_inputs import WORDS

Texts = Mapping[str, torch.Tensor]


class RotatedGroup(HeadGroup):
    """Heads whose queries and keys go through single precision on their way to be rotated, as the library has it."""

    @override
    def positioned(
        self, q: torch.Tensor, k: torch.Tensor, queries: slice | None, side: AttentionExtras
    ) -> tuple[torch.Tensor, torch.Tensor]:
        wide = torch.promote_types(q.dtype, torch.float32)
        rotated = super().positioned(q.float().to(wide), k.float().to(wide), queries, side)
        return rotated[0].to(q.dtype), rotated[1].to(q.dtype)


class ScaledGroup(RotatedGroup):
    """Heads whose queries are scaled before they are rotated."""

    def __init__(self, parts: HeadParts) -> None:
        super().__init__(replace(parts, scale=1.0))
        self.before = parts.scale

    @override
    def positioned(
        self, q: torch.Tensor, k: torch.Tensor, queries: slice | None, side: AttentionExtras
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return super().positioned(q * self.before, k, queries, side)


def _embed(host: nn.Module, texts: Texts, encoder: TextEncoderNames) -> Stream:
    """Return the stream of texts (B, T), their padding mask, and what else blocks need of positions.

    Constants are by the kind of layer its angles (1, 2, 1, T, K). In the context is, for all layers in which tokens look at
    their neighbours only, one mask (N, 1, T, T).
    """
    model: Any = host.get_submodule(encoder.model)
    first, *next_modules = encoder.embed
    beside = {name: texts.get(name) for name in encoder.extra_inputs}
    tokens = model.get_submodule(first)(texts["input_ids"], **beside)
    for name in next_modules:
        tokens = model.get_submodule(name)(tokens)
    angles, masks = _angles(model, tokens, encoder) if encoder.rotary else {}, {"mask": key_mask(texts)}
    if encoder.causal:
        masks["last"] = _last(texts, masks["mask"], model.config.pad_token_id)
        masks[FULL] = _near(masks["mask"], tokens.shape[1], ahead=0)
    if LOCAL in angles:
        window = model.config.sliding_window
        masks[LOCAL] = (
            _near(masks["mask"], window - 1, ahead=0)
            if encoder.causal
            else _near(masks["mask"], window, ahead=window)
        )
    return Stream(tokens, masks, angles)


def _last(texts: Texts, mask: torch.Tensor, pad: int) -> torch.Tensor:
    """Return where the last token of each text is, (N,), of the `mask` (N, 1, 1, T).

    As in the library, the padding token does not count, which may also end a text.
    """
    tokens = mask[:, 0, 0] & (texts["input_ids"] != pad)
    return (torch.arange(tokens.shape[1], device=tokens.device) * tokens).argmax(-1)


def kinds_of(config: Any) -> Sequence[str]:  # noqa: ANN401 - transformers is untyped
    """Return the kind of each layer, none where all look at all tokens."""
    if kinds := getattr(config, "layer_types", None):
        return tuple(kinds)
    return (LOCAL,) * config.num_hidden_layers if getattr(config, "sliding_window", None) else ()


def _angles(model: Any, tokens: torch.Tensor, encoder: TextEncoderNames) -> dict[str, torch.Tensor]:  # noqa: ANN401 - transformers is untyped
    """Return the angles of `_embed`."""
    rotary, at = model.get_submodule(encoder.rotary), torch.arange(tokens.shape[1], device=tokens.device)
    kinds = kinds_of(model.config)
    angles = (
        dict.fromkeys(kinds or (FULL,), rotary(tokens, at[None]))
        if encoder.causal or not kinds
        else {kind: rotary(tokens, at[None], kind) for kind in dict.fromkeys(kinds)}
    )
    return {kind: torch.stack(pair, dim=1).unsqueeze(2) for kind, pair in angles.items()}


def _near(mask: torch.Tensor, behind: int, *, ahead: int) -> torch.Tensor:
    """Return which keys a query may look at, (N, 1, T, T): tokens of the `mask` (N, 1, 1, T) that are no further away.

    And itself, or a padded query far from the text would look at nothing.
    """
    at = torch.arange(mask.shape[-1], device=mask.device)
    distance = at[:, None] - at
    return mask & (distance <= behind) & (distance >= -ahead) | (distance == 0)


def _embed_biased(host: nn.Module, texts: Texts, encoder: TextEncoderNames) -> Stream:
    """Return the stream of `_embed` with the bias of relative positions (1, H, T, T) of all heads of the base."""
    stream = _embed(host, texts, encoder)
    model: Any = host.get_submodule(encoder.model)
    shape_probe = stream.tokens.new_empty(
        1, stream.tokens.shape[1], 0
    )  # no more is looked at than sizes and device
    return Stream(stream.tokens, stream.context, {"bias": model.encoder.compute_position_bias(shape_probe)})


def _embed_paired(host: nn.Module, texts: Texts, encoder: TextEncoderNames) -> Stream:
    """Return the stream of `_embed` with the angles of neighbouring features, which the library has as sines and cosines."""
    stream = _embed(host, texts, encoder)
    model: Any = host.get_submodule(encoder.model)
    sines, cosines = model.encoder.embed_positions(stream.tokens.shape[:2]).chunk(2, dim=-1)
    angles = torch.stack((cosines, sines))[None, :, None].repeat_interleave(2, dim=-1)
    return Stream(stream.tokens, stream.context, {FULL: angles})


def _embed_words(
    host: nn.Module, texts: Texts, encoder: TextEncoderNames, embed: Callable[..., Stream]
) -> Stream:
    """Return the stream of another `embed`, with the first token of each word (N, Q) where that is given, -1 for none."""
    stream = embed(host, texts, encoder)
    words = texts.get(WORDS)
    return stream if words is None else replace(stream, context={**stream.context, WORDS: words})


def _read(host: nn.Module, stream: Stream, encoder: TextEncoderNames, pooling: str) -> torch.Tensor:
    """Return logits of what stands after the blocks, run in turn: (N, C), or of each word or token (N, Q or T, C)."""
    x = stream.tokens
    for name in encoder.final:
        x = host.get_submodule(f"{encoder.model}.{name}")(x)
    if pooling == "mean":
        x = stream.mean(x)
    elif pooling not in {"own", "late", "last", "none"}:
        x = x[:, 0]
    for name in (*encoder.projection, *encoder.head):
        x = x.relu() if name == "relu" else host.get_submodule(name)(x)
    if pooling == "last":
        return x[torch.arange(x.shape[0], device=x.device), stream.context["last"]]
    if pooling == "none" and (words := stream.context.get(WORDS)) is not None:
        return x.gather(1, words.clamp(min=0).unsqueeze(-1).expand(-1, -1, x.shape[-1]))
    return stream.mean(x) if pooling == "late" else x


def _scaled_before(parts: HeadParts, layer: Any) -> HeadGroup:  # noqa: ANN401 - as above
    """Return heads that scale queries before they rotate them, if they do rotate them."""
    return (
        ScaledGroup(parts) if layer.attention.self.position_embedding_type == "rotary" else HeadGroup(parts)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """What of an encoder is code.

    Attributes:
        embed: Make a `Stream` of texts, given the library's model, the texts and the `encoder`.
        group: See `tower`.
        block: See `tower`.
    """

    embed: Callable[..., Stream] = _embed
    group: Callable[[HeadParts, Any], HeadGroup] = lambda parts, _: HeadGroup(parts)
    block: type[EncoderBlock] | None = None


CODE: Mapping[str, Code] = MappingProxyType(
    {
        "": Code(),
        "shared bias": Code(embed=_embed_biased),
        "rotated in single precision": Code(group=lambda parts, _: RotatedGroup(parts)),
        "scaled before": Code(group=_scaled_before),
        "pairs": Code(
            embed=_embed_paired, group=lambda parts, _: HeadGroup(replace(parts, rotation="pairs"))
        ),
        "disentangled": Code(
            embed=deberta.embed, group=deberta.DisentangledGroup, block=deberta.DebertaBlock
        ),
    }
)


def wrap_text(library: nn.Module, head_numbers: HeadNumbers, encoder: TextEncoderNames) -> Model:
    """Return the model whose parts are the library model's own modules; `head_numbers` are each layer's heads."""
    config: Any = library.config
    set_aside(library, tuple(f"{encoder.model}.{name}." for name in encoder.unread))
    encoder = _without_absent(library, encoder)
    pooling = config.classifier_pooling if encoder.pooling == "option" else encoder.pooling
    code = CODE[encoder.code]
    ends = Ends(
        embed=partial(_embed_words, encoder=encoder, embed=code.embed)
        if pooling == "none"
        else partial(code.embed, encoder=encoder),
        read=partial(_read, encoder=encoder, pooling=pooling),
        reads=None if pooling in {"mean", "late", "last", "none"} else slice(0, 1),
    )
    text_tower = tower(library, encoder, head_numbers, ends, group=code.group, block=code.block)
    for block, kind in zip(cast("list[EncoderBlock]", text_tower.layers()), kinds_of(config), strict=False):
        block.kind = kind
    if encoder.code == "disentangled":
        deberta.convolve(text_tower, library)
    return Model({"text": text_tower})


def _without_absent(library: nn.Module, encoder: TextEncoderNames) -> TextEncoderNames:
    """Return the encoder without what a configuration may leave out: a projection of embeddings, rotary angles."""
    module_names = {name for name, _ in library.get_submodule(encoder.model).named_modules()}
    embed = tuple(name for name in encoder.embed if name in module_names)
    return replace(encoder, embed=embed, rotary=encoder.rotary if encoder.rotary in module_names else "")
