"""The tests `known` and `sure` of `accepted`: fitted on separate samples, and applied alike everywhere."""

from __future__ import annotations

import csv
import json
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import hydractl
from hydractl.checkpoint import Checkpoint, write_tensors
from hydractl.cli.app import main
from hydractl.data.datasets import ImageSet, of_kind
from hydractl.data.open_dataset import open_data
from hydractl.data.reference import DataRef
from hydractl.errors import DataError, UsageError
from hydractl.evaluation.guarantees import first_half
from hydractl.families.open_model import open_model
from hydractl.manifest.guarantees import KnownTest, Threshold
from hydractl.manifest.report import Report
from hydractl.metrics.conformal import known_max
from hydractl.metrics.ood_scores import ENERGY_DENSITY, MSP
from hydractl.metrics.selective import errors_among_accepted
from hydractl.prediction.open_inputs import Identity
from hydractl.processes.distributed import ProcessGroup
from hydractl.stages.evaluate.config import EvalConfig
from hydractl.stages.evaluate.run import run_eval
from hydractl.stages.predict.config import parse_threshold
from support.builders import base
from support.predictions import predicted_lines
from support.progress_log import ProgressLog

HELD = "digits::split=val,classes=0-6"
QUICK = {"latency": False, "bootstrap": 0, "device": "cpu", "metrics": ("accuracy",)}
RISK, DELTA, SHARE = 0.95, 0.2, 0.8  # a high risk, because the model is untrained


