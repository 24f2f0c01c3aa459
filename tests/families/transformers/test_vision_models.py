"""transformers' image classifiers in files, saved by the library or by hydractl."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from hydractl.errors import CheckpointError, UnsupportedModelError
from hydractl.families.open_model import load_model, open_model
from hydractl.families.registry import FAMILIES, family_for_config
from hydractl.families.tower import largest_difference
from support.builders import base
from support.variants import VARIANTS, variant

VISION = [
    v
    for v in VARIANTS
    if v.family.startswith("transformers-") and set(FAMILIES[v.family].towers) == {"vision"}
]
LABELS = tuple(f"kind {i}" for i in range(7))
every_variant = pytest.mark.parametrize("variant", VISION, ids=str)


def named(name):
    return variant(f"transformers-{name}")


def saved(folder, variant, size=None, **options):
    """Write a base like the library, with an image processor. Return the base and the library's model."""
    sample = base(variant)
    library = sample.library()
    library.config.id2label = dict(enumerate(LABELS))
    library.save_pretrained(folder, **options)
    height, width = size or sample.header.preprocess.input_size[1:]
    processor = {
        "image_processor_type": "ViTImageProcessor", "size": {"height": height, "width": width},
        "image_mean": [0.4], "image_std": [0.3], "resample": 3,
    }  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return sample, library


def config_edited(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.spread(alike=True)
@every_variant
@pytest.mark.parametrize("options", [{}, {"max_shard_size": "20KB"}], ids=["whole", "sharded"])
@torch.inference_mode()
def test_a_folder_of_the_library_s_is_its_model(tmp_path, variant, options):
    sample, library = saved(tmp_path, variant, **options)
    shards = sorted(tmp_path.glob("*.safetensors"))
    assert (len(shards) > 1) == bool(options)

    model_file = open_model(str(tmp_path))

    header = model_file.header
    assert header.architecture == sample.header.architecture
    assert header.labels == LABELS
    assert (header.preprocess.mean, header.preprocess.crop_mode) == ((0.4,), "squash")
    images = sample.inputs()
    assert largest_difference(load_model(model_file)(images), library(images)) <= 1e-5


@pytest.mark.spread(cases=7)
@every_variant
@torch.inference_mode()
def test_a_checkpoint_of_ours_is_the_same_model(tmp_path, variant):
    sample = base(variant)
    model_file = open_model(str(sample.save(tmp_path / "base.st")))
    model = load_model(model_file)
    assert all(torch.equal(t, sample.state[name]) for name, t in model.library_state().items())
    assert largest_difference(model(sample.inputs()), sample.model()(sample.inputs())) <= 1e-6


@pytest.mark.parametrize(
    "name",
    [
        "vit-plain",
        "vit-masked-siamese",
        "deit-plain",
        "beit-plain",
        "dinov2-swiglu",
        "dinov2-registers-plain",
    ],
)
def test_names_on_disk_are_not_those_in_memory(tmp_path, name):
    """The reason for `Family.adopt`. If the names become equal, `adopt` can be removed."""
    sample, _ = saved(tmp_path, named(name))
    assert load_file(tmp_path / "model.safetensors").keys() != sample.state.keys()


@pytest.mark.spread(cases=2)
@pytest.mark.parametrize(
    "name", ["dinov2-plain", "dinov2-registers-plain", "beit-positions", "data2vec-vision-class-token"]
)
@torch.inference_mode()
def test_images_of_another_size_than_the_model_was_made_for(tmp_path, name):
    """DINOv2 is published this way: trained with 518 pixels, used with 224."""
    _, library = saved(tmp_path, named(name), size=(12, 16))
    model_file = open_model(str(tmp_path))
    assert model_file.header.preprocess.input_size == (1, 12, 16)
    images = torch.randn(2, 1, 12, 16)
    assert largest_difference(load_model(model_file)(images), library(images)) <= 1e-5


@pytest.mark.parametrize(
    "name", ["vit-plain", "beit-relative", "beit-shared-relative", "data2vec-vision-relative"]
)
def test_a_model_of_one_size_needs_images_of_that_size(tmp_path, name):
    """Relative position biases have the size of the model's images."""
    saved(tmp_path, named(name), size=(12, 16))
    with pytest.raises(UnsupportedModelError, match="makes images of 12x16 pixels, but the model takes 8x8"):
        open_model(str(tmp_path))


@torch.inference_mode()
def test_heads_may_be_of_a_width_of_their_own(tmp_path):
    """Like models pruned by the library: fewer heads than the width divided by the head width."""
    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=3, intermediate_size=16, image_size=8, patch_size=4,
        num_channels=1, head_dim=8, num_labels=3,
    )  # fmt: skip
    library = transformers.ViTForImageClassification(config).eval()
    library.save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(
        json.dumps({"size": 8, "image_mean": 0.5, "image_std": 0.5})
    )
    model_file = open_model(str(tmp_path))
    tower = model_file.header.architecture.towers["vision"]
    assert (tower.num_heads, tower.head_dim) == (3, 8)
    images = torch.randn(2, 1, 8, 8)
    assert largest_difference(load_model(model_file)(images), library(images).logits) <= 1e-5


def test_weights_beside_the_classifier_are_left_out(tmp_path):
    """Published folders may contain a pooler without use in the classifier."""
    saved(tmp_path, named("vit-plain"))
    path = tmp_path / "model.safetensors"
    extra = {f"vit.pooler.dense.{k}": torch.zeros(n) for k, n in (("weight", (32, 32)), ("bias", (32,)))}
    save_file(load_file(path) | extra, path, metadata={"format": "pt"})
    assert "vit.pooler.dense.weight" not in open_model(str(tmp_path)).checkpoint.specs


