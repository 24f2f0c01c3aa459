"""Thresholds: fitted by `eval`, stored in reports and copies, applied by `predict`, dropped with the weights."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from pydantic import ValidationError

import hydractl
from hydractl.checkpoint import Checkpoint
from hydractl.cli.app import main
from hydractl.data.reference import DataRef
from hydractl.errors import InputError, UsageError
from hydractl.evaluation.options import NamedData
from hydractl.families.open_model import open_model
from hydractl.manifest.guarantees import Threshold
from hydractl.manifest.report import Report
from hydractl.manifest.terms import Guarantee
from hydractl.stages.evaluate.config import EvalConfig
from hydractl.stages.evaluate.run import run_eval
from hydractl.stages.fuse.config import FuseConfig
from hydractl.stages.fuse.run import run_fuse
from hydractl.stages.predict.config import PredictConfig, parse_threshold
from hydractl.stages.predict.run import run_predict
from hydractl.stages.prune.config import PruneConfig
from hydractl.stages.prune.run import run_prune
from support.builders import base, mask_file
from support.predictions import predicted_lines
from support.progress_log import ProgressLog

HELD = "digits::split=val,classes=0-6"
QUICK = {"latency": False, "bootstrap": 0, "device": "cpu", "metrics": ("accuracy",)}
RISK = 0.95  # high, because the model is untrained


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    made = tmp_path_factory.mktemp("models")
    base().save(made / "base.st")
    for i in range(2):
        base().pruned((0, 1), (2,), (0, 3)).tuned(i).save(made / f"m{i}.st")
    run_fuse(
        FuseConfig(models=(str(made / "m0.st"), str(made / "m1.st")), out=made / "hydra.st", verify=False)
    )
    return made


@pytest.fixture(scope="module")
def stored(models):
    """Fitted threshold; the hydra's copy `copy.st` stores it with a temperature."""
    config = EvalConfig(
        model=str(models / "hydra.st"), data=DataRef.parse(HELD), threshold_for=RISK, delta=0.2, temperature=2.0,
        ood_score=("entropy",), store=models / "copy.st", out=models / "report.json", **QUICK,
    )  # fmt: skip
    report = run_eval(config)
    report.require_checks()
    return report.document.rows[0].threshold


def lines(models, model, data=HELD, **settings):
    return predicted_lines(models, model, data, **settings)


def test_a_report_says_what_is_accepted_and_what_that_promises(models, stored):
    written = Report.from_json((models / "report.json").read_text(), place="report")

    assert written.rows[0].threshold == stored
    assert (stored.score, stored.risk, stored.delta, stored.count) == ("entropy", RISK, 0.2, 252)
    assert (written.options["threshold_for"], written.options["delta"]) == (f"risk<={RISK}", 0.2)
    assert 0 < stored.errors < stored.accepted < stored.count
    copy = Checkpoint.open(models / "copy.st").header
    assert (copy.threshold, copy.temperature, copy.made_by.command) == (stored, 2.0, "eval")
    assert copy.made_by.inputs[0].sha256 == Checkpoint.open(models / "hydra.st").digest


def test_predict_accepts_what_eval_counted(models, stored):
    found = lines(models, "copy.st")
    model = hydractl.load(models / "copy.st")

    accepted = [line["accepted"] for line in found]
    assert sum(accepted) == stored.accepted
    assert [line["ood_score"] < stored.below for line in found] == accepted
    assert [line["ood_score"] for line in found] == [line["entropy"] for line in found]
    inputs = base().inputs(batch=3)
    assert torch.equal(model.predict(inputs).accepted, model.predict(inputs).entropy < stored.below)
    assert hydractl.load(models / "hydra.st").predict(inputs).accepted is None
    assert "accepted" not in lines(models, "copy.st", threshold=parse_threshold("none"))[0]
    assert "accepted" not in lines(models, "hydra.st")[0]


