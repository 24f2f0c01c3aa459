"""`import` of weights without a classifier: a new classifier is drawn; other mismatches are refused."""

from __future__ import annotations

import pytest
import timm
import torch
import transformers
from safetensors.torch import save_file

from hydractl.checkpoint import Checkpoint
from hydractl.errors import CheckpointError, UsageError
from hydractl.families.open_model import open_model
from hydractl.families.registry import FAMILIES
from hydractl.stages.importing.config import ImportConfig
from hydractl.stages.importing.run import run_import
from support.builders import base
from support.progress_log import ProgressLog
from support.text_folders import save_text_model
from support.variants import variant

OPTIONS = {"img_size": 8, "patch_size": 4, "in_chans": 1, "embed_dim": 32, "depth": 2, "num_heads": 4}
NAME = "vit_tiny_patch16_224"
ARCH = f"{NAME}::{','.join(f'{k}={v}' for k, v in OPTIONS.items())}"
BERT = variant("transformers-bert-plain")


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A folder of ViT weights in several forms, and the state dict of the whole model with 7 classes.

    The files have a classifier, no classifier, an additional tensor, or LoRA tensors.
    """
    place = tmp_path_factory.mktemp("weights")
    torch.manual_seed(0)
    state = dict(timm.create_model(NAME, num_classes=7, **OPTIONS).state_dict())
    headless = {f"module.{k}": v for k, v in state.items() if not k.startswith("head.")}
    for name, tensors in (
        ("whole", state),
        ("headless", headless),
        ("surplus", state | {"reg_token": torch.ones(1, 2, 32)}),
        (
            "adapted",
            {k: v for k, v in state.items() if "head" not in k} | {"blocks.0.lora.weight": torch.ones(1)},
        ),
    ):
        save_file(tensors, place / f"{name}.safetensors")
    return place, state


def import_weights(source, out, *, arch=ARCH, **changes):
    progress_log = ProgressLog()
    run_import(ImportConfig(sources=(str(source),), arch=str(arch), out=out, **changes), progress_log)
    found = Checkpoint.open(out)
    return found.header, found.tensors(), progress_log.steps + progress_log.warnings


def check(header, found, state, seed=0):
    """Assert that only the classifier is new, with the library's initialization for the seed."""
    fresh = FAMILIES[header.architecture.family].initialise(header.architecture, seed)
    for name, tensor in found.items():
        assert torch.equal(
            tensor, fresh[name] if name.startswith(("head.", "classifier.")) else state[name]
        ), name


def test_a_classifier_that_is_not_there_is_drawn(tmp_path, weights):
    place, state = weights
    header, found, lines = import_weights(place / "headless.safetensors", tmp_path / "b.st", labels="a,b,c")

    assert (header.num_classes, header.labels) == (3, ("a", "b", "c"))
    check(header, found, state)
    assert any("New random classifier for 3 classes: `head.weight`, `head.bias`" in line for line in lines)
    assert header.made_by.options.get("head_seed") is None


def test_a_classifier_that_is_there_goes_when_a_seed_is_given(tmp_path, weights):
    place, state = weights
    header, found, _ = import_weights(
        place / "whole.safetensors", tmp_path / "b.st", num_classes=7, head_seed=3
    )
    check(header, found, state, seed=3)
    header, found, _ = import_weights(
        place / "whole.safetensors", tmp_path / "c.st", num_classes=2, head_seed=3
    )
    check(header, found, state, seed=3)
    assert header.made_by.options["head_seed"] == 3
    with pytest.raises(CheckpointError, match="has 7 classes, not 2"):
        import_weights(place / "whole.safetensors", tmp_path / "d.st", num_classes=2)


def test_what_is_drawn_has_the_dtype_of_the_largest_tensor(tmp_path, weights):
    _, state = weights
    half = {
        name: tensor if "norm" in name else tensor.half()
        for name, tensor in state.items()
        if not name.startswith("head.")
    }
    save_file(half, tmp_path / "half.safetensors")

    header, found, _ = import_weights(tmp_path / "half.safetensors", tmp_path / "b.st", num_classes=2)

    fresh = FAMILIES[header.architecture.family].initialise(header.architecture, 0)
    for name, tensor in found.items():
        expected = fresh[name].half() if name.startswith("head.") else half[name]
        assert tensor.dtype == expected.dtype
        assert torch.equal(tensor, expected)


