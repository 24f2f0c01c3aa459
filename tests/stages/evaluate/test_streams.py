"""Data that are streamed: the numbers of the same rows in a file, in memory for some of them, however many there are."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import datasets
import pytest
import torch

from hydractl.data.batches import BatchShare
from hydractl.data.corruptions.names import Corruptions
from hydractl.data.encode import open_items, open_stream
from hydractl.data.reference import DataRef
from hydractl.errors import CheckFailed, DataError, HubError, UsageError
from hydractl.families.load import open_model
from hydractl.processes.distributed import ProcessGroup
from hydractl.progress import SILENT
from hydractl.research.bench.config import BenchConfig
from hydractl.settings import declared
from hydractl.stages.evaluate import measure_row, open_models
from hydractl.stages.evaluate import run as stage
from hydractl.stages.evaluate import streamed as streams
from hydractl.stages.evaluate.analyses.settings import Analysing
from hydractl.stages.evaluate.config import EvalConfig
from hydractl.stages.evaluate.refs import NamedData, NamedModels
from hydractl.stages.evaluate.run import run_eval
from hydractl.stages.evaluate.set_options import SetOptions
from hydractl.stages.predict.config import PredictConfig
from hydractl.stages.predict.run import run_predict
from hydractl.stages.shared import prediction_store
from hydractl.stages.shared.predictions import PreparedData
from hydractl.stages.shared.provenance import check_up_to_date
from support.builders import base
from support.heard import Heard
from support.lake import TEXTS, Lake, image, most_held, serve, stored, text
from support.predictions import SavedPredictions
from support.text_folders import save_text_model
from support.together import as_processes, shares, together
from support.variants import variant

BERT = variant("transformers-bert-plain")
STREAM, FOREIGN = "hf:org/name::streaming=true", "hf:org/other::streaming=true"
CLASSES = [str(i) for i in range(7)]
DIGITS = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(names=CLASSES))
NAMED = datasets.Features(text=datasets.Value("string"), label=datasets.Value("string"))


def digit(i):
    return image(i) | {"label": i % 7}


def numbered(i):
    return text(i) | {"label": i % 5}


def called(i):
    return text(i) | {"label": "zebra" if i == 3 else CLASSES[(5 * i) % 6]}


def of_images(count, first=0):
    return Lake(count, lambda i: digit(first + i), DIGITS)


def of_texts(count, first=0):
    return Lake(count, lambda i: numbered(first + i), TEXTS)


def of_names(count, first=0):
    return Lake(count, lambda i: called(first + i), NAMED)


@pytest.fixture
def work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    base().save(tmp_path / "vit.st")
    for i, keep in enumerate((((0, 1), (1, 2, 3), (0,)), ((1, 3), (3,), ()))):
        base().pruned(*keep).tuned(i).save(tmp_path / f"m{i}.st")
    save_text_model(BERT, tmp_path / "bert")
    return tmp_path


@pytest.fixture
def served(work, monkeypatch):
    return partial(serve, monkeypatch)


@pytest.fixture
def on_disk(monkeypatch):
    monkeypatch.setattr(prediction_store, "HELD_BYTES", 300)
    monkeypatch.setattr(prediction_store, "BLOCK", 5)


def config(data=STREAM, **changes):
    given = {
        "model": "vit.st",
        "data": DataRef.parse(data, endless=True),
        "latency": False,
        "bootstrap": 5,
        "batch_size": 1,
        "device": "cpu",
        "out": Path("out.json"),
        "force": True,
    }
    return EvalConfig(**(given | changes))


def sets(*pairs):
    return tuple(NamedData(name=name, ref=DataRef.parse(given, endless=True)) for name, given in pairs)


def measured(data, near, **changes):
    """Return what a run wrote, without what the data are called."""
    run = config(data, near=sets(("close", near)), save_predictions=Path("said.st"), **changes)
    told = [run_eval(run, heard := Heard()), sorted(heard.warnings)][1]
    report = Path("out.json").read_text()
    for name, given in (("ID", data), ("OTHER", near)):
        report = report.replace(DataRef.parse(given, endless=True).name, name)
        told = [line.replace(DataRef.parse(given, endless=True).name, name) for line in told]
    found = json.loads(report)
    del found["config_digest"]
    return found, Path("said.st").read_bytes(), told


IMAGES = {"compare": ("Both=m0.st,m1.st", "m0=m0.st"), "analysing": Analysing(analyse=("all",))}
NUMBERS = {"model": "bert", "batch_size": 2}
NAMES = {"model": "bert", "metrics": ("accuracy", "auroc", "fpr95")}


@pytest.mark.parametrize(
    ("made", "settings", "where"),
    [
        (of_images, IMAGES, "on_disk"),
        (of_texts, NUMBERS, "on_disk"),
        (of_names, NAMES, None),
        pytest.param(of_images, IMAGES, None, marks=pytest.mark.more),
        pytest.param(of_texts, NUMBERS, None, marks=pytest.mark.more),
        pytest.param(of_names, NAMES, "on_disk", marks=pytest.mark.more),
    ],
)
def test_all_numbers_are_those_of_the_same_rows_in_a_file(served, request, made, settings, where):
    if where:
        request.getfixturevalue(where)
    count = 75 if made is of_texts else 40
    lake, other = made(count), made(21, first=100 if made is not of_names else 40)
    served(lake, other)
    given = {"curves": True, "ood_score": ("energy", "msp"), "threshold_for": 0.99} | settings
    given["set_options"] = SetOptions(sets=0.9, set_method="aps")
    given["compare"] = tuple(map(NamedModels.parse, given.get("compare", ())))
    files = stored(lake, "id.parquet"), stored(other, "other.parquet")
    of_files = measured(*files, **given)

    assert measured(STREAM, FOREIGN, **given) == of_files
    assert measured(f"{STREAM},limit={count}", f"{FOREIGN},limit=21", **given) == of_files
    assert measured(f"{STREAM},limit={count}", FOREIGN, **given) == of_files
    told = of_files[0]["data"]
    assert [told[name]["count"] for name in ("id", "close")] == [count, 21]


def test_each_row_reads_the_stream_once(served):
    lake, other = of_images(40), of_images(21)
    served(lake, other)
    rows = tuple(map(NamedModels.parse, ("Both=m0.st,m1.st", "base=vit.st")))
    run_eval(config(near=sets(("close", FOREIGN)), compare=rows))
    assert lake.read == 3 * [*range(40)]
    assert other.read == 3 * [*range(21)]
    del lake.read[:]
    run_eval(config())
    assert lake.read == [*range(40)]


def test_texts_are_answered_as_predict_answers_them(served):
    """To the bit: batches are those of `predict`."""
    lake = of_texts(75)
    served(lake)
    run_eval(config(model="bert", batch_size=2, save_predictions=Path("said.st")))
    run_predict(PredictConfig(model="bert", data=(STREAM,), device="cpu", batch_size=2, out=Path("p.jsonl")))
    (row,) = SavedPredictions.load(Path("said.st")).log_probs.values()
    most = row["id"].exp().max(-1).values.squeeze(0)
    told = [json.loads(line)["probability"] for line in Path("p.jsonl").read_text().splitlines()]
    assert torch.equal(most, torch.tensor(told))


@pytest.mark.parametrize("made", [of_images, of_texts], ids=["images", "texts"])
def test_each_process_has_the_batches_that_it_has_of_a_file(served, made):
    """So sums over batches, in the order of the data, are those of one process."""
    lake, how = served(made(75)), open_model("vit.st" if made is of_images else "bert").header.preprocess
    whole = open_items(stored(lake, "rows.parquet"), how)
    for world, rank in ((1, 0), (3, 0), (3, 1), (3, 2)):
        deal = BatchShare(rank, world, among=streams.BATCHES)
        mine = streams.StreamedData(
            stream=open_stream(DataRef.parse(STREAM, endless=True), how),
            name="id",
            batch_size=2,
            limit_bytes=0,
            team=ProcessGroup(rank=rank, world=world),
            progress=SILENT,
        )
        mine.stream_digest = _digest_of_all(mine)
        of_file = PreparedData(whole, batch_size=2, deal=deal).batches(how)
        for one, other in zip(mine.tracked(how, "m", SILENT), of_file, strict=True):
            assert torch.equal(one.indices, other.indices)


def _digest_of_all(mine):
    alone = replace(mine, team=ProcessGroup())
    for _ in alone.parts():
        pass
    return alone.stream_digest


def test_memory_holds_some_rows_however_many_there_are(served, monkeypatch):
    monkeypatch.setattr(streams, "BATCHES", 2)

    def most(count):
        lake = served(Lake(count, lambda i: image(i, side=128) | {"label": i % 7}, DIGITS))
        held = most_held(lake, lambda: run_eval(config(batch_size=2)), batch_size=2)
        assert json.loads(Path("out.json").read_text())["data"]["id"]["count"] == count
        return held

    few, many = most(8), most(160)
    assert many.memory < few.memory + 24
    assert many.waiting <= 4 * 2  # a part or two


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"row": lambda i: digit(i + 7 * (i == 19))}, "row 19 has changed since the stream was first"),
        ({"row": lambda i: digit(i) | {"label": (i + (i == 33)) % 7}}, "row 33 has changed"),
        ({"count": 39}, "ends after 39 rows, but had 40 when it was first read"),
        ({"count": 32}, "ends after 32 rows, but had 40"),
        ({"count": 41}, "continues after row 39, its end when it was first read"),
        ({"count": 60}, "continues after row 39"),
    ],
)
def test_rows_that_change_from_row_to_row_are_told(served, monkeypatch, change, message):
    lake = served(of_images(40))
    load, loaded = measure_row.load_any, []

    def changing(*args, **named):
        if loaded:
            for name, value in change.items():
                setattr(lake, name, value)
        loaded.append(1)
        return load(*args, **named)

    monkeypatch.setattr(measure_row, "load_any", changing)
    with pytest.raises(DataError, match=f"^hf:org/name::streaming=true: {message}") as caught:
        run_eval(config(compare=(NamedModels.parse("m0.st"),)))
    assert "add `limit=N`" in caught.value.hint
    assert not Path("out.json").exists()


@pytest.fixture
def crowd(monkeypatch):
    """Let threads of one process be processes of one run."""
    own = as_processes(
        monkeypatch, stage, ("vit.st", "m0.st", "m1.st", "bert"), opening=open_models, loading=measure_row
    )

    def run(team, *configs):
        own.team = team
        return [run_eval(each) for each in configs]

    return run


@pytest.mark.parametrize(
    ("made", "world"),
    [
        (of_images, 2),
        (of_texts, 3),
        pytest.param(of_images, 3, marks=pytest.mark.more),
        pytest.param(of_texts, 2, marks=pytest.mark.more),
    ],
)
def test_several_processes_write_the_bytes_of_one(served, request, monkeypatch, world, made):
    """Each reads all rows, and decodes and answers its share of the batches."""
    served(made(51), made(17, first=60))
    images = made is of_images
    given = {"near": sets(("close", FOREIGN)), "model": "vit.st" if images else "bert"}
    given["metrics"] = (
        "accuracy",
        "nll",
        "ece",
        "auroc",
    )  # to count operators switches kernels of all threads
    if images:
        given["compare"] = (NamedModels.parse("Both=m0.st,m1.st"),)
    run_eval(config(**given, save_predictions=Path("one.st")))
    one = Path("out.json").read_bytes()
    Path("out.json").unlink()
    run = request.getfixturevalue("crowd")
    answered = shares(monkeypatch, "hydractl.stages.shared.predictions.responses")
    together(world, lambda team: run(team, config(**given, save_predictions=Path("many.st"))))

    assert Path("out.json").read_bytes() == one
    assert Path("many.st").read_bytes() == Path("one.st").read_bytes()
    assert answered.total() == (51 + 17) * (3 if images else 1)
    assert max(answered.values()) < 1.2 * answered.total() / world


@pytest.mark.parametrize("other", [of_images(39), Lake(40, lambda i: digit(i + 7 * (i == 20)), DIGITS)])
def test_processes_that_read_other_rows_are_told(served, crowd, monkeypatch, other):
    lakes = [served(of_images(40)), other]
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **named: lakes.pop().stream(**named))
    with pytest.raises(DataError, match="the processes of this run read different rows of the same stream"):
        together(2, lambda team: crowd(team, config()))


def test_a_stream_that_breaks_off_and_an_interruption_leave_nothing(served, work, monkeypatch):
    monkeypatch.setattr(prediction_store, "HELD_BYTES", 0)
    room = work / "room"
    room.mkdir()
    monkeypatch.setattr(prediction_store.tempfile, "gettempdir", lambda: str(room))

    def ending(i, error):
        if i == 20:
            raise error
        return digit(i)

    for error, told in (
        (ConnectionError("reset by peer"), HubError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ):
        served(Lake(40, lambda i, error=error: ending(i, error), DIGITS))
        before = sorted(work.rglob("*"))
        for out in (Path("out.json"), None):
            with pytest.raises(told):
                run_eval(config(out=out))
            assert sorted(work.rglob("*")) == before


@pytest.mark.parametrize(
    ("changes", "message", "hint"),
    [
        (
            {"corrupt": "blur:3"},
            "`--corrupt` must read samples again, but `hf:org/name::streaming=true` is a stream",
            "add `limit=N`",
        ),
        (
            {"keep_examples": 3},
            "`--keep-examples` must read samples again, but `hf:org/name::streaming=true` is a stream",
            "add `limit=N`",
        ),
        ({"data": "id.parquet", "temperature": STREAM}, "a stream has no known length", "add `limit=N`"),
        (
            {"data": "id.parquet", "fit": STREAM, "ood_score": ("knn",), "threshold_for": 0.9},
            "a stream has no known length",
            "add `limit=N`",
        ),
        ({"if_changed": True, "force": False}, "a stream cannot be compared", ""),
    ],
)
def test_what_a_stream_cannot_do_is_refused_before_it_is_read(served, changes, message, hint):
    stored(of_images(9), "id.parquet")
    lake = served(of_images(40))
    given = dict(changes)
    if "corrupt" in given:
        given["corrupt"] = (Corruptions.parse("gaussian-noise:3"),)
    for name in ("temperature", "fit"):
        if name in given:
            given[name] = DataRef.parse(given[name], endless=True)
    with pytest.raises(UsageError, match=message) as caught:
        run_eval(config(**given)) if "force" not in given else check_up_to_date(config(**given))
    assert hint in (caught.value.hint or "")
    assert not lake.read


@pytest.mark.parametrize(
    ("row", "features", "changes", "message", "least"),
    [
        (lambda i: {"text": text(i)["text"]}, None, {}, "has no labels, but `--data` needs them", 1),
        (
            lambda i: text(i) | {"label": -1},
            TEXTS,
            {},
            "has no labels, but `--data` needs labelled samples",
            16,
        ),
        (lambda i: text(i) | {"label": i - 1 if i == 20 else 1}, TEXTS, {}, "label 19 is out of range", 40),
        (lambda i: text(i) | {"label": -(i == 17)}, TEXTS, {}, "row 17 has label -1, out of range 0", 32),
        (lambda i: text(i) | {"label": str(i)}, NAMED, {}, "has more classes than the", 16),
        (
            lambda i: text(i) | {"label": None if i == 3 else 1},
            TEXTS,
            {},
            "row 3 has an invalid label: None",
            16,
        ),
        (
            lambda i: numbered(i) | {"text": b"a" if i == 18 else None},
            datasets.Features(TEXTS | {"text": datasets.Value("binary")}),
            {},
            "row 18 is not a string: b'a'",
            32,
        ),
        (
            numbered,
            TEXTS,
            {"temperature": DataRef.parse("held.parquet")},
            "the classes are known only at the end of the stream, but `--temperature` needs them first",
            1,
        ),
    ],
)
def test_labels_that_will_not_do_are_told_as_early_as_they_are_known(
    served, row, features, changes, message, least
):
    stored(of_texts(20), "held.parquet")
    lake = served(Lake(40, row, features))
    with pytest.raises((DataError, CheckFailed), match=message):
        run_eval(config(model="bert", **changes))
    assert least <= len(lake.read) <= least + 1
    assert not Path("out.json").exists()


def test_classes_that_are_declared_are_known_before_and_other_data_are_read_by_them(served):
    """So a stream may be tested on beside all that is fitted, and its numbers are still those of a file."""
    lake = served(of_images(40))
    given = {
        "temperature": DataRef.parse("digits::split=val,classes=0-6,limit=30"),
        "fit": DataRef.parse("digits::split=train,classes=0-6,limit=60"),
        "ood_score": ("msp", "knn"),
    }
    far = "noise::limit=20"
    assert measured(STREAM, far, **given) == measured(stored(lake, "id.parquet"), far, **given)


def test_a_score_may_be_chosen_on_streams(served):
    lake, other = of_images(40), of_images(21, first=50)
    served(lake, other)
    given = {"ood_score": ("msp", "energy"), "ood_val": sets(("noise", "noise::limit=20"))}

    def chosen(val, near):
        return measured("digits::split=test,classes=0-6,limit=30", near, val=val, **given)

    of_files = chosen(DataRef.parse(stored(lake, "id.parquet")), stored(other, "other.parquet"))
    found = chosen(DataRef.parse(STREAM, endless=True), FOREIGN)
    assert found[0]["rows"] == of_files[0]["rows"]
    with pytest.raises(DataError, match=r"the validation data `.*` are also the test data"):
        run_eval(config(val=DataRef.parse(STREAM, endless=True), near=sets(("close", FOREIGN)), **given))


def test_bench_and_python_refuse_or_take_a_stream_as_the_command_line_does():
    near = declared(EvalConfig)["near"]
    assert near.parse(f"close={FOREIGN}")[0].ref.endless
    near = declared(BenchConfig)["near"]
    with pytest.raises(UsageError, match="a stream has no known length"):
        near.parse(f"close={FOREIGN}")
