"""`predict` with feature-based OOD scores, stored or fitted by `--train`: equal to those of `eval`."""

from __future__ import annotations

import json
from math import ceil

import pytest
import torch

import hydractl
from hydractl.checkpoint import EXTRA_PREFIX, Checkpoint, ScratchFolder, write_tensors
from hydractl.cli.app import main
from hydractl.data.reference import DataRef
from hydractl.errors import CheckpointError, InputError, UsageError
from hydractl.hub.upload import weights_of
from hydractl.manifest.report import Report
from hydractl.prediction import inference
from hydractl.stages.evaluate.config import EvalConfig
from hydractl.stages.evaluate.run import run_eval
from hydractl.stages.fuse.config import FuseConfig
from hydractl.stages.fuse.run import run_fuse
from hydractl.stages.predict.config import PredictConfig, parse_threshold
from hydractl.stages.predict.run import run_predict
from support.builders import base
from support.predictions import SavedPredictions
from support.progress_log import ProgressLog

FIT, DATA = "digits::split=train,classes=0-6,limit=90", "digits::split=val,classes=0-6"
OTHER = "digits::split=train,classes=0-6,limit=80"
VAL = "digits::split=test,classes=0-6,limit=40"
K, COUNT = 5, 252
KNN = f"knn:k={K}"
FITTED = ("mahalanobis", "energy+density", "relative-mahalanobis", KNN, "vim")
QUICK = {"latency": False, "bootstrap": 0, "device": "cpu", "metrics": ("accuracy",)}
NONE = parse_threshold("none")


def evaluated(model, **settings):
    given = {"train": DataRef.parse(FIT), "ood_score": (*FITTED,)} | QUICK | settings
    if "energy+density" in (given["ood_score"] or ()):
        given["val"] = DataRef.parse(VAL)
    return run_eval(EvalConfig(model=str(model), data=DataRef.parse(DATA), **given)).document.rows[0]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    """Two members with different masks, and a hydra of both."""
    made = tmp_path_factory.mktemp("models")
    for i in range(2):
        base().pruned((0, 1), (2,), (0, 3) if i else (1,)).tuned(i).save(made / f"m{i}.st")
    members = tuple(str(made / f"m{i}.st") for i in range(2))
    run_fuse(FuseConfig(models=members, out=made / "hydra.st", mlp="keep"))
    return made


@pytest.fixture(scope="module")
def row(model_folder):
    return evaluated(
        model_folder / "hydra.st", threshold_for=0.95, delta=0.2, temperature=2.0, save_model=model_folder / "stored.st", out=model_folder / "r.json",
        save_predictions=model_folder / "p.st",
    )  # fmt: skip


@pytest.fixture(scope="module")
def eval_scores(model_folder, row):
    """OOD scores of `eval` by name, each of shape (N,)."""
    return SavedPredictions.load(model_folder / "p.st").said["hydra"]["id"].scores


def lines(model_folder, model, data=DATA, **settings):
    path = model_folder / "out.jsonl"
    for left in model_folder.glob("out.jsonl*"):
        left.unlink()
    run_predict(
        PredictConfig(model=str(model_folder / model), data=(data,), out=path, device="cpu", **settings)
    )
    return [json.loads(line) for line in path.read_text().splitlines()]


def scores(model_folder, model, **settings):
    return torch.tensor(
        [line["ood_score"] for line in lines(model_folder, model, **settings)], dtype=torch.float64
    )


def scores_close(ours, theirs):
    """Whether two scores agree to five digits of the largest absolute value."""
    return torch.allclose(ours, theirs, rtol=1e-5, atol=1e-5 * float(theirs.abs().max()))


@pytest.mark.spread(cases=2)
@pytest.mark.parametrize("score", FITTED)
def test_a_checkpoint_tells_the_scores_that_eval_found(model_folder, eval_scores, score):
    """The copy stores another temperature, but ViM reads logits at the temperature of its fit."""
    told = scores(model_folder, "stored.st", ood_score=score, threshold=NONE)

    assert len(told) == COUNT
    assert scores_close(told, eval_scores[score])
    assert len(told.unique()) > COUNT // 2


@pytest.mark.parametrize("score", [score for score in FITTED if score != "energy+density"])
def test_training_data_tells_them_too(model_folder, eval_scores, score):
    assert scores_close(
        scores(model_folder, "hydra.st", ood_score=score, train=DataRef.parse(FIT)), eval_scores[score]
    )


