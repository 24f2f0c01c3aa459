"""The two towers of OpenCLIP's models, out of open_clip's own modules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from typing_extensions import override

from hydractl.families.attention import Attention, HeadGroup, HeadParts, Side
from hydractl.families.dismantling import part
from hydractl.families.timm import modules as timm
from hydractl.families.tower import Block, Hosted, Model, Stream, Tower
from hydractl.families.zero_shot import Contrast, unit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hydractl.families.dismantling import Kept

NAMES = {
    "attn.members.0.qkv.": "attn.in_proj_",
    "attn.members.0.proj.": "attn.out_proj.",
    "attn.members.0.q_norm.": "attn.ln_q.",
    "attn.members.0.k_norm.": "attn.ln_k.",
    "norm1.": "ln_1.",
    "norm_attn.": "ln_attn.",
    "ls1.": "ls_1.",
    "norm2.": "ln_2.",
    "mlp.": "mlp.",
    "ls2.": "ls_2.",
}
"""For each part of a block the library's name."""
TEXT_READS = {"first": slice(0, 1), "last": slice(-1, None)}


class OpenClipBlock(Block):
    """Norm, attention, norm or none, scale or none, residual; norm, MLP, scale or none, residual."""

    def __init__(self, layer: Any, kept: tuple[int, ...]) -> None:  # noqa: ANN401 - open_clip is untyped
        super().__init__()
        self.attn = Attention([_head_group(layer.attn, kept)])
        self.norm1: nn.Module = layer.ln_1
        self.norm_attn: nn.Module = getattr(layer, "ln_attn", nn.Identity())
        self.ls1: nn.Module = layer.ls_1
        self.norm2: nn.Module = layer.ln_2
        self.mlp: nn.Module = layer.mlp
        self.ls2: nn.Module = layer.ls_2

    def heads(self, stream: Stream, queries: slice | None = None) -> torch.Tensor:
        """See `Block.heads`."""
        return self.attn.heads(self.norm1(stream.tokens), queries, Side(mask=stream.context.get("mask")))

    def join(self, stream: Stream, y: torch.Tensor) -> Stream:
        """See `Block.join`."""
        x = stream.tokens + self.ls1(self.norm_attn(y))
        return stream.with_tokens(x + self.ls2(self.mlp(self.norm2(x))))


def _head_group(attn: Any, kept: tuple[int, ...]) -> HeadGroup:  # noqa: ANN401 - as above
    """Return the heads of torch's `MultiheadAttention`, or of open_clip's `Attention`."""
    return HeadGroup(
        HeadParts(
            kept=kept,
            head_dim=attn.head_dim,
            scale=attn.head_dim**-0.5,
            qkv=_linear(attn.in_proj_weight, attn.in_proj_bias),
            proj=attn.out_proj,
            q_norm=getattr(attn, "ln_q", nn.Identity()),
            k_norm=getattr(attn, "ln_k", nn.Identity()),
            dropout=attn.attn_drop.p if hasattr(attn, "attn_drop") else attn.dropout,
            proj_drop=getattr(attn, "out_drop", nn.Identity()),
        )
    )


def _linear(weight: nn.Parameter, bias: nn.Parameter | None) -> nn.Linear:
    """Return a linear layer of a weight (out, in) that has no module of its own; out may be 0."""
    layer = nn.Linear(1, 1, bias=bias is not None, device="meta")
    layer.out_features, layer.in_features = weight.shape
    layer.weight = weight
    if bias is not None:
        layer.bias = bias
    return layer


class VisionEmbed(Hosted):
    """Patches, class token, positions, and a norm or none."""

    def forward(self, images: torch.Tensor) -> Stream:
        """Return the stream of images (B, 3, height, width)."""
        host: Any = self.host
        return Stream(host.visual._embeds(images))


class VisionReadout(Hosted):
    """One token, the mean of them, or a pooler's answer; normed and projected."""

    def forward(self, stream: Stream) -> torch.Tensor:
        """Return embeddings (N, F) of length one."""
        visual: Any = self.host.visual
        pooled, _ = visual._pool(stream.tokens)
        return unit(pooled if visual.proj is None else pooled @ visual.proj)


class TrunkEmbed(timm.Embed):
    """The embedding of an image tower of timm's."""

    @property
    @override
    def library(self) -> Any:
        host: Any = self.host
        return host.visual.trunk


class TrunkReadout(timm.Readout):
    """The readout of an image tower of timm's, projected or not."""

    @property
    @override
    def library(self) -> Any:
        host: Any = self.host
        return host.visual.trunk

    @override
    def forward(self, stream: Stream) -> torch.Tensor:
        """Return embeddings (N, F) of length one."""
        host: Any = self.host
        return unit(host.visual.head(super().forward(stream)))


class TextPart(Hosted):
    """Part of the text tower, whose modules the whole model holds itself, or under `text`."""

    def __init__(self, host: nn.Module, *, pool: str, end: int, causal: bool) -> None:
        """Take over modules.

        Args:
            host: Part of the library's model.
            pool: Which token is read: `first`, `last`, `argmax` (the highest id of a text), `eos` (the first `end`).
            end: The token that ends a text.
            causal: Whether a token looks only at itself and those before it.
        """
        super().__init__(host)
        self.pool, self.end, self.causal = pool, end, causal

    @property
    def text(self) -> Any:  # noqa: ANN401 - as above
        """What holds the modules."""
        return getattr(self.host, "text", self.host)


