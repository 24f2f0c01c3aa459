"""`eval --corrupt`: numbers computed by hand from model and corrupted data, means, tables, errors."""

from __future__ import annotations

import json
import math
from io import StringIO

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from hydractl.cli.app import main
from hydractl.cli.commands import measure as eval_command
from hydractl.data.batches import eval_batches
from hydractl.data.open_dataset import open_data
from hydractl.data.reference import DataRef
from hydractl.errors import ManifestError, UsageError
from hydractl.manifest.report import Report
from hydractl.metrics.registry import METRICS
from hydractl.prediction.loaded_model import load
from hydractl.research.corruptions.measure import with_corruption
from hydractl.research.corruptions.names import IMAGES, Corruption, Corruptions, Photographs
from hydractl.research.evaluation import ResearchEval
from hydractl.stages.evaluate.config import EvalConfig
from hydractl.stages.evaluate.run import run_eval
from support import reviews
from support.builders import base
from support.text_folders import save_text_model
from support.variants import variant

DATA = "digits::split=test,classes=0-6,limit=30"
TEMPERATURE = 0.4
RESAMPLES = 40


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shift")
    for seed in (0, 1):
        base(seed=seed).save(folder / f"m{seed}.st")
    command = (
        "eval", f"{folder}/m0.st", "--compare", f"pair={folder}/m0.st,{folder}/m1.st", "--data", DATA, "--corrupt", "fog:5",
        "--corrupt", "gaussian-noise:4-5", "--seed", "3", "--no-latency", "--device", "cpu", "--bootstrap", str(RESAMPLES), "--temperature",
        str(TEMPERATURE), "-o", f"{folder}/r.json", "--metrics", "nll,accuracy",
    )  # fmt: skip
    assert main([*command]) == 0
    return folder


@pytest.fixture(scope="module")
def report(here):
    return Report.read(here / "r.json")


def samples_by_hand(here, corruption, seeds=(0, 1)):
    """Return each sample's accuracy and NLL for the ensemble of the models, (N,) each."""
    items = open_data(DATA) if corruption is None else with_corruption(open_data(DATA), corruption)
    batches = eval_batches(items, base().header.preprocess, batch_size=7)
    batch = [(b.inputs, torch.tensor(items.labels)[b.indices]) for b in batches]
    images, labels = (torch.cat(parts) for parts in zip(*batch, strict=True))
    with torch.inference_mode():
        logits = torch.stack([load(here / f"m{seed}.st")(images) for seed in seeds]).double() / TEMPERATURE
    probs = logits.softmax(-1).mean(0)
    hits = (probs.argmax(-1) == labels).double()
    return {"accuracy": hits.numpy(), "nll": -probs[range(30), labels].log().numpy()}


def by_hand(here, corruption):
    """Return accuracy and NLL of the ensemble of two models."""
    return {name: float(each.mean()) for name, each in samples_by_hand(here, corruption).items()}


MEASURED = {
    "shift": [("gaussian-noise", 4), ("gaussian-noise", 5), ("fog", 5)],
    "shift:4": [("gaussian-noise", 4)],
    "shift:5": [("gaussian-noise", 5), ("fog", 5)],
    "gaussian-noise": [("gaussian-noise", 4), ("gaussian-noise", 5)],
    "gaussian-noise:4": [("gaussian-noise", 4)],
    "gaussian-noise:5": [("gaussian-noise", 5)],
    "fog": [("fog", 5)],
    "fog:5": [("fog", 5)],
}


def resampled(each, scope):
    """Return the mean of a scope, and its means on resamples that all corruptions share."""
    generator = torch.Generator().manual_seed(3)
    draws = [torch.randint(30, (30,), generator=generator).numpy() for _ in range(RESAMPLES)]
    cells = np.stack([each[cell] for cell in MEASURED[scope]])
    return cells.mean(), np.array([cells[:, draw].mean() for draw in draws])


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


