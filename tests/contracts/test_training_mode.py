"""All variants: in training mode, dropout acts at the same places and rates as in the library.

Random masks depend on the order of draws, which differs from the library. The tests therefore replace each
draw by a fixed pattern of the same place and rate. Dropout with rate p multiplies element i of the last axis
by 1 - p (1 + cos i) / 2, also for attention weights. A dropped path with rate p is multiplied by 1 - p. A
missing layer, another place or another rate changes the logits.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 - as everyone calls it

from hydractl.families.attention import HeadGroup
from hydractl.families.registry import FAMILIES
from hydractl.families.tower import largest_difference
from hydractl.model_inputs import map_inputs
from hydractl.training.dropout import set_dropout
from support.builders import base, over_classes
from support.variants import VARIANTS, Variant

RATES = {
    "timm": ("pos_drop_rate", "proj_drop_rate", "attn_drop_rate", "drop_path_rate", "drop_rate"),
    "transformers": (
        "hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout", "drop_path_rate", "dropout",
        "attention_dropout", "seq_classif_dropout", "embedding_dropout", "mlp_dropout", "summary_last_dropout",
        "pooler_dropout", "cls_dropout", "hidden_dropout", "embed_dropout", "classifier_dropout_prob",
    ),
    "openclip": (),
}  # fmt: skip
"""Options of each library for dropout rates. Classifiers of open_clip have no dropout."""

TRAINED = [v for v in VARIANTS if len(FAMILIES[v.family].towers) == 1]
"""Models that compare images with texts are not trained."""


def dropping(variant: Variant) -> Variant:
    """Return the variant with all of its dropout options set to different rates."""
    library = base(variant).header.architecture.library
    known = base(variant).header.architecture.config
    options = dict(variant.options)
    for number, name in enumerate(RATES[library]):
        rate = 0.1 + 0.03 * number
        if name in known or (
            library == "timm" and (variant.family, name) != ("timm-relpos", "pos_drop_rate")
        ):
            options[name] = rate
        for part in ("text", "vision"):
            if name in (known.get(f"{part}_config") or {}):
                options[f"{part}.{name}"] = rate + 0.01
    return Variant(variant.family, f"{variant.name}-dropping", variant.arch, options)


def weighed(x: torch.Tensor, p: float) -> torch.Tensor:
    place = torch.arange(x.shape[-1], dtype=x.dtype)
    return x * (1 - p * (1 + place.cos()) / 2)


def dropout(x, p=0.5, training=True, inplace=False):
    return weighed(x, p) if training else x


def attention(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    scores = query @ key.transpose(-2, -1) * (scale if scale is not None else 1 / math.sqrt(query.shape[-1]))
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if attn_mask is not None:
        scores = (
            scores.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
        )
    weights = scores.softmax(-1).nan_to_num(0.0)  # torch gives zeros for a token that attends to nothing
    return weighed(weights, dropout_p) @ value


@pytest.fixture
def fixed(monkeypatch):
    """Replace random dropout by a fixed pattern; return a function that does the same for `DropPath`."""
    monkeypatch.setattr(F, "dropout", dropout)
    monkeypatch.setattr(F, "scaled_dot_product_attention", attention)

    def paths(model):
        for module in model.modules():
            if type(module).__name__.endswith("DropPath"):
                monkeypatch.setattr(
                    type(module), "forward",
                    lambda self, x: x * (1 - (self.drop_prob or 0.0)) if self.training else x,
                )  # fmt: skip

    return paths


@pytest.mark.spread(every=3)
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@torch.no_grad()
def test_training_mode_is_the_library_s(variant, fixed):
    sample = base(dropping(variant))
    ours, theirs = sample.model(torch.float64).train(), sample.library(torch.float64).train()
    fixed(ours)
    fixed(theirs)
    inputs = sample.inputs(batch=3, dtype=torch.float64)

    assert (
        largest_difference(
            ours(inputs), over_classes(theirs(inputs), multi_label=sample.header.architecture.task.by_label)
        )
        <= 1e-10
    )


@pytest.mark.spread(alike=True)
@pytest.mark.parametrize("variant", [v for v in VARIANTS if not v.family.startswith("openclip")], ids=str)
@torch.no_grad()
def test_the_rates_are_felt(variant, fixed):
    """Without effective rates, the comparison above would prove nothing."""
    sample = base(dropping(variant))
    model = sample.model(torch.float64)
    fixed(model)
    inputs = sample.inputs(batch=3, dtype=torch.float64)

    assert largest_difference(model.eval()(inputs), model.train()(inputs)) > 1e-4


@pytest.mark.spread(alike=True)
@pytest.mark.parametrize("variant", TRAINED, ids=str)
@torch.no_grad()
def test_pieces_of_a_batch_drop_what_all_of_it_drops(variant):
    """Dropout of attention weights is off, because its masks are drawn by kernels."""
    sample = base(variant)
    model, inputs = sample.model().train(), sample.inputs(batch=4)
    noise = set_dropout(model, 0.2, path=0.2)
    for module in model.modules():
        if isinstance(module, HeadGroup):
            module.dropout = 0.0

    def logits(rows):
        piece = map_inputs(lambda x: x[rows.start : rows.stop], inputs)
        with noise.at(seed=1, step=2, rows=rows, total=4, device=torch.device("cpu")):
            return model(piece)

    whole = logits(range(4))

    assert largest_difference(torch.cat([logits(range(1)), logits(range(1, 4))]), whole) <= 1e-5
    assert largest_difference(model.eval()(inputs), whole) > 1e-3
