"""Hints of `hydractl/data/presets.py` and `toys.py`."""

from __future__ import annotations

import shutil
from pathlib import Path

from support.hints.table import Row

LISTED = "predict base.st preset:cifar10/tin::openood=lists"


def list_images() -> None:
    """Write two of OpenOOD's image lists for CIFAR-10, of one image."""
    Path("lists/benchmark_imglist/cifar10").mkdir(parents=True)
    Path("lists/images_classic").mkdir()
    shutil.copy("images/a/0.png", "lists/images_classic")
    for name in ("test_tin", "test_cifar100", "val_cifar10"):
        Path(f"lists/benchmark_imglist/cifar10/{name}.txt").write_text("0.png 0\n")


ROWS = (
    Row(
        "OpenOOD has a list of that split: {}",
        "predict base.st preset:cifar10::split=val",
        "predict base.st preset:cifar10::split=val,openood=lists",
        prepare=list_images,
    ),
    Row(
        "download OpenOOD's lists and images ({}), then add `{}=DIR` with the folder that contains `{}/{}/`; or use another set",
        "predict base.st preset:cifar10/tin",
        LISTED,
        prepare=list_images,
    ),
    Row(
        "`hydractl data list` lists the names",
        "predict base.st preset:unknown-data",
        "data list",
    ),
    Row(
        "available: {}",
        "predict base.st preset:cifar10/unknown-data::openood=lists",
        LISTED,
        prepare=list_images,
    ),
    Row(
        "data sets with OOD sets: {}",
        "predict base.st preset:food101/near",
        LISTED,
        prepare=list_images,
    ),
    Row("leave it out", test="tests/data/test_presets.py::test_what_names_nothing_is_refused"),
    Row(
        "leave it out, or give the data set under its own name",
        "predict base.st preset:cifar10/cifar100::split=train,openood=lists",
        "predict base.st preset:cifar10/cifar100::openood=lists",
        prepare=list_images,
    ),
    Row(
        "choose one of {}, or none for all",
        "predict base.st digits::split=dev,limit=2",
        "predict base.st digits::split=val,limit=2",
    ),
    Row(
        "reinstall scikit-learn",
        test="tests/data/toys/test_builtin.py::test_a_scikit_learn_without_its_data",
    ),
    Row(
        "known intents have {}; domains have none",
        "predict bert intents::split=dev,limit=2",
        "predict bert intents::split=val,limit=2",
    ),
    Row(
        "use `letters`, or your own texts",
        test="tests/data/toys/test_prose.py::test_a_python_without_its_manual",
    ),
)
