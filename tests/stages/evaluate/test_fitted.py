"""Feature-based OOD scores of `eval`, compared with timm's features and scikit-learn's estimators."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.covariance import EmpiricalCovariance
from sklearn.decomposition import PCA
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import NearestNeighbors

from hydractl.cli.app import main
from hydractl.data.open_dataset import open_data
from hydractl.data.preprocess import eval_transform
from hydractl.data.reference import DataRef
from hydractl.errors import DataError, ManifestError, UsageError
from hydractl.evaluation.options import NamedData
from hydractl.families.tower import Tower
from hydractl.manifest.report import Report
from hydractl.stages.evaluate.config import EvalConfig
from hydractl.stages.evaluate.run import run_eval
from support.builders import base
from support.predictions import SavedPredictions

FIT, VAL, DATA = (
    f"digits::split={split},classes=0-6,limit={n}" for split, n in (("train", 90), ("val", 30), ("test", 40))
)
NEAR, OOD_VAL = "digits::classes=7-8,limit=30", "digits::classes=9,limit=25"
K = 5
OLD = "mahalanobis:alpha=0:normalize=false"
FEATURES = ("energy+density", "relative-mahalanobis", OLD, f"knn:k={K}", "vim")
SCORES = ("msp", *FEATURES)


def config(model, **changes):
    given = {
        "near": (NamedData.parse(f"others={NEAR}"),), "train": DataRef.parse(FIT), "val": DataRef.parse(VAL), "ood_score": SCORES, "latency": False,
        "bootstrap": 0, "device": "cpu", "metrics": ("accuracy", "auroc"),
    }  # fmt: skip
    return EvalConfig(model=str(model), data=DataRef.parse(DATA), **(given | changes))


@pytest.fixture(scope="module")
def report_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fitted")
    for seed in (0, 1):
        base(seed=seed).save(folder / f"m{seed}.st")
    command = (
        "eval", f"{folder}/m0.st", "--compare", f"pair={folder}/m0.st,{folder}/m1.st", "--data", DATA, "--near",
        f"others={NEAR}", "--ood-score", ",".join(SCORES), "--train", FIT, "--val", VAL, "--ood-val",
        f"nines={OOD_VAL}", "--no-latency", "--device", "cpu", "--bootstrap", "4", "--temperature", "2", "-o", f"{folder}/r.json",
        "--save-predictions", f"{folder}/p.st", "--fail-if", f"auroc@knn:k={K}[near]<0",
    )  # fmt: skip
    assert main([*command]) == 0
    return folder


@pytest.fixture(scope="module")
def report(report_folder):
    return Report.read(report_folder / "r.json")


def features(seed, reference):
    """Return the features before timm's classifier, (N, D), and the labels."""
    sample, items = base(seed=seed), open_data(reference)
    images = torch.stack(
        [eval_transform(sample.header.preprocess)(items.image(i)) for i in range(len(items))]
    )
    library = sample.library()
    with torch.inference_mode():
        found = library.forward_head(library.forward_features(images), pre_logits=True)
    return found.double().numpy(), torch.tensor(items.labels)


def relative_mahalanobis(known, labels, asked, *, power=0.5):
    """Return relative Mahalanobis scores (N,), computed with explicit inverses.

    The shrinkage alpha is (D / (D + N - C)) ** power.
    """
    u, x = (torch.nn.functional.normalize(torch.tensor(f), dim=1).numpy() for f in (asked, known))
    (count, width), classes = x.shape, labels.unique().tolist()
    alpha = (width / (width + count - len(classes))) ** power
    means = {c: x[labels == c].mean(0) for c in classes}

    def squared(z, off):
        covariance = off.T @ off / count
        mixed = (1 - alpha) * covariance + alpha * np.trace(covariance) / width * np.eye(width)
        return np.einsum("bi,ij,bj->b", z, np.linalg.inv(mixed), z)

    within = np.concatenate([x[labels == c] - means[c] for c in classes])
    nearest = np.min([squared(u - mean, within) for mean in means.values()], axis=0)
    return torch.tensor(nearest - squared(u - x.mean(0), x - x.mean(0)))


