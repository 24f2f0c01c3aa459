"""Models without a classifier, by family: unchanged encoder, and a classifier drawn by the library's rules."""

from __future__ import annotations

import json

import pytest
import timm
import torch
import transformers
from safetensors.torch import load_file, save_file

from hydractl.errors import CheckpointError, UnsupportedModelError
from hydractl.families.open_model import load_model, open_model, with_classifier
from hydractl.families.registry import FAMILIES
from hydractl.families.tower import largest_difference
from hydractl.runtime import digest_files
from support.builders import base
from support.text_folders import save_tokenizer
from support.variants import VARIANTS, Variant

ONE_TOWER = [v for v in VARIANTS if len(FAMILIES[v.family].towers) == 1 and "pooling" not in v.options]
ONE_EACH = list({v.family: v for v in reversed(ONE_TOWER) if v.family.startswith("transformers")}.values())
TEXTS = [v for v in ONE_EACH if "text" in FAMILIES[v.family].towers]
TINY = {"img_size": 8, "patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 4}
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
IMAGES = SIZES | {"image_size": 8, "patch_size": 4}


def taken(folder, *, number=5, seed=3):
    model_file = open_model(str(folder), backbone=True)
    assert model_file.lacks
    return with_classifier(model_file, number, seed=seed)


def check(found, library, encoder):
    """Check that the model has all encoder tensors, and that the library's class accepts the state dict."""
    state = found.checkpoint.tensors()
    library.load_state_dict(state, strict=True)
    values = {tuple(t.flatten()[:7].tolist()) for t in state.values() if t.is_floating_point()}
    lost = {
        n
        for n, t in encoder.items()
        if t.is_floating_point() and tuple(t.flatten()[:7].tolist()) not in values
    }
    assert not lost
    fresh = found.family.initialise(found.header.architecture, 3)
    head = [n for n in state if n.startswith(next(iter(found.family.towers.values())).head)]
    assert head
    assert all(torch.equal(state[n], fresh[n]) for n in head)


# base models of vision towers have other model types; tested below
@pytest.mark.spread(cases=10)
@pytest.mark.parametrize("variant", [v for v in ONE_EACH if v.family != "transformers-vision-tower"], ids=str)
@torch.inference_mode()
def test_a_base_model_s_folder(tmp_path, variant):
    sample = base(variant)
    library = sample.library()
    library.base_model.save_pretrained(tmp_path)
    if "text" in sample.family.towers:
        save_tokenizer(tmp_path)
    kept = {
        n: t for n, t in library.base_model.state_dict().items() if n.rpartition(".")[0] != "pooler.dense"
    }

    found = taken(tmp_path)

    assert found.checkpoint.digest == digest_files(
        [tmp_path / "model.safetensors"]
    )  # of the existing files, not of a copy
    fitted = type(library).from_pretrained(tmp_path, num_labels=5).eval()
    check(found, fitted, kept)
    inputs = sample.inputs()
    named = inputs if isinstance(inputs, dict) else {"pixel_values": inputs}
    assert largest_difference(load_model(found)(inputs), fitted(**named).logits) <= 1e-5


@pytest.mark.spread(cases=7)
@pytest.mark.parametrize("variant", TEXTS, ids=str)
@torch.inference_mode()
def test_any_text_encoder_s_mean_is_read_by_a_linear_classifier(variant):
    """The reference in `support.variants` is the library's base model, a masked mean and a linear layer."""
    sample = base(Variant(variant.family, "mean", variant.arch, variant.options | {"pooling": "mean"}))
    inputs = sample.inputs(batch=3)
    library = sample.library()
    assert library.state_dict().keys() == sample.state.keys()
    assert largest_difference(sample.model()(inputs), library(inputs)) <= 1e-5


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("BertForMaskedLM", {}), ("BertForQuestionAnswering", {"num_labels": 2}), ("BertForMultipleChoice", {}),
        ("DistilBertForMaskedLM", {}), ("ElectraForPreTraining", {}), ("ModernBertForMultipleChoice", {}),
    ],
)  # fmt: skip
def test_other_heads_are_left_behind(tmp_path, kind, options):
    """Also the head of a multiple-choice model, although the name is the same as for a classifier."""
    made = getattr(transformers, kind)
    sizes = {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48} if "Distil" in kind else SIZES
    torch.manual_seed(0)
    library = made(
        made.config_class(**sizes, vocab_size=61, max_position_embeddings=20, pad_token_id=0, **options)
    )
    library.save_pretrained(tmp_path)
    save_tokenizer(tmp_path)

    found = taken(tmp_path)

    whole = getattr(transformers, kind.partition("For")[0] + "ForSequenceClassification")
    fitted = whole(
        made.config_class(**sizes, vocab_size=61, max_position_embeddings=20, pad_token_id=0, num_labels=5)
    )
    check(found, fitted, library.base_model.state_dict())


