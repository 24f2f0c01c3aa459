from __future__ import annotations

import json
import shutil

import datasets
import huggingface_hub.errors as hub_errors
import numpy as np
import pytest
from datasets.packaged_modules.parquet.parquet import Parquet
from httpx2 import ConnectError, ReadTimeout, Request, Response

from hydractl.data.datasets import Content
from hydractl.data.open_dataset import open_data
from hydractl.errors import DataError, HubError


@pytest.fixture
def cached(tmp_path, picture, monkeypatch):
    """Cache with `org/name` and its splits train and test, in offline mode."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    features = datasets.Features(
        image=datasets.Image(), label=datasets.ClassLabel(names=["r", "b"]), note=datasets.Value("string")
    )
    datasets.disable_progress_bars()
    for start, split in enumerate(("train", "test")):
        columns = {"image": [picture(start), picture(start + 1)], "label": [0, 1], "note": ["x", "y"]}
        datasets.Dataset.from_dict(columns, features=features).to_parquet(str(tmp_path / f"{split}.parquet"))
    builder = Parquet(
        dataset_name="name",
        hash="abc",
        data_files={split: str(tmp_path / f"{split}.parquet") for split in ("train", "test")},
    )
    builder.download_and_prepare()
    datasets.enable_progress_bars()
    made = next((tmp_path / "cache" / "name").iterdir())
    for config in ("small", "large"):
        copy = shutil.copytree(made, tmp_path / "cache" / "org___name" / config)
        info = copy / "0.0.0" / "abc" / "dataset_info.json"
        info.write_text(json.dumps(json.loads(info.read_text()) | {"config_name": config}))
    return tmp_path


def test_a_cached_data_set_needs_no_network(cached, picture, progress_log, capfd):
    images = open_data("hf:org/name::config=small,split=test")

    assert (images.class_names, images.labels) == (("r", "b"), (0, 1))
    assert images.name == "hf:org/name::config=small,split=test"
    assert np.array_equal(np.asarray(images.image(1)), np.asarray(picture(2)))
    assert progress_log.steps == ["Reading hf:org/name"]
    assert "%|" not in capfd.readouterr().err


def test_a_column_of_texts(cached, progress_log):
    texts = open_data("hf:org/name::config=small,split=test,text=note", content=Content.TEXTS)

    assert (texts.texts, texts.class_names, texts.labels) == (("x", "y"), ("r", "b"), (0, 1))
    assert texts.name == "hf:org/name::config=small,split=test,text=note"
    assert progress_log.steps == ["Reading hf:org/name"]


@pytest.mark.parametrize(
    ("endpoint", "viewer"), [("https://huggingface.co", True), ("https://mirror", False)]
)
def test_nobody_but_the_hub_is_asked(cached, monkeypatch, endpoint, viewer):
    """The library contacts neither the download counter nor `datasets-server.HOST` of unknown endpoints."""
    load, config, said = datasets.load_dataset, datasets.config, []
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", endpoint)
    monkeypatch.setattr(config, "HF_UPDATE_DOWNLOAD_COUNTS", True)
    monkeypatch.setattr(config, "USE_PARQUET_EXPORT", True)

    def loaded(*words, **named):
        said.append((config.HF_UPDATE_DOWNLOAD_COUNTS, config.USE_PARQUET_EXPORT))
        return load(*words, **named)

    monkeypatch.setattr(datasets, "load_dataset", loaded)
    open_data("hf:org/name::config=small,split=test")

    assert said == [(False, viewer)]
    assert (config.HF_UPDATE_DOWNLOAD_COUNTS, config.USE_PARQUET_EXPORT) == (True, True)


def test_large_images_are_refused_before_they_are_decoded(cached):
    images = open_data("hf:org/name::config=small,split=test,max-item=10", labelled=False)

    with pytest.raises(DataError, match="more than 10 bytes"):
        images.image(0)


def test_a_slice(cached):
    assert len(open_data("hf:org/name::config=small,split=test[:50%]")) == 1


def test_a_folder_of_that_name_is_not_read(cached, monkeypatch):
    (cached / "org" / "name").mkdir(parents=True)
    monkeypatch.chdir(cached)

    assert len(open_data("hf:org/name::config=small,split=test")) == 2


def test_a_revision_that_cannot_be_checked_is_said(cached, progress_log):
    open_data("hf:org/name@v2::config=small,split=test")

    assert progress_log.warnings == [
        "hf:org/name@v2: HF_HUB_OFFLINE is set, so the cached copy may be of another revision"
    ]


def test_progress_bars_come_back(cached):
    open_data("hf:org/name::config=small,split=test")

    assert not datasets.are_progress_bars_disabled()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("config=small", "has several splits: `train`, `test`"),
        ("config=small,split=tset", "has no split `tset`; it has `train`, `test`"),
        ("config=small,split=tset[:1]", 'cannot be read: Unknown split "tset"'),
        ("config=smal,split=test", "cannot be read: Couldn't find cache for org/name for config 'smal'"),
        ("config=small,split=test,image=note", "column `note`: has no images"),
        (
            "config=small,split=test,label=y",
            "has no column `y` for `label=`; its columns are `image`, `label`, `note`",
        ),
    ],
)
def test_bad_choices(cached, options, message):
    with pytest.raises(DataError) as caught:
        open_data(f"hf:org/name::{options}")

    assert caught.value.message.startswith(f"hf:org/name: {message}")


def test_config_has_to_be_chosen(monkeypatch):
    def fail(*_, **__):
        raise ValueError("no such configuration")

    monkeypatch.setattr(datasets, "get_dataset_split_names", fail)
    monkeypatch.setattr(datasets, "get_dataset_config_names", lambda *_, **__: ["small", "large"])

    with pytest.raises(DataError, match="hf:org/name: has several configs: `small`, `large`") as caught:
        open_data("hf:org/name")
    assert caught.value.hint == "choose one with `::config=NAME`"

    with pytest.raises(DataError, match="has no config `smal`; it has `small`, `large`") as caught:
        open_data("hf:org/name::config=smal")
    assert caught.value.hint == "did you mean `small`?"


def test_offline_and_not_cached(cached):
    with pytest.raises(HubError, match="hf:org/other: cannot be reached") as caught:
        open_data("hf:org/other::split=test")

    assert "unset HF_HUB_OFFLINE" in caught.value.hint


def hub_error(kind):
    return kind("said no", response=Response(404, request=Request("GET", "https://h")))


@pytest.mark.parametrize(
    ("foreign", "ours"),
    [
        (datasets.exceptions.DatasetNotFoundError("x"), HubError),
        (ConnectionError("x"), HubError),
        (hub_errors.OfflineModeIsEnabled("x"), HubError),
        (hub_errors.LocalEntryNotFoundError("x"), HubError),
        (hub_error(hub_errors.HfHubHTTPError), HubError),
        (hub_error(hub_errors.RepositoryNotFoundError), HubError),
        (hub_error(hub_errors.GatedRepoError), HubError),
        (hub_error(hub_errors.RevisionNotFoundError), HubError),
        (hub_error(hub_errors.BadRequestError), HubError),
        (ConnectError("x"), HubError),
        (ReadTimeout("x"), HubError),
        (TimeoutError("x"), HubError),
        (FileNotFoundError("x"), HubError),
        (datasets.exceptions.DataFilesNotFoundError("x"), DataError),
        (datasets.exceptions.DatasetGenerationError("x"), DataError),
        (ValueError("x\ny"), DataError),
        (RuntimeError("Dataset scripts are no longer supported"), DataError),
        (OSError(28, "No space left on device"), DataError),
        (ValueError(""), DataError),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value.__name__,
)
def test_foreign_errors(monkeypatch, foreign, ours):
    def fail(*_, **__):
        raise foreign

    monkeypatch.setattr(datasets, "get_dataset_split_names", fail)
    monkeypatch.setattr(datasets, "get_dataset_config_names", lambda *_, **__: ["default"])

    with pytest.raises(ours) as caught:
        open_data("hf:org/name")

    assert type(caught.value) is ours
    assert caught.value.message.startswith("hf:org/name: ")
    assert "\n" not in caught.value.message
    assert caught.value.__cause__ is foreign
    assert not datasets.are_progress_bars_disabled()
