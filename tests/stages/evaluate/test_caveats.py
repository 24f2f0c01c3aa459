"""Warnings in reports: samples used twice, small data sets, models trained on the test data."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from hydractl.data.datasets import DIGEST
from hydractl.data.reference import DataRef
from hydractl.evaluation.caveats import data_warnings, row_warnings, tuned_on_ood
from hydractl.evaluation.options import NamedData, NamedModels
from hydractl.families.open_model import open_model
from hydractl.manifest.document import Fingerprint
from hydractl.manifest.head_mask import HeadImportance, TowerImportance
from hydractl.manifest.header import InputFile, Step
from hydractl.manifest.report import Report, Row
from hydractl.metrics.compute import Measurement
from hydractl.metrics.resampling import Resampling
from hydractl.prediction.open_inputs import Identity
from hydractl.provenance.output import importance_step
from hydractl.stages.evaluate.config import EvalConfig
from hydractl.stages.evaluate.run import run_eval
from hydractl.stages.fuse.config import FuseConfig
from hydractl.stages.fuse.run import run_fuse
from support.builders import base, sha
from support.progress_log import ProgressLog

ID = DataRef.parse("digits::split=test,classes=0-6")
NEAR = (
    NamedData.parse("few=digits::classes=7,limit=40"),
    NamedData.parse("many=digits::classes=8-9,limit=120"),
    NamedData.parse("own=digits::split=test,classes=0-4,limit=100"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A base, and a fine-tuned member."""
    found = tmp_path_factory.mktemp("models")
    base().save(found / "base.st")
    base().pruned((0, 1), (1, 2, 3), (0,)).tuned(0).save(found / "member.st")
    return found


def config(folder, **changes):
    given = {"model": str(folder / "base.st"), "data": ID, "latency": False, "bootstrap": 4, "device": "cpu"}
    return EvalConfig(**(given | changes))


def test_a_report_holds_the_warnings_that_were_said(folder):
    heldout = DataRef.parse("digits::split=test,classes=0-6,limit=60")

    document = run_eval(config(folder, near=NEAR, temperature=heldout), ear := ProgressLog()).document

    few = "with 40 samples, FPR95 depends on the 3 hardest samples; use at least 100"
    assert document.warnings == (
        "100 of 100 samples of `own` are also in `--data`, so OOD metrics on it are too low",
        "60 of 60 samples of `--temperature` are also in `--data`: calibration errors will be too low",
        "`--temperature` is fitted on 60 samples, which gives a rough estimate; use at least 100",
        f"`few`: {few}",
    )
    assert [said for said in ear.warnings if said in document.warnings] == list(document.warnings)
    assert Report.from_json(document.to_json(), place="it") == document


def test_nothing_is_said_of_data_that_are_as_they_should_be(folder):
    document = run_eval(config(folder, near=NEAR[1:2])).document

    assert document.warnings == ()
    assert "warnings" not in document.to_json()


def test_small_id_sets_have_coarse_rates(folder):
    small = DataRef.parse("digits::split=test,classes=0-6,limit=64")

    document = run_eval(config(folder, data=small, near=NEAR[1:2])).document

    assert document.warnings == (
        "`--data`: with 64 samples, FPR95 changes in steps of 1.6 %; use at least 100",
    )
    assert run_eval(config(folder, data=small, near=NEAR[1:2], metrics=("auroc",))).document.warnings == ()


def lineage_step(command, *inputs, **options):
    files = [InputFile(name=name, sha256=sha(name), made_by=step) for name, step in inputs]
    return Step(command=command, options=options, inputs=tuple(files))


def identity(name, content):
    return Identity(Fingerprint(reference=name, sha256=sha(name)), np.array(content, DIGEST))


def measurement(*ood):
    return Measurement(("auroc",), ("msp",), Resampling(resamples=4), {"all": ood})


def warnings_of_row(*steps):
    models = [SimpleNamespace(header=base().header.model_copy(update={"made_by": step})) for step in steps]
    data = {name: identity(name, [i, i + 10]) for i, name in enumerate(("id", "few", "many", "temperature"))}
    row = Row(name="Hydra", models=(), members=1, values={})
    return list(row_warnings(measurement("few", "many"), row, models, data)), tuned_on_ood(models)


def test_what_a_model_was_made_with_is_told(folder):
    """Training steps anywhere in the lineage of any model of the row count. Data of `eval --save-model` do not."""
    scored = lineage_step("score", ("few", None), objective="avg")
    member = lineage_step(
        "prune", ("base.st", lineage_step("finetune", ("id", None))), ("scores.json", scored)
    )

    said, tuned = warnings_of_row(
        lineage_step("fuse", ("other.st", None)), lineage_step("fuse", ("member.st", member))
    )

    assert said == [
        "Hydra: `hydractl finetune` used 2 of 2 samples of `--data`, so results on new data may be worse",
        "Hydra: `hydractl score` used 2 of 2 samples of `few`, so results on new data may be worse",
    ]
    assert tuned
    assert warnings_of_row(lineage_step("eval", ("id", None)), lineage_step("finetune", ("train", None), ("temperature", None)), None) == (
        [],
        False,
    )  # fmt: skip


