"""A stream of a Hub data set: as many rows as come, in their order, and memory for some of them; cut off, it goes on."""

from __future__ import annotations

import json
from functools import partial

import datasets
import pytest

from hydractl.errors import DataError, HubError, UsageError
from hydractl.stages.predict import run as stage
from hydractl.stages.predict.config import PredictConfig
from hydractl.stages.predict.run import run_predict
from hydractl.stages.shared.provenance import check_up_to_date
from support.builders import base
from support.heard import Heard
from support.lake import IMAGES, TEXTS, Lake, image, most_held, serve, stored, text
from support.text_folders import save_text_model
from support.together import as_processes, shares, together
from support.variants import variant

BERT = variant("transformers-bert-plain")
STREAM = "hf:org/name::streaming=true"


@pytest.fixture
def work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    base().save(tmp_path / "vit.st")
    save_text_model(BERT, tmp_path / "bert")
    return tmp_path


@pytest.fixture
def streamed(work, monkeypatch):
    return partial(serve, monkeypatch)


def config(*data, out="out.jsonl", model="vit.st", batch_size=2, **settings):
    return PredictConfig(
        model=model, data=data, out=stage.Path(out), device="cpu", batch_size=batch_size, **settings
    )


def lines(name="out.jsonl"):
    return [json.loads(line) for line in stage.Path(name).read_text().splitlines()]


@pytest.mark.parametrize(("row", "features", "model"), [(image, IMAGES, "vit.st"), (text, TEXTS, "bert")])
def test_all_rows_in_their_order_as_a_file_of_them_has_them(streamed, monkeypatch, row, features, model):
    monkeypatch.setattr("hydractl.stages.predict.stream.BATCHES", 2)
    lake = streamed(Lake(11, row, features))
    of_file = stored(lake, "rows.parquet")
    run_predict(config(of_file, out="file.jsonl", model=model))
    heard = Heard()
    report = run_predict(config(STREAM, model=model), heard)

    assert report.inputs == 11
    assert [line["row"] for line in lines()] == [*range(11)]
    assert stage.Path("out.jsonl").read_bytes() == stage.Path("file.jsonl").read_bytes()
    assert lake.read == [*range(11)]  # once
    assert "Reading hf:org/name" in heard.steps
    run_predict(config(f"{STREAM},limit=4", out="four.jsonl", model=model))
    assert lines("four.jsonl") == lines()[:4]
    run_predict(config(of_file, STREAM, out="both.csv", model=model))
    told = stage.Path("both.csv").read_text().splitlines()
    assert told[0].startswith("data,row,label,")
    assert [line.split(",")[:2] for line in told[1:]] == [
        [name, str(i)] for name in (of_file, STREAM) for i in range(11)
    ]


def test_memory_holds_some_rows_however_many_there_are(streamed, monkeypatch):
    monkeypatch.setattr("hydractl.stages.predict.stream.BATCHES", 2)

    def most(count):
        lake = streamed(Lake(count, lambda i: image(i, side=128)))
        held = most_held(lake, lambda: run_predict(config(STREAM, out=f"{count}.jsonl")), batch_size=2)
        assert len(lines(f"{count}.jsonl")) == count
        return held

    few, many = most(8), most(160)
    assert many.memory < few.memory + 24
    assert many.waiting <= 4 * 2  # a part or two


def test_a_stream_that_breaks_off_leaves_no_file(streamed, work):
    def breaking(i):
        if i == 5:
            raise ConnectionError("reset by peer")
        return image(i)

    streamed(Lake(9, breaking))
    before = sorted(work.rglob("*"))
    with pytest.raises(HubError, match=r"hf:org/name: cannot be reached: reset by peer"):
        run_predict(config(STREAM))
    assert sorted(work.rglob("*")) == before


@pytest.mark.parametrize("world", [2, 3])
def test_several_processes_make_the_bytes_of_one(streamed, work, monkeypatch, world):
    """Each reads all rows and decodes its share of the batches."""
    monkeypatch.setattr("hydractl.stages.predict.stream.BATCHES", 2)
    lake = streamed(
        Lake(17, lambda i: image(i) if i != 6 else image(i) | {"image": {"bytes": b"?", "path": None}})
    )
    run_predict(config(STREAM, out="one.jsonl"))
    assert [line["row"] for line in lines("one.jsonl") if "error" in line] == [6]
    with pytest.raises(DataError, match="hf:org/name: row 6: is not an image"):
        run_predict(config(STREAM, skip_bad=False))
    own = as_processes(monkeypatch, stage, ["vit.st"])
    answered = shares(monkeypatch, "hydractl.stages.predict.stream.responses")
    lake.read.clear()

    def run(team):
        own.team = team
        return run_predict(config(STREAM, out="many.jsonl"))

    together(world, run)
    assert stage.Path("many.jsonl").read_bytes() == stage.Path("one.jsonl").read_bytes()
    assert answered.total() == 17
    assert max(answered.values()) < 0.7 * answered.total()


def test_what_cannot_be_is_refused_before_a_model_is_built(streamed, monkeypatch):
    monkeypatch.setattr(stage, "load_any", None)
    streamed(Lake(0))
    with pytest.raises(DataError, match="hf:org/name: has no rows"):
        run_predict(config(STREAM))
    streamed(Lake(5, text, TEXTS))
    with pytest.raises(DataError, match=r"none of its columns .* has one of the names"):
        run_predict(config(STREAM))
    with pytest.raises(DataError, match="has no column `lable` for `label=`"):
        run_predict(config(f"{STREAM},label=lable", model="bert"))
    with pytest.raises(UsageError, match="a stream has no known length") as caught:
        config(f"{STREAM},classes=0-1")
    assert "add `limit=N`" in caught.value.hint
    with pytest.raises(UsageError, match="a stream cannot be compared"):
        check_up_to_date(config(STREAM, if_changed=True))


def test_a_row_that_is_no_text_is_named_by_its_number(streamed, monkeypatch):
    monkeypatch.setattr("hydractl.stages.predict.stream.BATCHES", 1)
    features = datasets.Features(TEXTS | {"text": datasets.Value("binary")})
    streamed(Lake(9, lambda i: text(i) | {"text": b"a" if i == 7 else None}, features))
    with pytest.raises(DataError, match="hf:org/name: column `text`: row 7 is not a string: b'a'"):
        run_predict(config(STREAM, model="bert"))


def test_rows_of_chosen_classes_are_those_of_the_first(streamed):
    streamed(Lake(9))
    run_predict(config(f"{STREAM},limit=5,classes=b"))
    assert [line["row"] for line in lines()] == [1, 3]
