"""Headers are compared with their architecture before memory is allocated or a library builds a model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hydractl.errors import CheckpointError, InputError, UnsupportedModelError
from hydractl.families.open_model import _accepts_images, load_model, open_model, takes_images
from hydractl.heads.masks import full_mask
from hydractl.manifest.header import Step
from support.builders import base
from support.variants import variant

BERT, DECODER, VIT, CLIP, OPEN_CLIP = (
    "transformers-bert-plain",
    "transformers-decoder-llama",
    "timm-vit-class-token",
    "transformers-clip-plain",
    "openclip-plain",
)


def sample(name):
    return base(variant(name))


def loaded(tmp_path, found, **update):
    header = found.header.model_copy(update=update)
    return load_model(open_model(str(replace(found, header=header).save(tmp_path / "m.st"))))


def reading(header, **update):
    """Return the changed fields of a header with other images or texts."""
    if header.prompting and "input_size" not in update:
        preprocess = header.prompting.tokenization.model_copy(update=update)
        return {"prompting": header.prompting.model_copy(update={"tokenization": preprocess})}
    return {"preprocess": header.preprocess.model_copy(update=update)}


@pytest.mark.parametrize(
    ("name", "update", "message"),
    [
        (VIT, {"input_size": (1, 4096, 4096)}, r"reads images of \(1, 4096, 4096\), which its architecture does not accept"),
        (VIT, {"input_size": (1, 12, 8)}, "which its architecture does not accept"),
        (VIT, {"input_size": (3, 8, 8), "mean": (0.5,) * 3, "std": (0.5,) * 3}, "which its architecture does not accept"),
        (CLIP, {"input_size": (3, 4096, 4096)}, "which its architecture does not accept"),
        (OPEN_CLIP, {"input_size": (3, 4096, 4096)}, "which its architecture does not accept"),
        (BERT, {"max_length": 2**20}, "reads texts of 1048576 tokens out of"),
        (BERT, {"vocab_size": 2**20}, "tokens out of 1048576"),
        (BERT, {"pad_id": 2**20}, "pads with 1048576"),
        (CLIP, {"max_length": 2**20}, "reads texts of 1048576 tokens out of"),
        (OPEN_CLIP, {"max_length": 2**20}, "reads texts of 1048576 tokens out of"),
    ],
)  # fmt: skip
def test_inputs_that_an_architecture_does_not_take(tmp_path, name, update, message):
    found = sample(name)
    with pytest.raises(CheckpointError, match=message):
        loaded(tmp_path, found, **reading(found.header, **update))


def test_a_size_that_an_architecture_takes_is_asked_of_the_library_once_and_without_memory():
    """On the meta device, because attention over a million patches would need terabytes."""
    _accepts_images.cache_clear()
    found = sample("transformers-dinov2-plain")
    preprocess = found.header.preprocess.model_copy(update={"input_size": (1, 4096, 4096)})
    for header in (found.header, *[found.header.model_copy(update={"preprocess": preprocess})] * 2):
        assert takes_images(header)
    assert _accepts_images.cache_info().misses == 1


def edited(found, **config):
    return {
        "architecture": found.header.architecture.model_copy(
            update={"config": {**found.header.architecture.config, **config}}
        )
    }


@pytest.mark.parametrize(
    ("name", "config"),
    [
        (VIT, {"depth": 4}),
        (VIT, {"depth": 2}),
        (VIT, {"global_pool": ""}),
        (VIT, {"scale_attn_norm": True}),
        (VIT, {"features_only": True}),
        (BERT, {"num_hidden_layers": 4}),
        (BERT, {"num_hidden_layers": 1}),
        (BERT, {"hidden_size": 33}),
        (BERT, {"num_attention_heads": 2}),
        (DECODER, {"num_key_value_heads": 1}),
        (DECODER, {"num_key_value_heads": 4}),
        (OPEN_CLIP, {"vision_cfg": "ViT"}),
        (OPEN_CLIP, {"text_cfg": {"context_length": 2**20}}),
        (OPEN_CLIP, {"multimodal_cfg": {}}),
    ],
    ids=str,
)
def test_a_configuration_of_another_model(tmp_path, name, config):
    found = sample(name)
    with pytest.raises(InputError):
        loaded(tmp_path, found, **edited(found, **config))


@pytest.mark.parametrize("name", [VIT, BERT])
def test_names_that_a_header_makes_up(tmp_path, name):
    found = sample(name)
    architecture = found.header.architecture
    for update in ({"name": "../evil"}, {"name": "cait_xxs24_224"}, {"family": "evil"}):
        with pytest.raises(UnsupportedModelError):
            loaded(tmp_path, found, architecture=architecture.model_copy(update=update))
    towers = {"evil": next(iter(architecture.towers.values()))}
    with pytest.raises(UnsupportedModelError, match=r"has towers \['evil'\], but models of `.*` have \['"):
        loaded(
            tmp_path,
            found,
            architecture=architecture.model_copy(update={"towers": towers}),
            masks=(full_mask(towers),),
        )


@pytest.mark.parametrize("kind", ["multi_label_classification", "regression"])
def test_a_file_of_another_question_is_a_backbone_unless_it_was_trained_here(tmp_path, kind):
    model = sample(BERT)
    architecture = model.header.architecture
    asked = architecture.model_copy(update={"config": {**architecture.config, "problem_type": kind}})
    old = model.header.model_copy(update={"architecture": asked})
    path = str(replace(model, header=old).save(tmp_path / "old.st"))
    with pytest.raises(UnsupportedModelError, match=f"its `problem_type` is `{kind}`"):
        open_model(path)
    backbone = open_model(path, backbone=True)
    assert "problem_type" in backbone.lacks
    assert not [name for name in backbone.checkpoint.specs if name.startswith("classifier.")]

    step = Step(command="finetune", options={})
    trained = replace(model, header=old.model_copy(update={"made_by": step})).save(tmp_path / "trained.st")
    assert open_model(str(trained)).lacks == ""