class TextEmbed(TextPart):
    """Tokens and positions. Padding is seen like any other token: the library has no mask for it."""

    def forward(self, texts: Mapping[str, torch.Tensor]) -> Stream:
        """Return the stream of texts (B, T), who may look at whom, and which token is read."""
        ids = texts["input_ids"]
        length = ids.shape[1]
        weight = self.text.positional_embedding
        tokens = self.text.token_embedding(ids) + weight[:length]
        context = {}
        if self.causal:
            earlier = torch.ones(length, length, dtype=torch.bool, device=ids.device).tril()
            context["mask"] = earlier.expand(len(ids), 1, length, length)
        if self.pool not in TEXT_READS:
            context["end"] = (ids if self.pool == "argmax" else (ids == self.end).long()).argmax(dim=-1)
        return Stream(tokens, context)


class TextReadout(TextPart):
    """One token, normed and projected."""

    def forward(self, stream: Stream) -> torch.Tensor:
        """Return embeddings (N, F) of length one."""
        tokens = stream.tokens
        if self.pool in TEXT_READS:
            read = tokens[:, TEXT_READS[self.pool]].squeeze(1)
        else:
            read = tokens[torch.arange(len(tokens), device=tokens.device), stream.context["end"]]
        read, projection = self.text.ln_final(read), self.text.text_projection
        if projection is None:
            return unit(read)
        return unit(projection(read) if isinstance(projection, nn.Module) else read @ projection)


def wrap(
    library: Any,  # noqa: ANN401 - as above
    kept: Mapping[str, Kept],
    class_embeddings: torch.Tensor | None,
    *,
    width: int,
) -> Model:
    """Return the model whose parts are the library model's own modules.

    Args:
        library: With its heads already cut.
        kept: Each tower's.
        class_embeddings: (C, F), or None.
        width: F.
    """
    prefix = "text." if hasattr(library, "text") else ""

    def some(*prefixes: str) -> Any:  # noqa: ANN401 - as above
        return part(library, lambda name: name.startswith(prefixes))

    towers = {
        "text": _text_tower(library, kept["text"], prefix, some),
        "vision": _trunk_tower(library, kept["vision"])
        if "trunk" in library.visual._modules
        else _vision_tower(library.visual, kept["vision"], some),
    }
    answer = Contrast(
        logit_scale=library.logit_scale,
        logit_bias=library.logit_bias,
        width=width,
        class_embeddings=class_embeddings,
    )
    return Model(towers, answer)


def _text_tower(library: Any, kept: Kept, prefix: str, some: Any) -> Tower:  # noqa: ANN401 - as above
    text = library.text if prefix else library
    pool, end = (text.pool_type, text.eos_id) if prefix else (text.text_pool_type, text.text_eos_id)
    how = {"pool": pool, "end": end, "causal": text.attn_mask is not None}
    return Tower(
        embed=TextEmbed(some(f"{prefix}token_embedding", f"{prefix}positional_embedding"), **how),
        blocks=_blocks(text.transformer, kept),
        readout=TextReadout(some(f"{prefix}ln_final", f"{prefix}text_projection"), **how),
        reads=TEXT_READS.get(pool),
        names=_names(f"{prefix}transformer"),
    )


def _vision_tower(visual: Any, kept: Kept, some: Any) -> Tower:  # noqa: ANN401 - as above
    embed = ("conv1", "class_embedding", "positional_embedding", "patch_dropout", "ln_pre")
    one = visual.attn_pool is None and visual.pool_type == "tok"
    return Tower(
        embed=VisionEmbed(some(*(f"visual.{name}" for name in embed))),
        blocks=_blocks(visual.transformer, kept),
        readout=VisionReadout(some("visual.attn_pool", "visual.ln_post", "visual.proj")),
        reads=slice(0, 1) if one else None,
        names=_names("visual.transformer"),
    )


def _trunk_tower(library: Any, kept: Kept) -> Tower:  # noqa: ANN401 - as above
    trunk, prefix = library.visual.trunk, "visual.trunk."

    def in_readout(name: str) -> bool:
        return name.startswith("visual.head") or name.removeprefix(prefix).split(".")[0] in timm.READOUT

    embed = part(
        library, lambda n: n.startswith(prefix) and not n.startswith(f"{prefix}blocks.") and not in_readout(n)
    )
    return Tower(
        embed=TrunkEmbed(embed),
        blocks=timm.blocks(trunk, kept),
        readout=TrunkReadout(part(library, lambda n: n.startswith("visual.") and in_readout(n))),
        reads=timm.tokens_read(trunk),
        names=timm.block_names(trunk, prefix),
    )


def _blocks(transformer: Any, kept: Kept) -> list[Block]:  # noqa: ANN401 - as above
    return [OpenClipBlock(layer, heads) for layer, heads in zip(transformer.resblocks, kept, strict=True)]


def _names(transformer: str) -> dict[str, str]:
    return {ours: f"{transformer}.resblocks.{{layer}}.{theirs}" for ours, theirs in NAMES.items()}
