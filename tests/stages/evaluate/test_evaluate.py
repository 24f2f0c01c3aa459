"""`eval` on digits: metrics recomputed from saved predictions, invariants, errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from sklearn import metrics as sk
from torchmetrics.functional.classification import multiclass_calibration_error

from hydractl.data.reference import DataRef
from hydractl.errors import CheckFailed, CheckpointError, DataError, InputError, OutputExists, UsageError
from hydractl.evaluation.options import Condition, NamedData, NamedModels
from hydractl.manifest.header import Kind
from hydractl.manifest.report import Report
from hydractl.metrics.compute import measure
from hydractl.metrics.metric_spec import MetricNeeds
from hydractl.metrics.registry import METRICS
from hydractl.metrics.resampling import Resampling
from hydractl.stages.evaluate.config import EvalConfig
from hydractl.stages.evaluate.run import run_eval
from hydractl.stages.fuse.config import FuseConfig
from hydractl.stages.fuse.run import run_fuse
from support.builders import base
from support.pictures import digits_folder, unreadable
from support.predictions import SavedPredictions
from support.progress_log import ProgressLog
from support.variants import TINY, Variant

ID = DataRef.parse("digits::split=test,classes=0-6,limit=70")
NEAR = (
    NamedData.parse("sevens=digits::classes=7,limit=30"),
    NamedData.parse("eights=digits::classes=8,limit=20"),
)
FAR = (NamedData.parse("noise::limit=25"),)
KEEP = (((0, 1), (1, 2, 3), (0,)), ((0, 2), (0, 1), (2, 3)), ((1, 3), (3,), ()))
GOLDEN = Path(__file__).parents[2] / "golden" / "report-1.json"


def config(model, **changes):
    given = {
        "model": str(model),
        "data": ID,
        "latency": False,
        "bootstrap": 0,
        "batch_size": 32,
        "device": "cpu",
    }
    return EvalConfig(**(given | changes))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A base, three members, and their hydra."""
    folder = tmp_path_factory.mktemp("models")
    base().save(folder / "base.st")
    for i, keep in enumerate(KEEP):
        base().pruned(*keep).tuned(i).save(folder / f"m{i}.st")
    members = tuple(str(folder / f"m{i}.st") for i in range(3))
    run_fuse(FuseConfig(models=members, out=folder / "hydra.st", mlp="keep", verify=False))
    return folder


def test_one_sample_says_that_its_intervals_tell_nothing(models):
    one = DataRef.parse("digits::split=test,classes=0-6,limit=1")
    said = "has only one sample, so bootstrap intervals on it are too narrow"

    for changes, warned in (
        ({"bootstrap": 2}, [f"{one}: {said}"]),
        (
            {"bootstrap": 2, "data": ID, "far": (NamedData.parse("noise::limit=1"),)},
            [f"noise::limit=1: {said}"],
        ),
        ({"bootstrap": 0}, []),
    ):
        run_eval(config(models / "base.st", **({"data": one} | changes)), ear := ProgressLog())
        assert [w for w in ear.warnings if said in w] == warned


@pytest.fixture(scope="module")
def full(models):
    """Report with all metrics except latencies; predictions are saved next to it."""
    members = ",".join(str(models / f"m{i}.st") for i in range(3))
    report = run_eval(
        config(
            models / "hydra.st",
            near=NEAR,
            far=FAR,
            compare=(NamedModels.parse(f"apart={members}"), NamedModels.parse(str(models / "base.st"))),
            bootstrap=20,
            out=models / "report.json",
            save_predictions=models / "predictions.safetensors",
        )
    )
    return report.document


def numbers(values):
    return {name: value.value for name, value in values.items()}


def test_every_metric_follows_from_the_saved_predictions(models, full):
    saved = SavedPredictions.load(models / "predictions.safetensors")

    for row in full.rows:
        found = saved.of(row.name)
        again = measure(
            found.pop("id"),
            saved.labels["id"],
            found,
            metrics=tuple(full.definitions),
            scores=("msp",),
            resampling=Resampling(resamples=20),
        )

        assert again.values == {
            k: v for k, v in row.values.items() if METRICS[k].needs is not MetricNeeds.WEIGHTS
        }
        assert again.ood == row.ood


