"""Towers built from the modules of transformers: blocks, CLIP, DeBERTa, and text models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from types import MappingProxyType
from typing import Any, ClassVar, cast

import torch
from torch import nn
from typing_extensions import override

from hydractl.families.attention import (
    Attention,
    AttentionExtras,
    HeadGroup,
    HeadParts,
    PositionBias,
    Projection,
    SharedDropout,
    look_up_bias,
)
from hydractl.families.stream import Product, StackedLinear, Stream, residual
from hydractl.families.tower import (
    PRE_NORM,
    Block,
    Contrast,
    FunctionModule,
    HeadNumbers,
    Hosted,
    LayerScale,
    Model,
    Tower,
    part,
    unit,
)
from hydractl.families.transformers.encoder import EncoderNames, Paired, TextEncoderNames, heads_of
from hydractl.model_inputs import WORDS

FULL, LOCAL = "full_attention", "sliding_attention"
"""Layer types: attention to all tokens, and to neighbouring tokens only."""


class EncoderBlock(Block):
    """A transformer block with norms in any order.

    Attributes:
        kind: Layer type, `FULL` or `LOCAL`: the key of the layer's rotary angles in the constants of the
            stream, and of its mask in the context if attention is causal or local.
    """

    kind = FULL
    adds = True

    def __init__(self, layer: nn.Module, group: HeadGroup, encoder: EncoderNames) -> None:
        super().__init__()
        self.attn = Attention([group])
        self.norm1, self.norm2 = (layer.get_submodule(name) for name in encoder.norms)
        mlp = [layer.get_submodule(name) for name in encoder.mlp]
        self.mlp = mlp[0] if len(mlp) == 1 else nn.Sequential(*mlp)
        self.drop = _drop(layer, encoder, 1)
        self.drop_path = layer.get_submodule("drop_path") if encoder.drop_path else nn.Identity()

    def side(self, stream: Stream) -> AttentionExtras:
        """Return the inputs of attention in the stream: mask, rotary angles, bias, positions."""
        context, constants = stream.context, stream.constants
        mask = context.get(self.kind, context.get("mask"))
        if not constants:
            return AttentionExtras(mask)
        return AttentionExtras(
            mask, *(constants.get(name) for name in (self.kind, "bias", "positions", "rows"))
        )


class PostNormBlock(EncoderBlock):
    """A block with attention, residual, norm; MLP, residual, norm (Vaswani et al. 2017)."""

    @override
    def heads(self, stream: Stream, queries: slice | None = None) -> torch.Tensor:
        return self.attn.heads(stream.tokens, queries, self.side(stream))

    @override
    def join(self, stream: Stream, y: torch.Tensor | Product) -> Stream:
        x = self.norm1(residual(stream.tokens, y, self.drop_path))
        return stream.with_tokens(self.norm2(residual(x, self.mlp(x), self.drop, self.drop_path)))


class PreNormBlock(EncoderBlock):
    """A block with norm, attention, scale, residual; norm, MLP, scale, residual."""

    feeds = PRE_NORM

    def __init__(self, layer: nn.Module, group: HeadGroup, encoder: EncoderNames) -> None:
        super().__init__(layer, group, encoder)
        self.scale1, self.scale2 = (_scale(layer, name) for name in encoder.scales or ("", ""))

    @override
    def heads(self, stream: Stream, queries: slice | None = None) -> torch.Tensor:
        return self.attn.heads(self.norm1(stream.tokens), queries, self.side(stream))

    @override
    def join(self, stream: Stream, y: torch.Tensor | Product) -> Stream:
        x = residual(stream.tokens, y, self.scale1, self.drop_path)
        return stream.with_tokens(
            residual(x, self.mlp(self.norm2(x)), self.drop, self.scale2, self.drop_path)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """The functions before and after the blocks of a tower.

    Attributes:
        embed: Function from the library's model and inputs to a `Stream`.
        read: Function from the library's model and a `Stream` to the tower's output (N, F).
        read_tokens: See `Tower`.
    """

    embed: Callable[[Any, Any], Stream]
    read: Callable[[Any, Stream], torch.Tensor]
    read_tokens: slice | None = None


def tower(
    library: nn.Module,
    encoder: EncoderNames,
    head_numbers: HeadNumbers,
    ends: Ends,
    *,
    group: Callable[[HeadParts, Any], HeadGroup] = lambda parts, _: HeadGroup(parts),
    block: type[EncoderBlock] | None = None,
) -> Tower:
    """Return a tower built from the library model's own modules.

    Args:
        library: The model, with tensors cut to the kept heads.
        encoder: Names of its parts.
        head_numbers: Kept heads of each layer.
        ends: Functions before and after the blocks.
        group: Function from the common head parts and the library's layer to a head group.
        block: Class of the blocks. By default the position of the norms decides.
    """
    config: Any = library.get_submodule(encoder.model).config
    make = block or (PostNormBlock if encoder.post_norm else PreNormBlock)
    if (shared := _optional_part(library.get_submodule(encoder.model), encoder.shared_bias)) is not None:
        # a buffer moves to the device of the table
        shared.register_buffer("index", _index(shared), persistent=False)
    before, after = encoder.before, (*encoder.after, *encoder.classifier)
    layers: Any = library.get_submodule(encoder.blocks)
    return Tower(
        embed=FunctionModule(part(library, lambda name: f"{name}.".startswith(before)), ends.embed),
        blocks=[
            make(layer, group(_head_parts(layer, heads, encoder, config), layer), encoder)
            for layer, heads in zip(layers, head_numbers, strict=True)
        ],
        readout=FunctionModule(part(library, lambda name: f"{name}.".startswith(after)), ends.read),
        read_tokens=ends.read_tokens,
        names=encoder.tensors(),
    )


def embed_images(host: nn.Module, images: torch.Tensor, encoder: EncoderNames) -> Stream:
    """Return the stream of images (B, C, height, width): patches, prefix tokens, positions, norm.

    A position bias shared by all layers is the constant `bias` (1, H, T, T).
    """
    model = host.get_submodule(encoder.model)
    parts, shared = dict(model.named_children()), _optional_part(model, encoder.shared_bias)
    tokens: Any = images
    for name in encoder.embed:
        tokens = parts[name](tokens) if name in parts else tokens
    return Stream(
        tokens[0] if isinstance(tokens, tuple) else tokens,  # data2vec also returns the grid
        constants={}
        if shared is None
        else {"bias": look_up_bias(shared.relative_position_bias_table, shared.index)},
    )


def key_mask(texts: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return the mask (B, 1, 1, T) of keys, False for padding. Without an attention mask all tokens count."""
    mask = texts.get("attention_mask")
    token_mask = torch.ones_like(texts["input_ids"]) if mask is None else mask
    return token_mask.bool()[:, None, None, :]


