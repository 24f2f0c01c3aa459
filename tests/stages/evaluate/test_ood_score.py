"""`eval --ood-score` with several scores, compared with scikit-learn on logits of plain forward passes."""

from __future__ import annotations

import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score

from hydractl.checkpoint import Checkpoint
from hydractl.cli.app import main
from hydractl.data.open_dataset import open_data
from hydractl.data.preprocess import eval_transform
from hydractl.data.reference import DataRef
from hydractl.errors import ManifestError, UsageError
from hydractl.evaluation.options import Condition, NamedData
from hydractl.manifest.report import Report
from hydractl.metrics.metric_spec import MetricNeeds
from hydractl.metrics.ood_scores import SCORES
from hydractl.metrics.registry import METRICS, needing
from hydractl.prediction.loaded_model import load
from hydractl.stages.evaluate.config import EvalConfig
from hydractl.stages.evaluate.run import run_eval
from support.builders import base
from support.predictions import SavedPredictions

DATA, NEAR, FAR = "digits::split=test,classes=0-6,limit=40", "digits::classes=7-8,limit=30", "noise::limit=20"
OOD = ("--near", f"others={NEAR}", "--far", FAR)
QUICK = ("--no-latency", "--device", "cpu", "--bootstrap")
TEMPERATURE = 0.3


def config(model, **changes):
    given = {"near": (NamedData.parse(f"others={NEAR}"),), "far": (NamedData.parse(FAR),)}
    given |= {"latency": False, "bootstrap": 0, "device": "cpu"}
    return EvalConfig(model=str(model), data=DataRef.parse(DATA), **(given | changes))


@pytest.fixture(scope="module")
def report_folder(tmp_path_factory):
    """Two models with logits far from 0, and a report with all scores at a temperature."""
    folder = tmp_path_factory.mktemp("scores")
    for seed in (0, 1):
        sample = base(seed=seed)
        shifted = {"head.weight": 6 * sample.state["head.weight"], "head.bias": torch.arange(7.0) - 5 * seed}
        type(sample)(sample.header, sample.state | shifted).save(folder / f"m{seed}.st")
    command = (
        "eval", f"{folder}/m0.st", "--compare", f"pair={folder}/m0.st,{folder}/m1.st", "--data", DATA, *OOD,
        "--temperature", str(TEMPERATURE), "--ood-score", ",".join(SCORES), *QUICK, "8", "-o", f"{folder}/r.json",
        "--save-predictions", f"{folder}/p.st", "--fail-if", "auroc@mi[near]>0.4", "--fail-if", "auroc@msp[near]<0",
    )  # fmt: skip
    assert main([*command]) == 5
    return folder


@pytest.fixture(scope="module")
def report(report_folder):
    return Report.read(report_folder / "r.json")


def logits_of(report_folder, reference):
    """Return the logits (M, N, C) of both models divided by the temperature."""
    items, preprocess = open_data(reference), base().header.preprocess
    images = torch.stack([eval_transform(preprocess)(items.image(i)) for i in range(len(items))])
    with torch.inference_mode():
        return (
            torch.stack([load(report_folder / f"m{i}.st")(images) for i in range(2)]).double() / TEMPERATURE
        )


def reference_scores(z):
    """Return each score (N,) of logits (M, N, C)."""
    p = z.softmax(-1)
    entropies = -p.xlogy(p).sum(-1)
    mean = p.mean(0)
    entropy = -mean.xlogy(mean).sum(-1)
    return {
        "msp": -mean.amax(-1),
        "entropy": entropy,
        "mi": entropy - entropies.mean(0),
        "energy": -z.exp().sum(-1).log().mean(0),
        "max-logit": -z.mean(0).amax(-1),
        "msp+mi": -mean.amax(-1) + entropy - entropies.mean(0),
    }


