"""Prediction sets: fitted and measured by `eval`, stored in copies, written by `predict`, and dropped."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
import torch
from pydantic import ValidationError
from transformers import AutoModelForImageClassification

import hydractl
from hydractl.checkpoint import Checkpoint
from hydractl.cli.app import main
from hydractl.data.open_dataset import open_items
from hydractl.data.reference import DataRef
from hydractl.evaluation.guarantees import measure_sets, why_invalid
from hydractl.evaluation.options import NamedModels
from hydractl.families.open_model import open_model
from hydractl.manifest.document import Fingerprint
from hydractl.manifest.guarantees import PredictionSets, SetNumbers
from hydractl.manifest.report import Report
from hydractl.manifest.terms import SetMethod, Temperature
from hydractl.metrics.conformal import fewest_samples, nonconformity, quantile
from hydractl.metrics.per_sample import Responses
from hydractl.prediction.class_names import Naming
from hydractl.provenance.command_config import config_digest
from hydractl.stages.evaluate.config import NO_SETS, EvalConfig, SetOptions
from hydractl.stages.evaluate.run import run_eval
from hydractl.stages.export.config import ExportConfig
from hydractl.stages.export.run import run_export
from hydractl.stages.fuse.config import FuseConfig
from hydractl.stages.fuse.run import run_fuse
from hydractl.stages.predict.config import PredictConfig
from hydractl.stages.predict.run import run_predict
from hydractl.stages.prune.config import PruneConfig
from hydractl.stages.prune.run import run_prune
from support.builders import base, mask_file
from support.pairs import pair
from support.predictions import predicted_lines
from support.progress_log import ProgressLog
from support.text_folders import save_text_model
from support.variants import PLAIN, of_depth, variant

HELD = "digits::split=val,classes=0-6"
TEST = "digits::split=test,classes=0-6"
QUICK = {"latency": False, "bootstrap": 0, "device": "cpu", "metrics": ("accuracy",)}
LEVEL = 0.8


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    made = tmp_path_factory.mktemp("models")
    base().save(made / "base.st")
    for i in range(2):
        base().pruned((0, 1), (2,), (0, 3)).tuned(i).save(made / f"m{i}.st")
    members = (str(made / "m0.st"), str(made / "m1.st"))
    run_fuse(FuseConfig(models=members, out=made / "hydra.st", verify=False))
    return made


def evaluated(
    models, model, progress_log=None, *, data=HELD, sets=LEVEL, method=None, by_class=False, **given
):
    options = SetOptions(sets=sets, set_method=method, sets_by_class=by_class)
    settings = {
        **QUICK,
        "model": str(models / model),
        "data": DataRef.parse(data),
        "set_options": options,
    }
    return run_eval(EvalConfig(**(settings | given)), progress_log or ProgressLog()).document


@pytest.fixture(scope="module")
def stored(models):
    """Fitted prediction sets; the hydra's copy `copy.st` stores them with a temperature."""
    return (
        evaluated(
            models, "hydra.st", temperature=0.5, save_model=models / "copy.st", out=models / "report.json"
        )
        .rows[0]
        .sets
    )


def lines(models, model, data=TEST, **settings):
    return predicted_lines(models, model, data, **settings)


def test_they_are_fitted_on_mean_probabilities_after_temperature_scaling(models, stored):
    header = Checkpoint.open(models / "copy.st").header
    rule = header.prediction_sets
    assert rule == stored.rule
    assert (rule.method, rule.coverage, rule.count, header.temperature) == ("lac", LEVEL, 252, 0.5)
    assert header.made_by.inputs[1].sha256 == rule.data.sha256
    assert (header.made_by.options["sets"], header.made_by.options["set_method"]) == (LEVEL, "lac")
    held = lines(models, "copy.st", HELD, top_k=7)
    report = Report.read(models / "report.json")
    assert report.rows[0].sets == stored
    assert report.options["sets"] == LEVEL
    labels = [int(name) for name in labels_of(HELD)]
    by_name = [{one["label"]: one["probability"] for one in line["top"]} for line in held]
    scores = torch.tensor([1 - p[str(y)] for p, y in zip(by_name, labels, strict=True)], dtype=torch.float64)
    assert rule.thresholds[0] == pytest.approx(quantile(scores, LEVEL), abs=1.1e-6)
    assert stored.covered == sum(str(y) in line["set"] for line, y in zip(held, labels, strict=True))
    assert stored.covered >= 0.8 * 252
    assert stored.is_fitted_here


