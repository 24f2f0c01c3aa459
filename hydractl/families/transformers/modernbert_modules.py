"""The tower of a transformers ModernBERT, out of the library's own modules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hydractl.families.attention import Attention, HeadGroup, HeadParts, Side
from hydractl.families.dismantling import part
from hydractl.families.tower import Block, Hosted, Model, Stream, Tower
from hydractl.families.transformers.bert_modules import key_mask

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hydractl.families.transformers.models import Kept

NAMES = {
    "attn.members.0.qkv.": "attn.Wqkv.",
    "attn.members.0.proj.": "attn.Wo.",
    "norm1.": "attn_norm.",
    "mlp.": "mlp.",
    "norm2.": "mlp_norm.",
}
"""For each part of `PreNormBlock` the library's name."""
LOCAL = "sliding_attention"
READOUT = ("model.final_norm", "head", "drop", "classifier")


class RotatedGroup(HeadGroup):
    """Heads whose queries and keys go through single precision on their way to be rotated, as the library has it."""

    def positioned(
        self, q: torch.Tensor, k: torch.Tensor, queries: slice | None, side: Side
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `HeadGroup.positioned`."""
        wide = torch.promote_types(q.dtype, torch.float32)
        found = super().positioned(q.float().to(wide), k.float().to(wide), queries, side)
        return found[0].to(q.dtype), found[1].to(q.dtype)


class PreNormBlock(Block):
    """Norm, attention, residual; norm, gated MLP, residual. Every token looks at all others, or at its neighbours."""

    norm1: nn.Module
    norm2: nn.Module
    mlp: nn.Module

    def __init__(
        self, attn: HeadGroup, *, norm1: nn.Module, norm2: nn.Module, mlp: nn.Module, kind: str
    ) -> None:
        super().__init__()
        self.attn = Attention([attn])
        self.norm1, self.norm2, self.mlp = norm1, norm2, mlp
        self.kind = kind

    def heads(self, stream: Stream, queries: slice | None = None) -> torch.Tensor:
        """See `Block.heads`."""
        mask = stream.context["mask"]
        if self.kind == LOCAL:
            near, itself = stream.constants["near"][0], stream.constants["itself"][0]
            mask = mask & near | itself
        side = Side(mask=mask, rope=stream.constants[self.kind])
        return self.attn.heads(self.norm1(stream.tokens), queries, side)

    def join(self, stream: Stream, y: torch.Tensor) -> Stream:
        """See `Block.join`."""
        x = stream.tokens + y
        return stream.with_tokens(x + self.mlp(self.norm2(x)))


class ModernBertEmbed(Hosted):
    """Word embeddings; positions are rotary angles."""

    def forward(self, texts: Mapping[str, torch.Tensor]) -> Stream:
        """Return the stream of texts (B, T), their padding mask, and by the kind of layer what else it needs.

        Constants: for each kind its angles (1, 2, 1, T, K); `near` (1, 1, T, T), which keys a local query may look at;
        and `itself` (1, 1, T, T), the diagonal: without itself a padded query far from the text would look at nothing.
        """
        model: Any = self.host.model
        tokens = model.embeddings(input_ids=texts["input_ids"])
        at = torch.arange(tokens.shape[1], device=tokens.device)
        constants: dict[str, torch.Tensor] = {}
        for kind in model.rotary_emb.layer_types:
            constants[kind] = torch.stack(model.rotary_emb(tokens, at[None], kind), dim=1).unsqueeze(2)
        if LOCAL in constants:
            apart = (at[:, None] - at).abs()[None, None]
            constants |= {"near": apart <= model.config.sliding_window, "itself": apart == 0}
        return Stream(tokens, {"mask": key_mask(texts)}, constants)


class ModernBertReadout(nn.Module):
    """Final norm, the first token or the mean of all, a hidden layer, the classifier."""

    def __init__(self, host: nn.Module, *, mean: bool) -> None:
        super().__init__()
        self.host = host
        self.mean = mean

    def forward(self, stream: Stream) -> torch.Tensor:
        """Return logits (N, C)."""
        host: Any = self.host
        tokens = host.model.final_norm(stream.tokens)
        if self.mean:
            kept = stream.context["mask"][:, 0, 0, :, None].to(tokens.dtype)
            pooled = (tokens * kept).sum(dim=1) / kept.sum(dim=1)
        else:
            pooled = tokens[:, 0]
        logits: torch.Tensor = host.classifier(host.drop(host.head(pooled)))
        return logits


def wrap_modernbert(library: Any, kept: Kept) -> Model:  # noqa: ANN401 - transformers is untyped
    """Return the model whose parts are the library model's own modules; `kept` are each layer's heads."""
    mean = library.config.classifier_pooling == "mean"
    block = "model.layers.{layer}."
    return Model(
        {
            "text": Tower(
                embed=ModernBertEmbed(
                    part(library, lambda n: n.startswith(("model.embeddings", "model.rotary_emb")))
                ),
                blocks=[
                    _block(layer, heads) for layer, heads in zip(library.model.layers, kept, strict=True)
                ],
                readout=ModernBertReadout(part(library, lambda n: n.startswith(READOUT)), mean=mean),
                reads=None if mean else slice(0, 1),
                names={ours: block + theirs for ours, theirs in NAMES.items()},
            )
        }
    )


def _block(layer: Any, kept: tuple[int, ...]) -> PreNormBlock:  # noqa: ANN401 - as above
    own = layer.attn
    group = RotatedGroup(
        HeadParts(
            kept=kept,
            head_dim=own.head_dim,
            scale=own.head_dim**-0.5,
            qkv=own.Wqkv,
            proj=own.Wo,
            proj_drop=own.out_drop,
            dropout=own.attention_dropout,
        )
    )
    return PreNormBlock(
        group, norm1=layer.attn_norm, norm2=layer.mlp_norm, mlp=layer.mlp, kind=layer.attention_type
    )
