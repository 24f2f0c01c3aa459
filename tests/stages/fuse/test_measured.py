"""`fuse --val`: loss from merging, `--trunk auto`, stored temperatures."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hydractl.checkpoint import Checkpoint
from hydractl.cli.app import main
from hydractl.data.open_dataset import open_items
from hydractl.data.reference import DataRef
from hydractl.errors import CheckFailed, CheckpointError, UsageError
from hydractl.evaluation.options import NamedModels
from hydractl.families.open_model import open_model
from hydractl.prediction import merge_trunk
from hydractl.prediction.inference import PreparedData
from hydractl.prediction.loaded_model import load
from hydractl.stages.evaluate.config import EvalConfig
from hydractl.stages.evaluate.run import run_eval
from hydractl.stages.fuse.config import FuseConfig, Measuring
from hydractl.stages.fuse.run import run_fuse
from hydractl.stages.inspect.config import InspectConfig
from hydractl.stages.inspect.run import run_inspect
from support.builders import base, perturbed, sha
from support.digits_classifier import with_digits_classifier
from support.progress_log import ProgressLog
from support.variants import PLAIN, variant

VAL = DataRef.parse("digits::split=val,classes=0-6,limit=50")
TEST = DataRef.parse("digits::split=test,classes=0-6,limit=40")
CLIP = variant("transformers-clip-plain")
MEASURING = Measuring(val=VAL, device="cpu")


@pytest.fixture(scope="module")
def members(tmp_path_factory):
    """Three members of one base with different classifiers of digits."""
    folder = tmp_path_factory.mktemp("members")
    one = replace(base(PLAIN), header=base(PLAIN).header.model_copy(update={"base": sha("base")}))
    for i in range(3):
        tuned = replace(one, state=perturbed(one.state, seed=i, scale=0.4))
        with_digits_classifier(tuned, 12).save(folder / f"{i}.st")
    return [folder / f"{i}.st" for i in range(3)]


def fuse(members, out, ear=None, **changes):
    given = {"verify": False, "force": True, "measuring": MEASURING}
    return run_fuse(
        FuseConfig(models=tuple(map(str, members)), out=out, **(given | changes)), ear or ProgressLog()
    )


@pytest.fixture(scope="module")
def losses(members, tmp_path_factory):
    """Increase of validation NLL by number of merged blocks."""
    out = tmp_path_factory.mktemp("each") / "hydra.st"
    return {n: fuse(members, out, trunk=n).measured.tried[-1].loss for n in (1, 2, 3)}


def evaluated(model, members, **changes):
    apart = NamedModels(name="apart", models=tuple(map(str, members)))
    given = {
        "latency": False,
        "bootstrap": 0,
        "device": "cpu",
        "metrics": ("accuracy", "nll", "mutual_information"),
    }
    config = EvalConfig(model=str(model), data=VAL, compare=(apart,), **(given | changes))
    return [{name: v.value for name, v in row.values.items()} for row in run_eval(config).document.rows]


@pytest.mark.spread(cases=1)
@pytest.mark.parametrize("temperature", [None, 1.5, TEST], ids=["raw", "given", "fitted"])
def test_what_is_measured_is_what_eval_says_of_hydra_and_members(members, tmp_path, temperature):
    report = fuse(
        members, tmp_path / "hydra.st", trunk=2, measuring=replace(MEASURING, temperature=temperature)
    )

    found, last = report.measured, report.measured.tried[-1]
    plain = fuse(members, tmp_path / "plain.st", trunk=2, measuring=Measuring())
    assert plain.measured is None
    rows = evaluated(tmp_path / "plain.st", members, temperature=temperature)
    for row, quality in zip(rows, (last.hydra, found.members), strict=True):
        assert quality.accuracy == pytest.approx(row["accuracy"])
        assert quality.nll == pytest.approx(row["nll"], rel=1e-4)
        assert quality.mutual_information == pytest.approx(row["mutual_information"], rel=1e-3, abs=1e-6)
        assert quality.temperature == pytest.approx(row.get("temperature", 1.0), rel=1e-5)
    assert last.loss == pytest.approx(rows[0]["nll"] - rows[1]["nll"], abs=1e-4)
    assert (found.samples, last.merge_trunk, report.temperature) == (50, 2, last.hydra.temperature)
    # `eval` and `load` use the stored temperature.
    assert evaluated(tmp_path / "hydra.st", members)[0]["nll"] == pytest.approx(last.hydra.nll, rel=1e-4)
    assert open_model(str(tmp_path / "hydra.st")).header.temperature == report.temperature


@torch.inference_mode()
def test_agreement_is_of_the_ensembles_predictions(members, tmp_path):
    last = fuse(members, tmp_path / "hydra.st", trunk=3).measured.tried[-1]
    preprocess = open_model(str(members[0])).header.preprocess
    (batch,) = PreparedData(open_items(VAL, preprocess), batch_size=50).batches(preprocess)
    apart = torch.cat([load(m).member_logits(batch.inputs) for m in members]).softmax(-1).mean(0)
    same = load(tmp_path / "hydra.st")(batch.inputs).logits.argmax(-1) == apart.argmax(-1)

    assert last.agreement == pytest.approx(float(same.double().mean()))
    assert last.agreement < 1


@pytest.mark.more
def test_auto_merges_as_much_as_may_be(members, losses, tmp_path):
    """Reference by brute force: the largest number of blocks with a loss within the bound."""
    assert len({round(loss, 6) for loss in losses.values()}) == 3
    for bound in sorted(max(loss, 0.0) for loss in losses.values()):
        wanted = max(n for n, loss in losses.items() if loss <= bound)
        report = fuse(members, tmp_path / "hydra.st", max_nll_increase=bound)
        assert report.merge_trunk == wanted
        assert [one.merge_trunk for one in report.measured.tried] == list(range(3, wanted - 1, -1))
        assert [one.loss for one in report.measured.tried] == [losses[n] for n in range(3, wanted - 1, -1)]
    step = open_model(str(tmp_path / "hydra.st")).header.made_by
    assert (step.options["merge_trunk"], step.options["max_loss"]) == ("auto", bound)
    assert step.results["merge_trunk"] == wanted
    assert {"validation_nll", "members_nll", "agreement", "validation_accuracy"} <= step.results.keys()


def test_where_merging_costs_too_much_nothing_is_merged(members, losses, tmp_path, monkeypatch):
    """Each member and each merged hydra predicts once; an unmerged hydra does not predict."""
    asked, predict = [], merge_trunk.predict
    monkeypatch.setattr(
        merge_trunk, "predict", lambda model, *a, **k: asked.append(model.name) or predict(model, *a, **k)
    )
    assert min(losses.values()) > 0
    ear = ProgressLog()

    report = fuse(members, tmp_path / "hydra.st", ear, max_nll_increase=0.0)

    assert (report.merge_trunk, report.tensors["merged"], len(asked)) == (0, 0, 6)
    last = report.measured.tried[-1]
    assert (last.loss, last.agreement, last.hydra) == (0, 1, report.measured.members)
    assert ear.warnings == ["merging any block costs more than allowed, so every member keeps its own blocks"]
    with pytest.raises(CheckFailed, match="every hydra loses more than 0 nats") as caught:
        fuse(members, tmp_path / "none.st", trunk="auto", mlp="merge", max_nll_increase=0.0)
    assert caught.value.exit_code == 5
    assert not (tmp_path / "none.st").exists()


def test_auto_begins_where_heads_part(tmp_path):
    one = base(PLAIN)
    paths = [one.pruned((0, 1), (2,), (i,)).tuned(i).save(tmp_path / f"{i}.st") for i in range(2)]
    report = fuse(paths, tmp_path / "hydra.st", trunk="auto", max_nll_increase=99.0)
    assert [one.merge_trunk for one in report.measured.tried] == [2]
    apart = [one.pruned((i,), (2,), (3,)).save(tmp_path / f"{i}.st") for i in range(2)]
    report = fuse(apart, tmp_path / "hydra.st", trunk="auto", max_nll_increase=99.0)
    assert [one.merge_trunk for one in report.measured.tried] == [0]
    assert report.measured.tried[0].loss == 0


def test_a_hydra_has_the_class_names_of_the_data_if_its_members_have_none(tmp_path):
    """Placeholders (`LABEL_0`) count as missing names; real names of members are kept."""
    names = tuple(f"LABEL_{i}" for i in range(7))
    for labels, expected in (((), tuple("0123456")), (names, tuple("0123456")), (tuple("abcdefg"), None)):
        one = base(PLAIN)
        one = replace(one, header=one.header.model_copy(update={"labels": labels}))
        paths = [one.tuned(i).save(tmp_path / f"{i}.st") for i in range(2)]
        measuring = Measuring(val=replace(VAL, classes_by="position"))
        fuse(paths, tmp_path / "hydra.st", trunk=1, force_merge=True, measuring=measuring)
        assert open_model(str(tmp_path / "hydra.st")).header.labels == (expected or labels)


def test_a_temperature_alone_asks_the_hydra_alone(members, tmp_path):
    report = fuse(members, tmp_path / "hydra.st", trunk=3, measuring=Measuring(temperature=VAL))
    header = open_model(str(tmp_path / "hydra.st")).header
    plain = fuse(members, tmp_path / "plain.st", trunk=3, measuring=Measuring())
    fitted = evaluated(tmp_path / "plain.st", members, temperature=VAL)[0]

    assert report.measured is None
    assert plain.temperature == 1 != report.temperature
    assert header.temperature == report.temperature == pytest.approx(fitted["temperature"], rel=1e-5)
    assert header.made_by.results == {"temperature": header.temperature}
    assert [file.name for file in header.made_by.inputs][3:] == ["digits::classes=0-6,limit=50,split=val"]
    assert run_inspect(InspectConfig(files=(str(tmp_path / "hydra.st"),))).fused.members == (
        "0.st",
        "1.st",
        "2.st",
    )
    one, other = Checkpoint.open(tmp_path / "hydra.st"), Checkpoint.open(tmp_path / "plain.st")
    assert all(torch.equal(one.tensor(n), other.tensor(n)) for n in one.specs)


@pytest.mark.newer
def test_temperatures_of_members(members, tmp_path):
    """A common temperature is kept, different ones are refused, and a new temperature replaces either."""
    samples = [base(PLAIN).pruned((0,), (1,), (i,)) for i in range(2)]

    def at(*temperatures):
        for i, (sample, found) in enumerate(zip(samples, temperatures, strict=True)):
            header = sample.header.model_copy(update={"temperature": found})
            replace(sample, header=header).save(tmp_path / f"{i}.st")
        return [tmp_path / f"{i}.st" for i in range(2)]

    assert fuse(at(2.0, 2.0), tmp_path / "h.st", measuring=Measuring()).temperature == 2
    assert fuse(at(2.0, 2.0), tmp_path / "h.st").measured.members.temperature == 2
    with pytest.raises(CheckpointError, match=r"1\.st: stores the temperature 3, .*0\.st 2;"):
        fuse(at(2.0, 3.0), tmp_path / "h.st", measuring=Measuring())
    assert fuse(at(2.0, 3.0), tmp_path / "h.st", measuring=Measuring(temperature=1.0)).temperature == 1
    inputs = samples[0].inputs()
    with torch.inference_mode():
        torch.testing.assert_close(
            load(tmp_path / "h.st").member_logits(inputs)[1], samples[1].model()(inputs)
        )


def test_table_and_json(members, tmp_path, capsys):
    """The table and `--json` show the same numbers."""
    data = "digits::split=val,classes=0-6,limit=50"
    line = ["fuse", *map(str, members), "--trunk", "auto", "--max-nll-increase", "99", "--val", data,
            "--temperature", data, "--device", "cpu"]  # fmt: skip
    assert main([*line, "-o", str(tmp_path / "a.st"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert main([*line, "-o", str(tmp_path / "b.st")]) == 0
    shown = capsys.readouterr().out

    assert (tmp_path / "a.st").read_bytes() == (tmp_path / "b.st").read_bytes()
    (tried,) = found["measured"]["tried"]
    assert re.search(
        rf"3 blocks merged +{tried['hydra']['temperature']:.3f} +{tried['hydra']['accuracy']:.3f} "
        rf"+{tried['hydra']['nll']:.4f} +{tried['hydra']['mutual_information']:.4f} +{re.escape(format(tried['loss'], '+.4f'))} +{tried['agreement']:.3f}",
        shown,
    )
    assert f"{found['measured']['members']['nll']:.4f}" in shown
    assert "Trunk: 3 of 3 blocks, computed once, tensors that differ before block 3 averaged" in shown
    assert f"Temperature: {found['temperature']:g}" in shown
    before = found["measured"]["members"]["mutual_information"]
    share = tried["hydra"]["mutual_information"] / before
    assert f", {share:.0%} of the {before:.4f} of the members' ensemble" in " ".join(shown.split())
    assert "Largest difference from the members, before temperature scaling: logits" in shown
    assert main(["inspect", str(tmp_path / "a.st")]) == 0
    shown = capsys.readouterr().out
    assert re.search(rf"temperature +{found['temperature']:g} *\n", shown)
    assert "tensors that differ before block 3" in shown


@pytest.mark.parametrize(("changes", "message"), [
    ({"trunk": "auto", "measuring": Measuring()}, "`--trunk auto` needs `--val`: it measures the effect of merging"),
    ({"trunk": 2, "max_nll_increase": 0.1}, "`--max-nll-increase` has no effect: the trunk is not chosen"),
])  # fmt: skip
def test_options_that_have_no_effect(changes, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        FuseConfig(models=("a.st",), out=Path("h.st"), **changes)


NUMBER_OR_DATA = "give a number above 0 (1 changes nothing), or labelled held-out data to fit it on"


@pytest.mark.parametrize(("options", "message", "code"), [
    (["--device", "cpu", "--batch-size", "8"], "`--batch-size` and `--device`: no effect, because no model runs on data", 2),
    (["--trunk", "deep"], "`--trunk deep`: must be a number of blocks, or `auto`", 2),
    (["--temperature", "0"], f"`--temperature 0`: must be between 0.001 and 1000\n\nhint: {NUMBER_OR_DATA}", 2),
    (["--temperature", "1e9"], f"must be between 0.001 and 1000\n\nhint: {NUMBER_OR_DATA}", 2),
    (["--val", "noise"], "noise: has no labels, but `--val` needs them", 3),
    (["--temperature", "noise"], "noise: has no labels, but `--temperature` needs them", 3),
    (["--val", "digits"], "digits: has 10 classes and the model 7", 3),
])  # fmt: skip
def test_what_cannot_be_measured_is_refused(members, tmp_path, capsys, options, message, code):
    assert main(["fuse", *map(str, members), "--mlp", "keep", "-o", str(tmp_path / "h.st"), *options]) == code
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_zero_shot_model_without_classes(tmp_path):
    path = base(CLIP).save(tmp_path / "clip.st")
    with pytest.raises(UsageError, match="has no class names yet, so nothing can be measured") as caught:
        fuse([path, path], tmp_path / "h.st")
    assert "--classes" in str(caught.value.hint)
