"""`predict`: one line per input, in order, for every format, source of data and number of processes."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

import hydractl
from hydractl.data.open_dataset import open_data
from hydractl.errors import DataError, UsageError
from hydractl.prediction import inference
from hydractl.prediction.writers import path_text, text
from hydractl.stages.fuse.config import FuseConfig
from hydractl.stages.fuse.run import run_fuse
from hydractl.stages.predict import run as stage
from hydractl.stages.predict.config import PredictConfig
from hydractl.stages.predict.run import run_predict
from support.builders import Sample, base
from support.text_folders import save_text_model
from support.together import as_processes, together
from support.variants import variant

BERT = variant("transformers-bert-plain")
NAMES = tuple("abcdefg")
TEXTS = ["mat", "the cat sat on a mat on a mat", "the cat sat", "", "a cat on the mat", "sat"]
FILES = ("flat/a.png", "flat/b.png", "tree/3.png", "tree/x/1.jpg", "tree/x/deep/2.png")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    made = tmp_path_factory.mktemp("models")
    save_text_model(BERT, made / "bert")
    sample = Sample(base().header.model_copy(update={"labels": NAMES, "temperature": 2.0}), base().state)
    for i in range(2):
        sample.pruned((0, 1), (2,), (i,)).tuned(i).save(made / f"m{i}.st")
    run_fuse(FuseConfig(models=(str(made / "m0.st"), str(made / "m1.st")), out=made / "hydra.st"))
    return made


@pytest.fixture
def work(tmp_path, monkeypatch):
    """The current directory, with images."""
    monkeypatch.chdir(tmp_path)
    pixels = np.random.default_rng(0).integers(0, 256, (5, 9, 11), dtype=np.uint8)
    for name, image in zip(FILES, pixels, strict=True):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(tmp_path / name)
    return tmp_path


def predicted_lines(models, *data, model="hydra.st", out="out.jsonl", **settings):
    """Run `predict` and return the output lines."""
    run_predict(
        PredictConfig(model=str(models / model), data=data, out=out_of(out), device="cpu", **settings)
    )
    return lines(out)


def out_of(name):
    return stage.Path(name)


def lines(name):
    return [json.loads(line) for line in out_of(name).read_text().splitlines()]


def piped(monkeypatch, text):
    data = text if isinstance(text, bytes) else text.encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_a_line_says_what_the_object_in_python_says(models, work):
    found = predicted_lines(models, "flat", "tree/3.png", top_k=3, ood_score="entropy", batch_size=2)
    said = hydractl.load(models / "hydra.st").predict([work / name for name in FILES[:3]], batch_size=2)

    assert [line["path"] for line in found] == list(FILES[:3])
    for i, line in enumerate(found):
        order = said.probabilities[i].sort(descending=True)
        assert line["label"] == line["top"][0]["label"] == said.labels[i]
        assert [one["label"] for one in line["top"]] == [NAMES[c] for c in order.indices[:3]]
        assert np.array_equal(np.float32([one["probability"] for one in line["top"]]), order.values[:3])
        assert line["probability"] == line["top"][0]["probability"]
        assert np.float32(line["entropy"]) == said.entropy[i] == np.float32(line["ood_score"])
        assert np.float32(line["mutual_information"]) == said.mutual_information[i]
        assert line["votes"] == [NAMES[c] for c in said.votes[:, i]]
        assert "accepted" not in line


def test_folders_of_any_depth_files_and_toys_stand_in_the_order_given(models, work):
    found = predicted_lines(
        models, "tree", "digits::limit=2", "flat/b.png", "flat/a.png", "digits::classes=3,limit=1", top_k=9
    )

    called = [line.get("path", (line.get("data"), line.get("row"))) for line in found]
    two, three = (
        [(ref, place) for place in open_data(ref).places]  # row numbers in the full data set
        for ref in ("digits::limit=2", "digits::classes=3,limit=1")
    )
    assert two[0][1] > 1
    assert called == [*FILES[2:], *two, "flat/b.png", "flat/a.png", *three]
    assert len(found[0]["top"]) == 7


def test_the_suffix_decides_the_form(models, work):
    expected = predicted_lines(models, "flat", "digits::limit=2", top_k=2)
    told_of = {"data": ("flat", "digits::limit=2"), "model": "hydra.st", "top_k": 2}
    for form in ("csv", "parquet"):
        run_predict(
            PredictConfig(
                model=str(models / told_of["model"]),
                data=told_of["data"],
                out=out_of(f"out.{form}"),
                device="cpu",
                top_k=2,
            )
        )
    tables = {
        "csv": list(csv.DictReader((work / "out.csv").read_text().splitlines())),
        "parquet": pq.read_table("out.parquet").to_pylist(),
    }

    for form, rows in tables.items():
        assert len(rows) == len(expected) == 4, form
        assert list(rows[0]) == [
            "path", "row", "label", "probability", "label_2", "probability_2", "entropy", "mutual_information", "vote_1",
            "vote_2", "ood_score", "error",
        ]  # fmt: skip
        for row, line in zip(rows, expected, strict=True):
            assert (row["path"] or None, row["label"]) == (line.get("path"), line["label"])
            assert [row["vote_1"], row["vote_2"]] == line["votes"]
            assert row["label_2"] == line["top"][1]["label"]
            assert np.float32(row["probability_2"]) == np.float32(line["top"][1]["probability"])
            assert np.float32(row["ood_score"]) == np.float32(line["ood_score"])
    assert tables["csv"][3]["row"] == str(tables["parquet"][3]["row"]) == str(expected[3]["row"])
    assert not list(work.glob("*.journal"))


def test_lines_of_standard_input_are_texts_or_the_paths_of_images(models, work, monkeypatch):
    piped(monkeypatch, "".join(f"{text}\n" for text in TEXTS).rstrip("\n") + "\r\n")
    found = predicted_lines(models, "-", model="bert", batch_size=2)
    said = hydractl.load(models / "bert").predict(TEXTS)

    assert [line["row"] for line in found] == [*range(6)]
    assert [line["label"] for line in found] == list(said.labels)
    np.testing.assert_allclose([line["probability"] for line in found], said.confidence, rtol=1e-5)
    piped(monkeypatch, "flat/b.png\n\ntree/3.png\n")
    assert [line["path"] for line in predicted_lines(models, "-", out="paths.jsonl")] == [
        "flat/b.png",
        "tree/3.png",
    ]


def test_single_texts_are_answered_as_they_come(models, work, monkeypatch):
    """With batch size 1, each text is answered before the next line is read."""
    seen = []

    class Slow(io.BytesIO):
        def read1(self, size=-1):
            seen.append("read")
            return super().readline(size)

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(Slow(b"mat\nsat\ncat\n")))
    respond = inference.respond

    def noted(*args, **named):
        seen.append("answered")
        return respond(*args, **named)

    monkeypatch.setattr("hydractl.prediction.inference.respond", noted)
    predicted_lines(models, "-", model="bert", batch_size=1)
    assert seen == ["read", "answered"] * 3 + ["read"]


def test_texts_and_pairs_of_a_table_need_no_labels(models, work):
    (work / "t.csv").write_text("text,label\nthe cat,\nmat,x\n")
    (work / "p.jsonl").write_text('{"premise": "the cat", "hypothesis": "sat"}\n')
    found = predicted_lines(models, "t.csv", "p.jsonl", model="bert")

    said = hydractl.load(models / "bert")
    expected = [*said.predict(["the cat", "mat"]).labels, *said.predict([("the cat", "sat")]).labels]
    assert [(line["data"], line["row"]) for line in found] == [("t.csv", 0), ("t.csv", 1), ("p.jsonl", 0)]
    assert [line["label"] for line in found] == expected


def test_a_list_of_images_is_read_as_by_every_other_command(models, work):
    (work / "l.txt").write_text("".join(f"{name} {i}\n" for i, name in enumerate(FILES[:3])))

    found, expected = predicted_lines(models, "l.txt"), predicted_lines(models, *FILES[:3], out="files.jsonl")

    assert [line["label"] for line in found] == [line["label"] for line in expected]
    assert len(found) == len(open_data("l.txt")) == 3


def test_an_image_that_cannot_be_read_is_named_or_told_of(models, work):
    (work / "tree/x/bad.png").write_bytes(b"no image")
    Image.new("I;16", (9, 9)).save(work / "tree/deep.png")
    whole = predicted_lines(models, *FILES[2:], out="whole.jsonl")

    with pytest.raises(DataError, match=r"tree/(x/bad|deep).png: (is not an image|an image of mode)"):
        predicted_lines(models, "tree", skip_bad=False)
    assert not list(work.glob("out*"))
    assert len(predicted_lines(models, "tree")) == 5
    found = predicted_lines(models, "tree", out="lenient.jsonl")
    assert [line["path"] for line in found] == [
        "tree/3.png",
        "tree/deep.png",
        *FILES[3:4],
        "tree/x/bad.png",
        FILES[4],
    ]
    assert set(found[1]) == {"path", "error"}
    assert "more than 8 bits" in found[1]["error"]
    assert "bad.png: is not an image" in found[3]["error"]
    good = [line for line in found if "error" not in line]
    assert [line["label"] for line in good] == [line["label"] for line in whole]
    np.testing.assert_allclose(
        [line["entropy"] for line in good], [line["entropy"] for line in whole], rtol=1e-5
    )
    report = run_predict(
        PredictConfig(model=str(models / "hydra.st"), data=("tree",), out=out_of("l.csv"), device="cpu")
    )
    assert (report.inputs, report.bad) == (5, 2)
    assert [bool(row["error"]) for row in csv.DictReader((work / "l.csv").read_text().splitlines())] == [
        False,
        True,
        False,
        True,
        False,
    ]


def test_a_run_without_a_readable_image_writes_their_errors_and_fails(models, work):
    for name in ("photo.HEIC", "b.png"):
        (work / name).write_bytes(b"no image")
    with pytest.raises(DataError, match="2 inputs, none readable"):
        predicted_lines(models, "photo.HEIC", "b.png")
    with pytest.raises(DataError) as caught:
        predicted_lines(models, "photo.HEIC", out="-")
    assert caught.value.hint.startswith("read the errors above")
    lines = [json.loads(line) for line in (work / "out.jsonl").read_text().splitlines()]
    assert [(line["path"], "is not an image" in line["error"]) for line in lines] == [
        ("photo.HEIC", True),
        ("b.png", True),
    ]


@pytest.mark.spread(cases=2)
@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
def test_an_interrupted_run_leaves_no_file(models, work, monkeypatch, suffix):
    """A journal of an older release is ignored."""
    journal = work / f"out{suffix}.journal"
    journal.write_text("mine")
    before = sorted(work.rglob("*"))
    monkeypatch.setattr("hydractl.prediction.run_models.SORTED_BATCHES", 2)
    asked, respond = [], inference.respond

    def failing(*args, **named):
        asked.append(1)
        if len(asked) == 6:
            raise KeyboardInterrupt
        return respond(*args, **named)

    settings = {
        "model": str(models / "hydra.st"),
        "data": ("digits::limit=20",),
        "device": "cpu",
        "batch_size": 3,
    }
    config = PredictConfig(out=out_of(f"out{suffix}"), **settings)
    with monkeypatch.context() as patched:
        patched.setattr("hydractl.prediction.inference.respond", failing)
        with pytest.raises(KeyboardInterrupt) as caught:
            run_predict(config)
    assert sorted(work.rglob("*")) == before
    assert not hasattr(caught.value, "__notes__")
    run_predict(config)
    run_predict(PredictConfig(out=out_of(f"whole{suffix}"), **settings))

    assert (work / f"out{suffix}").read_bytes() == (work / f"whole{suffix}").read_bytes()
    assert journal.read_text() == "mine"


@pytest.mark.spread(cases=1)
@pytest.mark.parametrize("world", [2, 3])
def test_several_processes_make_the_bytes_of_one(models, work, monkeypatch, world):
    """The images include an unreadable file."""
    (work / "t.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in TEXTS * 2))
    (work / "flat/bad.png").write_bytes(b"no image")
    monkeypatch.setattr("hydractl.prediction.run_models.SORTED_BATCHES", 2)
    runs = {
        "hydra.st": {"data": ("flat", "tree", "digits::limit=9"), "skip_bad": True},
        "bert": {"data": ("t.jsonl",)},
    }

    def config(model, out, **settings):
        return PredictConfig(
            model=str(models / model), out=out_of(out), device="cpu", batch_size=2, **runs[model], **settings
        )

    for model in runs:
        run_predict(config(model, f"one-{model}.jsonl"))
    own = as_processes(monkeypatch, stage, [str(models / m) for m in runs])

    def run(team):
        own.team = team
        return [run_predict(config(m, f"many-{m}.jsonl")) for m in runs]

    _, *others = together(world, run)
    assert all(report.inputs == 0 for reports in others for report in reports)
    for model in runs:
        expected = (work / f"one-{model}.jsonl").read_bytes()
        assert (work / f"many-{model}.jsonl").read_bytes() == expected
    assert sum("error" in line for line in lines("one-hydra.st.jsonl")) == 1


REFUSED = {
    "nothing in a folder": (("empty",), "hydra.st", {}, DataError, "empty: has no image"),
    "no such file": (("gone.png",), "hydra.st", {}, DataError, r"gone\.png: no such file"),
    "an image for texts": (
        ("flat/a.png",),
        "bert",
        {},
        UsageError,
        "is no table or folder of texts, which the model reads",
    ),
    "lines and more": (("-", "flat"), "hydra.st", {}, UsageError, "`-` cannot be combined with other DATA"),
    "no line": (("-",), "bert", {}, DataError, "standard input: has no lines"),
    "no form": (
        ("flat",),
        "hydra.st",
        {"out": "o.txt"},
        UsageError,
        r"must have the suffix \.jsonl or \.csv",
    ),
    "an unknown score": (("flat",), "hydra.st", {"ood_score": "x"}, UsageError, "--ood-score x"),
    "classes of its own": (("flat",), "hydra.st", {"naming": None}, UsageError, "already has classes"),
}


@pytest.mark.parametrize(("data", "model", "settings", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_is_refused_and_leaves_nothing(
    models, work, monkeypatch, data, model, settings, error, message
):
    from hydractl.prediction.class_names import Naming

    (work / "empty").mkdir()
    piped(monkeypatch, "")
    before = sorted(work.rglob("*"))
    if "naming" in settings:
        settings = {"naming": Naming(names=("a", "b"))}
    with pytest.raises(error, match=message):
        predicted_lines(models, *data, model=model, **settings)
    assert sorted(work.rglob("*")) == before


def test_a_line_that_is_no_text_is_named(models, work, monkeypatch):
    piped(monkeypatch, b"mat\n\xff\n")
    with pytest.raises(DataError, match="standard input: line 2 is not UTF-8 text"):
        predicted_lines(models, "-", model="bert")
    assert not list(work.glob("out*"))


ODD = ("a::b.png", "a::label=x.png", "\xe9.png", os.fsdecode(b"\xff.png"), "two\nlines.png")
"""File names that resemble references, contain newlines, or are not UTF-8."""


@pytest.fixture
def odd(work):
    for name in ODD:
        shutil.copy(work / FILES[0], work / name)
    return work


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
@pytest.mark.parametrize("end", [b"\0", b"\n"])
def test_paths_that_are_read_from_standard_input_open_again(models, odd, monkeypatch, suffix, end):
    names = [os.fsencode(name) for name in ODD if end not in os.fsencode(name)]
    piped(monkeypatch, end.join([names[0], b"", b"none.png", *names[1:]]))
    settings = {"null": end == b"\0", "skip_bad": True, "batch_size": 2, "device": "cpu"}
    out = out_of(f"found.{suffix}")
    run_predict(PredictConfig(model=str(models / "hydra.st"), data=("-",), out=out, **settings))

    if suffix == "parquet":  # Parquet strings must be UTF-8
        found = pq.read_table(out).to_pylist()
        assert [row["path"] for row in found if not row["error"]] == [
            name.decode(errors="backslashreplace") for name in names
        ]
        return
    if suffix == "jsonl":
        found = lines(out)
    else:
        with out.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
            found = [*csv.DictReader(file)]
    assert [row["path"] for row in found if not row.get("error")] == [*map(os.fsdecode, names)]
    assert len({row["label"] for row in found if not row.get("error")}) == 1
    assert [row["path"] for row in found if row.get("error")] == ["none.png"]


def test_names_that_hold_what_begins_options_are_data(models, odd):
    (odd / "c::d").mkdir()
    shutil.copy(odd / FILES[0], odd / "c::d")
    found = predicted_lines(models, "a::b.png", "a::label=x.png::", "c::d::", "c::d::limit=1")

    assert [line["path"] for line in found] == ["a::b.png", "a::label=x.png", *["c::d/a.png"] * 2]


def test_a_list_whose_paths_end_with_nul_is_told_from_lines(models, work, monkeypatch):
    piped(monkeypatch, b"flat/a.png\0flat/b.png\0")
    with pytest.raises(DataError, match="standard input: line 1 contains a NUL byte") as caught:
        predicted_lines(models, "-")
    assert caught.value.hint == "add `--null`"
    with pytest.raises(UsageError, match="`--null` applies only to standard input"):
        predicted_lines(models, "flat", null=True)


def test_the_bytes_of_a_path_are_printed_whatever_the_locale(monkeypatch):
    name = "\xe9\u20ac".encode() + b"\xff.png"
    for encoding in ("utf-8", "ascii", "latin-1"):
        monkeypatch.setattr(
            "hydractl.prediction.writers.os.fsencode",
            lambda path, e=encoding: path.encode(e, "surrogateescape"),
        )
        path = path_text(name.decode(encoding, "surrogateescape"))
        assert path.encode(errors="surrogateescape") == name
        assert json.loads(text({"path": path}).encode())["path"] == path
