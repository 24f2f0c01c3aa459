"""Feature-based OOD scores stored in checkpoints: bit-identical to fitted ones, without training data."""

from __future__ import annotations

import pytest
import torch

from hydractl.checkpoint import Checkpoint
from hydractl.cli.app import main
from hydractl.data.reference import DataRef
from hydractl.errors import InputError, UsageError
from hydractl.evaluation.options import Condition, NamedData, NamedModels
from hydractl.families.open_model import open_model
from hydractl.families.tower import Tower
from hydractl.manifest.report import Report
from hydractl.prediction.class_names import Classes, Naming, with_classes
from hydractl.stages.evaluate.config import EvalConfig
from hydractl.stages.evaluate.run import run_eval
from hydractl.stages.fuse.config import FuseConfig
from hydractl.stages.fuse.run import run_fuse
from hydractl.stages.predict.config import PredictConfig
from hydractl.stages.predict.run import run_predict
from support.builders import Sample, base
from support.pairs import pair
from support.predictions import SavedPredictions
from support.progress_log import ProgressLog

FIT, DATA = "digits::split=train,classes=0-6,limit=90", "digits::split=val,classes=0-6,limit=60"
OTHER = "digits::split=train,classes=0-6,limit=80"
NEAR = "digits::classes=7-8,limit=30"
K = 5
VAL = "digits::split=val,classes=0-6,limit=20"
FITTING = {"train": DataRef.parse(FIT), "val": DataRef.parse(VAL)}
FITTED = ("energy+density", "relative-mahalanobis", "mahalanobis", f"knn:k={K}", "vim")


def config(model, *compare, **changes):
    given = {
        "near": (NamedData.parse(f"others={NEAR}"),), "ood_score": (*FITTED, "msp"), "latency": False, "bootstrap": 3,
        "device": "cpu", "metrics": ("accuracy", "auroc", "fpr95"), "compare": tuple(map(NamedModels.parse, compare)),
    }  # fmt: skip
    return EvalConfig(model=str(model), data=DataRef.parse(DATA), **(given | changes))


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    """A hydra of two members, its first member, and copies of both with stored scores."""
    made = tmp_path_factory.mktemp("models")
    for i in range(2):
        base().pruned((0, 1), (2,), (0, 3) if i else (1,)).tuned(i).save(made / f"m{i}.st")
    run_fuse(FuseConfig(models=tuple(str(made / f"m{i}.st") for i in range(2)), out=made / "hydra.st"))
    for name in ("hydra", "m0"):
        run_eval(config(made / f"{name}.st", save_model=made / f"{name}-stored.st", **FITTING))
    return made


@pytest.fixture(scope="module")
def stored_and_fitted(model_folder):
    """Report and predictions with stored scores, then with newly fitted scores."""
    found = []
    for name, fitting in (("held", {}), ("fitted", FITTING)):
        paths = {
            "out": model_folder / f"{name}.json",
            "save_predictions": model_folder / f"{name}.safetensors",
        }
        row = f"pair={model_folder}/m0-stored.st,{model_folder}/hydra-stored.st"
        document = run_eval(config(model_folder / "hydra-stored.st", row, **paths, **fitting)).document
        found.append((document, SavedPredictions.load(paths["save_predictions"]).said))
    return found


def test_numbers_are_those_of_fitting_again_to_the_bit(stored_and_fitted):
    (held, said), (fitted, again) = stored_and_fitted

    for ours, theirs in zip(held.rows, fitted.rows, strict=True):
        assert (ours.values, ours.ood, ours.means) == (theirs.values, theirs.ood, theirs.means)
        assert ours.difference == theirs.difference
        for data in ("id", "others"):
            for score in FITTED:
                own = said[ours.name][data].scores[score]
                assert len(own.unique()) > 20
                assert torch.equal(own, again[ours.name][data].scores[score])


def test_a_report_says_that_they_are_stored_and_what_they_were_fitted_on(
    stored_and_fitted, model_folder, capsys
):
    (held, _), (fitted, _) = stored_and_fitted

    assert [len(row.stored_scores) for row in held.rows] == [1, 2]
    for own in (own for row in held.rows for own in row.stored_scores):
        assert own.data == fitted.data["fit"]
    assert "fit" not in held.data
    assert all(row.stored_scores == () for row in fitted.rows)
    assert Report.read(model_folder / "held.json") == held
    assert main(["inspect", str(model_folder / "held.json")]) == 0
    told = f"as stored in the checkpoint, fitted on {fitted.data['fit'].reference}, 90 samples"
    assert told in capsys.readouterr().out


DEFAULT = ("msp", "energy+density")


