"""Models in Python: arguments of `hydractl.load`, and inputs of loaded models."""

from __future__ import annotations

import pytest
import torch
from PIL import Image
from transformers import AutoModelForSequenceClassification, AutoTokenizer, CLIPModel

import hydractl
from hydractl.checkpoint import Checkpoint, write_tensors
from hydractl.errors import CheckpointError, UsageError
from hydractl.prediction.loaded_model import load
from hydractl.stages.fuse.config import FuseConfig
from hydractl.stages.fuse.run import run_fuse
from support.builders import base
from support.pairs import pair
from support.text_folders import save_text_model
from support.variants import variant

BERT = variant("transformers-bert-plain")
TEXTS = ["the cat sat", "on a mat the cat sat on a mat", "mat"]
NAMES, TEMPLATES = ["0", "1", "2"], ["a photo of a {label} .", "the big {label}"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("models")
    save_text_model(BERT, made / "bert")
    pair("clip", made).save(made / "clip.st")
    pair("siglip", made).save(made / "siglip.st")
    base().save(made / "vit.st")
    sample = base(BERT)
    for i in range(2):
        sample.pruned((0, 1), (2,), (i,)).save(made / f"m{i}.st")
    run_fuse(FuseConfig(models=(str(made / "m0.st"), str(made / "m1.st")), out=made / "hydra.st"))
    return made


@pytest.mark.parametrize("members", [1, 2])
def test_norms_and_biases_that_are_integers_are_refused(tmp_path, members):
    paths = tuple(str(tmp_path / f"m{i}.st") for i in range(members))
    for i in range(members):
        base().pruned((0, 1), (2,), (i,)).save(tmp_path / f"m{i}.st")
    run_fuse(FuseConfig(models=paths, out=tmp_path / "hydra.st"))
    for path in tmp_path.iterdir():
        checkpoint = Checkpoint.open(path)
        tensors = checkpoint.tensors()
        with path.open("wb") as file:
            write_tensors(file, tensors | {"norm.bias": tensors["norm.bias"].int()}, header=checkpoint.header)

    for path in ("m0.st", "hydra.st"):
        with pytest.raises(
            CheckpointError, match=f"{path}: tensor `norm.bias` has dtype I32, but its arch.* needs F32"
        ):
            load(tmp_path / path)
    with pytest.raises(CheckpointError, match=r"m0.st: tensor `norm.bias` has dtype I32"):
        run_fuse(FuseConfig(models=paths, out=tmp_path / "other.st"))


@torch.inference_mode()
def test_a_librarys_encoding_is_taken_as_the_library_takes_it(folder):
    """As a dict, as keywords, and without an attention mask."""
    library = AutoModelForSequenceClassification.from_pretrained(folder / "bert").eval()
    encoding = AutoTokenizer.from_pretrained(folder / "bert")(TEXTS, padding=True, return_tensors="pt")
    model = load(folder / "bert")

    expected = library(**encoding).logits
    torch.testing.assert_close(model(**encoding), expected)
    torch.testing.assert_close(model(encoding), expected)
    ids = encoding["input_ids"]
    torch.testing.assert_close(model(input_ids=ids), library(input_ids=ids).logits)


@torch.inference_mode()
def test_encode_is_the_tokenizer_of_the_checkpoint(folder):
    library = AutoTokenizer.from_pretrained(folder / "bert")
    model = load(folder / "bert")
    pairs = [("the cat", "sat"), ("on", "a mat")]

    for found, expected in (
        (model.encode(TEXTS), library(TEXTS, padding=True, return_tensors="pt")),
        (
            model.encode(pairs),
            library([a for a, _ in pairs], [b for _, b in pairs], padding=True, return_tensors="pt"),
        ),
    ):
        assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    assert model(**model.encode(TEXTS)).shape == (3, 7)


@torch.inference_mode()
def test_a_hydra_is_called_by_keyword_too(folder):
    hydra = load(folder / "hydra.st")
    inputs = base(BERT).inputs()

    by_name, as_one = hydra(**inputs), hydra(inputs)
    assert all(torch.equal(a, b) for a, b in zip(by_name, as_one, strict=True))
    assert isinstance(hydra, hydractl.Hydra)


@torch.inference_mode()
def test_images_are_encoded_as_eval_reads_them(folder):
    model = load(folder / "vit.st")
    images = [Image.new("L", (9, 7), i) for i in (0, 90, 200)]

    found = model.encode(images)
    assert found.shape == (3, 1, 8, 8)
    assert torch.equal(model(found), model(pixel_values=found))


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_a_zero_shot_base_is_told_its_classes(folder, kind):
    """The loaded model also supports gradients."""
    model = load(folder / f"{kind}.st", classes=NAMES, templates=TEMPLATES)
    bare = load(folder / f"{kind}.st")
    images = torch.randn(4, 3, 8, 8)

    logits = model(images)
    logits.sum().backward()
    assert logits.shape == (4, 3)
    usual = [[f"A photo of a {name}."] for name in NAMES]
    together = torch.cat([bare({"pixel_values": images} | bare.encode(texts)) for texts in usual], dim=1)
    torch.testing.assert_close(load(folder / f"{kind}.st", classes=NAMES)(images), together)


@torch.inference_mode()
def test_images_and_texts_together_are_the_librarys_logits(folder):
    sample = pair("clip", folder)
    library = CLIPModel(sample.library().config)
    library.load_state_dict(sample.state)
    model = load(folder / "clip.st")
    inputs = {"pixel_values": torch.randn(2, 3, 8, 8)} | model.encode(["a photo", "the big 3"])

    torch.testing.assert_close(model(**inputs), library.eval()(**inputs).logits_per_image)


READS_TEXTS = r"the model reads texts and expects `input_ids` and `attention_mask` by name"
MISUSED = {
    "ids alone": ("bert", lambda m: m(torch.ones(2, 3, dtype=torch.long)), rf"{READS_TEXTS}.*one tensor of shape \(2, 3\)"),
    "texts": ("bert", lambda m: m(["a text"]), rf"{READS_TEXTS}.*found list: convert items to tensors with `model.encode`"),
    "a text": ("bert", lambda m: m("a text"), "found str"),
    "nothing": ("bert", lambda m: m(), "found nothing without `input_ids`"),
    "no ids": ("bert", lambda m: m(attention_mask=torch.ones(1, 1)), "found attention_mask without `input_ids`"),
    "lists by name": ("bert", lambda m: m(input_ids=[[1]]), "`input_ids` is of type list"),
    "another name": ("bert", lambda m: m(input_ids=torch.ones(1, 1), labels=torch.ones(1)), "found `labels`"),
    "texts for images": ("vit.st", lambda m: m(input_ids=torch.ones(1, 1)), r"the model reads images.*found `input_ids`"),
    "one image": ("vit.st", lambda m: m(torch.zeros(1, 8, 8)), r"one tensor of shape \(1, 8, 8\)"),
    "both ways": ("vit.st", lambda m: m(torch.zeros(1, 1, 8, 8), pixel_values=torch.zeros(1)), "not both"),
    "texts without images": ("clip.st", lambda m: m(input_ids=torch.ones(1, 1)), "without `pixel_values`"),
    "ids for a zero-shot model": ("clip.st", lambda m: m(torch.ones(2, 3)), "or `pixel_values` with `input_ids`"),
    "a text to encode": ("bert", lambda m: m.encode("a text"), "takes a list of items, found one text"),
    "nothing to encode": ("bert", lambda m: m.encode([]), "found nothing"),
    "images for texts": ("bert", lambda m: m.encode([Image.new("L", (2, 2))]), "reads texts, found Image"),
    "arrays for images": ("vit.st", lambda m: m.encode([torch.zeros(1, 8, 8)]), "Pillow image, found Tensor"),
    "both at once": ("clip.st", lambda m: m.encode(["a", Image.new("L", (2, 2))]), "Image, str"),
}  # fmt: skip


@pytest.mark.spread(cases=7)
@pytest.mark.parametrize(("name", "call", "message"), MISUSED.values(), ids=MISUSED)
def test_what_a_model_does_not_read_is_said(folder, name, call, message):
    with pytest.raises(TypeError, match=message):
        call(load(folder / name))


def test_a_model_made_otherwise_has_no_encoder():
    with pytest.raises(
        TypeError, match=r"only a model from `hydractl\.load` has the preprocessing of its inputs"
    ):
        base().model().encode(["a"])


REFUSED = {
    "no reference": ("", {}, UsageError, "the model reference is empty"),
    "is not a folder": ("local-dir:", {}, UsageError, "the model reference is empty"),
    "classes for a classifier": ("vit.st", {"classes": ["a", "b"]}, UsageError, "already has classes"),
    "a text for classes": (
        "clip.st",
        {"classes": "cat,dog"},
        UsageError,
        'classes="cat,dog"`: expected a list',
    ),
    "templates alone": ("clip.st", {"templates": ["a {label}"]}, UsageError, "has no class names yet"),
    "a template without a label": (
        "clip.st",
        {"classes": NAMES, "templates": ["a"]},
        UsageError,
        "does not contain",
    ),
}


@pytest.mark.parametrize(("name", "given", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_what_load_refuses(folder, name, given, error, message):
    reference = name if name in {"", "local-dir:"} else str(folder / name)
    with pytest.raises(error, match=message):
        load(reference, **given)


def test_a_zero_shot_model_without_classes_says_how_to_name_them(folder):
    with pytest.raises(CheckpointError, match="has no class names yet") as caught:
        load(folder / "clip.st")(torch.zeros(1, 3, 8, 8))
    assert 'hydractl.load(..., classes=["cat", "dog"])' in caught.value.hint
