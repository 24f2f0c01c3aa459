"""Models returned by `hydractl.load`: classes, predictions and saving."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import hydractl
from hydractl.checkpoint import Checkpoint
from hydractl.errors import DataError, OutputExists, UsageError
from hydractl.stages.fuse.config import FuseConfig
from hydractl.stages.fuse.run import run_fuse
from support.builders import base
from support.pairs import pair
from support.text_folders import save_text_model
from support.variants import variant

BERT = variant("transformers-bert-plain")
TEXTS = ["mat", "the cat sat on a mat on a mat", "the cat sat"]
NAMES = tuple("abcdefg")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("models")
    save_text_model(BERT, made / "bert")
    pair("clip", made).save(made / "clip.st")
    sample = base()
    labels = sample.header.model_copy(update={"labels": NAMES, "temperature": 2.0})
    sample = type(sample)(labels, sample.state)
    sample.save(made / "base.st")
    for i in range(2):
        sample.pruned((0, 1), (2,), (i,)).tuned(i).save(made / f"m{i}.st")
    run_fuse(FuseConfig(models=(str(made / "m0.st"), str(made / "m1.st")), out=made / "hydra.st"))
    pixels = np.random.default_rng(0).integers(0, 256, (5, 9, 11), dtype=np.uint8)
    for i, image in enumerate(pixels):
        Image.fromarray(image).save(made / f"{i}.png")
    return made


def images(folder):
    return [Image.open(folder / f"{i}.png") for i in range(5)]


def same(found, expected):
    assert found.labels == expected.labels
    for name in (
        "classes",
        "probabilities",
        "member_probabilities",
        "votes",
        "entropy",
        "mutual_information",
    ):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name


@pytest.mark.parametrize("name", ["base.st", "m0.st", "hydra.st"])
def test_predictions_follow_from_the_members_logits(folder, name):
    model = hydractl.load(folder / name)
    found = model.predict(images(folder), batch_size=2)

    with torch.no_grad():
        each = model.member_logits(model.encode(images(folder))).double().softmax(-1)  # (M, N, C)
    mean = each.mean(0)

    def entropy(p):
        return -(p * p.log()).sum(-1)

    members = 2 if name == "hydra.st" else 1
    assert (len(found), found.member_probabilities.shape) == (5, (members, 5, 7))
    assert found.labels == tuple(NAMES[i] for i in mean.argmax(1).tolist())
    assert model.labels == NAMES
    torch.testing.assert_close(found.probabilities, mean.float())
    torch.testing.assert_close(found.confidence, mean.amax(1).float())
    torch.testing.assert_close(found.member_probabilities, each.float())
    assert torch.equal(found.votes, each.argmax(2))
    torch.testing.assert_close(found.entropy, entropy(mean).float())
    information = (entropy(mean) - entropy(each).mean(0)).clamp(min=0).float()
    torch.testing.assert_close(found.mutual_information, information, rtol=0, atol=1e-6)
    assert members == 1 or information.max() > 1e-3
    assert list(found.scores) == ["msp", "entropy", "mi", "msp+mi", "energy", "max-logit", "gen"]
    energy = model.member_logits(model.encode(images(folder))).double().logsumexp(-1).mean(0)
    torch.testing.assert_close(found.scores["energy"], -energy.float().detach())


def test_predictions_can_be_used_where_gradients_are_wanted_and_hold_none(folder):
    model = hydractl.load(folder / "hydra.st")
    found = model.predict(images(folder))

    assert not any(
        t.requires_grad or t.is_inference() for t in (found.probabilities, found.entropy, found.votes)
    )
    (found.probabilities * torch.ones(7, requires_grad=True)).sum().backward()


def test_parts_are_in_evaluation_mode_while_asked_and_as_before_afterwards(folder):
    model = hydractl.load(folder / "bert").train()
    frozen = next(module for module in model.modules() if isinstance(module, torch.nn.LayerNorm)).eval()
    expected = hydractl.load(folder / "bert").predict(TEXTS)

    same(model.predict(TEXTS), expected)
    assert model.training
    assert not frozen.training


def test_every_form_of_an_image_is_the_same_image(folder):
    model = hydractl.load(folder / "hydra.st")
    paths = [folder / f"{i}.png" for i in range(5)]
    arrays = [np.asarray(image) for image in images(folder)]
    expected = model.predict(images(folder))
    batch = model.encode(images(folder))

    for items in (
        paths,
        [str(path) for path in paths],
        (path for path in paths),
        arrays,
        [array[..., None] for array in arrays],
        np.stack(arrays)[..., None],
        batch,
        {"pixel_values": batch},
    ):
        same(model.predict(items), expected)
    assert torch.equal(model.encode(paths), batch)
    assert torch.equal(model.encode(arrays), batch)


def test_texts_come_back_in_their_order_whatever_their_length(folder):
    model = hydractl.load(folder / "bert")
    expected = torch.cat([model(model.encode([text])) for text in TEXTS]).softmax(-1)

    torch.testing.assert_close(model.predict(TEXTS, batch_size=2).probabilities, expected.detach())
    pairs = [("the cat", "sat"), ("on a mat the cat", "sat"), ("on", "a mat")]
    found = model.predict(pairs, batch_size=2).probabilities
    torch.testing.assert_close(found, model(model.encode(pairs)).softmax(-1).detach(), rtol=1e-5, atol=1e-6)
    assert model.predict(TEXTS).labels == model.predict(model.encode(TEXTS), batch_size=2).labels


@pytest.mark.parametrize("name", ["base.st", "m0.st", "hydra.st"])
def test_what_was_loaded_is_written_again_byte_by_byte(folder, tmp_path, name):
    model = hydractl.load(folder / name)
    saved = model.save(tmp_path / "again.st")

    assert saved.read_bytes() == (folder / name).read_bytes()
    with pytest.raises(OutputExists, match=r"again.st: already exists"):
        model.save(saved)
    assert model.save(saved, force=True) == saved


@pytest.mark.parametrize("name", ["base.st", "hydra.st"])
def test_changed_weights_are_saved_and_read_again(folder, tmp_path, name):
    """This includes a deep copy of a model."""
    model = copy.deepcopy(hydractl.load(folder / name))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.25)
    again = hydractl.load(model.save(str(tmp_path / "changed.st")))

    same(again.predict(images(folder)), model.predict(images(folder)))
    assert not torch.equal(
        again.predict(images(folder)).probabilities,
        hydractl.load(folder / name).predict(images(folder)).probabilities,
    )


def test_a_zero_shot_model_keeps_the_classes_that_it_is_told(folder, tmp_path):
    model = hydractl.load(folder / "clip.st", classes=["0", "1"], templates=["a photo of a {label} ."])
    found = model.predict(images(folder))
    again = hydractl.load(model.save(tmp_path / "told.st"))

    assert model.labels == again.labels == ("0", "1")
    assert found.probabilities.shape == (5, 2)
    same(again.predict(images(folder)), found)
    assert Checkpoint.open(tmp_path / "told.st").header.prompting.templates == ("a photo of a {label} .",)


def test_a_model_is_put_where_it_shall_run(folder):
    model = hydractl.load(folder / "hydra.st", device="cpu", dtype="fp16")
    assert (model.dtype, model.device.type) == (torch.float16, "cpu")
    assert model.predict(images(folder)).probabilities.dtype == torch.float32
    with pytest.raises(UsageError, match="unknown device `cup`"):
        hydractl.load(folder / "hydra.st", device="cup")
    with pytest.raises(UsageError, match="unknown dtype `half`"):
        hydractl.load(folder / "hydra.st", dtype="half")


def test_a_file_that_is_no_image_is_named(folder, tmp_path):
    (tmp_path / "broken.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"broken.png: is not an image"):
        hydractl.load(folder / "base.st").predict([folder / "0.png", tmp_path / "broken.png"])


def test_a_path_of_no_file_is_named(folder):
    model = hydractl.load(folder / "base.st")
    for ask in (model.predict, model.encode):
        with pytest.raises(DataError, match=r"gone\.jpeg: no such file") as caught:
            ask([folder / "0.png", "gone.jpeg"])
        assert caught.value.hint == "the model reads images: a `str` is the path of an image file"
    with pytest.raises(DataError) as caught:
        model.predict([f"{folder}/0.pngg"])
    assert "0.png" in caught.value.hint


MISUSED = {
    "one path": ("base.st", Path("0.png"), "a list of items, found one path"),
    "one image": ("base.st", Image.new("L", (8, 8)), "found one image"),
    "one array": ("base.st", np.zeros((9, 9, 3), np.uint8), r"one array of shape \(9, 9, 3\)"),
    "floats": ("base.st", [np.zeros((9, 9))], r"arrays must be uint8 .* found float64 \(9, 9\)"),
    "channels first": ("base.st", [np.zeros((3, 9, 9), np.uint8)], r"found uint8 \(3, 9, 9\)"),
    "nothing": ("base.st", [], "found nothing"),
    "an empty batch": ("base.st", torch.zeros(0, 1, 8, 8), "found nothing"),
    "a pair for an image": ("base.st", [("a", "b")], "reads images, found tuple"),
    "an image for a text": ("bert", [Image.new("L", (8, 8))], "reads texts, found Image"),
    "a number for a text": ("bert", ["a", 1], "reads texts, found int, str"),
    "ids alone": ("bert", torch.ones(1, 2, dtype=torch.long), "by name"),
}


@pytest.mark.parametrize(("name", "items", "message"), MISUSED.values(), ids=MISUSED)
def test_what_a_model_cannot_answer_for_is_said(folder, name, items, message):
    with pytest.raises(TypeError, match=message):
        hydractl.load(folder / name).predict(items)


def test_what_is_public_is_listed_and_there():
    assert dir(hydractl) == sorted(hydractl.__all__)
    assert all(getattr(hydractl, name) is not None for name in hydractl.__all__)
    with pytest.raises(AttributeError, match="no attribute 'laod'"):
        hydractl.laod  # noqa: B018
