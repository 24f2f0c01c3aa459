"""`eval --temperature`: fitted on held-out data per row, applied to all metrics."""

from __future__ import annotations

import json

import pytest
import torch

from hydractl.data.reference import DataRef
from hydractl.errors import DataError, OutputExists, UsageError
from hydractl.evaluation.options import Condition, NamedData, NamedModels
from hydractl.families.open_model import open_model
from hydractl.manifest.report import Report
from hydractl.metrics.compute import measure
from hydractl.metrics.registry import METRICS
from hydractl.metrics.resampling import Resampling
from hydractl.metrics.temperature import fit_temperature, scale_log_probs
from hydractl.prediction.class_names import Naming
from hydractl.stages.evaluate.config import EvalConfig
from hydractl.stages.evaluate.run import run_eval
from hydractl.stages.fuse.config import FuseConfig
from hydractl.stages.fuse.run import run_fuse
from hydractl.stages.options import parse_temperature
from support.builders import base
from support.digits_classifier import with_digits_classifier
from support.pairs import pair
from support.predictions import SavedPredictions
from support.progress_log import ProgressLog
from support.reviews import arch, gibberish, reviews

ID = DataRef.parse("digits::split=test,classes=0-6,limit=70")
HELDOUT = DataRef.parse("digits::split=val,classes=0-6,limit=60")
NEAR = (NamedData.parse("sevens=digits::classes=7,limit=30"),)
FAR = (NamedData.parse("noise::limit=25"),)
KEEP = (((0, 1), (1, 2, 3), (0,)), ((0, 2), (0, 1), (2, 3)), ((1, 3), (3,), ()))


def config(model, **changes):
    given = {
        "model": str(model), "data": ID, "latency": False, "bootstrap": 0, "batch_size": 32, "device": "cpu",
    }  # fmt: skip
    return EvalConfig(**(given | changes))


