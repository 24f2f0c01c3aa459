"""Equal samples in a tar file, a Hub data set and a folder give equal results, in any order and in each pass."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import datasets
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hydractl.checkpoint import Checkpoint
from hydractl.data.batches import batches
from hydractl.data.datasets import Content
from hydractl.data.open_dataset import open_data, open_items, with_workers
from hydractl.data.preprocess import eval_transform
from hydractl.data.reference import DataRef
from hydractl.errors import DataError
from hydractl.evaluation.options import NamedData
from hydractl.manifest.header import Preprocess
from hydractl.manifest.report import Report
from hydractl.stages.evaluate.config import EvalConfig
from hydractl.stages.evaluate.run import run_eval
from hydractl.stages.finetune.config import FinetuneConfig
from hydractl.stages.finetune.run import run_finetune
from hydractl.stages.predict import run as predicting
from hydractl.stages.predict.config import PredictConfig
from hydractl.stages.predict.run import run_predict
from hydractl.training.recipe import Recipe
from support.builders import base
from support.hub import Hub, serve
from support.together import as_processes, together

HOW = Preprocess(input_size=(3, 8, 6), mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
CLASSES = tuple("abcdefg")
FOLDER, SHARDS = "folder", "shards"
OPTIONS = ("", "::limit=9", "::classes=b+d", "::part=1/2", "::classes=c+a,map=a:z,limit=3")


def write_tar(path, members):
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


@pytest.fixture
def here(tmp_path, monkeypatch, picture):
    """A folder of three images per class, and two shards with the same samples in the same order."""
    monkeypatch.chdir(tmp_path)
    base().save(Path("vit.st"))
    members = [{}, {}]
    for i in range(3 * len(CLASSES)):
        data = io.BytesIO()
        picture(i).save(data, "png")
        name = CLASSES[i // 3]
        Path(FOLDER, name).mkdir(parents=True, exist_ok=True)
        Path(FOLDER, name, f"{i:02d}.png").write_bytes(data.getvalue())
        label = (
            {f"{i:02d}.cls": name.encode()}
            if i % 2
            else {f"{i:02d}.json": b'{"label": "%s"}' % name.encode()}
        )
        members[i // 11] |= {f"{i:02d}.png": data.getvalue()} | label
    Path(SHARDS).mkdir()
    for number, of_shard in enumerate(members):
        write_tar(f"{SHARDS}/{number}.tar", of_shard)
    return tmp_path


@pytest.mark.parametrize("options", OPTIONS)
def test_shards_equal_the_folder(here, options):
    folder, shards = (open_items(f"{root}/{options}", HOW) for root in (FOLDER, SHARDS))

    assert (shards.class_names, shards.labels) == (folder.class_names, folder.labels)
    assert shards.fingerprint() == folder.fingerprint()
    for workers in (0, 2):
        for one, other in zip(
            *(every(with_workers(items, workers)) for items in (folder, shards)), strict=True
        ):
            assert torch.equal(one.inputs, other.inputs)
            assert torch.equal(one.indices, other.indices)


def every(items, indices=None):
    return list(batches(items, eval_transform(HOW), batch_size=4, indices=indices))


@pytest.mark.parametrize("root", [FOLDER, SHARDS])
@pytest.mark.parametrize("workers", [0, 2])
def test_random_access_equals_each_sequential_pass(here, root, workers):
    items = with_workers(open_items(f"{root}/", HOW), workers)
    in_order = torch.cat([batch.inputs for batch in every(items)])
    order = torch.randperm(len(items), generator=torch.Generator().manual_seed(0))

    assert torch.equal(torch.cat([batch.inputs for batch in every(items)]), in_order)
    assert torch.equal(torch.cat([batch.inputs for batch in every(items, order)]), in_order[order])
    assert [items.item_digest(i) for i in order] == [items.subset([i]).item_digest(0) for i in order]


def evaluated(root):
    out, saved = Path(f"{root}.json"), Path(f"{root}.safetensors")
    ref = DataRef.parse(f"{root}/")
    near = NamedData(name="g", ref=DataRef.parse(f"{root}/::classes=g"))
    run_eval(
        EvalConfig(
            model="vit.st", data=ref, near=(near,),
            save_predictions=saved, out=out, latency=False, bootstrap=9, device="cpu", batch_size=4,
        )
    )  # fmt: skip
    report = Report.read(out)
    return report.rows, {name: one.sha256 for name, one in report.data.items()}, saved.read_bytes()


def test_metrics_and_predictions_equal_those_of_the_folder(here):
    assert evaluated(SHARDS) == evaluated(FOLDER)


def test_training_equals_training_on_the_folder(here):
    def trained(root):
        out = Path(f"{root}.st")
        ref = DataRef.parse(f"{root}/")
        run_finetune(
            FinetuneConfig(
                model="vit.st",
                train=ref,
                val=ref,
                out=out,
                recipe=Recipe(steps=3, batch_size=8),
                device="cpu",
            )
        )
        model_file = Checkpoint.open(out)
        return {name: model_file.tensor(name) for name in model_file.specs}

    folder, shards = trained(FOLDER), trained(SHARDS)
    assert folder.keys() == shards.keys()
    assert all(torch.equal(folder[name], shards[name]) for name in folder)


def predict(data, out="out.jsonl"):
    run_predict(PredictConfig(model="vit.st", data=(data,), out=Path(out), device="cpu", batch_size=4))
    return Path(out)


def test_several_processes_predict_the_bytes_of_one(here, monkeypatch):
    alone = predict(f"{SHARDS}/").read_bytes()
    own = as_processes(monkeypatch, predicting, ["vit.st"])

    def run(team):
        own.team = team
        return predict(f"{SHARDS}/", "many.jsonl")

    together(2, run)
    assert Path("many.jsonl").read_bytes() == alone


@pytest.mark.usefixtures("here")
def test_shards_cut_anywhere_are_refused():
    whole = Path(f"{SHARDS}/0.tar").read_bytes()
    with tarfile.open(f"{SHARDS}/0.tar") as tar:
        end = max(member.offset_data + -(-member.size // 512) * 512 for member in tar)
    for size in [*range(0, end + 1, 512), 1, 511, 700, end - 1, end + 511]:
        Path("cut.tar").write_bytes(whole[:size])
        with pytest.raises(DataError, match=r"cut\.tar: "):
            open_data("cut.tar")
    Path("cut.tar").write_bytes(whole[: end + 512])
    assert len(open_data("cut.tar")) == 11
    Path("cut.tar").write_bytes(2 * whole)
    with pytest.raises(DataError, match="has data after the end of its members") as caught:
        open_data("cut.tar")
    assert "tar --concatenate" in caught.value.hint


@pytest.fixture(scope="module")
def small_shard(tmp_path_factory):
    path = tmp_path_factory.mktemp("shard") / "a.tar"
    write_tar(path, {f"{i}.txt": b"a text" for i in range(9)})
    return path


@given(byte=st.integers(0, 9 * 1024 - 1), bit=st.integers(0, 7))
def test_a_changed_bit_never_loses_samples(small_shard, byte, bit):
    data = bytearray(small_shard.read_bytes())
    data[byte] ^= 1 << bit
    (changed := small_shard.with_name("b.tar")).write_bytes(data)
    try:
        count = len(open_data(str(changed), content=Content.TEXTS))
    except DataError:
        return
    assert count == 9


@pytest.mark.parametrize(
    ("data", "file", "command"),
    [
        ("-", "data.jsonl", "COMMAND"),
        ("/dev/null", "data.jsonl", "COMMAND"),
        ("pipe", "data.jsonl", "cat pipe"),
        ("pipe.csv", "data.csv", "cat pipe.csv"),
        ("a pipe.tar", "data.tar", "cat 'a pipe.tar'"),
        ("pipe.parquet::label=x", "data.parquet", "cat pipe.parquet"),
    ],
)
def test_streams_are_refused_with_the_command_that_writes_a_file(tmp_path, monkeypatch, data, file, command):
    monkeypatch.chdir(tmp_path)
    source = data.partition("::")[0]
    if source.lstrip("a ").startswith("pipe"):
        os.mkfifo(source)
    with pytest.raises(DataError, match=f"^{source}: is a stream") as caught:
        open_data(data)
    assert caught.value.hint == f"write it to a file first: `{command} > {file}`, then give `{file}`"


@pytest.mark.parametrize(
    ("name", "file"),
    [("a.tar", "data.tar"), ("a.tar.gz", "data.tar"), ("a.tgz", "data.tar"), ("t.csv.gz", "data.csv")],
)
def test_compressed_files_are_refused_with_the_command_that_decompresses(tmp_path, monkeypatch, name, file):
    monkeypatch.chdir(tmp_path)
    text = b"text,label\none,a\ntwo,b\n"
    write_tar("plain", {"1.txt": b"one", "1.cls": b"a", "2.txt": b"two", "2.cls": b"b"})
    Path(name).write_bytes(gzip.compress(text if "csv" in name else Path("plain").read_bytes()))
    with pytest.raises(DataError, match=f"{name}: is compressed") as caught:
        open_data(name, content=Content.TEXTS)
    command = caught.value.hint.split("`")[1]
    subprocess.run(["sh", "-c", command], check=True)
    assert caught.value.hint.endswith(f"then give `{file}`")
    assert open_data(file, content=Content.TEXTS).texts == ("one", "two")


class DataHub(Hub):
    """Stub of the Hub for data sets."""

    def answer(self, path):
        return super().answer(path.replace("/api/datasets/", "/api/models/").removeprefix("/datasets"))


COMPARE = """
import datasets, huggingface_hub
from hydractl.data.open_dataset import open_data

