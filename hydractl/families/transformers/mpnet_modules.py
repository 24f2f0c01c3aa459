"""The tower of a transformers MPNet, out of the library's own modules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hydractl.families.attention import HeadGroup, HeadParts, Side
from hydractl.families.dismantling import part
from hydractl.families.tower import Hosted, Model, Stream, Tower
from hydractl.families.transformers.bert_modules import PostNormBlock, key_mask

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from hydractl.families.transformers.models import Kept

NAMES = {
    "attn.members.0.q.": "attention.attn.q.",
    "attn.members.0.k.": "attention.attn.k.",
    "attn.members.0.v.": "attention.attn.v.",
    "attn.members.0.proj.": "attention.attn.o.",
    "norm1.": "attention.LayerNorm.",
    "up.": "intermediate.",
    "down.": "output.dense.",
    "norm2.": "output.LayerNorm.",
}
"""For each part of `BiasedBlock` the library's name."""


class BiasedBlock(PostNormBlock):
    """A block whose scores get the bias of relative positions that the embedding has looked up."""

    def side(self, stream: Stream) -> Side:
        """See `PostNormBlock.side`."""
        return Side(mask=stream.context["mask"], bias=stream.constants["bias"])


class MPNetEmbed(Hosted):
    """Word and position embeddings, and the bias of relative positions."""

    def forward(self, texts: Mapping[str, torch.Tensor]) -> Stream:
        """Return the stream of texts (B, T), their padding mask and the bias (1, H, T, T) of all heads of the base."""
        encoder: Any = self.host.mpnet
        tokens = encoder.embeddings(input_ids=texts["input_ids"])
        one = tokens.new_empty(1, tokens.shape[1], 0)  # the library asks for no more than sizes and device
        bias = encoder.encoder.compute_position_bias(one)
        return Stream(tokens, {"mask": key_mask(texts)}, {"bias": bias})


class MPNetReadout(Hosted):
    """The classifier, of the first token."""

    def forward(self, stream: Stream) -> torch.Tensor:
        """Return logits (N, C)."""
        host: Any = self.host
        logits: torch.Tensor = host.classifier(stream.tokens)
        return logits


def wrap_mpnet(library: Any, kept: Kept) -> Model:  # noqa: ANN401 - transformers is untyped
    """Return the model whose parts are the library model's own modules; `kept` are each layer's heads."""
    layers = library.mpnet.encoder.layer
    block = "mpnet.encoder.layer.{layer}."
    return Model(
        {
            "text": Tower(
                embed=MPNetEmbed(
                    part(library, lambda n: not n.startswith(("mpnet.encoder.layer", "classifier")))
                ),
                blocks=[_block(layer, heads) for layer, heads in zip(layers, kept, strict=True)],
                readout=MPNetReadout(part(library, lambda n: n.startswith("classifier"))),
                reads=slice(0, 1),
                names={ours: block + theirs for ours, theirs in NAMES.items()},
            )
        }
    )


def _block(layer: Any, kept: tuple[int, ...]) -> BiasedBlock:  # noqa: ANN401 - as above
    own = layer.attention.attn
    group = HeadGroup(
        HeadParts(
            kept=kept,
            head_dim=own.attention_head_size,
            scale=own.attention_head_size**-0.5,
            q=own.q,
            k=own.k,
            v=own.v,
            proj=own.o,
            proj_drop=layer.attention.dropout,
            dropout=own.dropout.p,
        )
    )
    return BiasedBlock(
        group,
        norm1=layer.attention.LayerNorm,
        up=layer.intermediate,
        down=layer.output.dense,
        norm2=layer.output.LayerNorm,
        drop=layer.output.dropout,
    )
