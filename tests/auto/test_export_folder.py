"""`export -o folder/`: pipelines of transformers agree with `predict` in class names and threshold."""

from __future__ import annotations

import json

import pytest
import torch
from PIL import Image

import hydractl
from hydractl.checkpoint import write_tensors
from hydractl.cli.app import main
from hydractl.families.open_model import open_model
from hydractl.manifest.guarantees import Threshold
from support.builders import Sample, base
from support.variants import variant

TEXTS = ["the cat sat", "a mat on the cat on a mat", "on"]
PICTURES = [Image.effect_noise((31, 20), spread) for spread in (10, 60, 200)]


def with_threshold(path, out, score, below):
    """Write a copy of a model with a threshold and another temperature."""
    model_file = open_model(str(path))
    found = {
        "score": score,
        "below": below,
        "risk": 0.5,
        "delta": 0.05,
        "count": 9,
        "accepted": 5,
        "errors": 0,
    }
    header = model_file.header.model_copy(
        update={"threshold": Threshold.model_validate(found), "temperature": 1.5}
    )
    with out.open("wb") as file:
        write_tensors(file, model_file.checkpoint.tensors(), header=header)
    return out


def text_base(texts, folder):
    header = open_model(str(texts)).header
    sample = base(variant("transformers-bert-plain"))
    named = sample.header.model_copy(update={"preprocess": header.preprocess, "labels": header.labels})
    return Sample(named, sample.state).save(folder / "base.st")


@pytest.mark.parametrize("kind", ["hydra of images", "hydra of texts", "base of texts"])
def test_the_pipeline_answers_as_predict(kind, images, texts, tmp_path):
    from transformers import pipeline

    plain = {"hydra of images": images, "hydra of texts": texts}.get(kind) or text_base(texts, tmp_path)
    items, task = (PICTURES, "image-classification") if "images" in kind else (TEXTS, "text-classification")
    stored = with_threshold(plain, tmp_path / "stored.st", "msp", -0.5)
    middle = sorted(hydractl.load(stored).predict(items).scores["msp"].tolist())[1]
    with_threshold(plain, stored, "msp", middle)
    for source, decides in ((plain, False), (stored, True)):
        folder = tmp_path / f"folder-{decides}"
        assert main(["export", str(source), "-o", f"{folder}/", "-q"]) == 0

        classify = pipeline(task, model=str(folder), top_k=7)

        predicted = hydractl.load(source).predict(items)
        for answer, row in zip(classify(items), predicted.probabilities.tolist(), strict=True):
            found = {a["label"]: a["score"] for a in answer}
            assert found == pytest.approx(dict(zip("abcdefg", row, strict=True)), abs=1e-5)
        assert classify.model.config.id2label == dict(enumerate("abcdefg"))
        with torch.inference_mode():
            outputs = [classify.model(**classify.preprocess(item)) for item in items]
        if decides:
            accepted = [bool(output.accepted) for output in outputs]
            assert accepted == predicted.accepted.tolist()
            assert {*accepted} == {True, False}
        else:
            assert not any("accepted" in output for output in outputs)


@pytest.mark.parametrize("score", ["entropy", "energy", "mi"])
def test_thresholds_on_other_scores_of_logits(score, images, tmp_path):
    from transformers import AutoModelForImageClassification

    inputs = base(variant("class-token")).inputs(batch=8)
    below = float(hydractl.load(images).predict(inputs).scores[score].median())
    stored = with_threshold(images, tmp_path / "stored.st", score, below)
    assert main(["export", str(stored), "-o", f"{tmp_path}/folder/", "-q"]) == 0
    with torch.inference_mode():
        output = AutoModelForImageClassification.from_pretrained(tmp_path / "folder")(inputs)
    assert torch.equal(output.accepted, hydractl.load(stored).predict(inputs).accepted)


def test_a_configuration_without_names_leaves_those_of_the_model(texts, tmp_path):
    """transformers fills in LABEL_0 to LABEL_6."""
    from transformers import AutoConfig, AutoModelForSequenceClassification

    assert main(["export", str(texts), "-o", f"{tmp_path}/folder/", "-q"]) == 0
    path = tmp_path / "folder" / "config.json"
    config = json.loads(path.read_text())
    del config["id2label"], config["label2id"]
    path.write_text(json.dumps(config | {"num_labels": 7}))
    given = AutoConfig.from_pretrained(tmp_path / "folder")
    assert given.id2label[1] == "LABEL_1"

    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "folder", config=given)

    assert model.config.id2label == dict(enumerate("abcdefg"))
    assert model.config.label2id["c"] == 2


REFUSED = {
    "a flag": ("--with-preprocess",),
    "data": ("--data", "digits"),
    "a tolerance": ("--tolerance", "0.1"),
    "a batch": ("--batch-size", "3"),
    "a seed": ("--seed", "3"),
}


@pytest.mark.parametrize("options", REFUSED.values(), ids=REFUSED)
def test_options_of_files_are_refused_for_a_folder(options, images, tmp_path, capsys):
    assert main(["export", str(images), "-o", f"{tmp_path}/folder/", *options]) == 2
    assert f"`{options[0]}" in capsys.readouterr().err
    assert not (tmp_path / "folder").exists()


def test_a_model_in_the_folder_is_replaced_only_by_force_or_by_the_same_command(images, tmp_path, capsys):
    argv = ["export", str(images), "-o", f"{tmp_path}/folder/"]
    assert main([*argv, "--if-changed"]) == 0
    assert main(argv) == 6
    assert main([*argv, "--if-changed"]) == 0
    assert ": up to date" in capsys.readouterr().out
    assert main([*argv, "--force", "-q"]) == 0
    assert main(["export", str(tmp_path / "folder"), "-o", f"{tmp_path}/folder/", "--force"]) == 6
