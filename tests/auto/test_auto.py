"""transformers and timm load members and hydras themselves, once hydractl is imported."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from PIL import Image

import hydractl
from hydractl.checkpoint import write_tensors
from hydractl.claims import Claim
from hydractl.errors import OutputExists
from hydractl.hub.folders import publish_models
from hydractl.publish import Folder
from hydractl.stages.fuse.config import FuseConfig
from hydractl.stages.fuse.run import run_fuse
from support.builders import Sample, base
from support.text_folders import save_tokenizer
from support.variants import variant

IMAGES = base(variant("class-token"))
TEXTS = base(variant("transformers-bert-plain"))
KEEP = (((0, 1), (2,), (0, 3)), ((0, 1), (1, 2), ()))


def fused(sample, folder):
    """Return the folder of a hydra of two members that differ."""
    for i, keep in enumerate(KEEP):
        sample.pruned(*keep).tuned(i).save(folder / f"m-{i}.st")
    models = tuple(str(folder / f"m-{i}.st") for i in range(2))
    run_fuse(FuseConfig(models=models, out=Folder(folder / "hydra"), mlp="keep"))
    return folder / "hydra"


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    named = Sample(IMAGES.header.model_copy(update={"labels": tuple("abcdefg")}), IMAGES.state)
    return fused(named, tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    save_tokenizer(folder)
    text = (folder / "tokenizer.json").read_text()
    how = TEXTS.header.preprocess.model_copy(update={"tokenizer": text, "max_length": 16})
    header = TEXTS.header.model_copy(update={"preprocess": how, "labels": tuple("abcdefg")})
    return fused(Sample(header, TEXTS.state), folder)


def test_the_library_gives_the_ensembles_probabilities(images):
    from transformers import AutoModelForImageClassification

    own, theirs = hydractl.load(images), AutoModelForImageClassification.from_pretrained(images)
    inputs = IMAGES.inputs(batch=3)
    with torch.inference_mode():
        expected, found = own(inputs), theirs(inputs)

    assert torch.equal(found.logits, expected.logits)
    assert torch.equal(found.member_logits, expected.member_logits)
    said = own.predict(inputs)
    for name in ("entropy", "mutual_information"):
        assert torch.allclose(found[name], getattr(said, name), atol=1e-6)
    assert theirs.config.id2label[2] == "c"
    assert found.mutual_information.max() > 0


def test_pipelines_of_images(images, recwarn):
    from transformers import pipeline

    picture = Image.effect_noise((31, 20), 80)
    answers = pipeline("image-classification", model=str(images), top_k=7)(picture)

    expected = hydractl.load(images).predict([picture]).probabilities[0]
    assert {a["label"]: a["score"] for a in answers} == pytest.approx(
        dict(zip("abcdefg", expected.tolist(), strict=True)), abs=1e-6
    )


def test_pipelines_of_texts(texts):
    from transformers import pipeline

    given = ["the cat sat", "a mat on the cat on a mat"]
    answers = pipeline("text-classification", model=str(texts), top_k=7)(given, batch_size=2)

    expected = hydractl.load(texts).predict(given).probabilities
    for answer, row in zip(answers, expected, strict=True):
        found = {a["label"]: a["score"] for a in answer}
        assert found == pytest.approx(dict(zip("abcdefg", row.tolist(), strict=True)), abs=1e-5)


def test_a_member_and_a_temperature(tmp_path):
    from transformers import AutoModelForImageClassification

    header = IMAGES.pruned(*KEEP[0]).header.model_copy(update={"temperature": 2.0})
    member = Sample(header, IMAGES.pruned(*KEEP[0]).state)
    with publish_models(Claim(force=False)) as begin:
        write_tensors(begin(Folder(tmp_path / "m"), header), member.state, header=header)
    inputs = IMAGES.inputs(batch=3)
    with torch.inference_mode():
        found = AutoModelForImageClassification.from_pretrained(tmp_path / "m")(inputs)
        assert torch.allclose(found.logits.softmax(-1), (member.model()(inputs) / 2).softmax(-1), atol=1e-6)
    assert found.mutual_information.abs().max() < 1e-6


def test_gradients_flow_and_what_is_saved_is_what_is_read(images, tmp_path):
    from transformers import AutoModelForImageClassification

    model = AutoModelForImageClassification.from_pretrained(images)
    inputs, labels = IMAGES.inputs(batch=3), torch.tensor([0, 1, 2])
    before = model(inputs, labels=labels)
    each = torch.stack([torch.nn.functional.cross_entropy(z, labels) for z in before.member_logits])
    assert torch.allclose(before.loss, each.mean())
    before.loss.backward()
    trained = [(name, p) for name, p in model.named_parameters() if p.numel()]  # a layer may have no heads
    assert [name for name, p in trained if p.grad is None] == []
    with torch.no_grad():
        for _, tensor in trained:
            tensor -= 0.1 * tensor.grad  # noqa: PLW2901 - in place

    model.save_pretrained(tmp_path / "tuned")
    again = AutoModelForImageClassification.from_pretrained(tmp_path / "tuned")

    found = again(inputs, labels=labels)
    assert torch.equal(found.logits, model(inputs).logits)
    assert found.loss < before.loss
    assert torch.equal(hydractl.load(tmp_path / "tuned")(inputs).logits, found.logits)


def test_what_it_cannot_do_is_said(images):
    from transformers import AutoConfig, AutoModelForImageClassification

    with pytest.raises(TypeError, match="do not take `quantization_config`"):
        AutoModelForImageClassification.from_pretrained(images, quantization_config={"bits": 4})
    with pytest.raises(TypeError, match="one device"):
        AutoModelForImageClassification.from_pretrained(images, device_map={"a": "cpu", "b": "meta"})
    with pytest.raises(ValueError, match="is what its weights are"):
        AutoModelForImageClassification.from_config(AutoConfig.from_pretrained(images))
    found = AutoModelForImageClassification.from_pretrained(images, dtype=torch.bfloat16)
    assert {p.dtype for p in found.parameters()} == {torch.bfloat16}


@pytest.mark.newer
def test_timm(images):
    import timm

    inputs = IMAGES.inputs(batch=3)
    model = timm.create_model(f"local-dir:{images}", pretrained=True)
    with torch.inference_mode():
        assert torch.equal(model(inputs), hydractl.load(images)(inputs).logits)
    assert timm.data.resolve_model_data_config(model)["input_size"] in ((1, 8, 8), [1, 8, 8])
    with pytest.raises(RuntimeError, match="pretrained=True"):
        timm.create_model(f"local-dir:{images}")


def test_the_object_saves_the_same_folder(images, tmp_path):
    model = hydractl.load(images)
    model.save_pretrained(tmp_path / "copy")

    assert {p.name: p.read_bytes() for p in images.iterdir()} == {
        p.name: p.read_bytes() for p in (tmp_path / "copy").iterdir()
    }
    with pytest.raises(OutputExists, match="holds a model already"):
        model.save_pretrained(tmp_path / "copy")
    model.save_pretrained(tmp_path / "copy", force=True)


ORDER = """
import sys
{first}
import hydractl
heavy = [name for name in ("torch", "pydantic", "numpy", "importlib.util") if name in sys.modules]
{then}
print(heavy, getattr(globals().get("found"), "__name__", ""))
"""
FIND = "from transformers import AutoConfig; found = type(AutoConfig.from_pretrained({folder!r}))"


@pytest.mark.parametrize(
    ("first", "then", "said"),
    [
        ("pass", "pass", "[]"),
        pytest.param("pass", FIND, "[] HydraConfig", marks=pytest.mark.more),
        pytest.param("from transformers import AutoConfig", FIND, "HydraConfig", marks=pytest.mark.more),
    ],
)
def test_importing_costs_nothing_and_the_order_does_not_matter(images, first, then, said):
    script = ORDER.format(first=first, then=then.format(folder=str(images)))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith(said)