def test_every_number_is_scikit_learns_of_scores_by_hand(report_folder, report):
    own = reference_scores(logits_of(report_folder, DATA))
    seen = set()
    for name, reference in (("others", NEAR), ("noise", FAR)):
        for score, outside in reference_scores(logits_of(report_folder, reference)).items():
            is_ood = [0] * len(own[score]) + [1] * len(outside)
            both = torch.cat([own[score], outside])
            tail = "" if score == "msp" else f"@{score}"
            found = {m: report.rows[1].ood[name][f"{m}{tail}"].value for m in ("auroc", "aupr")}
            assert found["auroc"] == pytest.approx(roc_auc_score(is_ood, both), abs=2e-3)
            assert found["aupr"] == pytest.approx(average_precision_score(is_ood, both), abs=2e-3)
            seen.add(found["auroc"])
    assert len(seen) > 5  # scores rank the samples differently, so mixed-up scores are noticed


def test_the_saved_predictions_tell_the_logits(report_folder):
    pair = SavedPredictions.load(report_folder / "p.st").of("pair")["id"]

    torch.testing.assert_close(pair.logits(), logits_of(report_folder, DATA), atol=1e-4, rtol=1e-4)


def test_every_metric_is_there_by_every_score(report):
    assert report.ood_scores == tuple(SCORES)
    for row in report.rows:
        ranked = [name for name in row.ood["noise"] if "@" in name]
        assert len(ranked) == 7 * (len(SCORES) - 1)
        assert row.means["far"].keys() == row.ood["noise"].keys()
        assert {n for n, v in row.ood["noise"].items() if v.low is not None} == {
            f"{metric}{tail}"
            for metric in ("auroc", "accepted95", "fpr95", "aupr")
            for tail in ("", *(f"@{score}" for score in SCORES if score != "msp"))
        }
    for score in SCORES:
        assert report.definitions[f"@{score}"] == SCORES[score].definition


def test_mutual_information_of_one_model_is_chance(report):
    for values in report.rows[0].ood.values():
        assert (values["auroc@mi"].value, values["auroc@mi"].low, values["fpr95@mi"].value) == (0.5, 0.5, 1)


def test_conditions_name_a_score(report):
    (by_mi, by_msp) = report.checks

    assert (by_mi.condition, by_mi.failed, by_mi.found) == ("auroc@mi[near]>0.4", True, 0.5)
    assert by_msp.found == report.rows[0].means["near"]["auroc"]


def test_there_is_a_table_a_score(report_folder, report, capsys):
    assert main(["inspect", str(report_folder / "r.json")]) == 0

    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert lines[0].split().count("AUROC") == 1
    assert any(
        "AUROC, accepted at 95 % known, FPR95 and AUPR are means over 2 OOD sets by msp" in line
        for line in lines
    )
    for score in SCORES:
        (begin,) = (
            i for i, line in enumerate(lines) if line.startswith("noise (") and line.endswith(f", by {score}")
        )
        assert lines[begin + 1].split() == [
            "model",
            "AUROC",
            "↑",
            "accepted",
            "at",
            "95",
            "%",
            "known",
            "↓",
            "FPR95",
            "↓",
            "AUPR",
            "↑",
        ]
        value = report.rows[0].ood["noise"]["auroc" if score == "msp" else f"auroc@{score}"].value
        assert lines[begin + 3].split()[1] == f"{value:.3f}"


@pytest.fixture(scope="module")
def energy_report(report_folder):
    """Report with `energy` instead of the default score."""
    return run_eval(config(report_folder / "m0.st", ood_score=("energy",))).document


def test_one_score_keeps_the_names(report_folder, energy_report):
    usual = run_eval(config(report_folder / "m0.st")).document

    assert energy_report.rows[0].ood["noise"].keys() == usual.rows[0].ood["noise"].keys()
    by_certainty = {*needing(METRICS, MetricNeeds.CERTAINTY)}
    changed = {
        name for name, value in energy_report.rows[0].values.items() if value != usual.rows[0].values[name]
    }
    assert energy_report.rows[0].values.keys() == usual.rows[0].values.keys()
    assert {"aurc"} <= changed <= by_certainty
    assert energy_report.rows[0].ood != usual.rows[0].ood
    assert ("ood_scores" in usual.to_json(), '"ood_scores": [\n    "energy"' in energy_report.to_json()) == (
        False,
        True,
    )
    assert set(energy_report.definitions) - set(usual.definitions) == {"@energy"}