def numbers(values):
    return {name: value.value for name, value in values.items()}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A base, the base with logits three times as large, three members, and their hydra."""
    folder = tmp_path_factory.mktemp("models")
    with_digits_classifier(base(), 15).save(folder / "loud.st")
    with_digits_classifier(base(), 5).save(folder / "base.st")
    for i, keep in enumerate(KEEP):
        with_digits_classifier(base().pruned(*keep).tuned(i), 10).save(folder / f"m{i}.st")
    members = tuple(str(folder / f"m{i}.st") for i in range(3))
    run_fuse(FuseConfig(models=members, out=folder / "hydra.st", mlp="keep", verify=False))
    return folder


def rows_of(models):
    members = ",".join(str(models / f"m{i}.st") for i in range(3))
    return NamedModels.parse(f"apart={members}"), NamedModels.parse(str(models / "base.st"))


@pytest.fixture(scope="module")
def fitted(models):
    """Report and predictions with fitted temperatures, then without."""
    both = []
    for name, temperature in (("scaled", HELDOUT), ("plain", None)):
        report = run_eval(
            config(
                models / "hydra.st", near=NEAR, far=FAR, compare=rows_of(models), bootstrap=10, temperature=temperature,
                out=models / f"{name}.json", save_predictions=models / f"{name}-predictions.st",
            )
        )  # fmt: skip
        both.append((report.document, SavedPredictions.load(models / f"{name}-predictions.st")))
    return both


def test_the_saved_predictions_are_those_of_the_models_scaled(fitted):
    (report, scaled), (_, plain) = fitted

    for row in report.rows:
        temperature = row.values["temperature"].value
        assert scaled.log_probs[row.name].keys() == plain.log_probs[row.name].keys()
        for data, found in plain.log_probs[row.name].items():
            assert torch.equal(scaled.log_probs[row.name][data], scale_log_probs(found, temperature))


def test_every_number_follows_from_the_saved_predictions(fitted):
    report, saved = fitted[0]

    for row in report.rows:
        found = saved.of(row.name)
        again = measure(
            found.pop("id"), saved.labels["id"], found, metrics=tuple(report.definitions),
            scores=("msp",), resampling=Resampling(resamples=10),
        )  # fmt: skip

        own = {"parameters", "macs", "macs_textbook", "temperature"}
        assert again.values == {k: v for k, v in row.values.items() if k not in own}
        assert again.ood == row.ood


def test_the_temperature_is_fitted_on_the_split_and_on_nothing_else(models, fitted):
    report = fitted[0][0]
    found = run_eval(
        config(
            models / "hydra.st", data=HELDOUT, compare=rows_of(models), save_predictions=models / "held.st"
        )
    )
    held = SavedPredictions.load(models / "held.st")

    for row in report.rows:
        expected = fit_temperature(held.log_probs[row.name]["id"], held.labels["id"]).temperature
        assert row.values["temperature"].value == expected
        assert row.values["temperature"].count == 60
        assert 0.05 < expected < 20
    scaled = run_eval(
        config(models / "hydra.st", data=HELDOUT, temperature=HELDOUT, metrics=("nll",))
    ).document
    assert scaled.rows[0].values["nll"].value < found.document.rows[0].values["nll"].value


def test_a_hydra_has_the_temperature_of_its_members_apart(fitted):
    hydra, apart, single = fitted[0][0].rows

    assert hydra.values["temperature"].value == pytest.approx(apart.values["temperature"].value, rel=1e-3)
    assert hydra.values["temperature"].value != pytest.approx(single.values["temperature"].value, rel=1e-2)


def test_a_single_model_keeps_its_accuracy_and_every_row_its_costs(fitted):
    (scaled, _), (plain, _) = fitted

    assert scaled.rows[2].values["accuracy"].value == plain.rows[2].values["accuracy"].value
    assert scaled.rows[2].values["nll"].value != plain.rows[2].values["nll"].value
    for one, other in zip(scaled.rows, plain.rows, strict=True):
        assert one.values["macs"] == other.values["macs"]


def test_the_report_tells_the_split_and_the_definition(models, fitted):
    (scaled, _), (plain, _) = fitted

    assert scaled.data["temperature"].reference == "digits::classes=0-6,limit=60,split=val"
    assert scaled.data["temperature"].count == 60
    assert scaled.definitions["temperature"] == METRICS["temperature"].definition
    assert "temperature" not in scaled.options
    assert Report.read(models / "scaled.json") == scaled
    assert "temperature" not in (models / "plain.json").read_text()
    assert scaled.data.keys() - {"temperature"} == plain.data.keys()


def test_logits_times_three_end_near_the_others_as_far_as_the_prior_lets_them(models):
    ear = ProgressLog()
    loud, quiet = (
        run_eval(config(models / f"{name}.st", temperature=HELDOUT, near=NEAR), ear).document.rows[0]
        for name in ("loud", "base")
    )
    temperatures = [row.values.pop("temperature").value for row in (loud, quiet)]

    assert temperatures[1] < 1 < temperatures[0] < 3 * temperatures[1]
    assert numbers(loud.values)["nll"] == pytest.approx(numbers(quiet.values)["nll"], abs=0.02)
    assert not any("bound" in w for w in ear.warnings)


def test_a_number_is_used_as_it_is(models, fitted):
    fit = fitted[0][0].rows[0]
    value = fit.values["temperature"].value
    report = run_eval(
        config(models / "hydra.st", near=NEAR, far=FAR, bootstrap=10, temperature=value)
    ).document

    assert report.options["temperature"] == value
    assert report.data.keys() == {"id", "sevens", "noise"}
    assert report.rows[0].values["temperature"].count is None
    same = report.rows[0].model_copy(
        update={"values": report.rows[0].values | {"temperature": fit.values["temperature"]}}
    )
    assert same == fit


def test_one_changes_no_other_number(models, fitted):
    report = run_eval(config(models / "hydra.st", near=NEAR, far=FAR, bootstrap=10, temperature=1)).document
    row, plain = report.rows[0], fitted[1][0].rows[0]

    assert {k: v for k, v in row.values.items() if k != "temperature"} == plain.values
    assert (row.ood, row.means) == (plain.ood, plain.means)


@pytest.mark.more
def test_two_runs_give_the_same_bytes(models, tmp_path):
    for name in ("one", "two"):
        run_eval(
            config(
                models / "hydra.st", temperature=HELDOUT, out=tmp_path / f"{name}.json",
                save_predictions=tmp_path / f"{name}.st",
            )
        )  # fmt: skip

    for suffix in ("json", "st"):
        assert (tmp_path / f"one.{suffix}").read_bytes() == (tmp_path / f"two.{suffix}").read_bytes()


def test_a_condition_may_be_about_it_and_metrics_need_not_name_it(models):
    report = run_eval(
        config(
            models / "base.st",
            temperature=2.0,
            metrics=("ece",),
            fail_if=(Condition.parse("temperature>1.5"),),
        )
    ).document

    assert list(report.rows[0].values) == ["ece", "temperature"]
    assert report.checks[0].failed


def test_the_same_data_twice_are_warned_of(models):
    for temperature, warned in ((ID, True), (HELDOUT, False)):
        ear = ProgressLog()
        run_eval(config(models / "base.st", temperature=temperature, metrics=("nll",)), ear)

        assert any("` and `--data` have the same samples" in w for w in ear.warnings) == warned


def test_a_bound_is_warned_of_and_the_result_is_said(models, tmp_path):
    sample = base()
    state = sample.state | {
        "head.weight": torch.zeros_like(sample.state["head.weight"]),
        "head.bias": torch.tensor([0, 90.0, 0, 0, 0, 0, 0]),
    }
    path = type(sample)(sample.header, state).save(tmp_path / "stubborn.st")
    ear = ProgressLog()

    row = run_eval(
        config(path, temperature=DataRef.parse("digits::classes=0,limit=9"), metrics=("nll",)), ear
    ).document.rows[0]

    assert row.values["temperature"].value == 20
    assert "stubborn: temperature 20.0000, fitted on 9 samples" in ear.steps
    assert any(
        "stubborn: the fitted temperature is 20, a bound of the search (0.05 to 20): check that the labels fit the model"
        in w
        for w in ear.warnings
    )


# --- labels ----------------------------------------------------------------------------------------------------------


def test_labels_are_matched_by_name(models, tmp_path):
    sample = with_digits_classifier(base(), 5)
    flipped = dict(sample.state)
    for name in ("head.weight", "head.bias"):
        flipped[name] = flipped[name].flip(0)
    header = sample.header.model_copy(update={"labels": tuple("6543210")})
    type(sample)(header, flipped).save(tmp_path / "flipped.st")

    plain, named = (
        run_eval(config(m, temperature=HELDOUT)).document.rows[0]
        for m in (models / "base.st", tmp_path / "flipped.st")
    )

    assert numbers(named.values) == pytest.approx(numbers(plain.values), rel=1e-3)


@pytest.fixture
def texts(tmp_path, monkeypatch):
    """Folder with a tiny text model without class names, and reviews; the current directory."""
    monkeypatch.chdir(tmp_path)
    reviews(tmp_path / "test.jsonl", 30, seed=1)
    reviews(tmp_path / "val.jsonl", 30, seed=2)
    gibberish(tmp_path / "gibberish.jsonl", 10, seed=3)
    return tmp_path


def write_rows_of_label(path, label, *, called=None):
    """Write the rows with one label, renamed to `called`, to a file, and return the file's reference."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    new = path.with_name(f"{label}-{called}.jsonl")
    new.write_text(
        "".join(json.dumps(r | {"label": called or label}) + "\n" for r in rows if r["label"] == label)
    )
    return DataRef.parse(new.name)