def _head_parts(
    layer: nn.Module,
    head_numbers: tuple[int, ...],
    encoder: EncoderNames,
    config: Any,  # noqa: ANN401 - as above
) -> HeadParts:
    *inputs, proj = (cast("nn.Linear", layer.get_submodule(name)) for name in (*encoder.qkv, encoder.output))
    fused, (q, k, v) = (inputs[0], (None,) * 3) if len(inputs) == 1 else (None, inputs)
    shape, position_bias = heads_of(config), _optional_part(layer, encoder.bias)
    norms = [_optional_part(layer, name) or nn.Identity() for name in encoder.head_norms or ("", "")]
    return HeadParts(
        head_numbers=head_numbers,
        head_dim=shape.head_dim,
        scale=shape.head_dim**-0.5,
        sharing=shape.sharing,
        q_norm=norms[0],
        k_norm=norms[1],
        qkv=fused,
        q=q,
        k=k,
        v=v,
        proj=proj,
        proj_drop=_drop(layer, encoder, 0),
        bias=None
        if position_bias is None
        else PositionBias(position_bias.relative_position_bias_table, _index(position_bias)),
        dropout=getattr(config, encoder.attention_dropout),
    )


def _optional_part(holder: nn.Module, name: str) -> Any:  # noqa: ANN401 - as above
    """Return a submodule, or None if the model does not have it."""
    return dict(holder.named_modules()).get(name) if name else None


def _index(bias: Any) -> torch.Tensor:  # noqa: ANN401 - as above
    """Return the index (T, T) of the library's relative position bias, for images of the model's size.

    Cloned, because the library's cached index may have been created in inference mode.
    """
    index: torch.Tensor = bias.generate_relative_position_index(bias.window_size)
    return index.clone()


def _drop(layer: nn.Module, encoder: EncoderNames, after: int) -> nn.Module:
    name = encoder.drops[after] if encoder.drops else ""
    return layer.get_submodule(name) if name else nn.Identity()