@pytest.mark.usefixtures("stored")  # writes the report
def test_predict_takes_a_threshold_from_a_report_or_a_number(models):
    config = EvalConfig(
        model=str(models / "hydra.st"),
        data=DataRef.parse(HELD),
        threshold_for=RISK,
        delta=0.2,
        out=models / "plain.json",
        **QUICK,
    )
    found = run_eval(config).document.rows[0].threshold
    by_report = lines(models, "hydra.st", threshold=models / "plain.json")

    assert sum(line["accepted"] for line in by_report) == found.accepted
    assert lines(models, "hydra.st", threshold=found.below) == by_report
    with pytest.raises(
        InputError, match=r"report.json: its threshold is for the temperature 2, but .* stores 1"
    ):
        lines(models, "hydra.st", threshold=models / "report.json")
    with pytest.raises(
        InputError, match=(r"plain.json: is not a report of .*base.st, or the model has changed since")
    ):
        lines(models, "base.st", threshold=models / "plain.json")
    with pytest.raises(UsageError, match="`--ood-score mi`: the threshold is for `entropy`"):
        lines(models, "copy.st", ood_score="mi")
    with pytest.raises(
        UsageError, match=r"`--threshold 0\.9`: the OOD score `msp` is between -1 and 0"
    ) as caught:
        lines(models, "hydra.st", threshold=0.9)
    assert caught.value.hint == "to accept probabilities above 0.9, use `--threshold -0.9`"


def test_other_weights_drop_it(models, stored):
    member = hydractl.load(models / "base.st")
    member.header = member.header.model_copy(update={"threshold": stored})
    member.save(models / "answering.st")
    progress_log = ProgressLog()
    mask = mask_file(models / "mask.json", base().header, (0, 1), (2,), (0, 3))
    run_prune(
        PruneConfig(
            model=str(models / "answering.st"),
            masks=(mask,),
            out=models / "pruned.st",
            verify=False,
        ),
        progress_log,
    )
    run_fuse(FuseConfig(models=(str(models / "answering.st"),), out=models / "fused.st", verify=False))

    assert Checkpoint.open(models / "answering.st").header.threshold == stored
    assert open_model(str(models / "pruned.st")).header.threshold is None
    assert open_model(str(models / "fused.st")).header.threshold is None
    assert any("its threshold is not kept" in warning for warning in progress_log.warnings)


def evaluates(models, model, *options):
    return main([
        "eval", str(models / model), "--data", HELD, "--no-latency", "--bootstrap", "0", "--metrics", "accuracy", "--device", "cpu",
        *options,
    ])  # fmt: skip


def test_the_command_says_what_it_found_and_what_that_promises(models, capsys):
    assert evaluates(models, "base.st", "--threshold-for", f"risk<={RISK}", "--delta", "0.2") == 0
    seen = capsys.readouterr().out
    assert "base: accepts inputs whose msp is below -" in seen
    assert " wrong): with 80 % confidence, at most 95 % of the accepted inputs are answered wrongly" in seen
    assert evaluates(models, "base.st", "--threshold-for", "risk<=0.01") == 5
    seen = capsys.readouterr().err
    assert "satisfies this guarantee with 252 samples" in seen
    assert "use more samples (at least 300), allow more risk" in seen


def test_the_hint_has_no_number_of_samples_if_the_data_have_as_many(models, capsys):
    options = ("--threshold-for", "risk<=0.02", "--delta", "0.5")
    assert evaluates(models, "base.st", *options) == 5
    assert "use more samples, allow more risk" in capsys.readouterr().err


def test_too_few_samples_for_any_threshold_still_give_a_report_and_a_model(models):
    report, copy = models / "few.json", models / "few.st"
    few = ("--threshold-for", "risk<=0.01", "-o", str(report), "--store", str(copy))
    assert evaluates(models, "hydra.st", *few) == 5
    threshold = Report.read(report).rows[0].threshold
    assert threshold is not None
    assert (threshold.below, threshold.accepted) == (None, 0)
    assert open_model(str(copy)).header.threshold == threshold


