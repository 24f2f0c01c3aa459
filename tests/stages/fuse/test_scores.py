"""`fuse --train --val`: the hydra stores the same fitted OOD score as `eval --save-model`."""

from __future__ import annotations

import json

import pytest
import torch

import hydractl
from hydractl.checkpoint import Checkpoint
from hydractl.cli.app import main
from hydractl.data.reference import DataRef
from hydractl.errors import DataError, UsageError
from hydractl.stages.evaluate.config import EvalConfig
from hydractl.stages.evaluate.run import run_eval
from hydractl.stages.fuse.config import FuseConfig, Measuring
from hydractl.stages.fuse.run import run_fuse
from support.builders import base
from support.progress_log import ProgressLog

FIT, VAL, TEST = (
    f"digits::split={split},classes=0-6,limit={n}" for split, n in (("train", 90), ("val", 40), ("test", 30))
)
DEFAULT = "energy+density"
FITTING = {"train": DataRef.parse(FIT), "val": DataRef.parse(VAL), "device": "cpu"}


@pytest.fixture(scope="module")
def members(tmp_path_factory):
    folder = tmp_path_factory.mktemp("members")
    for i in range(2):
        base().pruned((0, 1), (2,), (0, 3) if i else (1,)).tuned(i).save(folder / f"m{i}.st")
    return tuple(str(folder / f"m{i}.st") for i in range(2))


def fuse(members, out, ear=None, **measuring):
    return run_fuse(
        FuseConfig(models=members, out=out, force=True, mlp="merge", measuring=Measuring(**measuring)),
        ear or ProgressLog(),
    )


@pytest.mark.spread(cases=1)
@pytest.mark.parametrize("temperature", [None, 2.0, DataRef.parse(VAL)], ids=["raw", "given", "fitted"])
def test_it_is_what_eval_fits_for_the_hydra(members, tmp_path, temperature):
    report = fuse(members, tmp_path / "h.st", temperature=temperature, **FITTING)
    made = Checkpoint.open(tmp_path / "h.st")

    plain = tmp_path / "bare.st"
    run_fuse(FuseConfig(models=members, out=plain, measuring=Measuring(temperature=report.temperature)))
    run_eval(
        EvalConfig(
            model=str(plain), data=DataRef.parse(TEST), train=FITTING["train"], val=FITTING["val"], save_model=tmp_path / "e.st",
            latency=False, bootstrap=0, device="cpu", metrics=("accuracy",),
        )
    )  # fmt: skip
    stored = Checkpoint.open(tmp_path / "e.st")

    assert report.ood_scores == (DEFAULT,)
    assert made.header.fitted == stored.header.fitted
    assert made.header.temperature == stored.header.temperature
    assert made.beside == stored.beside
    for name in made.beside:
        torch.testing.assert_close(made.tensor(name), stored.tensor(name), rtol=1e-4, atol=1e-5)
    assert report.ood_scores_bytes == sum(spec.size_bytes for spec in made.beside.values())


def test_what_reads_the_hydra_uses_it(members, tmp_path):
    fuse(members, tmp_path / "h.st", **FITTING)

    predictions = hydractl.load(tmp_path / "h.st").predict(base().inputs(batch=4, seed=3))
    report = run_eval(
        EvalConfig(
            model=str(tmp_path / "h.st"), data=DataRef.parse(TEST), latency=False, bootstrap=0, device="cpu",
            threshold_for=0.95, delta=0.2,
        )
    ).document  # fmt: skip

    assert DEFAULT in predictions.scores
    assert report.rows[0].threshold.score == DEFAULT


def test_the_command_says_and_records_it(members, tmp_path, capsys):
    out = tmp_path / "h.st"
    assert main(["fuse", *members, "-o", str(out), "--train", FIT, "--val", VAL, "--json"]) == 0

    assert json.loads(capsys.readouterr().out)["ood_scores"] == [DEFAULT]
    names = [file.name for file in Checkpoint.open(out).header.made_by.inputs]
    assert names[2:] == [str(DataRef.parse(VAL)), str(DataRef.parse(FIT))]
    assert main(["fuse", *members, "-o", str(out), "--train", FIT, "--val", VAL, "--force"]) == 0
    assert f"OOD score: {DEFAULT}" in capsys.readouterr().out


def test_held_out_data_that_were_trained_on_are_told(members, tmp_path):
    ear = ProgressLog()
    fuse(members, tmp_path / "h.st", ear, **{**FITTING, "val": FITTING["train"]})

    assert any("`--val` and `--train` have the same samples" in warning for warning in ear.warnings)


def test_what_cannot_be_is_refused(members, tmp_path):
    with pytest.raises(UsageError, match="`--train` needs `--val`"):
        fuse(members, tmp_path / "h.st", train=DataRef.parse(FIT))
    with pytest.raises(DataError, match="no labels"):
        fuse(members, tmp_path / "h.st", **{**FITTING, "train": DataRef.parse("noise::limit=9")})
    assert not (tmp_path / "h.st").exists()