def labels_of(ref):
    items = open_items(DataRef.parse(ref), base().header.preprocess)
    return [items.class_names[label] for label in items.labels]


@pytest.mark.spread(cases=2)
@pytest.mark.parametrize("by_class", [False, True])
@pytest.mark.parametrize("method", SetMethod)
def test_eval_measures_what_predict_writes(models, method, by_class):
    """Compared on data that were not used for the fit, in each output format and in Python."""
    copy = models / f"{method}-{by_class}.st"
    evaluated(models, "hydra.st", method=method, by_class=by_class, save_model=copy)
    chosen = ("accuracy", "set_coverage", "set_size")
    row = evaluated(models, copy.name, data=TEST, sets=None, metrics=chosen).rows[0]
    numbers, coverage = row.sets, row.values["set_coverage"]
    told, labels = lines(models, copy.name), labels_of(TEST)
    sets = [line["set"] for line in told]
    header = open_model(str(copy)).header
    assert numbers.rule == header.prediction_sets
    assert len(numbers.rule.thresholds) == (7 if by_class else 1)
    assert numbers.count == len(sets) == len(labels)
    assert numbers.covered == sum(label in names for label, names in zip(labels, sets, strict=True))
    assert (numbers.empty, numbers.single) == tuple(sum(len(s) == n for s in sets) for n in (0, 1))
    assert numbers.mean_size == pytest.approx(sum(map(len, sets)) / len(sets))
    assert numbers.interval[0] < numbers.covered / numbers.count < numbers.interval[1]
    assert (coverage.value, coverage.low, coverage.high) == (
        numbers.covered / numbers.count,
        *numbers.interval,
    )
    assert row.values["set_size"].value == numbers.mean_size
    assert not numbers.is_fitted_here
    for one in numbers.classes:
        of_class = [s for s, label in zip(sets, labels, strict=True) if label == one.name]
        assert (one.count, one.hits) == (len(of_class), sum(one.name in s for s in of_class))
    out = models / "sets.csv"
    out.unlink(missing_ok=True)
    run_predict(PredictConfig(model=str(copy), data=(TEST,), out=out, device="cpu"))
    with out.open(newline="") as file:
        assert [json.loads(row["set"]) for row in csv.DictReader(file)] == sets
    (models / "sets.parquet").unlink(missing_ok=True)
    run_predict(PredictConfig(model=str(copy), data=(TEST,), out=models / "sets.parquet", device="cpu"))
    assert [json.loads(cell) for cell in pq.read_table(models / "sets.parquet")["set"].to_pylist()] == sets

    model, inputs = hydractl.load(copy), base().inputs(batch=5)
    predictions = model.predict(inputs)
    scores = nonconformity(
        predictions.probabilities, method, penalty=numbers.rule.penalty, rank=numbers.rule.rank
    )
    assert torch.equal(predictions.sets, scores <= torch.tensor(numbers.rule.thresholds).double())
    assert hydractl.load(models / "hydra.st").predict(inputs).sets is None
    assert "set" not in lines(models, "hydra.st")[0]


def test_empty_sets_and_sets_of_one_class_are_counted_apart():
    """Sets come from the mean of two members; sets of the single members differ."""
    probs = torch.tensor([
        [[0.9, 0.1, 0.0], [0.6, 0.3, 0.1], [0.0, 0.1, 0.9], [0.5, 0.5, 0.0]],
        [[0.9, 0.0, 0.1], [0.0, 0.4, 0.6], [0.0, 0.9, 0.1], [0.5, 0.5, 0.0]],
    ])  # fmt: skip
    data = Fingerprint(reference="held-out", sha256=f"sha256:{'0' * 64}")
    other = data.model_copy(update={"sha256": f"sha256:{'1' * 64}"})
    rule = PredictionSets(method=SetMethod.LAC, coverage=0.5, thresholds=(0.55,), count=9, data=other)
    labels = torch.tensor([0, 0, 1, 2])
    numbers = measure_sets(rule, Responses(probs.log()), labels, ("a", "b", "c"), data)
    assert (numbers.empty, numbers.single, numbers.covered, numbers.mean_size) == (1, 1, 2, 5 / 4)
    assert [(one.name, one.hits, one.count) for one in numbers.classes] == [
        ("a", 1, 2),
        ("b", 1, 1),
        ("c", 0, 1),
    ]
    assert "of class c the fewest, 0 of 1; 25.0 % are empty, 25.0 % have one class" in numbers.summary