def test_texts_are_scaled_too(texts):
    ear = ProgressLog()
    row = run_eval(
        config(
            arch(texts), data=DataRef.parse("test.jsonl"), temperature=DataRef.parse("val.jsonl"), name="bert",
            near=(NamedData.parse("x=gibberish.jsonl"),),
        ),
        ear,
    ).document.rows[0]  # fmt: skip

    assert row.values["temperature"].count == 30
    assert sum("matched by position" in w for w in ear.warnings) == 1


def test_a_class_means_the_same_in_both_sets_even_if_one_lacks_some(texts):
    """Matched by position, the only class of the held-out data would become the model's first class."""
    given = {"data": DataRef.parse("test.jsonl"), "name": "bert", "metrics": ("nll",)}
    split = write_rows_of_label(texts / "val.jsonl", "positive")
    found = run_eval(config(arch(texts), temperature=split, **given)).document.rows[0]
    run_eval(
        config(arch(texts), **given | {"data": DataRef.parse("val.jsonl")}, save_predictions=texts / "p.st")
    )
    saved = SavedPredictions.load(texts / "p.st")
    chosen = saved.labels["id"] == 1
    expected = fit_temperature(saved.log_probs["bert"]["id"][:, chosen], saved.labels["id"][chosen])

    assert found.values["temperature"].value == pytest.approx(expected.temperature, rel=1e-3)
    assert found.values["temperature"].count == int(chosen.sum())


