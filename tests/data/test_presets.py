"""The table of presets is consistent, and data in the described layout can be read."""

from __future__ import annotations

import shutil

import datasets
import pytest
from datasets.packaged_modules.parquet.parquet import Parquet

from hydractl.data.datasets import Content
from hydractl.data.open_dataset import open_data
from hydractl.data.presets import PRESETS, ROLES
from hydractl.data.reference import DataRef, SourceKind
from hydractl.errors import DataError, UsageError

every = pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
CLASSES = datasets.ClassLabel(names=["a", "b"])
STRING, PICTURE = datasets.Value("string"), datasets.Image()


@every
def test_what_is_said_of_a_data_set_is_sound(preset):
    refs = [DataRef.parse(f"preset:{preset.name}::split={part}") for part in preset.parts]

    assert DataRef.parse(f"preset:{preset.name}") == DataRef.parse(f"preset:{preset.name}::split=test")
    assert len({*map(str, refs)}) == len(refs)
    for ref in refs:
        assert ref.kind is SourceKind.HUB
        assert bool(ref.label) == bool(preset.classes)
        assert bool(ref.text) == (preset.content == "texts")
        assert bool(ref.image) == (preset.content == "images")
    assert bool(preset.benchmark) == bool(preset.listed)


@every
def test_what_is_out_of_distribution_is_somewhere(preset):
    names = [one.name for one in preset.outside]

    assert len({*names, *ROLES}) == len(names) + len(ROLES)
    for one in preset.outside:
        assert one.role in ROLES
        assert one.listed or one.preset
        if one.preset is not None:
            other = PRESETS[one.preset]
            assert other.content == preset.content
            # a preset in place of a list must have the same number of samples
            assert one.listed is None or one.listed.samples == other.parts[one.part].samples
        folder = "::openood=d" if preset.benchmark else ""
        ref = DataRef.parse(f"preset:{preset.name}/{one.name}{folder}")
        assert ref.kind is (SourceKind.FILE if one.listed else SourceKind.HUB)


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("preset:sst2", "hf:nyu-mll/glue::config=sst2,label=label,split=validation,text=sentence"),
        ("preset:sst2::split=val", "hf:nyu-mll/glue::config=sst2,label=label,split=train[:3000],text=sentence"),
        ("preset:sst2/wmt16::limit=5", "hf:wmt/wmt16::config=ro-en,limit=5,split=test,text=translation.en"),
        ("preset:sst2/ood-val", "hf:fancyzhx/ag_news::label=label,split=test,text=text"),
        ("preset:cifar100::classes=0-9", "hf:uoft-cs/cifar100::classes=0-9,image=img,label=fine_label,split=test"),
        ("preset:cifar100/mnist", "hf:ylecun/mnist::image=image,label=label,split=train+test"),
        (
            "preset:imagenet-1k::openood=a/,split=val,limit=2",
            "a/benchmark_imglist/imagenet/val_imagenet.txt::limit=2,root=a/images_largescale",
        ),
        (
            "preset:imagenet-1k/textures::openood=a",
            "a/benchmark_imglist/imagenet/test_textures.txt::root=a/images_classic",
        ),
        ("preset:cifar10::label=other", "hf:uoft-cs/cifar10::image=img,label=other,split=test"),
    ],
)  # fmt: skip
def test_what_a_name_stands_for(text, means):
    assert str(DataRef.parse(text)) == means


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("preset:cifar", "`preset:cifar`: there is no data set of that name", "did you mean `cifar10`?"),
        ("preset:zzzz", "no data set of that name", "`hydractl data list` lists the names"),
        ("preset:", "`preset:`: there is no data set of that name", "data list"),
        ("preset:sst2::split=dev", "`preset:sst2::split=dev`: available splits are `train`, `val`, `test`", None),
        ("preset:cifar100::split=val", "available splits are `train`, `test`", "add `openood=DIR` with the folder that contains `benchmark_imglist/cifar100/`"),
        ("preset:imagenet-1k/ninco", (
            "is a list of OpenOOD without a known data set on the Hub that "
            "has exactly its images"
        ), "add `openood=DIR`"),
        ("preset:cifar100/near", "`preset:cifar100/tin`: is a list of OpenOOD", "add `openood=DIR`"),
        ("preset:sst2/nearr", "is neither a role nor one of its sets", "did you mean `near`?"),
        ("preset:food101/near", "has no OOD sets", "`cifar100`, `cifar10`, `imagenet-1k`, `sst2`"),
        ("preset:sst2/far", "stands for 5 data sets, but only one is expected", "`preset:sst2/20-newsgroups`"),
        ("preset:cifar10/near::openood=a/b", "stands for 2 data sets", "`preset:cifar10/cifar100::openood=a/b`"),
        ("preset:sst2/yelp::split=train", "an OOD set has only one split", "its own name"),
        ("preset:sst2::openood=d", "OpenOOD has no lists for it", "leave it out"),
        ("preset:sst2::streaming=true", "the key `streaming` was removed", "type preset:sst2"),
        ("preset:sst2::opnood=d", "unknown key `opnood`", "did you mean `openood`?"),
        ("digits::openood=d", "unknown key `openood`", None),
    ],
)  # fmt: skip
def test_what_names_nothing_is_refused(text, message, hint):
    with pytest.raises(UsageError) as caught:
        DataRef.parse(text)

    assert message in caught.value.message
    assert hint is None or hint in caught.value.hint


