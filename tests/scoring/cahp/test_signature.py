from __future__ import annotations

import numpy as np
import pytest
import torch

from hydractl.errors import DataError
from hydractl.scoring.head_profiles import signature, signatures, text_lengths
from support import naive_cahp
from support.builders import base
from support.variants import VARIANTS

DOUBLE = torch.float64
TEXTS = [v for v in VARIANTS if v.family.startswith("transformers-") and v.name == "plain"]
TEXTS = [v for v in TEXTS if "attention_mask" in (base(v).header.preprocess.model_dump().get("names") or ())]
IMAGES = [next(v for v in VARIANTS if v.family == f) for f in ("timm-vit", "timm-eva")]


def attention(batch, tokens, seed=0):
    scores = torch.randn(
        batch, 4, tokens, tokens, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE
    )
    return scores.softmax(-1)


@pytest.mark.parametrize("length", [1, 2, 5, 8, 9, 40])
@pytest.mark.parametrize("size", [2, 8, 32])
def test_a_signature_is_the_map_resized_by_a_literal_bilinear_matrix(length, size):
    weights = attention(2, length)

    found = signature(weights, None, size=size)

    expected = [[naive_cahp.signature(head.numpy(), size) for head in sample] for sample in weights]
    assert torch.allclose(found, torch.tensor(np.array(expected)), rtol=0, atol=1e-12)


def test_a_map_of_the_signatures_size_is_left_as_it_is():
    weights = attention(3, 8)

    assert torch.equal(signature(weights, None, size=8), weights.flatten(2))


def test_each_sample_is_cut_to_its_own_tokens():
    weights, lengths = attention(5, 9), torch.tensor([9, 1, 4, 4, 7])

    found = signature(weights, lengths, size=6)

    for b, length in enumerate(lengths.tolist()):
        alone = signature(weights[b : b + 1, :, :length, :length], None, size=6)
        assert torch.equal(found[b : b + 1], alone)


def test_half_precision_is_widened():
    found = signature(attention(1, 5).bfloat16(), None, size=4)

    assert found.dtype == torch.float32


@pytest.mark.parametrize("one", TEXTS, ids=str)
def test_more_padding_never_changes_a_signature(one):
    """This includes layers with local attention, whose mask differs from the padding mask."""
    sample = base(one)
    inputs = sample.inputs(batch=4, seed=1)
    lengths = inputs["attention_mask"].sum(dim=-1)
    longest = int(lengths[1:].max())
    short = {n: x[1:, :longest] for n, x in inputs.items()}
    model = sample.model(DOUBLE)

    padded = signatures(model, "text", {n: x[1:] for n, x in inputs.items()}, size=8)

    assert longest < inputs["input_ids"].shape[1]
    assert padded.shape == (3, 12, 64)
    assert torch.allclose(padded, signatures(model, "text", short, size=8), rtol=0, atol=1e-12)


@pytest.mark.parametrize("one", IMAGES, ids=str)
def test_all_tokens_of_an_image_count(one):
    sample = base(one)
    model, inputs = sample.model(DOUBLE), sample.inputs(batch=3, dtype=DOUBLE)
    before = [block.attn for block in model.tower("vision").layers()]

    found = signatures(model, "vision", inputs, size=4)

    assert found.shape == (3, 12, 16)
    assert not found.requires_grad
    assert [block.attn for block in model.tower("vision").layers()] == before


def test_lengths_come_from_the_mask_of_the_inputs():
    mask = torch.tensor([[1, 1, 1], [1, 0, 0]])

    assert text_lengths({"input_ids": mask, "attention_mask": mask}).tolist() == [3, 1]
    assert text_lengths({"input_ids": mask}) is None
    assert text_lengths(torch.zeros(1, 3, 8, 8)) is None


@pytest.mark.parametrize("mask", [[[0, 0, 0]], [[0, 1, 1]], [[1, 0, 1]]])
def test_other_padding_is_refused(mask):
    with pytest.raises(DataError, match="padded on the right"):
        text_lengths({"attention_mask": torch.tensor(mask)})