def test_intervals_and_differences_are_of_resampled_clean_samples(here, report):
    found, less = report.rows[1].shift.intervals, report.rows[1].difference.shift
    assert found.keys() == less.keys() == MEASURED.keys()
    corruptions = {cell: Corruption(*cell, seed=3) for cell in MEASURED["shift"]}
    pair = {cell: samples_by_hand(here, own) for cell, own in corruptions.items()}
    alone = {cell: samples_by_hand(here, own, seeds=(0,)) for cell, own in corruptions.items()}
    for metric in ("accuracy", "nll"):
        own = {cell: each[metric] for cell, each in pair.items()}
        gap = {cell: alone[cell][metric] - each for cell, each in own.items()}
        for scope in MEASURED:
            mean, spread = resampled(own, scope)
            low, high = np.quantile(spread, (0.025, 0.975))
            assert report.rows[1].shift.at(scope)[metric] == pytest.approx(mean, abs=1e-4)
            assert found[scope][metric] == pytest.approx((min(low, mean), max(high, mean)), abs=1e-4)
            mean, spread = resampled(gap, scope)
            low, high = np.quantile(spread, (0.025, 0.975))
            value = less[scope][metric]
            assert (value.value, value.low, value.high) == pytest.approx((mean, low, high), abs=1e-4)


def test_every_interval_holds_its_number(report):
    for row in report.rows:
        for scope, own in row.shift.intervals.items():
            for metric, (low, high) in own.items():
                assert low <= row.shift.at(scope)[metric] <= high
                assert low < high


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
    text = " ".join(" ".join(lines).split())
    title = "Acc ↑ under 2 corruptions of the ID set"
    by_severity = lines[lines.index(f"{title}, means by severity") :]
    assert by_severity[1].split() == ["severity", "m0", "pair"]
    assert [line.split()[0] for line in by_severity[3:7]] == ["clean", "4", "5", "all"]
    for line, scope in zip(by_severity[4:7], ("shift:4", "shift:5", "shift"), strict=True):
        ends = [row.shift.intervals[scope]["accuracy"] for row in report.rows]
        told = [
            f"{row.shift.at(scope)['accuracy']:.3f} [{low:.3f}, {high:.3f}]"
            for row, (low, high) in zip(report.rows, ends, strict=True)
        ]
        assert " ".join(line.split()[1:]) == " ".join(told)
    clean = [row.values["accuracy"] for row in report.rows]
    told = [f"{own.value:.3f} [{own.low:.3f}, {own.high:.3f}]" for own in clean]
    assert " ".join(by_severity[3].split()[1:]) == " ".join(told)
    assert f"{title}: m0 − each other model severity pair" in text
    gap = report.rows[1].difference.shift["shift"]["nll"]
    less = lines[lines.index("NLL ↓ under 2 corruptions of the ID set: m0 − each other model") :]
    assert " ".join(less[6].split()) == f"all {gap.value:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}]"
    by_name = lines[lines.index("Acc ↑ by corruption, means over severities") :]
    assert by_name[1].split() == ["corruption", "m0", "pair"]
    assert [line.split()[0] for line in by_name[3:5]] == ["gaussian-noise", "fog"]
    assert report.options["corrupt"] == ("fog:5", "gaussian-noise:4-5")


@pytest.mark.parametrize("width", [80, 100, 120])
def test_the_tables_fit_a_terminal(report, width):
    """Four rows with usual names and intervals fit, and tables with three rows are not split."""
    names = ("Hydra of 3", "Single model", "Deep ensemble of 2", "MC dropout")
    first, other = report.rows
    rows = [(first, other)[i > 0].model_copy(update={"name": name}) for i, name in enumerate(names)]
    text = StringIO()
    for kept in (rows, rows[:3]):
        document = report.model_copy(update={"rows": tuple(kept)})
        text.truncate(text.seek(0))
        eval_command.show_report(document, Console(file=text, width=width, legacy_windows=False))
        shown = text.getvalue().splitlines()
        begin = shown.index("Acc ↑ under 2 corruptions of the ID set, means by severity")
        under = shown[begin : shown.index("Acc ↑ by corruption, means over severities")]
        assert max(map(len, shown)) <= width
    heads = [line for line in under if line.startswith("severity")]
    assert len(heads) == 4  # two metrics, each as numbers and as differences
    assert all("Deep ensemble of 2" in line for line in heads)


