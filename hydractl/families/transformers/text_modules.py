"""What stands before and after the blocks of transformers' text classifiers, and what is code in the blocks of some."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from typing_extensions import override

from hydractl.families.attention import HeadGroup, HeadParts, Side
from hydractl.families.tower import Model, Stream
from hydractl.families.transformers import deberta_modules as deberta
from hydractl.families.transformers.encoder_modules import (
    LOCAL,
    EncoderBlock,
    Ends,
    key_mask,
    tower,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import nn

    from hydractl.families.transformers.encoder import TextEncoder
    from hydractl.families.transformers.models import Kept

    Texts = Mapping[str, torch.Tensor]


class RotatedGroup(HeadGroup):
    """Heads whose queries and keys go through single precision on their way to be rotated, as the library has it."""

    @override
    def positioned(
        self, q: torch.Tensor, k: torch.Tensor, queries: slice | None, side: Side
    ) -> tuple[torch.Tensor, torch.Tensor]:
        wide = torch.promote_types(q.dtype, torch.float32)
        found = super().positioned(q.float().to(wide), k.float().to(wide), queries, side)
        return found[0].to(q.dtype), found[1].to(q.dtype)


def _embed(host: nn.Module, texts: Texts, encoder: TextEncoder) -> Stream:
    """Return the stream of texts (B, T), their padding mask, and what else blocks need of positions.

    Constants: by the kind of layer its angles (1, 2, 1, T, K); `near` (1, 1, T, T), which keys a local query may look at;
    and `itself` (1, 1, T, T), the diagonal: without itself a padded query far from the text would look at nothing.
    """
    model: Any = host.get_submodule(encoder.model)
    first, *rest = encoder.embed
    tokens = model.get_submodule(first)(
        texts["input_ids"], **{name: texts.get(name) for name in encoder.takes}
    )
    for name in rest:
        if hasattr(model, name):  # a projection is there where the widths differ
            tokens = model.get_submodule(name)(tokens)
    return Stream(
        tokens, {"mask": key_mask(texts)}, _angles(model, tokens, encoder) if encoder.rotary else {}
    )


def _angles(model: Any, tokens: torch.Tensor, encoder: TextEncoder) -> dict[str, torch.Tensor]:  # noqa: ANN401 - transformers is untyped
    rotary = model.get_submodule(encoder.rotary)
    at = torch.arange(tokens.shape[1], device=tokens.device)
    constants = {
        kind: torch.stack(rotary(tokens, at[None], kind), dim=1).unsqueeze(2) for kind in rotary.layer_types
    }
    if LOCAL in constants:
        apart = (at[:, None] - at).abs()[None, None]
        constants |= {"near": apart <= model.config.sliding_window, "itself": apart == 0}
    return constants


def _embed_biased(host: nn.Module, texts: Texts, encoder: TextEncoder) -> Stream:
    """Return the stream of `_embed` with the bias of relative positions (1, H, T, T) of all heads of the base."""
    stream = _embed(host, texts, encoder)
    model: Any = host.get_submodule(encoder.model)
    one = stream.tokens.new_empty(1, stream.tokens.shape[1], 0)  # no more is looked at than sizes and device
    return Stream(stream.tokens, stream.context, {"bias": model.encoder.compute_position_bias(one)})


def _read(host: nn.Module, stream: Stream, encoder: TextEncoder, pooling: str) -> torch.Tensor:
    """Return logits (N, C) of what stands after the blocks, run in turn."""
    x = stream.tokens
    for name in encoder.final:
        x = host.get_submodule(f"{encoder.model}.{name}")(x)
    if pooling == "mean":
        kept = stream.context["mask"][:, 0, 0, :, None].to(x.dtype)
        x = (x * kept).sum(dim=1) / kept.sum(dim=1)
    elif pooling != "own":
        x = x[:, 0]
    for name in (*encoder.projection, *encoder.head):
        x = x.relu() if name == "relu" else host.get_submodule(name)(x)
    return x


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """What of an encoder is code.

    Attributes:
        embed: Make a `Stream` of texts, given the library's model.
        group: See `tower`.
        block: See `tower`.
    """

    embed: Callable[[Any, Texts, TextEncoder], Stream] = _embed
    group: Callable[[HeadParts, Any], HeadGroup] = lambda parts, _: HeadGroup(parts)
    block: type[EncoderBlock] | None = None


CODE: Mapping[str, Code] = MappingProxyType(
    {
        "": Code(),
        "shared bias": Code(embed=_embed_biased),
        "rotated in single precision": Code(group=lambda parts, _: RotatedGroup(parts)),
        "disentangled": Code(
            embed=deberta.embed, group=deberta.DisentangledGroup, block=deberta.DebertaBlock
        ),
    }
)


def wrap_text(library: nn.Module, kept: Kept, encoder: TextEncoder) -> Model:
    """Return the model whose parts are the library model's own modules; `kept` are each layer's heads."""
    config: Any = library.config
    pooling = config.classifier_pooling if encoder.pooling == "option" else encoder.pooling
    code = CODE[encoder.code]
    ends = Ends(
        embed=lambda host, texts: code.embed(host, texts, encoder),
        read=lambda host, stream: _read(host, stream, encoder, pooling),
        reads=None if pooling == "mean" else slice(0, 1),
    )
    made = tower(library, encoder, kept, ends, group=code.group, block=code.block)
    for block, kind in zip(made.layers(), getattr(config, "layer_types", ()) or (), strict=False):
        block.kind = kind
    if encoder.code == "disentangled":
        deberta.convolve(made, library)
    return Model({"text": made})