def on_the_hub(folder, repo, splits, *, config="default", **features):
    """Write a data set into the cache, with the given number of rows for each split."""
    sources = {}
    for split, rows in splits.items():
        columns = {name: [value(i) for i in range(rows)] for name, (_, value) in features.items()}
        kinds = datasets.Features({name: kind for name, (kind, _) in features.items()})
        made = folder / f"{config}-{split}.parquet"
        datasets.Dataset.from_dict(columns, features=kinds).to_parquet(str(made))
        sources[split] = str(made)
    builder = Parquet(
        dataset_name=repo.split("/")[1].lower(), config_name=config, hash="abc", data_files=sources
    )
    builder.download_and_prepare()
    version = folder / "cache" / repo.split("/")[1].lower() / builder.config_id
    shutil.copytree(version, folder / "cache" / repo.replace("/", "___").lower() / config)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Empty cache, in offline mode."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    datasets.disable_progress_bars()
    yield tmp_path
    datasets.enable_progress_bars()


def test_the_validation_data_of_sst2_are_the_first_of_the_training_data(hub):
    on_the_hub(
        hub, "nyu-mll/glue", {"train": 3005, "validation": 4}, config="sst2",
        sentence=(STRING, "sentence {}".format), label=(CLASSES, lambda i: i % 2), idx=(datasets.Value("int32"), int),
    )  # fmt: skip
    val, train = (open_data(f"preset:sst2::split={part}", content=Content.TEXTS) for part in ("val", "train"))

    assert (len(val), val.texts[0], val.texts[-1]) == (3000, "sentence 0", "sentence 2999")
    assert train.texts == tuple(f"sentence {i}" for i in range(3000, 3005))
    assert (train.labels, train.class_names) == ((0, 1, 0, 1, 0), ("a", "b"))
    assert len(open_data("preset:sst2", content=Content.TEXTS)) == 4


def test_of_a_translation_the_english_side_is_read(hub):
    kind = datasets.Translation(languages=["ro", "en"])
    on_the_hub(
        hub, "wmt/wmt16", {"test": 2}, config="ro-en", translation=(kind, lambda i: {"ro": f"da {i}", "en": f"yes {i}"})
    )  # fmt: skip

    assert open_data("preset:sst2/wmt16", content=Content.TEXTS).texts == ("yes 0", "yes 1")


def test_pairs_are_pairs(hub):
    on_the_hub(
        hub, "nyu-mll/glue", {"validation_mismatched": 2}, config="mnli",
        premise=(STRING, "p{}".format), hypothesis=(STRING, "h{}".format), label=(CLASSES, int),
    )  # fmt: skip

    assert open_data("preset:sst2/mnli", content=Content.TEXTS).texts == (("p0", "h0"), ("p1", "h1"))


def test_all_of_mnist_and_the_fine_labels_of_cifar(hub, picture):
    on_the_hub(
        hub,
        "ylecun/mnist",
        {"train": 3, "test": 2},
        image=(PICTURE, picture),
        label=(CLASSES, lambda i: i % 2),
    )
    on_the_hub(
        hub, "uoft-cs/cifar100", {"test": 2}, img=(PICTURE, picture), coarse_label=(CLASSES, lambda _: 0),
        fine_label=(CLASSES, lambda i: 1 - i),
    )  # fmt: skip

    assert len(open_data("preset:cifar100/mnist")) == 5
    assert open_data("preset:cifar100").labels == (1, 0)


@pytest.fixture
def openood(tmp_path, picture):
    """Folder in the layout of OpenOOD's download script, with two images."""
    for i, folder in enumerate(("images_largescale/ninco/x y", "images_largescale/imagenet_1k/val")):
        (tmp_path / folder).mkdir(parents=True)
        picture(i).save(tmp_path / folder / f"{i}.png")
    lists = tmp_path / "benchmark_imglist" / "imagenet"
    lists.mkdir(parents=True)
    (lists / "test_ninco.txt").write_text("ninco/x y/0.png -1\n")
    (lists / "test_imagenet.txt").write_text("imagenet_1k/val/1.png 7\n\nimagenet_1k/val/1.png 12\n")
    (lists / "test_ssb_hard.txt").write_text("ninco/nothing.png -1\n")
    (lists / "test_inaturalist.txt").write_text("ninco/x.png\n")
    return tmp_path


def test_openood_s_lists_are_read_as_they_are(openood, picture):
    known = open_data(f"preset:imagenet-1k::openood={openood}")
    strange = open_data(f"preset:imagenet-1k/ninco::openood={openood}", labelled=False)

    assert [known.class_names[label] for label in known.labels] == ["7", "12"]
    assert known.image(1).tobytes() == picture(1).tobytes()
    assert strange.image(0).tobytes() == picture(0).tobytes()
    assert (known.name, strange.name) == ("test_imagenet.txt", "test_ninco.txt")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ssb-hard", "row 0 has the path `ninco/nothing.png`, which does not exist"),
        ("inaturalist", "line 1 is not a path and a label: `ninco/x.png`"),
        ("openimage-o", "test_openimage_o.txt: no such file"),
    ],
)
def test_a_list_that_cannot_be_read_is_said(openood, name, message):
    with pytest.raises(DataError) as caught:
        open_data(f"preset:imagenet-1k/{name}::openood={openood}", labelled=False)

    assert message in caught.value.message