@pytest.mark.parametrize(
    ("model_type", "trained", "family"),
    [
        ("siglip", "SiglipModel", "transformers-siglip"),
        ("siglip", "SiglipForImageClassification", "transformers-vision-tower"),
        ("clip", "CLIPModel", "transformers-clip"),
        ("metaclip_2", "MetaClip2Model", "transformers-clip"),
        ("metaclip_2", "MetaClip2ForImageClassification", "transformers-vision-tower"),
        ("clip", "CLIPForImageClassification", "transformers-vision-tower"),
        ("deit", "DeiTForImageClassificationWithTeacher", "transformers-deit"),
        ("deit", "DeiTModel", "transformers-deit"),
    ],
)
def test_the_class_that_was_trained_tells_families_apart(model_type, trained, family):
    config = {"model_type": model_type, "architectures": [trained]}
    assert family_for_config(config, place="x").name == family


@every_variant
def test_what_nothing_reads_is_no_parameter(variant):
    """Mask tokens and unused poolers stay in the file, but are not trained."""
    sample = base(variant)
    model = sample.model()
    trained = {id(p) for p in model.parameters()}
    unread = {n for n, t in model.library_state().items() if id(t) not in trained}
    assert all(n.endswith("mask_token") or ".head." in n or "post_layernorm" in n for n in unread)
    assert {n for n in sample.state if n.endswith("mask_token")} <= unread


@pytest.mark.parametrize(
    ("family", "name", "options", "reason"),
    [
        (
            "beit",
            "beit",
            {"image_size": [32, 48], "use_relative_position_bias": True},
            "only square position embeddings, not those of 32x48",
        ),
        ("vit", "vit", {"image_size": 8}, "patches of 16x16 pixels do not fit into images of 8x8"),
        ("vit", "vit", {"num_labels": 0}, "it has no classifier; set `num_labels`"),
        ("vit", "vit", {"num_hidden_layers": 0}, "it has no layers"),
        ("vit", "vit", {"num_channels": 4}, "images with 4 channels are not supported"),
        ("vit", "vit", {"hidden_size": "wide"}, "transformers cannot configure `vit`"),
        ("vit", "vit", {"num_attention_heads": 5}, "cannot have 5 heads"),
        ("dinov2", "dinov2", {"image_size": [28, 56]}, "resizes only square position embeddings"),
        (
            "vision-tower",
            "CLIPForImageClassification",
            {"vision.patch_size": 300},
            "patches of 300x300 pixels",
        ),
    ],
)
def test_what_cannot_be_covered_is_refused_with_the_reason(family, name, options, reason):
    with pytest.raises(UnsupportedModelError) as caught:
        FAMILIES[f"transformers-{family}"].describe(name, options)
    assert reason in str(caught.value)
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [
        ("dinov3_vit", "the library has no classifier for it"),
        (
            "siglip2",
            (
                "its images are lists of patches with separate grids; SigLIP 2 with a fixed size "
                "has the supported type `siglip"
            ),
        ),
        ("swin", "its attention is within windows"),
    ],
)
def test_a_type_of_another_shape_is_refused_with_the_reason(tmp_path, model_type, reason):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedModelError, match=reason):
        open_model(str(tmp_path))


def test_a_model_that_does_not_classify_is_refused(tmp_path):
    saved(tmp_path, named("vit-plain"))
    config_edited(tmp_path, architectures=["ViTModel"])
    weights = tmp_path / "model.safetensors"
    save_file({k: v for k, v in load_file(weights).items() if not k.startswith("classifier.")}, weights)
    with pytest.raises(UnsupportedModelError, match="is a ViTModel, which is not a classifier"):
        open_model(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "mode", "mean"),
    [
        ("vit-plain", "squash", 0.5),
        ("dinov2-registers-plain", "center", sum((0.48145466, 0.4578275, 0.40821073)) / 3),
        ("vision-tower-clip", "center", sum((0.48145466, 0.4578275, 0.40821073)) / 3),
        ("vision-tower-siglip", "squash", 0.5),
    ],
)
def test_without_an_image_processor_its_type_s_own_stands_in(tmp_path, name, mode, mean):
    saved(tmp_path, named(name))
    assert not open_model(str(tmp_path)).header.assumed
    (tmp_path / "preprocessor_config.json").unlink()

    header = open_model(str(tmp_path)).header

    assert header.assumed
    assert (header.preprocess.input_size, header.preprocess.crop_mode) == ((1, 8, 8), mode)
    assert header.preprocess.mean == pytest.approx((mean,))


def test_a_folder_without_its_classifier_is_refused(tmp_path):
    saved(tmp_path, named("dinov2-plain"))
    path = tmp_path / "model.safetensors"
    kept = {k: v for k, v in load_file(path).items() if not k.startswith("classifier")}
    save_file(kept, path, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="lacks 2 tensors of its classifier"):
        open_model(str(tmp_path))


def test_a_folder_whose_weights_are_of_another_shape_is_refused(tmp_path):
    saved(tmp_path, named("vit-plain"))
    config_edited(tmp_path, intermediate_size=64)
    with pytest.raises(CheckpointError) as caught:
        open_model(str(tmp_path))
    assert "fc" in str(caught.value)