def test_every_row_has_its_own_or_those_that_its_model_stores(models, stored):
    compare = (
        NamedModels(name="copy", models=(str(models / "copy.st"),)),
        NamedModels(name="both", models=(str(models / "copy.st"), str(models / "m0.st"))),
    )
    fitted, copy, both = evaluated(models, "hydra.st", compare=compare).rows
    assert len({row.sets.rule.thresholds for row in (fitted, copy, both)}) == 3
    again = copy.sets.rule  # refitted on the same data at the same temperature
    assert again.thresholds == pytest.approx(stored.rule.thresholds, abs=1e-6)
    assert (again.data, again.count) == (stored.rule.data, 252)
    plain, copy, both = evaluated(models, "hydra.st", data=TEST, sets=None, compare=compare).rows
    assert (plain.sets, copy.sets.rule, both.sets) == (None, stored.rule, None)


def test_what_changes_the_model_drops_them(models, stored):
    member = hydractl.load(models / "base.st")
    member.header = member.header.model_copy(update={"prediction_sets": stored.rule})
    member.save(models / "set.st")
    assert Checkpoint.open(models / "set.st").header.prediction_sets == stored.rule
    progress_log = ProgressLog()
    mask = mask_file(models / "mask.json", base().header, (0, 1), (2,), (0, 3))
    prune = PruneConfig(model=str(models / "set.st"), masks=(mask,), out=models / "pruned.st", verify=False)
    run_prune(prune, progress_log)
    run_fuse(
        FuseConfig(models=(str(models / "set.st"),), out=models / "fused.st", verify=False), progress_log
    )
    for name in ("pruned.st", "fused.st"):
        assert open_model(str(models / name)).header.prediction_sets is None
    assert sum("its prediction sets are not kept" in warning for warning in progress_log.warnings) == 2


def test_another_temperature_or_length_drops_them(models, stored):
    def copied(name, **given):
        (models / name).unlink(missing_ok=True)
        document = evaluated(
            models, "copy.st", progress_log := ProgressLog(), sets=None, save_model=models / name, **given
        )
        dropped = [w for w in progress_log.warnings if "its prediction sets are not" in w]
        return Checkpoint.open(models / name).header.prediction_sets, document.rows[0].sets, dropped

    kept, measured, dropped = copied("same.st", temperature=1.0)
    assert (kept, measured.rule, dropped) == (stored.rule, stored.rule, [])
    kept, measured, dropped = copied("warm.st", temperature=2.0)
    assert (kept, measured) == (None, None)
    assert "its prediction sets are not measured: they are not valid for another temperature" in dropped[0]
    assert "its prediction sets are not kept: they are not valid for another temperature" in dropped[1]
    (models / "risky.st").unlink(missing_ok=True)
    evaluated(models, "copy.st", sets=None, threshold_for=0.95, delta=0.2, save_model=models / "risky.st")
    both = Checkpoint.open(models / "risky.st").header
    assert both.prediction_sets == stored.rule
    assert both.threshold is not None


def test_sets_of_other_classes_are_not_applied(tmp_path):
    """A zero-shot model may be given other classes than the stored ones."""
    digits = "digits::classes=0-4,limit=80"
    names = ("0", "1", "2", "3", "4")
    members = (str(pair("clip", tmp_path).save(tmp_path / "base.st")),)
    named = Naming(names=names, templates=("a photo of a {label} .",))
    run_fuse(FuseConfig(models=members, out=tmp_path / "hydra.st", naming=named, verify=False))
    copy = tmp_path / "copy.st"
    document = evaluated(tmp_path, "hydra.st", data=digits, save_model=copy)
    assert open_model(str(copy)).header.prediction_sets == document.rows[0].sets.rule
    assert set(lines(tmp_path, "copy.st", digits)[0]["set"]) <= {*names}

    others = Naming(names=names, templates=("the big {label}",))
    progress_log = ProgressLog()
    assert (
        evaluated(tmp_path, "copy.st", progress_log, data=digits, sets=None, naming=others).rows[0].sets
        is None
    )
    assert any("they are not valid for other classes" in warning for warning in progress_log.warnings)
    run_predict(
        PredictConfig(model=str(copy), data=(digits,), out=tmp_path / "o.jsonl", device="cpu", naming=others),
        progress_log,
    )
    assert "set" not in json.loads((tmp_path / "o.jsonl").read_text().splitlines()[0])
    assert (
        f"{copy}: its prediction sets are valid only for the classes that it stores, and not applied"
        in progress_log.warnings
    )
    assert hydractl.load(copy, templates=["the big {label}"]).header.prediction_sets is None