def test_a_condition_on_a_corruption_decides(here, report, capsys):
    """Names are those of `report --json`, and the report contains the result of the condition."""
    command = [
        "eval",
        f"{here}/m0.st",
        "--data",
        DATA,
        "--no-latency",
        "--device",
        "cpu",
        "--seed",
        "3",
        "--metrics",
    ]
    command += [
        "accuracy",
        "--corrupt",
        "fog:5",
        "--corrupt",
        "gaussian-noise:4-5",
        "--bootstrap",
        "0",
        "--temperature",
    ]
    command += [str(TEMPERATURE), "-o", str(here / "failed.json"), "--force"]
    found = report.rows[0].shift.at("gaussian-noise")["accuracy"]

    assert main([*command, "--fail-if", f"acc[gaussian-noise]<{found}"]) == 0
    capsys.readouterr()
    assert main([*command, "--fail-if", f"acc[gaussian-noise]<={found}", "--fail-if", "acc[shift:5]<0"]) == 5
    assert "1 of 2 checks failed for `m0`: `accuracy[gaussian-noise]<=" in capsys.readouterr().err
    checks = Report.read(here / "failed.json").checks
    assert [check.condition.partition("<")[0] for check in checks] == [
        "accuracy[gaussian-noise]",
        "accuracy[shift:5]",
    ]
    assert [check.found for check in checks] == [found, report.rows[0].shift.at("shift:5")["accuracy"]]
    assert not Report.read(here / "failed.json").rows[0].shift.intervals


def test_a_report_tells_what_was_corrupted(here, capsys):
    assert main(["report", str(here / "r.json"), "--json"]) == 0

    said = json.loads(capsys.readouterr().out)
    row = Report.read(here / "r.json").rows[1]
    found = said["rows"]["pair"]["accuracy[gaussian-noise]"]
    assert found["value"] == row.shift.at("gaussian-noise")["accuracy"]
    assert [found["low"], found["high"]] == [*row.shift.intervals["gaussian-noise"]["accuracy"]]
    gap = row.difference.shift["shift:5"]["nll"]
    assert said["differences"]["pair"]["nll[shift:5]"]["low"] == gap.low


def test_nothing_else_changes(here, report):
    given = {
        "model": f"{here}/m0.st",
        "data": DataRef.parse(DATA),
        "latency": False,
        "bootstrap": 0,
        "device": "cpu",
    }
    plain = run_eval(EvalConfig(**given)).document
    shifted = run_eval(
        EvalConfig(**given, extensions=ResearchEval(corrupt=(Corruptions.parse("all:1"),)))
    ).document

    assert plain.rows[0].shift is None
    assert '"shift"' not in plain.to_json()
    assert shifted.rows[0].model_copy(update={"shift": None}) == plain.rows[0]
    assert shifted.rows[0].shift.values.keys() == IMAGES.keys()
    assert {*shifted.rows[0].shift.means["1"]} == {"accuracy", "brier", "nll", "ece", "adaptive_ece"}


def test_a_report_has_numbers_that_are_defined(report):
    shift = report.rows[0].shift
    strange = {name: {each: {"sharpness": 1.0} for each in own} for name, own in shift.values.items()}
    for changes, message in (
        ({"values": strange, "intervals": {}}, "`sharpness` has no definition"),
        ({"means": {"6": {"nll": 1.0}}}, "severity|means"),
        ({"values": {"fog": {"5": {"sharpness": 1.0}}}, "intervals": {}}, "difference.shift"),
        ({"values": {"fog": {"5": {"sharpness": 1.0}}}}, "intervals: `[a-z:0-9-]+` has .*no values of"),
        ({"intervals": {"fog:6": {"nll": (0.0, 1.0)}}}, "intervals: `fog:6` has"),
    ):
        row = report.rows[1].model_copy(update={"shift": shift.model_copy(update=changes)})
        broken = report.model_copy(update={"rows": (report.rows[0], row)})
        with pytest.raises(ManifestError, match=message):
            Report.from_json(broken.to_json(), place="r.json")


def test_texts(tmp_path):
    data = reviews.reviews(tmp_path / "r.jsonl", 24, seed=0)
    config = EvalConfig(
        model=reviews.arch(tmp_path), data=DataRef.parse(str(data)), latency=False, bootstrap=20, device="cpu",
        extensions=ResearchEval(corrupt=(Corruptions.parse("all:5"),)),
    )  # fmt: skip

    row = run_eval(config).document.rows[0]

    clean = row.values["nll"].value
    assert row.shift.values["typos"]["5"]["nll"] != clean
    assert row.shift.values["case"]["5"]["nll"] == clean  # the tokenizer lowercases all letters
    for metric, (low, high) in row.shift.intervals["case:5"].items():
        value = row.values[metric]
        assert (row.shift.at("case")[metric], low, high) == (value.value, value.low, value.high)
    assert row.shift.intervals["typos"]["nll"] != row.shift.intervals["case"]["nll"]
    assert math.isfinite(row.shift.means["all"]["nll"])