def _scale(layer: nn.Module, name: str) -> nn.Module:
    # a missing scale is the number 1 in BEiT, and None in data2vec
    gamma = attrgetter(name)(layer) if name else None
    return LayerScale(gamma) if isinstance(gamma, nn.Parameter) else nn.Identity()


def set_aside(library: nn.Module, prefixes: tuple[str, ...]) -> None:
    """Turn parameters without effect on the outputs into buffers, unchanged by training.

    `all_same` ignores these tensors in comparisons of members.

    Args:
        library: The model.
        prefixes: Prefixes of the parameters' names.
    """
    for path, module in library.named_modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if f"{path}.{name}".startswith(prefixes):
                del module._parameters[name]
                module.register_buffer(name, parameter.detach())
                module.__dict__["aside"] = {*module.__dict__.get("aside", ()), name}


PICKS: Mapping[str, Callable[[Stream], torch.Tensor]] = MappingProxyType(
    {
        "first": lambda stream: stream.tokens[:, 0],
        "last": lambda stream: stream.tokens[:, -1],
        "end": lambda stream: stream.tokens[
            torch.arange(len(stream.tokens), device=stream.tokens.device), stream.context["end"]
        ],
        "all": lambda stream: stream.tokens,
    }
)
READS: Mapping[str, slice | None] = MappingProxyType({"first": slice(0, 1), "last": slice(-1, None)})


def _embed_texts(host: nn.Module, texts: Mapping[str, torch.Tensor], paired: Paired) -> Stream:
    """Return the stream of texts (B, T): embeddings, and a context.

    The context has `mask` for causal attention or an attention mask, and `end` (B,), the position of the last
    token, if this token is read.
    """
    model: Any = host.get_submodule(paired.encoder.model)
    ids, context = texts["input_ids"], {}
    if "attention_mask" in texts or paired.causal:
        context["mask"] = key_mask(texts)
    if paired.causal:
        ones = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool, device=ids.device)
        context["mask"] = ones.tril() & context["mask"]
    if paired.pick == "end":
        context["end"] = _ends(model.config, ids)
    extra_inputs = {name: texts[name] for name in paired.extra_inputs if name in texts}
    return Stream(model.embeddings(input_ids=ids, **extra_inputs), context)


def _ends(config: Any, ids: torch.Tensor) -> torch.Tensor:  # noqa: ANN401 - transformers is untyped
    """Return the position (B,) of the token that ends each text of ids (B, T).

    Like in transformers, an `eos_token_id` of 2 means the highest id of a text, for old CLIP checkpoints.
    MetaCLIP 2 does end texts with token 2.
    """
    end = config.eos_token_id
    highest = end == 2 and config.model_type != "metaclip_2_text_model"
    return (ids if highest else (ids == end).long()).argmax(dim=-1)


def _read_pair(host: nn.Module, stream: Stream, paired: Paired) -> torch.Tensor:
    """Return embeddings (N, F) of length 1."""
    x = PICKS[paired.pick](stream)
    for name in paired.encoder.after:
        x = host.get_submodule(name.removesuffix("."))(x)
    return unit(x)


def wrap(library: Any, towers: Mapping[str, Paired], head_numbers: Mapping[str, HeadNumbers]) -> Model:  # noqa: ANN401 - as above
    """Return a two-tower model built from the library model's own modules.

    Args:
        library: The model, with tensors cut to the kept heads.
        towers: Names of the parts, by tower.
        head_numbers: Kept heads of each layer, by tower.
    """
    towers_by_name = {}
    for name, paired in towers.items():
        ends = Ends(
            embed=partial(embed_images, encoder=paired.encoder)
            if name == "vision"
            else partial(_embed_texts, paired=paired),
            read=partial(_read_pair, paired=paired),
            read_tokens=READS.get(paired.pick),
        )
        towers_by_name[name] = tower(library, paired.encoder, head_numbers[name], ends)
    projection = library.get_submodule(towers["text"].encoder.after[-1].removesuffix("."))
    return Model(
        towers_by_name,
        Contrast(
            logit_scale=library.logit_scale,
            logit_bias=library.logit_bias if "logit_bias" in library._parameters else None,
            width=projection.out_features,
        ),
    )