def test_the_share_that_is_accepted_and_wrong_is_bounded_on_average(models, capsys):
    """This guarantee has no confidence level. Outputs of all commands contain the same sentence."""
    wrong = ("--threshold-for", "risk<=0.3", "--guarantee", "accepted-and-wrong")
    report, copy = models / "wrong.json", models / "wrong.st"
    assert evaluates(models, "hydra.st", *wrong, "-o", str(report), "--store", str(copy)) == 0
    promise = "on average over draws of the held-out samples, at most 30 % of all inputs are accepted and answered wrongly"
    assert promise in " ".join(capsys.readouterr().out.split())
    written = Report.from_json(report.read_text(), place="report")
    found = Checkpoint.open(copy).header.threshold
    assert (found.guarantee, found.delta, found.risk) == ("accepted-and-wrong", None, 0.3)
    assert written.rows[0].threshold == found
    assert (found.errors + 1) / 253 <= 0.3 < (found.errors + 2) / 253
    assert (written.options["guarantee"], "delta" in written.options) == ("accepted-and-wrong", False)

    assert main(["inspect", str(copy)]) == 0
    assert promise in " ".join(capsys.readouterr().out.split())
    assert sum(line["accepted"] for line in lines(models, "wrong.st")) == found.accepted
    assert lines(models, "hydra.st", threshold=report) == lines(models, "wrong.st")
    assert main(["report", str(report), "-o", str(models / "page.md")]) == 0
    assert (
        f"({100 * found.coverage:.1f} % of 252 samples, {found.errors} wrong): {promise}."
        in (models / "page.md").read_text()
    )


def test_where_no_threshold_keeps_the_risk_lines_say_null_and_the_command_why(models, capsys):
    copy, report = models / "none.st", models / "none.json"
    assert (
        evaluates(models, "base.st", "--threshold-for", "risk<=0.1", "--store", str(copy), "-o", str(report))
        == 5
    )
    seen = capsys.readouterr()
    why = (
        "no threshold on msp satisfies this guarantee with 252 samples: with 95 % confidence, at most 10 "
        "% of the accepted inputs are answered wrongly"
    )
    assert f"base: {why}" in " ".join(seen.out.split())
    assert f"error: `--threshold-for risk<=0.1`: base: {why}; {copy} stores this for `predict`" in seen.err
    stored = Checkpoint.open(copy).header.threshold
    assert (stored.below, stored.accepted, stored.count) == (None, 0, 252)
    assert "threshold" in hydractl.load(copy).header.to_metadata()
    assert hydractl.load(copy).predict(base().inputs(batch=2)).accepted is None

    told = lines(models, "none.st")
    assert {line["accepted"] for line in told} == {None}
    assert lines(models, "base.st", threshold=report) == told
    assert all("accepted" not in line for line in lines(models, "none.st", threshold=parse_threshold("none")))
    for form in ("csv", "parquet"):
        out = models / f"none.{form}"
        assert main(["predict", str(copy), HELD, "-o", str(out), "--device", "cpu", "--json"]) == 0
        seen = capsys.readouterr()
        assert seen.err.count(f"{copy}: `accepted` is null: {why}") == 1
        said = json.loads(seen.out)
        assert (said["accepted"], said["reason"]) == (None, f"{copy}: `accepted` is null: {why}")
    with (models / "none.csv").open(newline="") as file:
        assert {row["accepted"] for row in csv.DictReader(file)} == {""}
    column = pq.read_table(models / "none.parquet")["accepted"]
    assert (column.null_count, str(column.type)) == (252, "bool")


@pytest.mark.usefixtures("stored")
def test_where_no_threshold_is_stored_one_sentence_says_how_to_get_one(models):
    def hears(model, **settings):
        (models / "o.jsonl").unlink(missing_ok=True)
        config = PredictConfig(
            model=str(models / model), data=(HELD,), out=models / "o.jsonl", device="cpu", **settings
        )
        return run_predict(config, progress_log := ProgressLog()).reason, progress_log

    reason, progress_log = hears("hydra.st")
    path = models / "hydra.st"
    assert reason == (
        f"{path}: stores no threshold, so predictions have no column `accepted`; `hydractl eval {path} --data "
        "HELD_OUT --threshold-for 'risk<=0.05' --store PATH` stores one"
    )
    assert progress_log.steps.count(reason) == 1
    for silent in (
        hears("copy.st"),
        hears("hydra.st", threshold=-0.2),
        hears("hydra.st", threshold=parse_threshold("none")),
    ):
        assert silent[0] is None
        assert not any("stores no threshold" in step for step in silent[1].steps)