def test_the_table_says_by_which_score(energy_report, capsys):
    from hydractl.cli.commands.measure import show_report as render
    from hydractl.cli.output import console

    render(energy_report, console())

    out = capsys.readouterr().out
    assert "OOD sets by energy" in out
    assert ", by energy" not in out  # a single score needs no separate tables


def test_a_stored_temperature_divides_the_logits_that_scores_read(report_folder, report):
    sample = base()
    state = {name: t.clone() for name, t in Checkpoint.open(report_folder / "m0.st").tensors().items()}
    type(sample)(sample.header.model_copy(update={"temperature": TEMPERATURE}), state).save(
        report_folder / "stored.st"
    )

    row = run_eval(
        config(report_folder / "stored.st", ood_score=("energy",), metrics=("auroc", "aupr"))
    ).document.rows[0]

    for name, values in row.ood.items():
        for metric in ("auroc", "aupr"):
            assert values[metric].value == pytest.approx(
                report.rows[0].ood[name][f"{metric}@energy"].value, abs=2e-3
            )


def test_a_single_model_is_warned_of(report_folder, capsys):
    command = (
        "eval",
        f"{report_folder}/m0.st",
        "--compare",
        f"pair={report_folder}/m0.st,{report_folder}/m1.st",
        "--data",
        DATA,
        *OOD,
        *QUICK,
        "0",
    )

    assert main([*command, "--ood-score", "mi", "--metrics", "auroc"]) == 0

    err = capsys.readouterr().err
    assert "m0: `mi` of a single model is always 0, so its OOD metrics are those of chance" in err
    assert "pair: `mi`" not in err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"ood_score": ("odin",)},
            "`--ood-score odin`: unknown OOD score `odin` choose from msp, entropy, mi, msp+mi, energy, max-logit, gen, energy+density",
        ),
        ({"ood_score": ("msp", "")}, "`--ood-score `: unknown OOD score ``"),
        ({"ood_score": ("mi", "msp", "mi")}, "`--ood-score mi,msp,mi` repeats a score"),
        (
            {"ood_score": ("mi",), "near": (), "far": (), "metrics": ("accuracy",)},
            "`--ood-score` has no effect: no measured metric uses OOD scores",
        ),
        (
            {"ood_score": ("mi",), "metrics": ("aurc",)},
            "OOD data sets are given, but no selected metric uses them",
        ),
        ({"ood_score": ("mi",), "metrics": ("nll", "disagreement")}, "`--ood-score` has no effect"),
        ({"fail_if": "auroc@energy[near]<0.9"}, "the OOD score `energy` is not measured"),
        ({"fail_if": "auroc@enrgy[near]<0.9"}, "did you mean `energy`"),
        ({"fail_if": "ece@msp<0.9"}, "ece does not depend on an OOD score"),
        ({"metrics": ("auroc@mi",)}, "unknown metric `auroc@mi`"),
    ],
)
def test_refusals(changes, message):
    given = {"fail_if": (Condition.parse(changes["fail_if"]),)} if "fail_if" in changes else {}

    with pytest.raises(UsageError) as caught:
        config("m.st", **(changes | given))

    assert message in f"{caught.value.message} {caught.value.hint}"


def test_a_report_with_a_score_that_it_does_not_list_is_refused(report):
    text = report.model_copy(update={"ood_scores": ("msp", "mi")}).to_json()

    with pytest.raises(ManifestError, match=r"rows\[0\]: `\w+@\S+`, but the other OOD scores are \['mi'\]"):
        Report.from_json(text, place="r.json")


def test_conditions_on_a_score_read_back():
    assert Condition.parse("auroc@msp+mi[near]>0.5").score == "msp+mi"
    condition = Condition.parse(" fpr95@max-logit [far] > 0.5")

    assert (condition.metric, condition.score, condition.scope) == ("fpr95", "max-logit", "far")
    assert str(condition) == "fpr95@max-logit[far]>0.5"