class DisentangledGroup(HeadGroup):
    """Heads with DeBERTa's scores: content to content, content to position, and position to content."""

    along_heads: ClassVar[tuple[str, ...]] = (*HeadGroup.along_heads, "pos_key", "pos_query")

    def __init__(self, parts: HeadParts, layer: Any) -> None:  # noqa: ANN401 - transformers is untyped
        """Add the position projections of the library's layer."""
        attention = layer.attention.self
        super().__init__(replace(parts, scale=_score_scale(attention)))
        self.share = attention.share_att_key
        self.kinds = tuple(kind for kind in ("c2p", "p2c") if kind in attention.pos_att_type)
        self.pos_key: nn.Linear | None = getattr(attention, "pos_key_proj", None)
        self.pos_query: nn.Linear | None = getattr(attention, "pos_query_proj", None)
        self.pos_drop = (
            SharedDropout(attention.pos_dropout.p) if attention.relative_attention else nn.Identity()
        )

    @override
    def scores_bias(
        self, q: torch.Tensor, k: torch.Tensor, queries: slice | None, side: AttentionExtras
    ) -> torch.Tensor | None:
        """Return the bias (N, H, T', T) of the scores: the scaled products with relative positions.

        Masked entries have the lowest number of the dtype. For a model without relative positions, see
        `HeadGroup.scores_bias`.
        """
        if side.table is None or not self.kinds:
            return super().scores_bias(q, k, queries, side)
        table = self.pos_drop(side.table)
        of_q, of_k, _ = self.projections()
        lookup = cast("torch.Tensor", side.rows)[0]
        rows = lookup if queries is None else lookup[queries]
        index = rows.expand(*q.shape[:2], *rows.shape)
        bias = torch.zeros((), dtype=q.dtype, device=q.device)
        if "c2p" in self.kinds:
            positions = self._heads_of(of_k if self.share else self.pos_key, table)
            bias = bias + _multiply_by_member(torch.matmul, q * self.scale, positions.mT).gather(-1, index)
        if "p2c" in self.kinds:
            positions = self._heads_of(of_q if self.share else self.pos_query, table)
            products = _multiply_by_member(
                lambda keys, rows: torch.matmul(rows, keys), k.mT, positions * self.scale
            )
            bias = bias + products.gather(-2, index)
        return bias if side.mask is None else bias.masked_fill(~side.mask, torch.finfo(q.dtype).min)

    def _heads_of(
        self, layer: Projection | nn.Linear | StackedLinear | None, table: torch.Tensor
    ) -> torch.Tensor:
        """Project relative positions (1 or M, P, D) to (G, H, P, K)."""
        assert layer is not None  # noqa: S101 - the library makes what its configuration asks for
        members = self.members if len(table) == 1 else len(table)
        return Projection(layer.weight, layer.bias).of(table.expand(members, -1, -1), self.heads)


class ConvStep(Hosted):
    """A convolution over the embeddings of neighbouring tokens, added to the output of the first block."""

    @override
    def forward(self, x: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return tokens (N, T, D) for `embedded` and `tokens` (N, T, D) and the padding `mask` (N, 1, 1, T)."""
        return cast("torch.Tensor", self.host(x["embedded"], x["tokens"], x["mask"][:, 0, 0].long()))


class DebertaBlock(PostNormBlock):
    """BERT's block. A convolution may follow the first block."""

    conv: nn.Module

    @override
    def join(self, stream: Stream, y: torch.Tensor | Product) -> Stream:
        out = super().join(stream, y)
        if self.tokenwise:
            return out
        parts = {"embedded": stream.tokens, "tokens": out.tokens, "mask": stream.context["mask"]}
        return stream.with_tokens(self.conv(parts))


def _multiply_by_member(
    multiply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], x: torch.Tensor, by_member: torch.Tensor
) -> torch.Tensor:
    """Return `multiply(x, by_member)` for x (N, H, ...), with a second factor per member or for all.

    `by_member` has shape (G, H, ...). With G = 1, all N samples use the same factor. Otherwise x is split
    into G equal parts, one per member, and part g uses factor g.
    """
    if len(by_member) == 1:
        return multiply(x, by_member)
    return multiply(x.unflatten(0, (len(by_member), -1)), by_member.unsqueeze(1)).flatten(0, 1)