def test_another_length_of_texts_drops_them(models):
    model_file = open_model(str(models / "hydra.st"))
    assert why_invalid(model_file, Temperature(), shortened=False) is None
    assert why_invalid(model_file, Temperature(), shortened=True) == "another `--max-length`"


def test_a_report_with_sets_is_another_report(models):
    options = (NO_SETS, SetOptions(sets=0.9), SetOptions(sets=0.8), SetOptions(sets=0.9, set_method="aps"))
    base_config = EvalConfig(model=str(models / "hydra.st"), data=DataRef.parse(HELD))
    assert len({config_digest(replace(base_config, set_options=one)) for one in options}) == 4
    assert config_digest(base_config) == config_digest(replace(base_config, set_options=NO_SETS))


def test_measured_on_the_data_of_the_fit_they_are_said_to_be(models, stored):
    progress_log = ProgressLog()
    document = evaluated(models, "copy.st", progress_log, sets=None)
    count = document.data["id"].count
    caveat = (
        f"copy: its conformal quantile was fitted on {count} of {count} samples of `--data`: the coverage of prediction sets "
        "will be too good"
    )
    assert caveat in document.warnings
    assert document.rows[0].sets == stored
    assert caveat not in evaluated(models, "copy.st", data=TEST, sets=None).warnings


def test_too_few_samples_are_refused_with_the_number_that_is_needed(models, capsys):
    few = "digits::split=val,classes=0-6,limit=40"
    options = ["--no-latency", "--bootstrap", "0", "--device", "cpu", "--save-model", str(models / "few.st")]
    model = str(models / "base.st")
    assert main(["eval", model, "--data", few, "--sets", "0.98", *options]) == 3
    assert "`--sets 0.98` needs at least 49 samples, but `--data` has 40" in capsys.readouterr().err
    assert main(["eval", model, "--data", few, "--sets", "0.9", "--sets-by-class", *options]) == 3
    seen = capsys.readouterr().err
    assert "`--sets 0.9` needs at least 9 samples of each class with `--sets-by-class`, but" in seen
    assert not (models / "few.st").exists()
    counts = evaluated(models, "base.st", data=few, sets=0.97).rows[0].sets
    assert counts.count == 40 >= fewest_samples(0.97)


@pytest.mark.more
@pytest.mark.newer  # export needs torch 2.8
def test_an_exported_model_says_what_its_sets_are(models, stored):
    onnx = pytest.importorskip("onnxruntime")
    # A hydra of three blocks takes three times as long.
    one, out = base(of_depth(PLAIN, 1)), models / "one.onnx"
    header = one.header.model_copy(update={"prediction_sets": stored.rule})
    model = replace(one, header=header).save(models / "one.st")
    run_export(ExportConfig(model=str(model), out=out), ProgressLog())
    said = onnx.InferenceSession(out).get_modelmeta().custom_metadata_map["hydractl.prediction_sets"]
    assert PredictionSets.model_validate_json(said) == stored.rule
    progress_log, small = ProgressLog(), models / "small.onnx"
    run_export(
        ExportConfig(model=str(model), out=small, quantize="int8", data="digits::classes=0-6,limit=9"),
        progress_log,
    )
    said = onnx.InferenceSession(small).get_modelmeta().custom_metadata_map["hydractl.prediction_sets"]
    assert said == "null"
    assert any("its prediction sets are not exported" in warning for warning in progress_log.warnings)


@pytest.mark.spread(cases=1)
@pytest.mark.parametrize("method", [SetMethod.LAC, SetMethod.APS])
@torch.inference_mode()
def test_the_auto_class_has_those_that_predict_has(models, tmp_path, method):
    evaluated(models, "hydra.st", method=method, save_model=tmp_path / "s.st")
    ours = hydractl.load(tmp_path / "s.st")
    folder = ours.save_pretrained(tmp_path / "folder")
    theirs = AutoModelForImageClassification.from_pretrained(folder).eval()
    items = open_items(DataRef.parse(f"{TEST},limit=60"), ours.header.preprocess)
    pictures = [items.image(i) for i in range(len(items))]

    expected = ours.predict(pictures).sets
    found = theirs(ours.encode(pictures))

    assert torch.equal(found.sets, expected)
    assert 1 < expected.sum(1).float().mean() < 7
    batch = ours.encode(pictures)
    program = torch.export.export(theirs, (batch,))
    assert torch.equal(program.module()(batch).sets, expected)
    assert theirs(batch[:0]).sets.shape == (0, 7)
    batch[1] = torch.nan
    assert torch.equal(theirs(batch).sets, expected & (torch.arange(len(items)) != 1)[:, None])
    assert theirs.train()(batch).sets is None