def test_the_stored_threshold_accepts_what_eval_counted(model_folder, row):
    told = lines(model_folder, "stored.st")

    assert row.threshold.score == "mahalanobis"
    assert sum(line["accepted"] for line in told) == row.threshold.accepted < COUNT
    eval_scores = torch.tensor([line["ood_score"] for line in told])  # printed scores are float32
    assert (eval_scores < torch.tensor(row.threshold.below)).tolist() == [line["accepted"] for line in told]


@pytest.mark.parametrize("score", ["mahalanobis", "vim"])
def test_a_hydra_has_the_mean_of_its_members(model_folder, eval_scores, score):
    each = [scores(model_folder, f"m{i}.st", ood_score=score, train=DataRef.parse(FIT)) for i in range(2)]

    assert torch.allclose(torch.stack(each).mean(0), eval_scores[score], rtol=1e-3)
    assert not torch.allclose(each[0], eval_scores[score], rtol=1e-2)


@pytest.mark.parametrize(("settings", "fitting"), [({}, 0), ({"train": DataRef.parse(FIT)}, 3)])
def test_inputs_go_through_the_model_once(model_folder, row, monkeypatch, settings, fitting):
    passes, respond = [], inference.respond

    def noted(*args, **named):
        passes.append(named["data"])
        return respond(*args, **named)

    monkeypatch.setattr("hydractl.prediction.inference.respond", noted)
    model = "hydra.st" if settings else "stored.st"
    lines(model_folder, model, ood_score="mahalanobis", threshold=NONE, batch_size=32, **settings)

    assert len(passes) == fitting + ceil(COUNT / 32)


def test_python_tells_the_same(model_folder, row, eval_scores):
    model = hydractl.load(model_folder / "stored.st")
    images = base().inputs(batch=5, seed=3)
    said = model.predict(images, batch_size=2)

    assert {*FITTED} < {*said.scores}
    assert torch.equal(said.accepted, said.scores["mahalanobis"] < row.threshold.below)
    again = hydractl.load(model_folder / "hydra.st").predict(images)
    assert not {*FITTED} & {*again.scores}
    assert torch.allclose(said.scores["entropy"], model.predict(images, batch_size=5).scores["entropy"])


def test_a_report_whose_score_was_fitted_on_the_same_data_has_a_threshold(model_folder):
    out = model_folder / "knn.json"
    kept = evaluated(
        model_folder / "hydra.st", ood_score=(KNN,), threshold_for=0.95, delta=0.2, out=out
    ).threshold
    same = {"threshold": out, "train": DataRef.parse(FIT)}

    told = lines(model_folder, "hydra.st", **same)
    assert sum(line["accepted"] for line in told) == kept.accepted
    with pytest.raises(UsageError, match="the threshold is for `knn:k=5`"):
        lines(model_folder, "hydra.st", ood_score="knn", **same)
    with pytest.raises(InputError, match=r"was fitted on .*limit=90.* has other samples"):
        lines(model_folder, "hydra.st", threshold=out, train=DataRef.parse(OTHER))
    assert Report.read(out).data["fit"].count == 90


def test_what_is_held_survives_a_copy_and_shards(model_folder, row, tmp_path):
    first = Checkpoint.open(model_folder / "stored.st")
    assert {name.split("/")[1] for name in first.beside} == {*FITTED}
    assert not [name for name in first.specs if name.startswith(EXTRA_PREFIX)]

    model = hydractl.load(model_folder / "stored.st")
    model.save(tmp_path / "again.st")
    assert (tmp_path / "again.st").read_bytes() == (model_folder / "stored.st").read_bytes()
    scratch = ScratchFolder()
    files = weights_of(first, first.header, limit=20_000, scratch=scratch)
    shards = [path for name, path in files.items() if name.endswith(".safetensors")]
    assert len(shards) > 3
    joined = Checkpoint.open(tmp_path, shards=shards)
    assert joined.beside == first.beside
    assert all(torch.equal(joined.tensor(name), first.tensor(name)) for name in first.beside)
    folder = model.save_pretrained(tmp_path / "folder")
    assert scores(model_folder, folder, ood_score="vim", threshold=NONE).equal(
        scores(model_folder, "stored.st", ood_score="vim", threshold=NONE)
    )