def save(path: Path, **update: object) -> Path:
    """Write the base with other header fields."""
    sample = base()
    return replace(sample, header=sample.header.model_copy(update=update)).save(path)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A base, its copy `scored.st` with `energy+density`, and `both.st` with both tests."""
    made = tmp_path_factory.mktemp("models")
    save(made / "base.st", labels=tuple("0123456"))
    fit = {"train": DataRef.parse("digits::split=train,classes=0-6,limit=300")}
    val = DataRef.parse("digits::split=train,classes=0-6,part=1/2")
    evaluate(
        made, "base.st", data="digits::split=test,classes=0-6", val=val, save_model=made / "scored.st", **fit
    )
    evaluate(
        made, "scored.st", keep_known=SHARE, threshold_for=RISK, delta=DELTA, save_model=made / "both.st", out=made / "both.json",
    )  # fmt: skip
    return made


def evaluate(models: Path, model: str, data: str = HELD, **settings: object):
    config = EvalConfig(model=str(models / model), data=DataRef.parse(data), **(QUICK | settings))
    return run_eval(config).document.rows[0]


def lines(models: Path, model: str, data: str = HELD, **settings: object) -> list[dict[str, object]]:
    return predicted_lines(models, model, data, **settings)


@pytest.mark.parametrize("share", [0.05, 0.5, 0.8, 0.95, 0.99])
def test_the_share_of_known_inputs_is_exact(share):
    """Each of n + 1 exchangeable scores is equally often the new input; the others are the samples."""
    for count in range(1, 121):
        values = torch.arange(count + 1, dtype=torch.float64)
        kept = 0
        for i in range(count + 1):
            below, _ = known_max(torch.cat([values[:i], values[i + 1 :]]), share)
            kept += below is None or float(values[i]) < below
        average = kept / (count + 1)
        assert average >= share - 1e-12
        assert average < share + 1 / (count + 1) + 1e-12


def test_equal_scores_are_kept_or_rejected_together():
    scores = torch.tensor([0.0, 0.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 3.0])
    below, kept = known_max(scores, 0.5)
    assert (1 < below < 2, kept) == (True, 5)
    assert known_max(scores, 0.9)[1] == 9
    assert known_max(scores, 0.91) == (None, 9)
    gap = torch.tensor([1.0, 1.0 + 1e-9], dtype=torch.float64)
    assert known_max(gap, 0.3)[1] == 1


def test_the_test_sure_uses_no_sample_of_the_test_known(models):
    """Both tests are recomputed from the lines of `predict` and the digests of the samples."""
    row = Report.read(models / "both.json").rows[0]
    data = open_data(HELD)
    first = first_half(Identity.of(data, ProcessGroup()).content)
    plain = lines(models, "scored.st")
    strangeness = torch.tensor([line["ood_score"] for line in plain])
    hits = torch.tensor(
        [line["label"] == data.class_names[y] for line, y in zip(plain, data.labels, strict=True)]
    )
    confidence = torch.tensor([line["probability"] for line in plain])
    assert abs(int(first.sum()) - len(first) / 2) <= 1

    below, kept = known_max(strangeness[first], SHARE)
    assert (row.known_test.score, row.known_test.count, row.known_test.accepted) == (
        ENERGY_DENSITY,
        int(first.sum()),
        kept,
    )
    assert row.known_test.below == pytest.approx(below, abs=1e-5)
    among = ~first & (strangeness < row.known_test.below)
    selected = errors_among_accepted(-confidence[among], hits[among], risk=RISK, delta=DELTA)
    assert (row.threshold.score, row.threshold.count) == (MSP, int(among.sum()))
    assert (row.threshold.accepted, row.threshold.errors) == (selected.accepted, selected.errors)
    assert row.threshold.below == pytest.approx(selected.below, abs=1e-5)
    header = Checkpoint.open(models / "both.st").header
    assert (header.known_test, header.threshold) == (row.known_test, row.threshold)


def test_data_that_are_a_part_have_two_halves():
    content = Identity.of(open_data(f"{HELD},part=1/2"), ProcessGroup()).content
    first = first_half(content)
    assert abs(int(first.sum()) - len(first) / 2) <= 1
    twice = first_half(np.concatenate([content, content[::-1]]))
    assert torch.equal(twice, torch.cat([first, first.flip(0)]))
    whole = Identity.of(open_data(HELD), ProcessGroup()).content
    parts = torch.from_numpy(whole < 2**63)
    assert (first_half(whole) == parts).float().mean() > 0.9


def test_each_test_can_be_left_out(models):
    known = evaluate(models, "scored.st", keep_known=SHARE, save_model=models / "known.st")
    sure = evaluate(models, "scored.st", threshold_for=RISK, delta=DELTA, save_model=models / "sure.st")
    assert (known.threshold, known.known_test.count) == (None, 252)
    assert (sure.known_test, sure.threshold.count, sure.threshold.score) == (None, 252, ENERGY_DENSITY)

    by_known, by_sure = lines(models, "known.st"), lines(models, "sure.st")
    assert Counter(line.get("reason") for line in by_known) == {
        None: known.known_test.accepted,
        "unknown": 252 - known.known_test.accepted,
    }
    assert all(line["accepted"] == ("reason" not in line) for line in by_known)
    assert not any("reason" in line for line in by_sure)
    assert sum(line["accepted"] for line in by_sure) == sure.threshold.accepted
    assert "accepted" not in lines(models, "both.st", threshold=parse_threshold("none"))[0]
    by_number = lines(models, "both.st", threshold=known.known_test.below)
    assert [line["accepted"] for line in by_number] == [line["accepted"] for line in by_known]
    assert not any("reason" in line for line in by_number)


def test_a_file_with_one_threshold_is_unchanged(models):
    """Neither the header, nor the report, nor a line mentions the other test."""
    evaluate(
        models,
        "base.st",
        threshold_for=RISK,
        delta=DELTA,
        save_model=models / "one.st",
        out=models / "one.json",
    )
    header, found = Checkpoint.open(models / "one.st").header, lines(models, "one.st")
    assert '"known_test"' not in header.to_metadata() + (models / "one.json").read_text()
    assert [*found[0]][-2:] == ["ood_score", "accepted"]
    assert [line["accepted"] for line in found] == [
        line["ood_score"] < header.threshold.below for line in found
    ]
    assert hydractl.load(models / "one.st").predict(base().inputs(batch=3)).reason is None


@pytest.fixture(scope="module")
def decided(models):
    """`mixed.st` with bounds that accept some images, and images with all three decisions."""
    images = of_kind(open_data("digits::split=test,limit=40"), ImageSet)
    paths = [models / f"{i}.png" for i in range(len(images))]
    for i, path in enumerate(paths):
        images.image(i).save(path)
    predicted = hydractl.load(models / "scored.st").predict(paths)
    strangeness, msp = predicted.scores[ENERGY_DENSITY], predicted.scores[MSP]
    below = _middle(strangeness, 0.6)
    known = KnownTest(score=ENERGY_DENSITY, below=below, share=0.6, count=40, accepted=24, version=2)
    sure = Threshold(
        score=MSP, below=_middle(msp[strangeness < below], 0.5), risk=0.5, delta=0.5, count=24, accepted=12, errors=0
    )  # fmt: skip
    with_tests(models / "scored.st", models / "mixed.st", known_test=known, threshold=sure)
    return paths


def _middle(scores: torch.Tensor, share: float) -> float:
    """Return a bound in the middle of two scores, so that rounding changes no decision."""
    ordered = scores.sort().values
    place = round(share * len(ordered))
    return float(ordered[place - 1 : place + 1].double().mean())


def with_tests(source: Path, path: Path, **update: object) -> Path:
    model_file = open_model(str(source))
    checkpoint = model_file.checkpoint
    tensors = checkpoint.tensors() | {name: checkpoint.tensor(name) for name in checkpoint.beside}
    with path.open("wb") as file:
        write_tensors(file, tensors, header=model_file.header.model_copy(update=update))
    return path


@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
def test_scripts_auto_classes_and_python_give_the_reasons_of_predict(models, decided, python, suffix):
    from transformers import pipeline

    names = [str(path) for path in decided]
    out = models / "decisions.jsonl"
    assert main(["predict", str(models / "mixed.st"), *names, "-o", str(out), "--force", "-q"]) == 0
    expected = [json.loads(line) for line in out.read_text().splitlines()]
    decisions = [(line["accepted"], line.get("reason")) for line in expected]
    assert {*decisions} == {(True, None), (False, "unknown"), (False, "unsure")}

    predicted = hydractl.load(models / "mixed.st").predict(decided)
    assert [*zip(predicted.accepted.tolist(), predicted.reason, strict=True)] == decisions

    exported = models / f"mixed{suffix}"
    assert main(["export", str(models / "mixed.st"), "-o", str(exported), "--force", "-q"]) == 0
    script = [python(), "-I", f"{exported}.py", *names]
    done = subprocess.run(script, capture_output=True, text=True, timeout=300, check=True)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(answer["accepted"], answer.get("reason")) for answer in answers] == decisions

    assert main(["export", str(models / "mixed.st"), "-o", f"{models}/mixed/", "--force", "-q"]) == 0
    classify = pipeline("image-classification", model=f"{models}/mixed")
    with torch.inference_mode():
        outputs = [classify.model(**classify.preprocess(name)) for name in names]
    by_auto = [(bool(output.accepted), bool(output.is_known)) for output in outputs]
    assert by_auto == [(accepted, reason != "unknown") for accepted, reason in decisions]


def test_a_script_of_the_known_test_alone(models, decided, python):
    header = Checkpoint.open(models / "mixed.st").header
    few = KnownTest(score=ENERGY_DENSITY, share=0.95, count=5, accepted=5, version=2)
    for known in (header.known_test, few):
        stored = with_tests(models / "scored.st", models / "alone.st", known_test=known)
        exported = models / "alone.pt2"
        assert main(["export", str(stored), "-o", str(exported), "--force", "-q"]) == 0
        names = [str(path) for path in decided]
        script = [python(), "-I", f"{exported}.py", *names]
        done = subprocess.run(script, capture_output=True, text=True, timeout=300, check=True)
        answers = [json.loads(line) for line in done.stdout.splitlines()]
        predicted = hydractl.load(stored).predict(decided)
        assert [answer.get("reason") for answer in answers] == [*predicted.reason]
        assert {*predicted.reason} == ({None} if known is few else {None, "unknown"})


@pytest.mark.usefixtures("decided")
def test_tables_and_the_summary_name_the_reasons(models, capsys):
    data = "digits::split=test,limit=40"
    counts = Counter(line.get("reason") for line in lines(models, "mixed.st", data))
    assert counts.keys() == {None, "unknown", "unsure"}
    for form in ("csv", "parquet"):
        out = models / f"decisions.{form}"
        assert (
            main(["predict", str(models / "mixed.st"), data, "-o", str(out), "--force", "--device", "cpu"])
            == 0
        )
        seen = " ".join(capsys.readouterr().out.split())
        share = f"{counts[None]} of 40 ({100 * counts[None] / 40:.1f} %)"
        assert (
            f"Accepted by the tests: {share}, {counts['unknown']} unknown, {counts['unsure']} unsure" in seen
        )
    with (models / "decisions.csv").open(newline="") as file:
        rows = [row["reason"] for row in csv.DictReader(file)]
    assert Counter(rows) == {"": counts[None], "unknown": counts["unknown"], "unsure": counts["unsure"]}
    column = pq.read_table(models / "decisions.parquet")["reason"]
    assert [reason or "" for reason in column.to_pylist()] == rows


def test_commands_state_both_tests(models, capsys):
    row = Report.read(models / "both.json").rows[0]
    assert main(["inspect", str(models / "both.st")]) == 0
    seen = " ".join(capsys.readouterr().out.split())
    assert row.known_test.summary in seen
    assert row.threshold.summary in seen
    assert main(["push", str(models / "both.st"), "org/name", "--dry-run"]) == 0
    assert row.known_test.summary in " ".join(capsys.readouterr().out.split())
    by_report = lines(models, "scored.st", threshold=models / "both.json")
    assert by_report == lines(models, "both.st")


def test_too_few_samples_take_every_input_as_known_and_accept_none_alone(models):
    few = f"{HELD},limit=18"
    with pytest.raises(
        DataError, match=r"18 samples are too few for `--keep-known 0.95`, so every input would"
    ):
        evaluate(models, "scored.st", few, keep_known=0.95, save_model=models / "few.st")
    assert not (models / "few.st").exists()
    row = evaluate(models, "scored.st", few, keep_known=0.95, threshold_for="risk<=0.9")
    assert (row.known_test.below, row.known_test.accepted, row.known_test.count) == (None, 9, 9)
    assert row.known_test.summary == (
        "takes every input as known: 9 samples are too few to keep 95 % of known inputs"
    )
    assert evaluate(models, "scored.st", f"{HELD},limit=19", keep_known=0.95).known_test.accepted == 19


def test_both_tests_are_dropped_together(models):
    """The threshold was fitted on inputs that pass the test `known`, so neither is valid alone."""
    fit = {
        "train": DataRef.parse("digits::split=train,classes=0-6,limit=90"),
        "ood_score": ("relative-mahalanobis",),
    }

    def store(**settings: object):
        config = EvalConfig(
            model=str(models / "both.st"), data=DataRef.parse(HELD), save_model=models / "next.st", force=True, **(QUICK | settings)
        )  # fmt: skip
        run_eval(config, progress_log := ProgressLog())
        header = Checkpoint.open(models / "next.st").header
        return header.threshold, header.known_test, [w for w in progress_log.warnings if "is not kept" in w]

    both = Checkpoint.open(models / "both.st").header
    assert store(temperature=1.0) == (both.threshold, both.known_test, [])
    for settings, reason in (
        ({"temperature": 2.0}, "another temperature"),
        (fit, "newly fitted scores"),
    ):
        threshold, known, warnings = store(**settings)
        assert (threshold, known) == (None, None)
        assert all(reason in warning for warning in warnings)
        assert len(warnings) == 2
    threshold, known, (warning,) = store(threshold_for=RISK, delta=DELTA)
    assert (threshold is not None, known) == (True, None)
    assert "its test of known inputs is not kept: it is not valid for the new test of this run" in warning
    threshold, known, (warning,) = store(keep_known=SHARE)
    assert (threshold, known is not None) == (None, True)
    assert "its threshold is not kept" in warning


def test_wrong_values_are_refused(models, capsys):
    assert main(["eval", str(models / "base.st"), "--data", HELD, "--keep-known", "95"]) == 2
    assert "write 95 % as 0.95" in capsys.readouterr().err
    with pytest.raises(DataError, match="none of the 1 sample of `--data` is left for `--threshold-for`"):
        evaluate(models, "scored.st", f"{HELD},limit=1", keep_known=0.5, threshold_for=RISK)
    with pytest.raises(UsageError, match=r"`--ood-score msp`: the threshold is for `energy\+density`"):
        lines(models, "both.st", ood_score="msp")