@pytest.mark.newer  # multiclass Brier score needs scikit-learn 1.7
def test_definitions_are_those_of_scikit_learn_and_torchmetrics(models, full):
    saved = SavedPredictions.load(models / "predictions.safetensors")
    labels = saved.labels["id"]
    for row in full.rows:
        probs = saved.log_probs[row.name]["id"].double().exp().mean(0)
        sure = probs / probs.sum(1, keepdim=True)
        expected = {
            "accuracy": sk.accuracy_score(labels, probs.argmax(1)),
            "nll": sk.log_loss(labels, sure, labels=list(range(7))),
            "brier": sk.brier_score_loss(labels, sure, labels=list(range(7)), scale_by_half=False),
            "ece": float(
                multiclass_calibration_error(probs.float(), labels, num_classes=7, n_bins=15, norm="l1")
            ),
        }
        assert numbers(row.values) == pytest.approx(numbers(row.values) | expected, abs=1e-6)

        for name in (*full.near, *full.far):
            outside = saved.log_probs[row.name][name].double().exp().mean(0)
            is_ood = [0] * len(probs) + [1] * len(outside)
            score = torch.cat([-probs.amax(1), -outside.amax(1)])
            fpr, tpr, _ = sk.roc_curve(is_ood, score, drop_intermediate=False)
            expected = {
                "auroc": sk.roc_auc_score(is_ood, score),
                "aupr": sk.average_precision_score(is_ood, score),
                "aupr_in": sk.average_precision_score([1 - x for x in is_ood], -score),
                "fpr95": fpr[tpr >= 0.95].min(),
            }
            assert numbers(row.ood[name]) == pytest.approx(numbers(row.ood[name]) | expected, abs=1e-9)


def test_means_are_plain_means_over_data_sets(full):
    for row in full.rows:
        for group, names in {"near": full.near, "far": full.far, "all": full.near + full.far}.items():
            for metric, mean in row.means[group].items():
                assert mean == pytest.approx(sum(row.ood[n][metric].value for n in names) / len(names))


def test_a_hydra_is_the_ensemble_of_its_members(models, full):
    hydra, apart = full.rows[:2]
    saved = SavedPredictions.load(models / "predictions.safetensors").log_probs

    assert (hydra.members, apart.members, len(apart.models)) == (3, 3, 3)
    for name in ("id", *full.near, *full.far):
        torch.testing.assert_close(saved["hydra"][name], saved["apart"][name], atol=1e-5, rtol=1e-5)
    for metric in ("accuracy", "nll", "brier", "mutual_information", "disagreement"):
        assert hydra.values[metric].value == pytest.approx(apart.values[metric].value, abs=1e-5)
    assert hydra.values["macs"].value <= apart.values["macs"].value
    assert hydra.values["macs_textbook"].value == apart.values["macs_textbook"].value


@pytest.mark.more
def test_an_ensemble_costs_what_its_models_cost(models):
    members = [str(models / f"m{i}.st") for i in range(3)]
    together = run_eval(config(members[0], compare=(NamedModels(name="all", models=tuple(members)),)))
    apart = [run_eval(config(m)).document.rows[0] for m in members]

    for metric in ("parameters", "macs"):
        row = together.document.rows[1]
        assert row.values[metric].value == sum(one.values[metric].value for one in apart)


def test_one_member_knows_no_diversity(full):
    single = full.rows[2]

    assert single.members == 1
    assert single.values["disagreement"].value == 0
    assert single.values["mutual_information"].value == pytest.approx(0, abs=1e-9)


def test_intervals_hold_their_value(full):
    for row in full.rows:
        for metric in ("accuracy", "brier", "nll"):
            value = row.values[metric]
            assert value.low <= value.value <= value.high
            assert value.count == 70
        for metric in ("auroc", "fpr95", "aupr"):
            value = row.ood["sevens"][metric]
            assert value.low <= value.high
            assert value.count == 100