def test_a_base_that_holds_scores_is_no_folder_of_its_library(tmp_path):
    """timm refuses unknown tensors, so a base with stored scores is saved in hydractl's format."""
    base().save(tmp_path / "base.st")
    evaluated(tmp_path / "base.st", ood_score=("knn",), save_model=tmp_path / "held.st")
    for name in ("base", "held"):
        hydractl.load(tmp_path / f"{name}.st").save_pretrained(tmp_path / name)

    kinds = [
        json.loads((tmp_path / name / "config.json").read_text()).get("model_type")
        for name in ("base", "held")
    ]
    assert kinds == [None, "hydractl"]


def test_what_changes_weights_leaves_them_behind(model_folder, tmp_path):
    evaluated(model_folder / "m0.st", ood_score=("vim",), save_model=tmp_path / "held.st")
    progress_log = ProgressLog()
    run_fuse(
        FuseConfig(models=(str(tmp_path / "held.st"), str(model_folder / "m1.st")), out=tmp_path / "h.st"),
        progress_log,
    )

    assert any("its OOD scores (vim) are not kept" in line for line in progress_log.warnings)
    made = Checkpoint.open(tmp_path / "h.st")
    assert (made.header.fitted, made.beside) == (None, {})


def test_a_copy_that_stores_a_temperature_keeps_them(model_folder, row, eval_scores, tmp_path):
    evaluated(
        model_folder / "stored.st",
        train=None,
        ood_score=None,
        temperature=3.0,
        save_model=tmp_path / "hot.st",
    )

    copy = Checkpoint.open(tmp_path / "hot.st").header
    assert (copy.temperature, copy.fitted.temperature, copy.threshold) == (6.0, 1.0, None)
    assert copy.fitted.data.count == 90
    assert scores_close(scores(model_folder, tmp_path / "hot.st", ood_score="vim"), eval_scores["vim"])


def test_inspect_says_what_is_held(model_folder, row, capsys):
    assert main(["inspect", str(model_folder / "stored.st")]) == 0

    said = capsys.readouterr().out
    assert "OOD scores" in said
    assert f"{', '.join(FITTED)}: fitted on digits::" in said
    assert main(["inspect", str(model_folder / "hydra.st")]) == 0
    assert "OOD scores" not in capsys.readouterr().out


REFUSED = {
    "not fitted": ("hydra.st", {"ood_score": "knn"}, "not fitted for this model", "--ood-score knn --train TRAIN --save-model"),
    "fitted twice": (
        "stored.st", {"ood_score": KNN, "threshold": NONE, "train": FIT}, "already stores a fitted `knn:k=5`", "leave it out",
    ),
    "nothing to fit": ("hydra.st", {"train": FIT}, "the OOD score `msp` is not feature-based", "--ood-score relative-mahalanobis"),
    "a score of logits": ("hydra.st", {"ood_score": "mi", "train": FIT}, "`--train` and `--ood-score mi` exclude each other", "mahalanobis"),
    "another neighbour": ("stored.st", {"ood_score": "knn", "threshold": NONE}, "`knn` is feature-based and was not fitted", "--ood-score knn"),
    "held-out data are needed": ("hydra.st", {"ood_score": "energy+density", "train": FIT}, "exclude each other", "--val VAL --save-model"),
    "the default was not fitted": ("hydra.st", {"ood_score": "energy+density"}, "not fitted", "--train TRAIN --val VAL --save-model"),
    "a bound that is none": ("stored.st", {"ood_score": KNN, "threshold": 3.0}, "between 0 and 2", None),
    "another score's threshold": ("stored.st", {"ood_score": KNN}, "is for `mahalanobis`", "--threshold none"),
}  # fmt: skip


