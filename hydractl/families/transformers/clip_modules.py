"""The two towers of transformers' CLIP and SigLIP, out of the library's own modules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hydractl.families.attention import Attention, HeadGroup, HeadParts, Side
from hydractl.families.dismantling import part
from hydractl.families.tower import Block, Hosted, Model, Stream, Tower
from hydractl.families.transformers.encoder_modules import key_mask
from hydractl.families.zero_shot import Contrast, unit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hydractl.families.transformers.models import Kept

NAMES = {
    **{f"attn.members.0.{name}.": f"self_attn.{name}_proj." for name in "qkv"},
    "attn.members.0.proj.": "self_attn.out_proj.",
    "norm1.": "layer_norm1.",
    "mlp.": "mlp.",
    "norm2.": "layer_norm2.",
}


class ClipBlock(Block):
    """Norm, attention, residual; norm, MLP, residual."""

    def __init__(self, layer: Any, kept: tuple[int, ...]) -> None:  # noqa: ANN401 - transformers is untyped
        super().__init__()
        own = layer.self_attn
        group = HeadGroup(
            HeadParts(
                kept=kept,
                head_dim=own.head_dim,
                scale=own.scale,
                q=own.q_proj,
                k=own.k_proj,
                v=own.v_proj,
                proj=own.out_proj,
                dropout=own.dropout,
            )
        )
        self.attn = Attention([group])
        self.norm1: nn.Module = layer.layer_norm1
        self.mlp: nn.Module = layer.mlp
        self.norm2: nn.Module = layer.layer_norm2

    def heads(self, stream: Stream, queries: slice | None = None) -> torch.Tensor:
        """See `Block.heads`."""
        return self.attn.heads(self.norm1(stream.tokens), queries, Side(mask=stream.context.get("mask")))

    def join(self, stream: Stream, y: torch.Tensor) -> Stream:
        """See `Block.join`."""
        x = stream.tokens + y
        return stream.with_tokens(x + self.mlp(self.norm2(x)))


class VisionEmbed(Hosted):
    """Patches, class token, positions; CLIP norms them."""

    def forward(self, images: torch.Tensor) -> Stream:
        """Return the stream of images (B, C, height, width)."""
        model: Any = self.host.vision_model
        tokens = model.embeddings(images)
        return Stream(model.pre_layrnorm(tokens) if hasattr(model, "pre_layrnorm") else tokens)


class ClipVisionReadout(Hosted):
    """The class token, normed and projected."""

    def forward(self, stream: Stream) -> torch.Tensor:
        """Return embeddings (N, F) of length one."""
        host: Any = self.host
        return unit(host.visual_projection(host.vision_model.post_layernorm(stream.tokens[:, 0])))


class SiglipVisionReadout(Hosted):
    """All tokens, normed and pooled by attention."""

    def forward(self, stream: Stream) -> torch.Tensor:
        """Return embeddings (N, F) of length one."""
        model: Any = self.host.vision_model
        return unit(model.head(model.post_layernorm(stream.tokens)))


class ClipTextEmbed(Hosted):
    """Tokens and positions; each token looks at itself and those before it."""

    def __init__(self, host: nn.Module, *, end: int) -> None:
        """Take over the embeddings.

        Args:
            host: The library's model.
            end: The token whose place is read; 2 means the highest id of a text, as in checkpoints of old.
        """
        super().__init__(host)
        self.end = end

    def forward(self, texts: Mapping[str, torch.Tensor]) -> Stream:
        """Return the stream of texts (B, T), who may look at whom, and where each text ends."""
        model: Any = self.host.text_model
        ids = texts["input_ids"]
        earlier = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool, device=ids.device).tril()
        mask = earlier & key_mask(texts)
        end = (ids if self.end == 2 else (ids == self.end).long()).argmax(dim=-1)
        return Stream(model.embeddings(input_ids=ids), {"mask": mask, "end": end})


class ClipTextReadout(Hosted):
    """The token that ends the text, normed and projected."""

    def forward(self, stream: Stream) -> torch.Tensor:
        """Return embeddings (N, F) of length one."""
        host: Any = self.host
        tokens = host.text_model.final_layer_norm(stream.tokens)
        last = tokens[torch.arange(len(tokens), device=tokens.device), stream.context["end"]]
        return unit(host.text_projection(last))


class SiglipTextEmbed(Hosted):
    """Tokens and positions; all tokens look at all."""

    def forward(self, texts: Mapping[str, torch.Tensor]) -> Stream:
        """Return the stream of texts (B, T) and their padding mask, if they have one: most were trained to see padding."""
        model: Any = self.host.text_model
        tokens = model.embeddings(input_ids=texts["input_ids"])
        if "attention_mask" not in texts:
            return Stream(tokens)
        return Stream(tokens, {"mask": texts["attention_mask"].bool()[:, None, None, :]})


class SiglipTextReadout(Hosted):
    """The last token, padding or not, normed and projected."""

    def forward(self, stream: Stream) -> torch.Tensor:
        """Return embeddings (N, F) of length one."""
        model: Any = self.host.text_model
        return unit(model.head(model.final_layer_norm(stream.tokens)[:, -1]))


def wrap(library: Any, kept: Mapping[str, Kept], class_embeddings: torch.Tensor | None) -> Model:  # noqa: ANN401
    """Return the model whose parts are the library model's own modules; `kept` are each tower's and layer's heads."""
    siglip = hasattr(library, "logit_bias")

    def some(*prefixes: str) -> Any:  # noqa: ANN401 - as above
        return part(library, lambda name: name.startswith(prefixes))

    if siglip:
        text_embed: nn.Module = SiglipTextEmbed(some("text_model.embeddings"))
        text_readout: nn.Module = SiglipTextReadout(some("text_model.final_layer_norm", "text_model.head"))
        vision_readout: nn.Module = SiglipVisionReadout(
            some("vision_model.post_layernorm", "vision_model.head")
        )
        width = library.text_model.head.out_features
    else:
        end = library.config.text_config.eos_token_id
        text_embed = ClipTextEmbed(some("text_model.embeddings"), end=end)
        text_readout = ClipTextReadout(some("text_model.final_layer_norm", "text_projection"))
        vision_readout = ClipVisionReadout(some("vision_model.post_layernorm", "visual_projection"))
        width = library.text_projection.out_features
    reads = {"text": slice(-1, None) if siglip else None, "vision": None if siglip else slice(0, 1)}
    vision_embed = VisionEmbed(some("vision_model.embeddings", "vision_model.pre_layrnorm"))
    ends = {"text": (text_embed, text_readout), "vision": (vision_embed, vision_readout)}
    towers = {}
    for name, (embed, readout) in ends.items():
        layers = getattr(library, f"{name}_model").encoder.layers
        block = f"{name}_model.encoder.layers.{{layer}}."
        towers[name] = Tower(
            embed=embed,
            blocks=[ClipBlock(layer, heads) for layer, heads in zip(layers, kept[name], strict=True)],
            readout=readout,
            reads=reads[name],
            names={ours: block + theirs for ours, theirs in NAMES.items()},
        )
    answer = Contrast(
        logit_scale=library.logit_scale,
        logit_bias=library.logit_bias if siglip else None,
        width=width,
        class_embeddings=class_embeddings,
    )
    return Model(towers, answer)