def test_the_default_is_measured_where_all_rows_hold_it(model_folder, tmp_path):
    """`auroc` without a suffix remains the value of `msp`; the threshold uses the default score."""
    held = run_eval(
        config(model_folder / "m0-stored.st", ood_score=None, threshold_for=0.95, delta=0.2)
    ).document
    named = run_eval(config(model_folder / "m0-stored.st", ood_score=DEFAULT)).document
    lacking = run_eval(
        config(model_folder / "m0-stored.st", f"x={model_folder}/m0.st", ood_score=None),
        progress_log := ProgressLog(),
    ).document

    assert held.ood_scores == DEFAULT
    assert held.rows[0].ood == named.rows[0].ood
    assert held.rows[0].threshold.score == "energy+density"
    assert lacking.ood_scores == ("msp",)
    assert lacking.rows[0].ood["others"]["auroc"] == held.rows[0].ood["others"]["auroc"]
    assert any("`--train TRAIN --val VAL` adds `energy+density`" in step for step in progress_log.steps)


def test_the_default_is_fitted_where_data_are_given(model_folder, tmp_path):
    """Fitted scores and the stored copy give equal numbers, and `--fail-if` accepts the default score."""
    condition = Condition.parse("auroc@energy+density[others]<0")
    given = {"ood_score": None, "fail_if": (condition,)}
    fitted = run_eval(
        config(
            model_folder / "m0.st",
            f"x={model_folder}/hydra.st",
            save_model=tmp_path / "s.st",
            **given,
            **FITTING,
        )
    ).document
    held = run_eval(config(tmp_path / "s.st", **given)).document

    assert fitted.ood_scores == held.ood_scores == DEFAULT
    assert fitted.rows[0].ood == held.rows[0].ood
    assert held.checks[0].found == held.rows[0].ood["others"]["auroc@energy+density"].value
    with pytest.raises(UsageError, match=r"the OOD score `energy\+density` is not measured"):
        run_eval(config(model_folder / "m0.st", **given))


def test_what_scores_keep_and_compute_is_part_of_a_row(model_folder):
    """A (D, D) matrix, C class means, the global mean, D weights, and four numbers to standardize."""
    sizes = {"metrics": ("auroc", "parameters", "macs")}
    plain = (
        run_eval(config(model_folder / "m0-stored.st", ood_score=("msp",), **sizes)).document.rows[0].values
    )
    held = run_eval(config(model_folder / "m0-stored.st", ood_score=DEFAULT, **sizes)).document.rows[0].values

    assert held["macs"].value - plain["macs"].value == 32 * 32 + 7 * 32
    assert held["parameters"].value - plain["parameters"].value == 32 * 32 + 7 * 32 + 32 + 32 + 4


def test_nothing_but_what_is_tested_goes_through_the_model(model_folder, monkeypatch):
    rows, run = [], Tower.forward
    monkeypatch.setattr(Tower, "forward", lambda self, x: rows.append(len(x)) or run(self, x))

    run_eval(config(model_folder / "m0-stored.st"))

    assert sum(rows) == 60 + 30


def test_data_that_are_given_win(model_folder, stored_and_fitted):
    other = run_eval(
        config(model_folder / "hydra-stored.st", train=DataRef.parse(OTHER), val=DataRef.parse(VAL))
    ).document

    assert other.data["fit"].count == 80
    assert other.rows[0].stored_scores == ()
    held = stored_and_fitted[0][0].rows[0].ood["others"]
    assert other.rows[0].ood["others"]["auroc@vim"] != held["auroc@vim"]


def test_a_threshold_is_stored_beside_the_scores_that_are_there(model_folder, tmp_path):
    kept = tmp_path / "kept.st"
    row = run_eval(
        config(
            model_folder / "m0-stored.st",
            ood_score=(f"knn:k={K}",),
            threshold_for=0.95,
            delta=0.2,
            save_model=kept,
        )
    ).document.rows[0]
    before, after = Checkpoint.open(model_folder / "m0-stored.st"), Checkpoint.open(kept)

    assert before.header.fitted == after.header.fitted
    assert {name.split("/")[1] for name in after.beside} == {*FITTED}
    assert all(torch.equal(before.tensor(name), after.tensor(name)) for name in before.beside)
    step = after.header.made_by
    assert "fitted" not in step.options
    told = tmp_path / "told.jsonl"
    run_predict(PredictConfig(model=str(kept), data=(DATA,), out=told, device="cpu"))
    assert told.read_text().count('"accepted":true') == row.threshold.accepted


def test_a_report_with_a_threshold_on_a_held_score_is_of_that_model(model_folder, tmp_path):
    out = tmp_path / "r.json"
    given = {"ood_score": (f"knn:k={K}",), "threshold_for": 0.95, "delta": 0.2, "out": out}
    row = run_eval(config(model_folder / "m0-stored.st", **given)).document.rows[0]
    told = tmp_path / "told.jsonl"

    run_predict(
        PredictConfig(
            model=str(model_folder / "m0-stored.st"), data=(DATA,), out=told, device="cpu", threshold=out
        )
    )

    assert told.read_text().count('"accepted":true') == row.threshold.accepted


