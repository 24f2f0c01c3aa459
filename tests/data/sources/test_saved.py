"""Folders written by `save_to_disk` and images with metadata files, compared with the library datasets."""

from __future__ import annotations

import gc
import glob
import json

import datasets
import numpy as np
import pytest

from hydractl.data.datasets import Content
from hydractl.data.open_dataset import open_data
from hydractl.errors import DataError, UsageError
from support.tabular import write

# the library closes metadata.csv only by garbage collection
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(autouse=True)
def without_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    hidden = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    yield
    gc.collect()
    assert not (tmp_path / "cache").exists()
    if not hidden:
        datasets.enable_progress_bars()


TEXTS = datasets.Dataset.from_dict(
    {"text": ["good", "bad", ""], "label": [1, 0, 0], "other": ["x", "y", "x"]},
    features=datasets.Features(
        text=datasets.Value("string"),
        label=datasets.ClassLabel(names=["neg", "pos"]),
        other=datasets.Value("string"),
    ),
)


def texts_of(reference, **options):
    found = open_data(str(reference), content=Content.TEXTS, **options)
    return found.texts, found.class_names, found.labels


def test_texts_that_were_saved(tmp_path):
    TEXTS.with_format("numpy", columns=["text"]).save_to_disk(tmp_path / "saved")

    assert texts_of(tmp_path / "saved") == (("good", "bad", ""), ("neg", "pos"), (1, 0, 0))
    assert texts_of(f"{tmp_path}/saved::label=other")[1:] == (("x", "y"), (0, 1, 0))
    assert texts_of(f"{tmp_path}::split=saved")[2] == (1, 0, 0)
    assert texts_of(tmp_path / "saved", labelled=False)[2] is None
    assert open_data(f"{tmp_path}/saved::limit=2", content=Content.TEXTS).name == "saved::limit=2"
    with pytest.raises(DataError, match="saved: has no splits"):
        texts_of(f"{tmp_path}/saved::split=train")


def test_splits_that_were_saved(tmp_path):
    datasets.DatasetDict(train=TEXTS, test=TEXTS.select([1])).save_to_disk(tmp_path / "saved")

    assert texts_of(f"{tmp_path}/saved::split=test") == (("bad",), ("neg", "pos"), (0,))
    assert texts_of(tmp_path / "saved" / "test") == texts_of(f"{tmp_path}/saved::split=test")
    with pytest.raises(DataError, match="has several splits: `train`, `test`"):
        texts_of(tmp_path / "saved")
    with pytest.raises(DataError, match="has no split `tset`; it has `train`, `test`"):
        texts_of(f"{tmp_path}/saved::split=tset")


def test_images_that_were_saved(tmp_path, picture):
    features = datasets.Features(img=datasets.Image(), label=datasets.ClassLabel(names=["b", "a"]))
    rows = datasets.Dataset.from_dict({"img": [picture(0), picture(1)], "label": [1, 0]}, features=features)
    rows.save_to_disk(tmp_path / "saved")

    found = open_data(str(tmp_path / "saved"))

    assert (found.class_names, found.labels) == (("b", "a"), (1, 0))
    for i, row in enumerate(rows):
        assert np.array_equal(np.asarray(found.image(i)), np.asarray(row["img"]))


@pytest.mark.parametrize("name", ["state.json", "dataset_info.json", "data-00000-of-00001.arrow"])
@pytest.mark.parametrize("content", ["", "{}", "[]", '{"_data_files": 3, "features": {"text": 3}}'])
def test_what_was_saved_and_is_damaged(tmp_path, name, content):
    TEXTS.save_to_disk(tmp_path / "saved")
    (tmp_path / "saved" / name).write_text(content)

    try:
        assert texts_of(tmp_path / "saved")[0] == ("good", "bad", "")
    except DataError as error:
        assert "saved: " in error.message  # noqa: PT017 - what the library can do without, it does without