@pytest.mark.parametrize(
    ("name", "said"), [("surplus", "`reg_token`"), ("adapted", r"`blocks\.0\.lora\.weight`")]
)
def test_what_else_does_not_fit_is_refused(tmp_path, weights, name, said):
    """A trained classifier or a weight of a block is never dropped for a wrong architecture."""
    with pytest.raises(CheckpointError, match=said):
        import_weights(weights[0] / f"{name}.safetensors", tmp_path / "b.st", num_classes=7)
    assert not (tmp_path / "b.st").exists()


@pytest.mark.spread(cases=2)
@pytest.mark.parametrize("kind", ["BertModel", "BertForMaskedLM", "BertForMultipleChoice"])
def test_a_folder_without_a_classifier(tmp_path, kind):
    folder = tmp_path / "m"
    sample = save_text_model(BERT, folder)
    library = getattr(transformers, kind)(sample.library().config)
    library.base_model.load_state_dict(sample.library().base_model.state_dict(), strict=False)
    library.save_pretrained(folder)
    source = folder / "model.safetensors"

    header, found, _ = import_weights(source, tmp_path / "b.st", arch=folder, num_classes=7, pooling="mean")
    assert (header.architecture.pooling, header.num_classes, header.labels) == ("mean", 7, ())
    check(header, found, sample.state)
    assert open_model(str(tmp_path / "b.st")).header == header
    with pytest.raises(CheckpointError, match=f"is a {kind}, which is not a classifier") as caught:
        import_weights(source, tmp_path / "c.st", arch=folder)
    assert "`--num-classes N`" in caught.value.hint


def test_what_is_said_of_images(tmp_path, weights):
    source = weights[0] / "whole.safetensors"
    header, _, _ = import_weights(
        source, tmp_path / "b.st", num_classes=7, images=images(mean=(0.1,), std=(0.2,))
    )
    assert (header.preprocess.mean, header.preprocess.std, header.assumed) == ((0.1,), (0.2,), False)
    with pytest.raises(UsageError, match=r"`--mean`: 3 numbers, but .* reads images with 1 channel"):
        import_weights(source, tmp_path / "c.st", num_classes=7, images=images(mean=(0.1, 0.2, 0.3)))
    with pytest.raises(UsageError, match=r"`--img-size`: .* does not accept images of 12x8 pixels"):
        import_weights(source, tmp_path / "c.st", num_classes=7, images=images(img_size=(12, 8)))
    dynamic = f"{ARCH},dynamic_img_size=true"
    header, _, _ = import_weights(
        source, tmp_path / "d.st", arch=dynamic, num_classes=7, images=images(img_size=(12, 8))
    )
    assert header.preprocess.input_size == (1, 12, 8)


def images(**said):
    from hydractl.stages.options import Images

    return Images(**said)


def test_a_folder_that_does_not_say_how_images_are_read(tmp_path):
    sample = base(variant("transformers-vit-plain"))
    sample.library().save_pretrained(tmp_path / "m")
    source = tmp_path / "m" / "model.safetensors"
    header, _, lines = import_weights(source, tmp_path / "b.st", arch=tmp_path / "m")
    assert header.assumed
    assert any(
        (
            "has no image preprocessing; the base stores the usual one of such models (change it "
            "with `--img-size`, `--mean` and `--std`)"
        )
        in line
        for line in lines
    )
    header, _, lines = import_weights(
        source, tmp_path / "c.st", arch=tmp_path / "m", images=images(mean=(0.1,), std=(0.2,))
    )
    assert not header.assumed
    assert not any(
        (
            "has no image preprocessing; the base stores the usual one of such models (change "
            "it with `--img-size`, `--mean` and `--std`)"
        )
        in line
        for line in lines
    )
