"""All variants of text families: padding to the longest text of a batch does not change answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from hydractl.families.attention import Attention
from hydractl.families.registry import FAMILIES
from hydractl.families.tower import largest_difference
from hydractl.fusion.hydra import Hydra
from hydractl.manifest.header import Tokenization
from hydractl.model_inputs import WORDS
from support.builders import base
from support.variants import VARIANTS

if TYPE_CHECKING:
    from collections.abc import Mapping

TEXTS = [v for v in VARIANTS if set(FAMILIES[v.family].towers) == {"text"}]
KEEPS = (((0, 2, 3), (), (1,)), ((), (1, 2), (0, 3)), ((0, 1, 2, 3), (3,), ()))
KINDS = ("base", "member", "hydra", "ensemble")
ROOM = 7
every_text = pytest.mark.parametrize("variant", TEXTS, ids=str)
every_kind = pytest.mark.parametrize("kind", KINDS)


def model_of(variant, kind):
    """Return a function from inputs to logits (M, B, C), in float64."""
    sample, double = base(variant), torch.float64
    match kind:
        case "base":
            return sample.model(double).member_logits
        case "member":
            return sample.pruned(*KEEPS[0]).model(double).member_logits
        case "hydra":
            return Hydra([sample.pruned(*keep).model(double) for keep in KEEPS]).eval().member_logits
        case _:
            tuned = [sample.pruned(*keep).tuned(i) for i, keep in enumerate(KEEPS)]
            return Hydra([one.model(double) for one in tuned]).eval().member_logits


def texts_of(variant):
    """Return texts (B, T) of several lengths, with T at least `ROOM` tokens below the model's maximum."""
    sample = base(variant)
    preprocess = sample.header.preprocess
    assert isinstance(preprocess, Tokenization)
    full = sample.inputs(batch=1, seed=2)
    length = min(full["input_ids"].shape[1], preprocess.max_length - ROOM)
    lengths = torch.tensor([length, 1, length // 2, length - 1])
    kept = torch.arange(length) < lengths[:, None]
    texts = {
        "input_ids": full["input_ids"][:, :length].where(kept, preprocess.pad_id),
        "attention_mask": kept.long(),
    }
    segments = {"token_type_ids": (kept & (torch.arange(length) > 2)).long()}
    if preprocess.by_word:
        texts[WORDS] = torch.arange(length).expand(kept.shape).masked_fill(~kept, -1)
    return texts | {name: segments[name] for name in preprocess.names if name in segments}


def padded(
    texts: Mapping[str, torch.Tensor], tokens: int, preprocess: Tokenization
) -> dict[str, torch.Tensor]:
    fill = {"input_ids": preprocess.pad_id, "attention_mask": 0, "token_type_ids": 0}
    filled = {n: torch.nn.functional.pad(texts[n], (0, tokens), value=fill[n]) for n in fill if n in texts}
    return texts | filled  # word starts are not padded


def test_there_are_texts_of_several_lengths():
    lengths = {int(n) for n in texts_of(TEXTS[0])["attention_mask"].sum(1)}
    assert len(lengths) == 4


@pytest.mark.spread(alike=True, every=16)
@every_text
@every_kind
@torch.inference_mode()
def test_padding_further_changes_nothing(variant, kind):
    model, texts = model_of(variant, kind), texts_of(variant)
    expected = model(texts)
    for tokens in (1, ROOM):
        found = model(padded(texts, tokens, base(variant).header.preprocess))
        assert largest_difference(found, expected) <= 1e-6


@pytest.mark.spread(alike=True, every=16)
@every_text
@every_kind
@torch.inference_mode()
def test_a_text_alone_is_a_text_in_a_batch(variant, kind):
    model, texts = model_of(variant, kind), texts_of(variant)
    expected = model(texts)
    for i, length in enumerate(texts["attention_mask"].sum(1).tolist()):
        alone = model({name: x[i : i + 1, :length] for name, x in texts.items()})[:, 0]
        of_text = expected[:, i, :length] if WORDS in texts else expected[:, i]
        assert largest_difference(alone, of_text) <= 1e-6


@pytest.mark.spread
@every_text
@torch.inference_mode()
def test_what_stands_in_the_padding_is_not_read(variant):
    """Other tokens replace the padding, because the pad token alone might not reveal an ignored mask."""
    model, texts = model_of(variant, "base"), texts_of(variant)
    hidden = ~texts["attention_mask"].bool()
    first = texts["input_ids"][:, :1]  # a token of the text, never the pad token
    changed = texts | {"input_ids": torch.where(hidden, first, texts["input_ids"])}
    assert hidden.any()
    assert largest_difference(model(changed), model(texts)) <= 1e-6


@pytest.mark.spread(alike=True, every=16)
@every_text
@every_kind
@torch.inference_mode()
def test_every_token_has_something_to_look_at(variant, kind, monkeypatch):
    """A softmax over no keys is zero in some kernels and NaN in others, so padding also attends to tokens."""
    seen = []
    heads = Attention.heads
    monkeypatch.setattr(
        Attention,
        "heads",
        lambda own, x, queries, side: seen.append(side.mask) or heads(own, x, queries, side),
    )
    model_of(variant, kind)(padded(texts_of(variant), ROOM, base(variant).header.preprocess))
    assert len(seen) == 3
    assert all(mask.any(-1).all() for mask in seen)
    assert not any(mask.all() for mask in seen)
