"""The tower of a transformers DistilBERT, out of the library's own modules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from hydractl.families.attention import HeadGroup, HeadParts
from hydractl.families.dismantling import part
from hydractl.families.tower import Hosted, Model, Stream, Tower
from hydractl.families.transformers.bert_modules import PostNormBlock, key_mask

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from hydractl.families.transformers.models import Kept

NAMES = {
    "attn.members.0.q.": "attention.q_lin.",
    "attn.members.0.k.": "attention.k_lin.",
    "attn.members.0.v.": "attention.v_lin.",
    "attn.members.0.proj.": "attention.out_lin.",
    "norm1.": "sa_layer_norm.",
    "up.0.": "ffn.lin1.",
    "down.": "ffn.lin2.",
    "norm2.": "output_layer_norm.",
}
"""For each part of `PostNormBlock` the library's name."""
READOUT = ("pre_classifier", "classifier", "dropout")


class DistilBertEmbed(Hosted):
    """Word and position embeddings."""

    def forward(self, texts: Mapping[str, torch.Tensor]) -> Stream:
        """Return the stream of texts (B, T) and their padding mask."""
        host: Any = self.host
        return Stream(host.distilbert.embeddings(input_ids=texts["input_ids"]), {"mask": key_mask(texts)})


class DistilBertReadout(Hosted):
    """A hidden layer and the classifier: of the first token."""

    def forward(self, stream: Stream) -> torch.Tensor:
        """Return logits (N, C)."""
        host: Any = self.host
        hidden = host.pre_classifier(stream.tokens[:, 0]).relu()
        logits: torch.Tensor = host.classifier(host.dropout(hidden))
        return logits


def wrap_distilbert(library: Any, kept: Kept) -> Model:  # noqa: ANN401 - transformers is untyped
    """Return the model whose parts are the library model's own modules; `kept` are each layer's heads."""
    layers = library.distilbert.transformer.layer
    block = "distilbert.transformer.layer.{layer}."
    return Model(
        {
            "text": Tower(
                embed=DistilBertEmbed(part(library, lambda n: n.startswith("distilbert.embeddings"))),
                blocks=[_block(layer, heads) for layer, heads in zip(layers, kept, strict=True)],
                readout=DistilBertReadout(part(library, lambda n: n.startswith(READOUT))),
                reads=slice(0, 1),
                names={ours: block + theirs for ours, theirs in NAMES.items()},
            )
        }
    )


def _block(layer: Any, kept: tuple[int, ...]) -> PostNormBlock:  # noqa: ANN401 - as above
    own, ffn = layer.attention, layer.ffn
    group = HeadGroup(
        HeadParts(
            kept=kept,
            head_dim=own.attention_head_size,
            scale=own.scaling,
            q=own.q_lin,
            k=own.k_lin,
            v=own.v_lin,
            proj=own.out_lin,
            dropout=own.dropout.p,
        )
    )
    return PostNormBlock(
        group,
        norm1=layer.sa_layer_norm,
        up=nn.Sequential(ffn.lin1, ffn.activation),
        down=ffn.lin2,
        norm2=layer.output_layer_norm,
        drop=ffn.dropout,
    )
