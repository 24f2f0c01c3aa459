"""Matching of class names: labels are the predictions of the model, so correct matching has accuracy 1."""

from __future__ import annotations

import csv
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import hydractl
from hydractl.data.open_dataset import open_data
from hydractl.data.reference import DataRef
from hydractl.errors import DataError
from hydractl.stages.evaluate.config import EvalConfig
from hydractl.stages.evaluate.run import run_eval
from support.builders import base
from support.progress_log import ProgressLog
from support.variants import PLAIN

COUNT = 11
NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck", "yak")


@pytest.fixture(scope="module")
def image_folder(tmp_path_factory):
    """Folder of images, classes predicted for the images, and the model with class names and without."""
    folder = tmp_path_factory.mktemp("work")
    images = open_data("digits::split=test,limit=200")
    pictures = [images.image(i) for i in range(len(images))]
    for i, image in enumerate(pictures):
        image.save(folder / f"{i}.png")
    sample = base(replace(PLAIN, options=PLAIN.options | {"num_classes": COUNT}))
    weight = torch.randn(COUNT, 32, generator=torch.Generator().manual_seed(2))
    state = sample.state | {"head.weight": weight, "head.bias": torch.zeros(COUNT)}
    path = type(sample)(sample.header, state).save(folder / "uncentred.st")
    logits = hydractl.load(path).predict(pictures).probabilities.log()
    # With centred logits, the model predicts each of the classes for some image.
    state["head.bias"] = -(logits - logits.mean(1, keepdim=True)).mean(0)
    type(sample)(sample.header, state).save(folder / "nameless.st")
    header = sample.header.model_copy(update={"labels": NAMES})
    type(sample)(header, state).save(folder / "named.st")
    classes = hydractl.load(folder / "nameless.st").predict(pictures).classes.tolist()
    assert {*classes} == {*range(COUNT)}
    return SimpleNamespace(folder=folder, classes=classes)


def table(image_folder, path, names):
    """Write a CSV table of the images with these class names."""
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["image", "label"])
        rows.writerows(
            [image_folder.folder / f"{i}.png", names[c]] for i, c in enumerate(image_folder.classes)
        )
    return path


def accuracy(image_folder, model, data, progress=None):
    config = EvalConfig(
        model=str(image_folder.folder / model), data=DataRef.parse(str(data)), latency=False, bootstrap=0, device="cpu",
        batch_size=64, metrics=("acc",),
    )  # fmt: skip
    return run_eval(config, progress or ProgressLog()).document.rows[0].values["accuracy"].value


@pytest.mark.spread(cases=2)
@pytest.mark.parametrize("model", ["nameless.st", "named.st"])
@pytest.mark.parametrize("form", ["LABEL_{}", "{}.0", "{}"])
def test_placeholders_are_the_models_classes_by_their_numbers(image_folder, tmp_path, model, form):
    path = table(image_folder, tmp_path / "t.csv", [form.format(i) for i in range(COUNT)])
    assert accuracy(image_folder, model, path) == 1


def test_names_are_compared_without_blanks_and_capitals(image_folder, tmp_path):
    path = table(image_folder, tmp_path / "t.csv", [f" {name.title()} " for name in NAMES])
    assert accuracy(image_folder, "named.st", path) == 1


def test_names_of_which_some_match_are_refused_until_they_are_mapped(image_folder, tmp_path):
    names = ["plane", "car", *NAMES[2:]]
    path = table(image_folder, tmp_path / "t.csv", names)
    for options in ("", "::map=plane:airplane", "::classes-by=position"):
        with pytest.raises(DataError) as caught:
            accuracy(image_folder, "named.st", f"{path}{options}")
        assert caught.value.exit_code == 3
        assert options == "::classes-by=position" or "`car`" in caught.value.message
    assert accuracy(image_folder, "named.st", f"{path}::map=plane:airplane,car:automobile") == 1


def test_names_that_do_not_match_are_refused_unless_order_is_insisted_on(image_folder, tmp_path):
    path = table(image_folder, tmp_path / "t.csv", [f"n{i:02}" for i in range(COUNT)])
    with pytest.raises(DataError, match="no class name is in the model"):
        accuracy(image_folder, "named.st", path)
    assert accuracy(image_folder, "named.st", f"{path}::classes-by=position") == 1


@pytest.mark.parametrize("by", ["number", "alphabet"])
def test_classes_that_have_two_orders_are_taken_in_either(image_folder, tmp_path, by):
    names = [f"class{i}" for i in range(COUNT)]
    path = table(image_folder, tmp_path / "t.csv", names if by == "number" else sorted(names))
    progress_log = ProgressLog()
    assert (accuracy(image_folder, "nameless.st", path, progress_log) == 1) == (by == "number")
    assert sum(f"`::classes-by={by}`" in warning for warning in progress_log.warnings) == 1
    assert accuracy(image_folder, "nameless.st", f"{path}::classes-by={by}") == 1