def reference_scores(seed, reference):
    """Return the OOD scores (N,) of one model by name, computed with scikit-learn and numpy."""
    known, labels = features(seed, FIT)
    asked, _ = features(seed, reference)
    relative = relative_mahalanobis(known, labels, asked)
    unit = [torch.nn.functional.normalize(torch.tensor(x), dim=1).numpy() for x in (known, asked)]
    plane = PCA(31).fit(known)  # layer norm leaves one of 32 directions without variance
    known, asked = plane.transform(known), plane.transform(asked)
    means = [known[labels == c].mean(0) for c in range(7)]
    tied = EmpiricalCovariance(assume_centered=True).fit(
        np.concatenate([known[labels == c] - means[c] for c in range(7)])
    )
    return {
        "relative-mahalanobis": relative,
        OLD: torch.tensor(np.stack([tied.mahalanobis(asked - m) for m in means]).min(0)),
        f"knn:k={K}": torch.tensor(
            NearestNeighbors(n_neighbors=K).fit(unit[0]).kneighbors(unit[1])[0][:, -1]
        ),
    }


def auroc(inside, outside):
    return roc_auc_score([0] * len(inside) + [1] * len(outside), torch.cat([inside, outside]))


@pytest.mark.spread(cases=1)
@pytest.mark.parametrize(("row", "seeds"), [("m0", (0,)), ("pair", (0, 1))])
def test_the_scores_are_those_of_the_librarys_features(row, seeds, report_folder, report):
    """A row of two models has the mean of their scores. The temperature does not change these scores."""
    saved = SavedPredictions.load(report_folder / "p.st").said[row]
    for name, reference in (("id", DATA), ("others", NEAR), ("val", VAL), ("nines", OOD_VAL)):
        own = [reference_scores(seed, reference) for seed in seeds]
        for score in (OLD, f"knn:k={K}", "relative-mahalanobis"):
            expected = sum(each[score] for each in own) / len(own)
            torch.testing.assert_close(saved[name].scores[score], expected, rtol=1e-3, atol=1e-4)


def test_a_fit_on_held_out_data_and_another_alpha_would_be_seen(report_folder, report):
    """The comparison above is sharp enough to detect a fit on `--val` and a wrong shrinkage."""
    saved = SavedPredictions.load(report_folder / "p.st").said["m0"]["others"].scores["relative-mahalanobis"]
    strangers, _ = features(0, NEAR)
    for fault in (
        relative_mahalanobis(*features(0, VAL), strangers),
        relative_mahalanobis(*features(0, FIT), strangers, power=1),
    ):
        assert not torch.allclose(saved, fault, rtol=1e-2, atol=1e-2)


def test_the_numbers_follow_from_the_scores(report_folder, report):
    for row in report.rows:
        saved = SavedPredictions.load(report_folder / "p.st").said[row.name]
        for score in FEATURES:
            found = row.ood["others"][f"auroc@{score}"]
            expected = auroc(saved["id"].scores[score], saved["others"].scores[score])
            assert found.value == pytest.approx(expected, abs=1e-12)
            assert found.low < found.high


def test_the_best_score_is_that_of_validation(report_folder, report, capsys):
    for row in report.rows:
        assert row.ood_val.keys() == {"nines"}
        found = {score: row.ood_val["nines"][f"auroc@{score}"].value for score in FEATURES}
        found["msp"] = row.ood_val["nines"]["auroc"].value
        assert found[row.best_score] == max(found.values())
        saved = SavedPredictions.load(report_folder / "p.st").said[row.name]
        assert found[f"knn:k={K}"] == pytest.approx(
            auroc(*(saved[name].scores[f"knn:k={K}"] for name in ("val", "nines")))
        )
    assert report.ood_val == ("nines",)
    assert {"fit", "val", "nines"} <= report.data.keys()

    assert main(["inspect", str(report_folder / "r.json")]) == 0
    best = report.rows[0].best_score
    assert f"m0: best on validation OOD (nines), by AUROC: {best} " in capsys.readouterr().out