def test_what_is_stored_is_not_tested_on_what_it_was_found_on(folder):
    """Later copies and `fuse` keep the warning. Values typed by the user or dropped by `fuse` cause none."""
    tested = DataRef.parse("digits::split=test,classes=0-6,limit=110")
    other = DataRef.parse("digits::split=val,classes=0-6,limit=110")
    asked = {"metrics": ("accuracy",), "bootstrap": 0}

    def store(model, name, **given):
        run_eval(config(folder, model=str(folder / model), save_model=folder / name, **(asked | given)))

    def relevant_warnings(model):
        run = config(folder, model=str(folder / model), data=tested, name="m", **asked)
        return [line for line in run_eval(run).document.warnings if "eval" in line or "was fitted on" in line]

    store("member.st", "warm.st", data=other, temperature=tested)
    store("warm.st", "warmer.st", data=other, temperature=2.0)
    store("member.st", "choosy.st", data=tested, threshold_for=0.95, delta=0.2)
    store("choosy.st", "both.st", data=other, threshold_for=0.95, delta=0.2)
    store("member.st", "given.st", data=tested, temperature=2.0)
    for model, out in (("warm.st", "fused.st"), ("choosy.st", "dropped.st")):
        run_fuse(FuseConfig(models=(str(folder / model),), out=folder / out, verify=False))

    calibrated = [
        "m: its temperature was fitted on 110 of 110 samples of `--data`: calibration errors will be too low"
    ]
    assert (
        relevant_warnings("warm.st")
        == relevant_warnings("warmer.st")
        == relevant_warnings("fused.st")
        == calibrated
    )
    assert relevant_warnings("choosy.st") == [
        "m: its threshold was fitted on 110 of 110 samples of `--data`: its error rate will be too low"
    ]
    assert [relevant_warnings(f"{name}.st") for name in ("both", "given", "dropped", "member")] == [[]] * 4


@pytest.mark.parametrize(
    ("objective", "tuned"), [("acc", False), ("0.5*acc+0.5*auroc", True), ("of later days", False)]
)
def test_objectives_that_rank_ood_samples_mark_a_row(folder, objective, tuned):
    assert (
        warnings_of_row(lineage_step("prune", ("scores", lineage_step("score", objective=objective))))[1]
        == tuned
    )


def test_scores_say_what_they_are_of(folder):
    data = {
        "ood": Fingerprint(reference="birds/::limit=5", sha256=sha("birds")),
        "id": Fingerprint(reference="/home/me/val", sha256=sha("val")),
    }
    scores = HeadImportance(
        method="circuit",
        objective="avg",
        options={},
        model=Fingerprint(reference="base.st", sha256=sha("base")),
        architecture="vit",
        data=data,
        towers={"vit": TowerImportance(scores=((1.0,),))},
        tool="it",
    )

    step = importance_step(scores, open_model(str(folder / "member.st")))

    assert step.options == {"method": "circuit", "objective": "avg"}
    assert [(file.name, file.sha256) for file in step.inputs] == [
        ("base.st", sha("base")),
        ("val", sha("val")),
        ("birds::limit=5", sha("birds")),
    ]


def test_compared_rows_have_paired_differences(folder):
    """A model compared with itself differs by exactly 0 on every resample, because resamples are paired."""
    itself, other = (
        NamedModels.parse(f"{n}={folder / file}")
        for n, file in (("same", "base.st"), ("member", "member.st"))
    )
    document = run_eval(config(folder, near=NEAR[1:2], compare=(itself, other), bootstrap=50)).document
    first, same, member = document.rows

    assert first.difference is None
    for name in ("accuracy", "brier", "nll"):
        found = same.difference.values[name]
        assert (found.low, found.value, found.high) == (0, 0, 0)
        expected = first.values[name].value - member.values[name].value
        assert member.difference.values[name].value == pytest.approx(expected)
        assert member.difference.values[name].low < member.difference.values[name].high
    assert {*same.difference.values} == {
        *("accuracy", "brier", "nll", "ece", "adaptive_ece", "aurc", "augrc", "risk80", "coverage5")
    }
    assert (same.difference.ood["many"]["auroc"].low, same.difference.ood["many"]["auroc"].high) == (0, 0)
    assert {*same.difference.ood["many"]} == {"auroc", "accepted95", "fpr95", "aupr"}


def test_without_intervals_there_are_no_differences(folder):
    document = run_eval(
        config(folder, bootstrap=0, compare=(NamedModels.parse(f"same={folder / 'base.st'}"),))
    ).document

    assert document.rows[1].difference is None
    assert "difference" not in document.to_json()


def test_what_is_shared_is_counted_where_it_would_be_told():
    """A sample of the ID set that appears twice among three OOD samples counts twice."""
    data = {"id": identity("id", [1, 4]), "few": identity("few", [1, 1, 2])}

    said = list(data_warnings(measurement("few"), data))

    assert said == ["2 of 3 samples of `few` are also in `--data`, so OOD metrics on it are too low"]