def test_everything_is_defined_and_within_its_range(full):
    for row in full.rows:
        for metric, value in [*row.values.items(), *(i for v in row.ood.values() for i in v.items())]:
            assert METRICS[metric].low <= value.value <= METRICS[metric].high
    assert full.definitions == {m: METRICS[m].definition for m in full.definitions}


def test_two_runs_give_the_same_bytes(models, tmp_path):
    for name in ("one", "two"):
        run_eval(
            config(
                models / "hydra.st",
                near=NEAR,
                bootstrap=10,
                out=tmp_path / f"{name}.json",
                save_predictions=tmp_path / f"{name}.st",
            )
        )

    for suffix in ("json", "st"):
        assert (tmp_path / f"one.{suffix}").read_bytes() == (tmp_path / f"two.{suffix}").read_bytes()


def test_a_report_holds_no_path_and_reads_back(models, full):
    text = (models / "report.json").read_text()

    assert Report.from_json(text, place="report") == full
    assert str(models) not in text


def test_rows_do_not_influence_each_other(models, full):
    alone = run_eval(config(models / "base.st", near=NEAR, far=FAR, bootstrap=20)).document

    assert alone.rows[0] == full.rows[2].model_copy(update={"difference": None})


@pytest.mark.parametrize("batch_size", [1, 7, 70, 1000])
def test_the_batch_size_does_not_matter(models, full, batch_size):
    found = run_eval(config(models / "base.st", batch_size=batch_size, metrics=("nll", "accuracy"))).document

    assert found.rows[0].values["nll"].value == pytest.approx(full.rows[2].values["nll"].value, abs=1e-5)


def test_only_what_is_asked_for_is_measured(models):
    found = run_eval(config(models / "base.st", near=NEAR, metrics=("auroc", "ece"))).document

    assert list(found.rows[0].values) == ["ece"]
    assert list(found.rows[0].ood["sevens"]) == ["auroc"]
    assert set(found.definitions) == {"auroc", "ece"}


def test_latencies_are_measured_for_every_row(models):
    report = run_eval(
        config(
            models / "base.st",
            latency=True,
            batch_size=4,
            metrics=("latency_ms", "latency_batch_ms"),
            compare=(NamedModels.parse(str(models / "hydra.st")),),
        )
    ).document

    for row in report.rows:
        for metric in ("latency_ms", "latency_batch_ms"):
            value = row.values[metric]
            assert 0 < value.low <= value.value <= value.high
            assert value.count >= 3


@pytest.mark.spread(cases=1)
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_a_dtype_changes_little(models, full, dtype):
    found = run_eval(config(models / "hydra.st", dtype=dtype)).document

    assert found.options["dtype"] == dtype
    assert found.rows[0].values["nll"].value == pytest.approx(full.rows[0].values["nll"].value, rel=0.05)


def test_labels_on_ood_data_are_ignored(models):
    unlabelled = run_eval(config(models / "base.st", near=(NamedData.parse("x=noise"),))).document
    labelled = run_eval(config(models / "base.st", near=(NamedData.parse("x=digits::classes=7-9"),))).document

    assert unlabelled.rows[0].values == labelled.rows[0].values


def test_images_that_cannot_be_read_are_left_out_and_counted(models, tmp_path):
    root = digits_folder(tmp_path / "d", str(ID))
    near = NamedData.parse(f"sevens={digits_folder(tmp_path / 'sevens', 'digits::classes=7,limit=9')}")
    changes = {"data": DataRef.parse(str(root)), "near": (near,), "temperature": DataRef.parse(str(root))}
    clean = run_eval(config(models / "base.st", **changes)).document
    unreadable(root / "0")
    unreadable(tmp_path / "sevens" / "7")

    with pytest.raises(DataError, match=r"000-none\.png: is not an image"):
        run_eval(config(models / "base.st", **changes))
    found = run_eval(config(models / "base.st", skip_bad=True, **changes), ear := ProgressLog()).document

    assert numbers(found.rows[0].values) == numbers(clean.rows[0].values)
    assert found.data == clean.data
    said = [line for line in ear.warnings if "unreadable" in line]
    assert [line.partition(";")[0] for line in said] == [
        "d: skipped 3 of 73 images, which are unreadable",
        "sevens: skipped 3 of 12 images, which are unreadable",
        "d: skipped 3 of 73 images, which are unreadable",
    ]
    assert {*said} <= {*found.warnings}