@pytest.mark.parametrize(
    ("models", "lacking", "score"),
    [
        (("m0.st",), "m0.st", "mahalanobis"),
        (("m0-stored.st", "x={}/m0.st"), "m0.st", "mahalanobis"),
        (("m0-stored.st", "x={}/m0-stored.st,{}/hydra.st"), "hydra.st", "mahalanobis"),
        (("some.st",), "some.st", "vim"),
    ],
)
def test_a_model_without_a_score_is_named_before_anything_is_read(model_folder, models, lacking, score):
    if lacking == "some.st":
        some = {"ood_score": ("knn", "mahalanobis"), "save_model": model_folder / "some.st", "force": True}
        run_eval(config(model_folder / "m0.st", **some, train=DataRef.parse(FIT)))
    first, *others = (model.replace("{}", str(model_folder)) for model in models)
    scores = ("mahalanobis", "knn" if lacking == "some.st" else f"knn:k={K}", "vim")

    with pytest.raises(
        UsageError, match=f"{lacking}: `{score}` is feature-based and was not fitted"
    ) as caught:
        run_eval(config(model_folder / first, *others, ood_score=scores), ear := ProgressLog())

    assert "--train DATA" in caught.value.hint
    assert ear.steps == []


def test_scores_are_for_the_classes_that_are_stored(tmp_path):
    pair("clip", tmp_path).save(tmp_path / "clip.st")
    model_file = with_classes(open_model(str(tmp_path / "clip.st")), Classes(names=tuple("0123456")))
    Sample(model_file.header, model_file.checkpoint.tensors()).save(tmp_path / "named.st")
    given = {"ood_score": ("knn",)}
    run_eval(
        config(tmp_path / "named.st", save_model=tmp_path / "kept.st", **given, train=DataRef.parse(FIT))
    )

    kept = {"threshold_for": 0.99, "delta": 0.5, "out": tmp_path / "r.json"}
    assert run_eval(config(tmp_path / "kept.st", **kept, **given)).document.rows[0].stored_scores
    with pytest.raises(
        UsageError, match=("its feature-based OOD scores apply only to the classes that it stores")
    ) as caught:
        run_eval(config(tmp_path / "kept.st", naming=(other := Naming(templates=("a {label}",))), **given))
    assert "--train DATA" in caught.value.hint
    again = PredictConfig(
        model=str(tmp_path / "kept.st"), data=(DATA,), out=tmp_path / "p.jsonl", device="cpu", naming=other,
        threshold=tmp_path / "r.json", train=DataRef.parse(FIT),
    )  # fmt: skip
    with pytest.raises(
        InputError, match="its threshold is for the fitted OOD score that its model stores"
    ) as caught:
        run_predict(again)
    assert caught.value.hint == "leave out `--train` and use that model"


def test_being_tested_on_what_they_were_fitted_on_is_told(model_folder):
    near = (NamedData.parse(f"same={FIT}"),)

    document = run_eval(config(model_folder / "m0-stored.st", near=near)).document

    count = document.data["same"].count
    said = (
        f"m0-stored: its OOD scores were fitted on {count} of {count} samples of `same`: OOD metrics of feature-based "
        "scores will be too good"
    )
    assert said in document.warnings


def test_a_report_is_up_to_date_as_long_as_the_checkpoint_holds_the_same(model_folder, tmp_path, capsys):
    model, out = tmp_path / "m.st", tmp_path / "r.json"
    model.write_bytes((model_folder / "m0-stored.st").read_bytes())
    line = (
        "eval", str(model), "--data", DATA, "--near", f"others={NEAR}", "--ood-score", f"knn:k={K}", "--no-latency",
        "--device", "cpu", "-o", str(out), "--if-changed",
    )  # fmt: skip

    def said(*more):
        assert main([*line, *more]) == 0
        return "".join(capsys.readouterr())

    said()
    assert "up to date" in said()
    assert "it was made with other options" in said("--train", FIT)
    assert "it was made with other options" in said()
    run_eval(
        config(
            model_folder / "m0.st",
            save_model=model,
            force=True,
            train=DataRef.parse(OTHER),
            val=DataRef.parse(VAL),
        )
    )
    assert "`m.st` has changed" in said()
    assert Report.read(out).rows[0].stored_scores[0].data.count == 80


@pytest.mark.parametrize(
    ("changes", "message", "hint"),
    [
        ({"save_model": "again.st"}, "`--save-model`: the command fits nothing to store", "--train TRAIN"),
    ],
)
def test_what_has_no_effect_without_data_is_refused(tmp_path, changes, message, hint):
    if "store" in changes:
        changes = {"save_model": tmp_path / changes["save_model"]}
    with pytest.raises(UsageError, match=message) as caught:
        config("m.st", **changes)
    assert hint in caught.value.hint
