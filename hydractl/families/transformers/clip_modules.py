"""transformers' two-tower models, out of the library's own modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from hydractl.families.stream import Stream
from hydractl.families.surgery import HeadNumbers
from hydractl.families.tower import Model
from hydractl.families.transformers.encoder import Paired
from hydractl.families.transformers.encoder_modules import Ends, embed_images, key_mask, tower
from hydractl.families.zero_shot import Contrast, unit

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
    """Return the stream of texts (B, T): tokens and positions, who may look at whom, and where texts end."""
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
    """Return where each text of ids (B, T) ends, (B,).

    That its end is token 2 means the highest id of a text, as in checkpoints of old; MetaCLIP 2 really ends with 2.
    """
    end = config.eos_token_id
    highest = end == 2 and config.model_type != "metaclip_2_text_model"
    return (ids if highest else (ids == end).long()).argmax(dim=-1)


def _read(host: nn.Module, stream: Stream, paired: Paired) -> torch.Tensor:
    """Return embeddings (N, F) of length one of a stream."""
    x = PICKS[paired.pick](stream)
    for name in paired.encoder.after:
        x = host.get_submodule(name.removesuffix("."))(x)
    return unit(x)


def wrap(library: Any, towers: Mapping[str, Paired], head_numbers: Mapping[str, HeadNumbers]) -> Model:  # noqa: ANN401 - as above
    """Return the model whose parts are the library model's own modules; `head_numbers` are each tower's and layer's heads."""
    towers_by_name = {}
    for name, paired in towers.items():
        ends = Ends(
            embed=partial(embed_images, encoder=paired.encoder)
            if name == "vision"
            else partial(_embed_texts, paired=paired),
            read=partial(_read, paired=paired),
            reads=READS.get(paired.pick),
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