def test_all_that_tells_a_model_tells_its_sets(models, stored, capsys):
    assert main(["inspect", str(models / "copy.st")]) == 0
    promise = "at least 80 % of inputs have their class in the set"
    assert promise in " ".join(capsys.readouterr().out.split())
    assert main(["report", str(models / "report.json"), "-o", str(models / "page.md"), "--force"]) == 0
    assert f"hydra: {stored.summary}." in (models / "page.md").read_text()
    shown = ["--no-latency", "--bootstrap", "0", "--metrics", "accuracy", "--device", "cpu"]
    assert main(["eval", str(models / "copy.st"), "--data", TEST, *shown]) == 0
    assert "copy: sets of" in (seen := " ".join(capsys.readouterr().out.split()))
    assert "95 % interval" in seen


def test_documents_are_checked(stored):
    written = stored.model_dump(mode="json")
    assert SetNumbers.model_validate_json(json.dumps(written)) == stored
    assert "penalty" not in written["rule"]
    for change, message in (
        ({"method": "raps"}, "penalty, rank: required by `raps`"),
        ({"rank": 3}, "penalty, rank: required by `raps`, else excluded"),
        ({"coverage": 1.0}, "less than 1"),
        ({"thresholds": []}, "at least 1"),
    ):
        with pytest.raises(ValidationError, match=message):
            PredictionSets.model_validate_json(json.dumps(written["rule"] | change))
    with pytest.raises(ValidationError, match="must not exceed count"):
        SetNumbers.model_validate_json(json.dumps(written | {"covered": stored.count + 1}))
    header = base().header.model_dump(mode="json", by_alias=True)
    header["prediction_sets"] = written["rule"] | {"thresholds": [0.1, 0.2]}
    with pytest.raises(ValidationError, match="must be one, or one for each class"):
        type(base().header).model_validate_json(json.dumps(header))


REFUSED = {
    "a percentage": (["--sets", "90"], "write 90 % as 0.9"),
    "no level": (["--set-method", "aps"], "`--set-method` has no effect without `--sets"),
    "classes alone": (["--sets-by-class"], "`--sets-by-class` has no effect without `--sets"),
    "another method": (["--sets", "0.9", "--set-method", "asp"], "did you mean `aps`?"),
    "a penalty of another": (
        ["--sets", "0.9", "--set-method", "aps", "--raps-penalty", "1"],
        "`--raps-penalty` has no effect without `--set-method raps`",
    ),
}


@pytest.mark.parametrize(("options", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(models, capsys, options, message):
    assert main(["eval", str(models / "base.st"), "--data", HELD, *options]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.more
def test_a_check_may_be_of_their_coverage_on_other_data(models, stored, capsys):
    checks = {
        ("copy.st", TEST, "set_coverage>0"): (5, "set_coverage>0"),
        ("copy.st", TEST, "set_size>7"): (0, ""),
        ("copy.st", HELD, "set_coverage<0.5"): (3, "copy has no set_coverage on these data"),
        ("hydra.st", TEST, "set_coverage<0.5"): (2, "stores no prediction sets"),
    }
    for (model, data, condition), (code, message) in checks.items():
        words = ("--data", data, "--fail-if", condition, "--no-latency", "--device", "cpu", "-q")
        assert main(["eval", str(models / model), *words]) == code
        assert message in capsys.readouterr().err


def test_at_another_length_of_texts_they_are_not_applied(tmp_path):
    """Neither sets nor threshold are valid for texts truncated to another length."""
    save_text_model(variant("transformers-bert-plain"), tmp_path / "bert")
    rows = [{"text": " ".join(["cat"] * (1 + i % 9)), "label": i % 7} for i in range(60)]
    data = tmp_path / "texts.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    evaluated(
        tmp_path, "bert", data=str(data), threshold_for=0.99, delta=0.5, save_model=tmp_path / "copy.st"
    )
    whole = lines(tmp_path, "copy.st", str(data))[0]
    assert {"set", "accepted"} <= {*whole}
    run_predict(
        PredictConfig(
            model=str(tmp_path / "copy.st"),
            data=(str(data),),
            out=tmp_path / "short.jsonl",
            device="cpu",
            max_length=4,
        ),
        progress_log := ProgressLog(),
    )
    short = json.loads((tmp_path / "short.jsonl").read_text().splitlines()[0])
    assert {*whole} - {*short} == {"set", "accepted"}
    assert any("valid only for the length of texts that it stores" in w for w in progress_log.warnings)
