"""transformers' two-tower models: properties of single rows."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hydractl.errors import UnsupportedModelError
from hydractl.families.registry import FAMILIES
from support.builders import base
from support.variants import variant


def named(name):
    return variant(f"transformers-{name}")


@pytest.mark.parametrize("option", ["bar.x", "text.bar", "bar"])
def test_an_option_of_no_configuration_is_refused(option):
    with pytest.raises(UnsupportedModelError, match=f"`clip` has no option `{option}`"):
        FAMILIES["transformers-clip"].describe("clip", {option: 1})


@pytest.mark.parametrize(("name", "longest"), [("clip-plain", 20), ("altclip-plain", 18)])
@torch.inference_mode()
def test_texts_are_as_long_as_there_are_positions(name, longest):
    """AltCLIP's positions start after the id of the padding token."""
    sample = base(named(name))
    preprocess = sample.header.prompting.tokenization
    assert preprocess.max_length == longest
    ids = torch.full((1, longest), preprocess.pad_id + 1)
    texts = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    images = sample.inputs(batch=1)["pixel_values"]
    assert sample.model()({"pixel_values": images} | texts).isfinite().all()


def test_stored_classes_are_not_trained():
    sample = base(named("clip-plain"))
    mask = sample.header.masks[0]
    state = sample.state | {"class_embeddings": nn.Parameter(torch.ones(3, 16))}
    model = sample.family.build(sample.header.architecture, mask, state)
    assert torch.equal(model.library_state()["class_embeddings"], torch.ones(3, 16))
    assert "class_embeddings" not in {name.rpartition(".")[2] for name, _ in model.named_parameters()}
