"""eval under corruptions: numbers by hand from the model and the corrupted data, means, tables, refusals."""

from __future__ import annotations

import math

import pytest
import torch

from hydractl.cli.app import main
from hydractl.data.corruptions.names import IMAGES, Corruption, Corruptions
from hydractl.data.dataset import open_data
from hydractl.data.inputs import encoded, with_corruption
from hydractl.data.reference import DataRef
from hydractl.errors import ManifestError, UsageError
from hydractl.fusion.loaded import load
from hydractl.manifest.report import Report
from hydractl.metrics.table import METRICS
from hydractl.stages.evaluate.config import EvalConfig
from hydractl.stages.evaluate.run import run_eval
from support import reviews
from support.builders import base

DATA = "digits::split=test,classes=0-6,limit=30"
TEMPERATURE = 0.4


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shift")
    for seed in (0, 1):
        base(seed=seed).save(folder / f"m{seed}.st")
    command = (
        "eval", f"{folder}/m0.st", "--compare", f"pair={folder}/m0.st,{folder}/m1.st", "--data", DATA, "--corrupt", "fog:5",
        "--corrupt", "gaussian-noise:4-5", "--seed", "3", "--no-latency", "--device", "cpu", "--bootstrap", "3", "--temperature",
        str(TEMPERATURE), "-o", f"{folder}/r.json", "--metrics", "nll,accuracy",
    )  # fmt: skip
    assert main([*command]) == 0
    return folder


@pytest.fixture(scope="module")
def report(here):
    return Report.read(here / "r.json")


def by_hand(here, corruption):
    """Accuracy and NLL of two models together."""
    items = with_corruption(open_data(DATA), corruption)
    batches = encoded(items, base().header.preprocess, batch_size=7)
    batch = [(b.inputs, b.labels) for b in batches]
    images, labels = (torch.cat(parts) for parts in zip(*batch, strict=True))
    with torch.inference_mode():
        logits = torch.stack([load(here / f"m{seed}.st")(images) for seed in (0, 1)]).double() / TEMPERATURE
    probs = logits.softmax(-1).mean(0)
    hits = (probs.argmax(-1) == labels).double()
    return {"accuracy": float(hits.mean()), "nll": float(-probs[range(30), labels].log().mean())}


def test_the_numbers_are_those_of_the_corrupted_data(here, report):
    found = report.rows[1].shift.values
    assert {(name, s) for name, own in found.items() for s in own} == {
        ("gaussian-noise", "4"), ("gaussian-noise", "5"), ("fog", "5"),
    }  # fmt: skip
    for name, by_severity in found.items():
        for severity, values in by_severity.items():
            expected = by_hand(here, Corruption(name, int(severity), seed=3))
            assert values == pytest.approx(expected, abs=1e-4)
            assert values["nll"] != pytest.approx(report.rows[1].values["nll"].value, abs=1e-4)


def test_means_are_over_corruptions(report):
    for row in report.rows:
        values, means = row.shift.values, row.shift.means
        assert list(means) == ["4", "5", "all"]
        assert means["4"] == pytest.approx(values["gaussian-noise"]["4"])
        for metric in ("accuracy", "nll"):
            five = [values[name]["5"][metric] for name in ("fog", "gaussian-noise")]
            assert means["5"][metric] == pytest.approx(sum(five) / 2)
            assert means["all"][metric] == pytest.approx((sum(five) + means["4"][metric]) / 3)


def test_the_tables(here, report, capsys):
    assert main(["inspect", str(here / "r.json")]) == 0

    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    start = lines.index("Acc under 2 corruptions of the ID set, means by severity")
    assert lines[start + 1].split() == ["model", "clean", "4", "5", "all"]
    row = report.rows[0]
    cells = [row.values["accuracy"].value, *(row.shift.means[s]["accuracy"] for s in ("4", "5", "all"))]
    assert lines[start + 3].split() == ["m0", *(f"{cell:.3f}" for cell in cells)]
    by_name = lines[lines.index("Acc by corruption, means over severities") :]
    assert by_name[1].split() == ["corruption", "m0", "pair"]
    assert [line.split()[0] for line in by_name[3:5]] == ["gaussian-noise", "fog"]
    assert report.options["corrupt"] == ("fog:5", "gaussian-noise:4-5")


def test_nothing_else_changes(here, report):
    given = {
        "model": f"{here}/m0.st",
        "data": DataRef.parse(DATA),
        "latency": False,
        "bootstrap": 0,
        "device": "cpu",
    }
    plain = run_eval(EvalConfig(**given)).document
    shifted = run_eval(EvalConfig(**given, corrupt=(Corruptions.parse("all:1"),))).document

    assert plain.rows[0].shift is None
    assert '"shift"' not in plain.to_json()
    assert shifted.rows[0].model_copy(update={"shift": None}) == plain.rows[0]
    assert shifted.rows[0].shift.values.keys() == IMAGES.keys()
    assert {*shifted.rows[0].shift.means["1"]} == {"accuracy", "brier", "nll", "ece", "adaptive_ece"}


def test_a_report_has_numbers_that_are_defined(report):
    shift = report.rows[0].shift
    for changes, message in (
        ({"means": {"6": {"nll": 1.0}}}, "severity|means"),
        ({"values": {"fog": {"5": {"sharpness": 1.0}}}}, "sharpness"),
    ):
        row = report.rows[0].model_copy(update={"shift": shift.model_copy(update=changes)})
        broken = report.model_copy(update={"rows": (row, *report.rows[1:])})
        with pytest.raises(ManifestError, match=message):
            Report.from_json(broken.to_json(), where="r.json")


def test_texts(tmp_path):
    data = reviews.reviews(tmp_path / "r.jsonl", 24, seed=0)
    config = EvalConfig(
        model=reviews.arch(tmp_path), data=DataRef.parse(str(data)), latency=False, bootstrap=0, device="cpu",
        corrupt=(Corruptions.parse("all:5"),),
    )  # fmt: skip

    row = run_eval(config).document.rows[0]

    clean = row.values["nll"].value
    assert row.shift.values["typos"]["5"]["nll"] != clean
    assert row.shift.values["case"]["5"]["nll"] == clean  # its tokenizer makes all letters small
    assert math.isfinite(row.shift.means["all"]["nll"])


def test_what_cannot_be_is_refused(here, capsys):
    assert main(["eval", f"{here}/m0.st", "--data", DATA, "--corrupt", "typos"]) == 2
    assert "`--corrupt typos` is for texts, but the model reads images" in capsys.readouterr().err
    assert main(["eval", f"{here}/m0.st", "--data", DATA, "--corrupt", "frog"]) == 2
    assert "did you mean `fog`" in capsys.readouterr().err
    with pytest.raises(UsageError, match="no chosen metric looks at labelled data"):
        EvalConfig(
            model="m", data=DataRef.parse(DATA), metrics=("macs",), corrupt=(Corruptions.parse("fog"),)
        )
    assert METRICS["accuracy"].column == "Acc"