def compare(options):
    hub, file = (open_data(f"{source}{options}") for source in ("hf:org/name", "train.parquet"))
    assert (hub.class_names, hub.labels) == (file.class_names, file.labels)
    assert hub.fingerprint() == file.fingerprint()
    for i in reversed(range(len(file))):
        assert hub.image(i).tobytes() == file.image(i).tobytes()

for options in ("", "::limit=5", "::classes=b", "::part=2/2", "::map=a:z,classes-by=position"):
    compare(options)
    # afterwards the cache of `datasets` has the rows
    datasets.config.HF_HUB_OFFLINE = huggingface_hub.constants.HF_HUB_OFFLINE = True
"""


def test_a_hub_data_set_equals_its_file_and_is_read_from_the_cache(here, picture):
    features = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(names=["a", "b"]))
    rows = [{"image": picture(i), "label": i % 2} for i in range(11)]
    datasets.Dataset.from_list(rows, features=features).to_parquet("train.parquet")
    with serve(DataHub()) as hub:
        hub.files["org/name"] = {"train.parquet": Path("train.parquet").read_bytes()}
        subprocess.run(
            [sys.executable, "-c", COMPARE], env=hub.environment(here / "home"), check=True, timeout=300
        )
    assert 0 < sum(path.endswith("train.parquet") for path in hub.asked) <= 3