def test_a_report_must_name_the_best_score(report):
    for changes in ({"best_score": "entropy"}, {"ood_val": {}}):
        row = report.rows[0].model_copy(update=changes)
        broken = report.model_copy(update={"rows": (row, *report.rows[1:])})
        with pytest.raises(ManifestError, match=next(iter(changes))):
            Report.from_json(broken.to_json(), place="r.json")


def test_features_cost_no_pass(report_folder, monkeypatch):
    """Each sample passes through the model once; only the samples of `--train` are additional."""
    rows, run = [], Tower.forward
    monkeypatch.setattr(Tower, "forward", lambda self, x: rows.append(len(x)) or run(self, x))

    run_eval(config(report_folder / "m0.st", metrics=("auroc",)))

    assert sum(rows) == 90 + 40 + 30 + 30  # `--train`, `--data`, `--near`, `--val`


def test_a_covariance_of_too_few_samples_is_told(report_folder, capsys):
    few = FIT.replace("90", "30")

    assert main(["eval", f"{report_folder}/m0.st", "--data", DATA, "--near", NEAR, "--ood-score", "mahalanobis:alpha=0", "--train", few,
                 "--no-latency", "--bootstrap", "0"]) == 0  # fmt: skip

    assert "30 samples to fit `mahalanobis:alpha=0` on are too few for 32 features" in capsys.readouterr().err


REFUSED = {
    "nothing to fit": ({"ood_score": ("msp",)}, "`--train` has no effect", "relative-mahalanobis"),
    "no held-out data": ({"ood_val": (NamedData.parse(OOD_VAL),), "val": None}, "held-out ID data", "--val"),
    "nothing to standardize on": ({"val": None}, "`energy.density` needs held-out ID data", "--val VAL"),
    "nothing held out is for": ({"train": None, "ood_score": None}, "`--val` has no effect", "--train TRAIN"),
    "no such option": ({"ood_score": ("knn:n=3",), "val": None}, "has no option `n`", "`k`"),
    "no such value": ({"ood_score": ("mahalanobis:alpha=2",), "val": None}, "`alpha` must be a number in", None),
    "an option that need not be said": ({"ood_score": ("knn:k=1",), "val": None}, "write it as `knn`", "write `knn`"),
    "one score": (
        {"ood_score": ("knn",), "ood_val": (NamedData.parse(OOD_VAL),), "val": DataRef.parse(VAL)},
        "selects among several OOD scores, but only one is given", "name several",
    ),
    "two sets of one name": (
        {"ood_val": (NamedData.parse(f"others={OOD_VAL}"),), "val": DataRef.parse(VAL)}, "have the name `others`", "its own name",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "message", "hint"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_is_refused(changes, message, hint):
    with pytest.raises(UsageError, match=message) as refusal:
        config("m.st", **changes)
    assert hint is None or hint in refusal.value.hint


def test_a_score_is_never_chosen_on_what_is_tested(report_folder):
    for changes in ({"val": DATA, "ood_val": OOD_VAL}, {"val": VAL, "ood_val": NEAR}):
        given = {
            "val": DataRef.parse(changes["val"]),
            "ood_val": (NamedData.parse(f"v={changes['ood_val']}"),),
        }
        with pytest.raises(DataError, match="are also the test data"):
            run_eval(config(report_folder / "m0.st", **given))


def test_data_to_fit_on_has_the_classes_of_the_data(report_folder):
    with pytest.raises(DataError, match=r"`--train digits.*its class `7` is not in `--data`"):
        run_eval(config(report_folder / "m0.st", train=DataRef.parse("digits::split=train,limit=90")))
    with pytest.raises(DataError, match="no labels"):
        run_eval(config(report_folder / "m0.st", train=DataRef.parse("noise::limit=9")))