def test_a_file_of_before_has_the_first_guarantee(stored):
    """The default guarantee is not written to documents."""
    written = stored.model_dump(mode="json")
    assert "guarantee" not in written
    assert Threshold.model_validate_json(json.dumps(written)) == stored
    assert stored.guarantee is Guarantee.ERRORS_AMONG_ACCEPTED
    for change, message in (
        ({"guarantee": "accepted-and-wrong"}, "required by `errors-among-accepted`"),
        ({"delta": None}, "required by `errors-among-accepted`"),
        ({"below": None}, "below: required if and only if samples are accepted"),
    ):
        with pytest.raises(ValidationError, match=message):
            Threshold.model_validate_json(json.dumps(written | change))


def test_a_temperature_alone_can_be_stored(models):
    config = EvalConfig(
        model=str(models / "base.st"),
        data=DataRef.parse(HELD),
        temperature=1.5,
        store=models / "warm.st",
        **QUICK,
    )
    assert run_eval(config).paths == (models / "warm.st",)
    header = Checkpoint.open(models / "warm.st").header
    assert (header.temperature, header.threshold) == (1.5, None)
    assert header.base == Checkpoint.open(models / "base.st").digest


@pytest.mark.usefixtures("stored")
def test_what_else_is_stored_leaves_a_threshold_that_still_holds(models):
    """Another temperature, or a new fit of the threshold's own score, drops the threshold."""
    features = {"fit": DataRef.parse("digits::split=train,classes=0-6,limit=90")}
    told = {"near": (NamedData.parse("sevens=digits::classes=7,limit=20"),), "metrics": ("accuracy", "auroc")}

    def store(model, name, **given):
        (models / name).unlink(missing_ok=True)
        settings = {
            **QUICK,
            "model": str(models / model),
            "data": DataRef.parse(HELD),
            "store": models / name,
        }
        run_eval(EvalConfig(**(settings | given)), progress_log := ProgressLog())
        dropped = [warning for warning in progress_log.warnings if "its threshold is not kept" in warning]
        return Checkpoint.open(models / name).header.threshold, dropped

    own = Checkpoint.open(models / "copy.st").header.threshold
    assert own is not None
    assert store("copy.st", "same.st", temperature=1.0) == (own, [])
    assert store("copy.st", "knowing.st", ood_score=("knn",), **features, **told) == (own, [])
    found, said = store("copy.st", "warm.st", temperature=2.0)
    assert found is None
    assert "it is not valid for another temperature" in said[0]

    by_features, _ = store(
        "hydra.st", "near.st", ood_score=("knn",), threshold_for=RISK, delta=0.2, **features
    )
    assert by_features.score == "knn"
    assert store("near.st", "same.st", temperature=1.0) == (by_features, [])
    found, said = store("near.st", "anew.st", ood_score=("knn",), **features, **told)
    assert found is None
    assert "it is not valid for newly fitted scores" in said[0]


REFUSED = {
    "a percentage": (["--threshold-for", "risk<=5"], "write 1 % as 0.01: `--threshold-for 'risk<=0.05'`"),
    "no bound": (["--threshold-for", "risk"], "expected `risk<=R`"),
    "nothing to store": (["--store", "c.st"], "`--store`: the command fits nothing to store"),
    "delta alone": (["--delta", "0.1"], "`--delta` has no effect without `--threshold-for`"),
    "a guarantee alone": (
        ["--guarantee", "accepted-and-wrong"],
        "`--guarantee` has no effect without `--threshold-for`",
    ),
    "another guarantee": (
        ["--threshold-for", "risk<=0.1", "--guarantee", "accepted-and-wrnog"],
        "did you mean `accepted-and-wrong`?",
    ),
    "a confidence of what has none": (
        ["--threshold-for", "risk<=0.1", "--guarantee", "accepted-and-wrong", "--delta", "0.1"],
        "`--delta` has no effect with `--guarantee accepted-and-wrong`: that guarantee holds on average",
    ),
    "delta of 1": (["--threshold-for", "risk<=0.1", "--delta", "1"], "`--delta 1`: must be"),
}


@pytest.mark.parametrize(("options", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(models, capsys, options, message):
    assert main(["eval", str(models / "base.st"), "--data", HELD, *options]) == 2
    assert message in capsys.readouterr().err
    assert not Path("c.st").exists()