def embed(host: Any, texts: Mapping[str, torch.Tensor], encoder: TextEncoderNames) -> Stream:  # noqa: ANN401 - as above
    """Return the stream of texts (B, T), with padding mask.

    Constants are the relative positions (1, P, D), and the row of each query and key, (1, T, T).
    """
    deberta = host.get_submodule(encoder.model)
    mask = key_mask(texts)
    tokens = deberta.embeddings(
        input_ids=texts["input_ids"],
        token_type_ids=texts.get("token_type_ids"),
        mask=mask[:, 0, 0].long(),
    )
    table = None if deberta.encoder is None else deberta.encoder.get_rel_embedding()
    if table is None:
        return Stream(tokens, {"mask": mask})
    rows = (deberta.encoder.get_rel_pos(tokens) + len(table) // 2).clamp(0, len(table) - 1)
    # A view of a parameter has `requires_grad` set even if gradients are off.
    return Stream(tokens, {"mask": mask}, {"positions": table.clone().unsqueeze(0), "rows": rows})


def convolve(tower: Tower, library: Any) -> None:  # noqa: ANN401 - as above
    """Give the first block the convolution of the model, if any.

    If the model has no other block, the convolution needs all tokens of the first block.
    """
    conv, (first, *others) = library.deberta.encoder.conv, tower.layers()
    if conv is not None and isinstance(first, DebertaBlock):
        first.conv, first.tokenwise = ConvStep(conv), False
        tower.read_tokens = tower.read_tokens if others else None


def _score_scale(attention: Any) -> float:  # noqa: ANN401 - as above
    """Return 1 / sqrt(K times the number of summed products).

    The root is rounded to float32, as in the library.
    """
    products = 1 + sum(kind in attention.pos_att_type for kind in ("c2p", "p2c"))
    with torch.device("cpu"):
        return 1 / torch.tensor(attention.attention_head_size * products, dtype=torch.float32).sqrt().item()


Texts = Mapping[str, torch.Tensor]


class RotatedGroup(HeadGroup):
    """Heads with queries and keys cast to float32 for the rotation, like in the library."""

    @override
    def positioned(
        self, q: torch.Tensor, k: torch.Tensor, queries: slice | None, side: AttentionExtras
    ) -> tuple[torch.Tensor, torch.Tensor]:
        wide = torch.promote_types(q.dtype, torch.float32)
        rotated = super().positioned(q.float().to(wide), k.float().to(wide), queries, side)
        return rotated[0].to(q.dtype), rotated[1].to(q.dtype)


class ScaledGroup(RotatedGroup):
    """Heads with queries scaled before the rotation."""

    def __init__(self, parts: HeadParts) -> None:
        super().__init__(replace(parts, scale=1.0))
        self.before = parts.scale

    @override
    def positioned(
        self, q: torch.Tensor, k: torch.Tensor, queries: slice | None, side: AttentionExtras
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return super().positioned(q * self.before, k, queries, side)


def _embed(host: nn.Module, texts: Texts, encoder: TextEncoderNames) -> Stream:
    """Return the stream of texts (B, T), with masks and rotary angles.

    The constants hold angles (1, 2, 1, T, K) by layer type. The context holds the padding mask, a mask (B, 1,
    T, T) by layer type for causal and local attention, and `last`, the last token (B,) of each text, for
    decoders.
    """
    model: Any = host.get_submodule(encoder.model)
    first, *next_modules = encoder.embed
    tokens = model.get_submodule(first)(
        texts["input_ids"], **{name: texts.get(name) for name in encoder.extra_inputs}
    )
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
    """Return the position (N,) of the last token of each text that is neither masked nor the padding token.

    Like in the library, a padding token never counts, even if the same token ends texts.
    """
    tokens = mask[:, 0, 0] & (texts["input_ids"] != pad)
    return (torch.arange(tokens.shape[1], device=tokens.device) * tokens).argmax(-1)


def kinds_of(config: Any) -> Sequence[str]:  # noqa: ANN401 - transformers is untyped
    """Return the type of each layer; empty if all layers attend to all tokens."""
    if kinds := getattr(config, "layer_types", None):
        return tuple(kinds)
    return (LOCAL,) * config.num_hidden_layers if getattr(config, "sliding_window", None) else ()


def _angles(model: Any, tokens: torch.Tensor, encoder: TextEncoderNames) -> dict[str, torch.Tensor]:  # noqa: ANN401 - transformers is untyped
    """Return the rotary angles of `_embed`."""
    rotary, at = model.get_submodule(encoder.rotary), torch.arange(tokens.shape[1], device=tokens.device)
    kinds = kinds_of(model.config)
    angles = (
        dict.fromkeys(kinds or (FULL,), rotary(tokens, at[None]))
        if encoder.causal or not kinds
        else {kind: rotary(tokens, at[None], kind) for kind in dict.fromkeys(kinds)}
    )
    return {kind: torch.stack(pair, dim=1).unsqueeze(2) for kind, pair in angles.items()}


def _near(mask: torch.Tensor, behind: int, *, ahead: int) -> torch.Tensor:
    """Return the mask (N, 1, T, T) of a causal or local attention.

    A query attends to unmasked keys at most `behind` tokens before and `ahead` tokens after it, and always to
    itself. Otherwise a padded query far from the text would attend to no key.
    """
    at = torch.arange(mask.shape[-1], device=mask.device)
    distance = at[:, None] - at
    return mask & (distance <= behind) & (distance >= -ahead) | (distance == 0)


def _embed_biased(host: nn.Module, texts: Texts, encoder: TextEncoderNames) -> Stream:
    """Return the stream of `_embed`, with the position bias (1, H, T, T) of all heads of the base."""
    stream = _embed(host, texts, encoder)
    model: Any = host.get_submodule(encoder.model)
    shape_probe = stream.tokens.new_empty(1, stream.tokens.shape[1], 0)  # only sizes and device matter
    return Stream(stream.tokens, stream.context, {"bias": model.encoder.compute_position_bias(shape_probe)})


def _embed_paired(host: nn.Module, texts: Texts, encoder: TextEncoderNames) -> Stream:
    """Return the stream of `_embed`, with angles for neighbouring features.

    The library stores sines and cosines.
    """
    stream = _embed(host, texts, encoder)
    model: Any = host.get_submodule(encoder.model)
    sines, cosines = model.encoder.embed_positions(stream.tokens.shape[:2]).chunk(2, dim=-1)
    angles = torch.stack((cosines, sines))[None, :, None].repeat_interleave(2, dim=-1)
    return Stream(stream.tokens, stream.context, {FULL: angles})


def _embed_words(
    host: nn.Module, texts: Texts, encoder: TextEncoderNames, embed: Callable[..., Stream]
) -> Stream:
    """Return the stream of another `embed`, with the first token (N, Q) of each word if given.

    Missing words have the value -1.
    """
    stream = embed(host, texts, encoder)
    words = texts.get(WORDS)
    return stream if words is None else replace(stream, context={**stream.context, WORDS: words})


def _read(host: nn.Module, stream: Stream, encoder: TextEncoderNames, pooling: str) -> torch.Tensor:
    """Apply the modules after the blocks. Return logits (N, C), or (N, Q or T, C) for words or tokens."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """Special behaviour of an encoder.

    Attributes:
        embed: Function from the library's model, texts and `encoder` to a `Stream`.
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
        # These models may have other position embeddings.
        "scaled before": Code(
            group=lambda parts, layer: (
                ScaledGroup(parts)
                if layer.attention.self.position_embedding_type == "rotary"
                else HeadGroup(parts)
            )
        ),
        "pairs": Code(
            embed=_embed_paired, group=lambda parts, _: HeadGroup(replace(parts, rotation="pairs"))
        ),
        "disentangled": Code(embed=embed, group=DisentangledGroup, block=DebertaBlock),
    }
)


def wrap_text(library: nn.Module, head_numbers: HeadNumbers, encoder: TextEncoderNames) -> Model:
    """Return a text model built from the library model's own modules.

    Args:
        library: The model, with tensors cut to the kept heads.
        head_numbers: Kept heads of each layer.
        encoder: Names of its parts.
    """
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
        read_tokens=None if pooling in {"mean", "late", "last", "none"} else slice(0, 1),
    )
    text_tower = tower(library, encoder, head_numbers, ends, group=code.group, block=code.block)
    for block, kind in zip(cast("list[EncoderBlock]", text_tower.layers()), kinds_of(config), strict=False):
        block.kind = kind
    if encoder.code == "disentangled":
        convolve(text_tower, library)
    return Model({"text": text_tower})


def _without_absent(library: nn.Module, encoder: TextEncoderNames) -> TextEncoderNames:
    """Return the names without missing optional parts: projections of embeddings, rotary angles."""
    module_names = {name for name, _ in library.get_submodule(encoder.model).named_modules()}
    embed = tuple(name for name in encoder.embed if name in module_names)
    return replace(encoder, embed=embed, rotary=encoder.rotary if encoder.rotary in module_names else "")