def test_a_class_that_nobody_knows_is_refused(texts):
    with pytest.raises(
        DataError, match="its class `good` is not in `--data`, and the model has no class names to map it to"
    ):
        run_eval(
            config(
                arch(texts), data=DataRef.parse("test.jsonl"), name="bert",
                temperature=write_rows_of_label(texts / "val.jsonl", "positive", called="good"),
            )
        )  # fmt: skip


def test_zero_shot_models_answer_about_the_same_classes(tmp_path):
    path = pair("clip", tmp_path).save(tmp_path / "clip.st")
    naming = Naming.parse("0,1,2,3,4,5,6", ["a photo of the number {label} ."])
    given = {"naming": naming, "metrics": ("nll", "accuracy")}
    row = run_eval(config(path, temperature=HELDOUT, **given)).document.rows[0]
    run_eval(config(path, **given | {"data": HELDOUT}, save_predictions=tmp_path / "p.st"))
    saved = SavedPredictions.load(tmp_path / "p.st")

    expected = fit_temperature(saved.log_probs["clip"]["id"], saved.labels["id"]).temperature
    assert row.values["temperature"].value == pytest.approx(expected, rel=1e-4)
    assert open_model(str(path)).header.prompting is not None


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("temperature", "message"),
    [
        ("noise", "noise: has no labels, but `--temperature` needs them"),
        ("nowhere", "nowhere: no such"),
        ("digits::classes=7-9", "its class `7` is not in `--data`"),
        ("digits", "its class `7` is not in `--data`"),
    ],
)
def test_splits_that_cannot_be_used(models, tmp_path, temperature, message):
    with pytest.raises(DataError, match=message):
        run_eval(config(models / "base.st", temperature=DataRef.parse(temperature), out=tmp_path / "r.json"))
    assert list(tmp_path.iterdir()) == []


def test_other_classes_than_a_model_with_names_has(tmp_path):
    sample = base()
    header = sample.header.model_copy(update={"labels": tuple("0123456")})
    path = type(sample)(header, sample.state).save(tmp_path / "named.st")

    with pytest.raises(
        DataError,
        match=r"`--temperature digits`: digits: 3 of 10 class names are not those of the model: `7`, `8`, `9`",
    ):
        run_eval(config(path, temperature=DataRef.parse("digits")))


@pytest.mark.parametrize("number", [0.0, -1.0, float("nan"), float("inf"), 1e-9, 1e9, 0])
def test_numbers_that_are_no_temperature(number):
    with pytest.raises(UsageError, match=r"must be between 0\.001 and 1000"):
        config("x.st", temperature=number)


def test_it_is_measured_only_where_it_is():
    with pytest.raises(UsageError, match="`temperature` cannot be measured without `--temperature`"):
        config("x.st", metrics=("temperature",))
    with pytest.raises(UsageError, match="temperature is not"):
        config("x.st", fail_if=(Condition.parse("temperature>2"),))


def test_the_split_is_not_overwritten(texts):
    (texts / "val.json").symlink_to(texts / "val.jsonl")
    with pytest.raises(OutputExists, match="is an input of this command"):
        run_eval(
            config(
                arch(texts), data=DataRef.parse("test.jsonl"), name="bert", temperature=DataRef.parse("val.jsonl"),
                out=texts / "val.json", force=True,
            )
        )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2", 2.0),
        ("0.5", 0.5),
        ("-1", -1.0),
        ("./2", DataRef.parse("./2")),
        ("digits", DataRef.parse("digits")),
    ],
)
def test_what_is_a_number_and_what_is_data(text, expected):
    assert parse_temperature(text) == expected