@pytest.mark.parametrize(("model", "settings", "message", "hint"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_told_is_refused(model_folder, row, model, settings, message, hint):
    given = settings | ({"train": DataRef.parse(settings["train"])} if "train" in settings else {})
    with pytest.raises(UsageError, match=message) as caught:
        lines(model_folder, model, **given)

    assert hint is None or hint in caught.value.hint
    assert not (model_folder / "out.jsonl").exists()


@pytest.fixture
def version_1_file(model_folder, row, tmp_path):
    """A file of an earlier format: stored scores and threshold have version 1."""
    whole = Checkpoint.open(model_folder / "stored.st")
    header = whole.header.model_copy(
        update={
            "fitted": whole.header.fitted.model_copy(update={"version": 1}),
            "threshold": whole.header.threshold.model_copy(update={"version": 1}),
        }
    )
    tensors = whole.tensors() | {name: whole.tensor(name) for name in whole.beside}
    with (tmp_path / "earlier.st").open("wb") as file:
        write_tensors(file, tensors, header=header)
    return tmp_path / "earlier.st"


@pytest.mark.parametrize("score", ["mahalanobis", "relative-mahalanobis", KNN])
def test_a_score_of_an_earlier_definition_is_refused(version_1_file, model_folder, score):
    with pytest.raises(CheckpointError, match="was fitted by its earlier definition") as caught:
        lines(model_folder, version_1_file, ood_score=score, threshold=NONE)
    assert (
        "fit it again with `hydractl eval ... --train TRAIN --val VAL --save-model PATH" in caught.value.hint
    )


def test_a_threshold_on_a_score_of_an_earlier_definition_is_refused(version_1_file, model_folder):
    for call in (lambda: lines(model_folder, version_1_file), lambda: hydractl.load(version_1_file)):
        with pytest.raises(
            InputError, match="its threshold is for an earlier definition of `mahalanobis`"
        ) as caught:
            call()
        assert "find it again with" in caught.value.hint


def test_what_means_the_same_as_before_is_told(version_1_file, model_folder, eval_scores, tmp_path):
    assert scores_close(
        scores(model_folder, version_1_file, ood_score="vim", threshold=NONE), eval_scores["vim"]
    )
    assert len(scores(model_folder, version_1_file, ood_score="msp", threshold=NONE)) == COUNT
    evaluated(version_1_file, save_model=tmp_path / "anew.st")
    assert scores_close(
        scores(model_folder, tmp_path / "anew.st", ood_score=KNN, threshold=NONE), eval_scores[KNN]
    )


def test_the_default_is_what_the_checkpoint_holds(model_folder, row, eval_scores, tmp_path):
    """The default is `energy+density` if the checkpoint stores this score, and `msp` otherwise."""
    evaluated(model_folder / "hydra.st", save_model=tmp_path / "held.st")
    assert scores_close(scores(model_folder, tmp_path / "held.st"), eval_scores["energy+density"])
    assert scores(model_folder, "hydra.st").equal(scores(model_folder, "hydra.st", ood_score="msp"))


def test_the_command_says_how_to_store_one(model_folder, capsys):
    assert main(["predict", str(model_folder / "hydra.st"), DATA, "--ood-score", "knn"]) == 2

    assert "hydractl eval" in (said := capsys.readouterr().err)
    assert "--train TRAIN --save-model PATH" in said


def _without(tensors):
    del tensors[f"{EXTRA_PREFIX}{KNN}/1/bank"]


def _narrow(tensors):
    for member in range(2):
        tensors[f"{EXTRA_PREFIX}{KNN}/{member}/bank"] = tensors[f"{EXTRA_PREFIX}{KNN}/{member}/bank"][
            :, :-1
        ].contiguous()


def _far(tensors):
    tensors[f"{EXTRA_PREFIX}{KNN}/0/neighbours"] = torch.tensor(91)


def _flat(tensors):
    tensors[f"{EXTRA_PREFIX}{KNN}/0/bank"] = tensors[f"{EXTRA_PREFIX}{KNN}/0/bank"].flatten()


def _endless(tensors):
    tensors[f"{EXTRA_PREFIX}{KNN}/1/bank"][0, 0] = torch.inf


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_without, "has no tensor `hydractl.ood/knn:k=5/1/bank`"),
        (_narrow, r"are for \[31\] features, but the model has 32"),
        (_far, "member 0: `neighbours` must be `k`"),
        (_flat, "member 0: `bank` must be ND of torch.float32"),
        (_endless, "member 1: `bank` is not finite"),
    ],
)
def test_broken_tensors_are_refused(model_folder, row, tmp_path, spoil, message):
    whole = Checkpoint.open(model_folder / "stored.st")
    tensors = whole.tensors() | {name: whole.tensor(name) for name in whole.beside}
    spoil(tensors)
    with (tmp_path / "broken.st").open("wb") as file:
        write_tensors(file, tensors, header=whole.header)

    with pytest.raises(CheckpointError, match=message) as caught:
        lines(model_folder, tmp_path / "broken.st", ood_score=KNN, threshold=NONE)
    assert message[:6] != "member" or caught.value.hint == "it may be from another version of hydractl"