@pytest.fixture
def listed(tmp_path, picture):
    """Images in sub-folders without class names, in an order that differs from the sorted paths."""
    root = tmp_path / "li[s]ted"
    rows = [
        {"file_name": f"{'ab'[i % 2]}/{'train' if i else 'test'}{9 - i}.png", "label": "xyx"[i]}
        for i in range(3)
    ]
    for split in ("one", "two"):
        for folder in "ab":
            (root / split / folder).mkdir(parents=True)
        for i, row in enumerate(rows):
            picture(i).save(root / split / row["file_name"])
    return root, rows


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_images_with_metadata(listed, suffix, progress_log, tmp_path):
    root, rows = listed
    write(root / "one" / f"metadata.{suffix}", rows)
    files = {"all": f"{glob.escape(str(root / 'one'))}/**"}
    theirs = datasets.load_dataset(
        "imagefolder", data_files=files, split="all", streaming=True, cache_dir=str(tmp_path / "theirs")
    )

    found = open_data(str(root / "one"))

    assert [found.class_names[label] for label in found.labels] == [row["label"] for row in theirs]
    for i, row in enumerate(theirs):
        assert np.array_equal(np.asarray(found.image(i)), np.asarray(row["image"]))
    assert not progress_log.warnings
    assert open_data(f"{root}::split=one").fingerprint() == found.fingerprint()
    with pytest.raises(DataError, match="has no column `mood`"):
        open_data(f"{root / 'one'}::label=mood")
    assert open_data(str(root / "one"), labelled=False).key(0) == f"{root}/one/a/test9.png"


def test_an_image_that_no_metadata_name_is_said(listed, progress_log):
    root, rows = listed
    write(root / "one" / "metadata.jsonl", rows[1:])

    assert len(open_data(str(root / "one"))) == 2
    assert progress_log.warnings == [
        f"{root}/one: skipped 1 image that the metadata does not list: `{root}/one/a/test9.png`"
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("name,label\na/test9.png,x\n", "must be present as dictionary key in metadata files"),
        ("file_name,label\n../a.png,x\n", "must be a relative path"),
        ("file_name,label\na/none.png,x\n", "none.png: cannot be read"),
        ("file_name,mood\na/test9.png,x\n", "has no labels, .*; its columns are `image`, `mood`"),
    ],
)
def test_bad_metadata(listed, content, message):
    root, _ = listed
    (root / "one" / "metadata.csv").write_text(content)

    with pytest.raises(DataError, match=message) as caught:
        open_data(f"{root}/one::classes=x").fingerprint()
    if "must be" in message:
        assert (
            "its column `file_name` must have paths relative to its folder, separated by commas in "
            "a .csv file; rename the file if it is not image metadata"
        ) in caught.value.hint


def test_a_folder_of_files_has_no_columns(folder):
    for key in ("label", "image"):
        with pytest.raises(UsageError, match=f"the folder is not a table, so `{key}=` has no effect"):
            open_data(f"{folder}::{key}=x")


def test_several_splits_with_metadata(listed):
    root, rows = listed
    for split in ("one", "two"):
        (root / split / "metadata.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    with pytest.raises(DataError, match="has several splits: `one`, `two`"):
        open_data(str(root))
    with pytest.raises(DataError, match="has no split `three`"):
        open_data(f"{root}::split=three")
    for split in ("one", "two"):
        (root / split / "metadata.jsonl").unlink()
    (root / "metadata.csv").write_text("file_name,label\none/a/test9.png,x\n")
    assert len(open_data(str(root))) == 1
    with pytest.raises(DataError, match="`one` has no metadata file"):
        open_data(f"{root}::split=one")


def test_metadata_of_one_class_alone_make_no_split_of_it(folder, progress_log):
    (folder / "ant" / "metadata.csv").write_text("file_name,label\n0.png,x\n")

    assert open_data(str(folder)).class_names == ("ant", "bee")
    assert progress_log.warnings == [f"{folder}: skipped files that are not images (1): `ant/metadata.csv`"]