def test_what_cannot_be_is_refused(here, capsys):
    assert main(["eval", f"{here}/m0.st", "--data", DATA, "--corrupt", "typos"]) == 2
    assert "`--corrupt typos` is for texts, but the model reads images" in capsys.readouterr().err
    assert main(["eval", f"{here}/m0.st", "--data", DATA, "--corrupt", "frog"]) == 2
    assert "did you mean `fog`" in capsys.readouterr().err
    command = ["eval", f"{here}/m0.st", "--data", DATA, "--corrupt", "all:1"]
    # the model reads images, and `typos` is a corruption of texts
    assert main([*command, "--fail-if", "acc[typos]<0.5"]) == 2
    assert "accuracy is not measured under `typos`" in capsys.readouterr().err
    assert main([*command, "--fail-if", "acc[fgo:1]<0.5"]) == 2
    assert "did you mean `fog:1`" in capsys.readouterr().err
    with pytest.raises(UsageError, match="has no effect: no selected metric uses labelled data"):
        EvalConfig(
            model="m",
            data=DataRef.parse(DATA),
            metrics=("macs",),
            extensions=ResearchEval(corrupt=(Corruptions.parse("fog"),)),
        )
    assert METRICS["accuracy"].column == "Acc"


def test_frost_adds_the_photographs_of_a_folder(here, tmp_path, capsys):
    """The report names the photographs, other contents make it stale, and small photographs are errors."""
    folder = tmp_path / "frost"
    folder.mkdir()
    for i in range(2):
        values = np.random.default_rng(i).integers(0, 256, (80, 90, 3), dtype=np.uint8)
        Image.fromarray(values).save(folder / f"frost{i}.png")
    out = tmp_path / "r.json"
    line = [
        "eval", f"{here}/m0.st", "--data", DATA, "--no-latency", "--bootstrap", "0", "--device", "cpu", "-o", str(out),
        "--if-changed",
    ]  # fmt: skip

    def said(*more):
        code = main([*line, *more])
        return code, "".join(capsys.readouterr())

    frosts = [said("--corrupt", f"frost:5{given}") and Report.read(out) for given in ("", f"={folder}")]
    drawn, added = (report.rows[0].shift.values["frost"]["5"]["nll"] for report in frosts)

    assert drawn != pytest.approx(added, abs=1e-4)
    assert frosts[1].options["corrupt"] == ("frost:5=frost",)
    assert frosts[1].options["frost"] == Photographs.of(folder).sha256
    assert "frost" not in frosts[0].options
    assert "up to date" in said("--corrupt", f"frost:5={folder}")[1]
    Image.fromarray(values[::-1].copy()).save(folder / "frost0.png")
    assert "it was made with other options" in said("--corrupt", f"frost:5={folder}")[1]
    Image.new("RGB", (40, 200)).save(folder / "frost1.png")
    code, told = said("--corrupt", f"frost={folder}")
    assert (code, "8 x 40 pixels, scaled by 0.2, is too small for crops of 8 x 8" in told) == (3, True)
    (folder / "frost1.png").write_bytes(b"no picture")
    code, told = said("--corrupt", f"frost={folder}")
    assert (code, "frost1.png: is not an image that can be decoded" in told) == (3, True)


def test_texts_whose_words_are_answered_are_not_corrupted(tmp_path, capsys):
    save_text_model(variant("transformers-bert-tokens"), tmp_path / "model")
    rows = [{"tokens": ["the", "cat"], "tags": ["LABEL_0", "LABEL_1"]}] * 4
    (tmp_path / "words.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert main(["eval", f"{tmp_path}/model", "--data", f"{tmp_path}/words.jsonl", "--corrupt", "typos"]) == 2
    assert "a corrupted text no longer has the words that are answered" in capsys.readouterr().err
