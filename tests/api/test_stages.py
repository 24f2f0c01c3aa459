"""Python functions of stages: silent, with the errors of commands."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path

import pytest

import hydractl
from hydractl.data.reference import DataRef
from hydractl.errors import CheckFailed, OutputExists, UsageError
from hydractl.prediction.class_names import Naming
from hydractl.stages.evaluate.config import EvalConfig
from hydractl.stages.fuse.config import FuseConfig
from hydractl.stages.importing.config import ImportConfig
from hydractl.stages.predict.config import PredictConfig
from support.builders import base
from support.progress_log import ProgressLog

PAGE = Path(__file__).parents[2] / "docs" / "python.md"


@pytest.fixture
def work(tmp_path, monkeypatch):
    """The current folder, with three members."""
    monkeypatch.chdir(tmp_path)
    for i in range(3):
        base().pruned((0, 1), (2,), (i,)).tuned(i).save(tmp_path / f"m{i}.st")
    return tmp_path


@pytest.mark.newer  # The block exports a model.
def test_the_page_on_python_runs_as_it_stands(tmp_path, monkeypatch, capsys):
    """All blocks run in order. Warnings about the small training are ignored."""
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    names: dict[str, object] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for block in blocks:
            exec(compile(block, str(PAGE), "exec"), names)  # noqa: S102 - our own page

    said = capsys.readouterr()
    assert len(blocks) >= 7
    assert "hydra.st: already exists - add `--force` to replace it" in said.out
    assert said.err == ""
    assert names["found"].labels == tuple(names["hydra"].labels[i] for i in names["found"].classes)
    assert names["accepted"].shape == (3,)
    assert len(Path("predictions.csv").read_text().splitlines()) == 21


def test_every_public_name_is_there():
    assert all(getattr(hydractl, name) is not None for name in hydractl.__all__)
    assert hydractl.fuse is hydractl.fuse


def test_values_become_the_types_of_their_fields():
    fuse = FuseConfig(models=["a.st", Path("b.st")], out="h.st")
    assert (fuse.models, fuse.out) == (("a.st", "b.st"), Path("h.st"))
    given = EvalConfig(
        model=Path("h.st"), data="digits", near=["a=digits::classes=9", "noise"], far="photos", metrics="accuracy,auroc",
        fail_if=["accuracy<0.9", "auroc[noise]>1"], temperature="digits::limit=3", ood_score=["energy"],
    )  # fmt: skip
    assert (given.model, given.data, given.metrics) == (
        "h.st",
        DataRef.parse("digits"),
        ("accuracy", "auroc"),
    )
    assert [d.name for d in given.ood] == ["a", "noise", "photos"]
    assert len(given.fail_if) == 2
    assert given.temperature == DataRef.parse("digits::limit=3")
    predict = PredictConfig(model="m.st", data="x.csv", out="y.csv", threshold="0.5")
    assert (predict.data, predict.threshold) == (("x.csv",), 0.5)
    assert PredictConfig(model="m.st", data=["a,b.csv"], out="y.csv").data == ("a,b.csv",)
    renamed = ImportConfig(sources=["w.pth"], arch="a", rename=[("fc", "head")], out="o.st")
    assert renamed.rename == (("fc", "head"),)
    assert hydractl.Recipe(lr=3e-3).lr == (3e-3,)
    naming = Naming(names=["cat, small", "dog"])
    assert PredictConfig(model="m.st", data="x", out="y.csv", naming=naming).naming.names[0] == "cat, small"
    budget = hydractl.HeadBudget(remove=2)
    prune = hydractl.PruneConfig(model="m.st", scores="s.json", budget=budget, out="m.st", strategy="best")
    assert (prune.scores, prune.strategy.value) == ((Path("s.json"),), "best")


def test_stages_run(work):
    members = ["m0.st", work / "m1.st", Path("m2.st")]
    report = hydractl.fuse(FuseConfig(models=members, out="h.st", mlp="keep", verify=False))
    assert (report.members, report.paths) == (3, (Path("h.st"),))
    config = EvalConfig(
        model="h.st", data="digits::split=test,classes=0-6,limit=14", metrics=["accuracy", "ece"],
        fail_if="accuracy<0.9999", device="cpu", latency=False, bootstrap=0, compare=["one=m0.st", "two=m1.st"],
    )  # fmt: skip
    measured = hydractl.evaluate(config)
    assert [row.name for row in measured.document.rows] == ["h", "one", "two"]
    assert {*measured.document.rows[0].values} == {"accuracy", "ece"}
    with pytest.raises(CheckFailed, match="1 of 1 checks failed"):
        measured.require_checks()
    told = hydractl.predict(
        PredictConfig(model="h.st", data="digits::limit=3", out=work / "p.jsonl", device="cpu", top_k=1)
    )
    assert told.inputs == len([json.loads(line) for line in Path("p.jsonl").read_text().splitlines()]) == 3


def test_functions_are_quiet_unless_asked_and_warnings_are_pythons(work, capsys):
    progress_log = ProgressLog()
    with pytest.warns(UserWarning, match="there is only one member: the hydra predicts like one model"):
        hydractl.fuse(FuseConfig(models="m0.st", out="one.st", verify=False))
    hydractl.fuse(FuseConfig(models=["m0.st"], out="two.st", verify=False), progress_log)

    assert capsys.readouterr() == ("", "")
    assert progress_log.steps == ["Comparing 1 member", "Writing two.st"]


def test_errors_are_those_of_the_command(work):
    config = FuseConfig(models=["m0.st", "m1.st"], out="h.st", verify=False)
    hydractl.fuse(config)
    with pytest.raises(OutputExists, match="already exists"):
        hydractl.fuse(config)
    with pytest.raises(UsageError, match="`--mlp mix`: unknown"):
        FuseConfig(models=["m0.st", "m1.st"], out="x.st", mlp="mix")
    with pytest.raises(UsageError, match="`--batch-size 64`: is a text, not a number or a truth value"):
        EvalConfig(model="m.st", data="digits", batch_size="64")
    with pytest.raises(TypeError, match=r"takes a configuration: `hydractl.fuse\(FuseConfig\(...\)\)`"):
        hydractl.fuse(["m0.st", "m1.st"], out="h.st")
    with pytest.raises(TypeError, match="unexpected keyword argument 'merge_tunk'"):
        FuseConfig(models=["m0.st"], out="x.st", merge_tunk=1)