def vision(kind, **options):
    made = getattr(transformers, kind)
    config = made.config_class
    torch.manual_seed(0)
    if kind.endswith("Model") and "Vision" not in kind and "MAE" not in kind:
        text = SIZES | {"vocab_size": 61, "max_position_embeddings": 20, "projection_size": 32}
        return made(config(vision_config=IMAGES, text_config=text))
    return made(config(**IMAGES, **options))


@pytest.mark.spread(cases=3)
@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("CLIPModel", "CLIPForImageClassification"), ("CLIPVisionModel", "CLIPForImageClassification"),
        ("CLIPVisionModelWithProjection", "CLIPForImageClassification"), ("SiglipModel", "SiglipForImageClassification"),
        ("SiglipVisionModel", "SiglipForImageClassification"), ("MetaClip2VisionModel", "MetaClip2ForImageClassification"),
        ("ViTMAEForPreTraining", "vit"),
    ],
)  # fmt: skip
@torch.inference_mode()
def test_vision_towers_and_other_types_of_the_same_encoder(tmp_path, kind, wanted):
    options = {"decoder_hidden_size": 16, "decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 2}
    library = vision(kind, **(options if "MAE" in kind else {}))
    library.save_pretrained(tmp_path)

    found = taken(tmp_path)

    assert (found.header.architecture.name, found.header.prompting, found.header.assumed) == (
        wanted,
        None,
        True,
    )
    images = torch.randn(2, 3, 8, 8)
    tower = getattr(library, "vision_model", getattr(library, "vit", library))
    if kind.startswith("CLIPVision"):
        hidden = library(images).last_hidden_state
        head = found.checkpoint.tensors()
        expected = hidden[:, 1:].mean(1) @ head["classifier.weight"].T + head["classifier.bias"]
        assert largest_difference(load_model(found)(images), expected) <= 1e-5
    state = found.checkpoint.tensors()
    query = next(
        t for n, t in tower.state_dict().items() if "1" in n and ("q_proj.weight" in n or "query.weight" in n)
    )
    assert any(t.shape == query.shape and torch.equal(t, query) for t in state.values())


@pytest.mark.spread(cases=2)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("vit_tiny_patch16_224", {}), ("vit_tiny_patch16_224", {"global_pool": ""}), ("vit_small_patch16_dinov3", {}),
        ("vit_base_patch16_siglip_224", {}), ("deit_tiny_distilled_patch16_224", {}), ("beitv2_base_patch16_224", {}),
    ],
)  # fmt: skip
@torch.inference_mode()
def test_timm_s_feature_extractors(tmp_path, name, options):
    torch.manual_seed(0)
    library = timm.create_model(name, num_classes=0, **TINY, **options)
    timm.models.save_for_hf(library, tmp_path, model_args=TINY | options, safe_serialization=True)

    found = taken(tmp_path)

    fitted = timm.create_model(name, num_classes=5, **TINY).eval()
    check(found, fitted, library.state_dict())
    images = torch.randn(2, 3, 8, 8)
    assert largest_difference(load_model(found)(images), fitted(images)) <= 1e-5
    with pytest.raises(UnsupportedModelError, match="has no classifier: `num_classes` is 0") as caught:
        open_model(str(tmp_path))
    assert "`hydractl finetune" in caught.value.hint


def bert(folder, change):
    """Write a BertModel with changed tensors, and return the folder."""
    config = transformers.BertConfig(**SIZES, vocab_size=61, max_position_embeddings=20)
    transformers.BertModel(config).save_pretrained(folder)
    save_tokenizer(folder)
    path = folder / "model.safetensors"
    save_file(change(load_file(path)), path, metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda s: {n: t for n, t in s.items() if "embeddings.LayerNorm" not in n},
            "lacks 2 tensors of BertForSequence",
        ),
        (
            lambda s: {n: t for n, t in s.items() if "layer.1.output" not in n},
            "lacks 4 tensors of BertForSequence",
        ),
        (
            lambda s: s | {"encoder.layer.0.attention.self.query.lora_A.weight": torch.ones(2, 2)},
            "has 1 tensor in its blocks that BertForSequenceClassification does not have",
        ),
        (
            lambda s: s | {"encoder.layer.0.output.dense.bias": torch.ones(3)},
            r"has shape \(3,\), but its config.json needs",
        ),
    ],
    ids=["embedding", "block", "adapter", "shape"],
)
def test_anything_else_that_is_missing_or_more_is_an_error(tmp_path, change, said):
    with pytest.raises(CheckpointError, match=said):
        open_model(str(bert(tmp_path, change)), backbone=True)


def test_a_classifier_whose_config_is_of_other_classes_is_no_backbone(tmp_path):
    sample = base(next(v for v in TEXTS if v.family == "transformers-bert"))
    sample.library().save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text()) | {"id2label": {str(i): str(i) for i in range(3)}}
    path.write_text(json.dumps({k: v for k, v in config.items() if k != "label2id"}))
    with pytest.raises(CheckpointError, match=r"`classifier\.(bias|weight)` has shape"):
        open_model(str(tmp_path), backbone=True)