def test_failed_conditions_leave_the_report(models, tmp_path):
    conditions = tuple(map(Condition.parse, ("accuracy<0.99", "auroc[near]<0.001", "macs>1")))
    report = run_eval(config(models / "base.st", near=NEAR, fail_if=conditions, out=tmp_path / "report.json"))

    assert [c.failed for c in report.document.checks] == [True, False, True]
    assert Report.read(tmp_path / "report.json").checks == report.document.checks
    with pytest.raises(
        CheckFailed, match=r"2 of 3 checks failed for `base`: `accuracy<0.99` \(measured 0\.\d+\), `macs>1`"
    ):
        report.require_checks()


def test_conditions_that_hold_are_silent(models):
    run_eval(config(models / "base.st", fail_if=(Condition.parse("nll>1e9"),))).require_checks()


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"data": DataRef.parse("noise")}, DataError, "noise: has no labels"),
        (
            {"data": DataRef.parse("digits")},
            DataError,
            "digits: has 10 classes and the model 7",
        ),
        ({"data": DataRef.parse("nowhere")}, DataError, "nowhere"),
        ({"near": (NamedData.parse("x=nowhere"),)}, DataError, "nowhere"),
        ({"model": "nowhere.st"}, CheckpointError, "nowhere.st: no such file"),
        ({"out": Path("nowhere/report.json")}, InputError, "folder `nowhere` does not exist"),
        ({"compare": (NamedModels.parse("x=nowhere.st"),)}, CheckpointError, "nowhere.st"),
        ({"device": "cuda:99"}, UsageError, "device `cuda:99` is not available"),
        ({"dtype": "int4"}, UsageError, "unknown dtype `int4`"),
    ],
)
def test_inputs_that_cannot_be_used(models, changes, error, message):
    with pytest.raises(error, match=message):
        run_eval(config(changes.pop("model", models / "base.st"), **changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"compare": (NamedModels.parse("x.st"),)}, "2 rows have the name `x`"),
        (
            {"near": (NamedData.parse("noise"),), "far": (NamedData.parse("noise"),)},
            "2 OOD data sets have the name `noise`",
        ),
        (
            {"model": "-", "compare": (NamedModels.parse("-"),), "name": "x"},
            "only one model can come from standard input",
        ),
        ({"batch_size": 0}, "`--batch-size 0`: must be at least 1"),
        ({"out": Path("x"), "save_predictions": Path("x")}, "name the same file"),
        ({"near": NEAR, "metrics": ("ece",)}, "OOD data sets are given, but no selected metric uses them"),
        ({"metrics": ("auroc",)}, "without an OOD data set"),
        (
            {"name": "a/b"},
            ("is not a valid name"),
        ),
        ({"fail_if": (Condition.parse("auroc[near]<0.5"),)}, "needs an OOD data set"),
    ],
)
def test_requests_that_make_no_sense(changes, message):
    with pytest.raises(UsageError, match=message):
        config(changes.pop("model", "x.st"), **changes)


def test_models_of_different_tasks_do_not_share_a_table(models, tmp_path):
    other = base(Variant("timm-vit", "six", "vit_tiny_patch16_224", TINY | {"num_classes": 6}))
    other.save(tmp_path / "six.st")

    with pytest.raises(InputError, match=r"six.st: has 6 classes, .*base.st has 7"):
        run_eval(config(models / "base.st", compare=(NamedModels.parse(str(tmp_path / "six.st")),)))


def test_models_with_other_labels_do_not_share_a_table(models, tmp_path):
    for name, labels in (("up", "0123456"), ("down", "6543210")):
        sample = base()
        header = sample.header.model_copy(update={"labels": tuple(labels)})
        type(sample)(header, sample.state).save(tmp_path / f"{name}.st")
    up, down = (NamedModels.parse(str(tmp_path / f"{n}.st")) for n in ("up", "down"))

    run_eval(config(models / "base.st", compare=(up,), metrics=("accuracy",)))
    with pytest.raises(
        InputError, match=r"down.st: its class labels or their order differ from those of .*up.st"
    ):
        run_eval(config(models / "base.st", compare=(up, down)))


def test_labels_are_matched_by_name(models, tmp_path):
    sample = base()
    flipped = dict(sample.state)
    for name in ("head.weight", "head.bias"):
        flipped[name] = flipped[name].flip(0)
    header = sample.header.model_copy(update={"labels": tuple("6543210")})
    type(sample)(header, flipped).save(tmp_path / "flipped.st")

    plain, named = (run_eval(config(m)).document for m in (models / "base.st", tmp_path / "flipped.st"))

    assert numbers(named.rows[0].values) == pytest.approx(numbers(plain.rows[0].values), abs=1e-5)


def test_broken_weights_are_named_with_the_data(tmp_path):
    sample = base()
    state = sample.state | {"head.bias": torch.full((7,), torch.nan)}
    path = type(sample)(sample.header, state).save(tmp_path / "broken.st")

    with pytest.raises(InputError, match=r"broken.st: has logits that are not finite on `id`"):
        run_eval(config(path, out=tmp_path / "report.json"))
    assert not (tmp_path / "report.json").exists()


def test_a_batch_that_is_too_large_for_the_device_is_said(models, monkeypatch):
    def exhausted(*_args: object, **_kwargs: object):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch.nn.functional, "linear", exhausted)
    with pytest.raises(InputError, match="the device has too little memory for") as caught:
        run_eval(config(models / "base.st"))
    assert caught.value.hint == "use a smaller `--batch-size`"


def test_outputs_and_inputs_are_not_overwritten(models, tmp_path):
    (tmp_path / "report.json").write_text("mine")

    with pytest.raises(OutputExists, match="already exists"):
        run_eval(config(models / "base.st", out=tmp_path / "report.json"))
    with pytest.raises(OutputExists, match="is an input of this command"):
        run_eval(config(models / "base.st", save_predictions=models / "base.st", force=True))
    run_eval(config(models / "base.st", out=tmp_path / "report.json", force=True))

    assert json.loads((tmp_path / "report.json").read_text())["schema"] == "hydractl.report/1"


def test_either_both_outputs_appear_or_none(models, tmp_path, monkeypatch):
    def full_disk(*_):
        raise InputError("no space left")

    monkeypatch.setattr(Report, "to_json", full_disk)

    with pytest.raises(InputError, match="no space"):
        run_eval(config(models / "base.st", out=tmp_path / "r.json", save_predictions=tmp_path / "p.st"))
    assert list(tmp_path.iterdir()) == []


def test_the_golden_report_reads_and_writes_back():
    text = GOLDEN.read_text()

    assert Report.from_json(text, place="golden").to_json() == text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r["near"].append("ghosts"), "near, far, ood_val: must be names in `data`, each once"),
        (lambda r: r["rows"].append(r["rows"][0]), "rows: two rows have the same name"),
        (lambda r: r["rows"][0]["ood"].pop("birds"), r"rows\[0\].ood: has \['noise'\]"),
        (lambda r: r["rows"][0]["means"].update(both={}), r"rows\[0\].means: has .*both"),
        (lambda r: r["definitions"].pop("ece"), r"rows\[0\]: `ece` has no definition"),
        (lambda r: r.update(extra=1), "extra is not a known key"),
        (lambda r: r["rows"][0]["values"]["ece"].update(value="0.1"), r"rows\[0\].values.ece.value"),
    ],
)
def test_reports_that_contradict_themselves_are_refused(change, message):
    raw = json.loads(GOLDEN.read_text())
    change(raw)

    with pytest.raises(InputError, match=message):
        Report.from_json(json.dumps(raw), place="report")


def test_the_hydra_of_the_table_is_a_hydra(models):
    from hydractl.families.open_model import open_model

    assert open_model(str(models / "hydra.st")).header.kind == Kind.HYDRA
