"""`score` with methods that train gates: outputs, resume after a kill, and errors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hydractl.checkpoint import Checkpoint
from hydractl.errors import CheckFailed, OutputExists, UsageError
from hydractl.families.open_model import load_model, open_model
from hydractl.heads.budget import HeadBudget
from hydractl.manifest.head_mask import HeadImportance
from hydractl.manifest.header import Kind
from hydractl.progress import Silent
from hydractl.research.scores.options import TrainedWeights
from hydractl.stages.score.config import ScoreConfig
from hydractl.stages.score.run import run_score
from support.builders import base
from support.pairs import pair
from support.progress_log import cut_between_names
from support.variants import variant

DIGITS = "digits::classes=0-6,limit=40"
JOINT = {"training": "joint", "epochs": 2}


def config(model, out, **changes):
    settings = {"data": DIGITS, "batch_size": 16, "method": "l0", "given": {"epochs": 2}} | changes
    if (trained := settings.pop("save_model", None)) is not None:
        settings["extensions"] = (TrainedWeights(save_model=trained),)
    return ScoreConfig(model=model, out=out, **settings)


class Pressed(Silent):
    """Progress that raises KeyboardInterrupt after the first epoch."""

    def step(self, message):
        if "epoch 1)" in message:
            raise KeyboardInterrupt


def test_scores_that_are_learned_say_how(model, tmp_path):
    report = run_score(config(model, tmp_path / "s.json"))

    found = HeadImportance.read(tmp_path / "s.json")
    assert found == report.scores
    assert found.options == {
        "training": "pipelined", "epochs": 2, "gate_lr": 0.1, "penalty": 0.0015, "seed": 0, "batch_size": 16,
    }  # fmt: skip
    assert found.results.keys() == {"open", "steps", "training_accuracy", "training_nll"}
    assert (found.results["steps"], found.results["open"]) == (6, 12)
    assert report.paths == (tmp_path / "s.json",)
    assert [p.name for p in tmp_path.iterdir()] == ["s.json"]


def test_dsp_keeps_two_thirds_unless_told_and_says_so(model, tmp_path):
    told, untold = (
        run_score(config(model, tmp_path / f"{i}.json", method="dsp", given={}, budget=budget))
        for i, budget in enumerate((HeadBudget(remove=5), None))
    )

    assert (told.scores.options["kept"], told.default_budget) == (7, False)
    assert (untold.scores.options["kept"], untold.default_budget) == (8, True)


def test_a_limit_trains_on_so_many(model, tmp_path):
    report = run_score(config(model, tmp_path / "s.json", limit=20))

    assert report.scores.results["steps"] == 4


@pytest.mark.spread(cases=1)
@pytest.mark.parametrize("method", ["l0", "dsp"])
def test_an_interrupted_run_ends_with_the_same_bytes(model, tmp_path, method):
    whole, out = tmp_path / "whole.json", tmp_path / "s.json"
    run_score(config(model, whole, method=method))
    with pytest.raises(KeyboardInterrupt):
        run_score(config(model, out, method=method), Pressed())
    assert not out.exists()
    assert (tmp_path / "s.json.state").is_dir()
    with pytest.raises(OutputExists, match="with other options"):
        run_score(config(model, out, method=method, seed=1))

    run_score(config(model, out, method=method))

    assert out.read_bytes() == whole.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["s.json", "whole.json"]


def test_joint_training_writes_a_base_that_the_scores_are_of(model, tmp_path):
    out, trained = tmp_path / "s.json", tmp_path / "trained.st"

    report = run_score(config(model, out, given=JOINT, save_model=trained))

    assert report.paths == (out, trained)
    model_file = open_model(str(trained))
    before = Checkpoint.open(Path(model))
    assert model_file.header.kind == Kind.BASE
    assert model_file.header.base == before.digest
    assert report.scores.model.sha256 == model_file.checkpoint.digest
    step = model_file.header.made_by
    assert (step.command, step.options["method"], step.options["weights_lr"]) == ("score", "l0", 2e-5)
    assert step.inputs[0].name == "base.st"
    assert step.results == report.scores.results
    assert model_file.checkpoint.specs == before.specs
    changed = [n for n in before.specs if not torch.equal(before.tensor(n), model_file.checkpoint.tensor(n))]
    assert changed
    assert load_model(model_file)(torch.zeros(1, 1, 8, 8)).isfinite().all()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["s.json", "trained.st"]


def test_scores_and_weights_cut_off_between_two_names_are_finished(model, tmp_path, monkeypatch):
    whole, told = tmp_path / "whole", {"given": JOINT | {"epochs": 1}}
    for folder in (whole, tmp_path / "cut"):
        folder.mkdir()
    out, trained = tmp_path / "cut" / "s.json", tmp_path / "cut" / "t.st"
    run_score(config(model, whole / "s.json", save_model=whole / "t.st", **told))
    cut_between_names(monkeypatch, lambda: run_score(config(model, out, save_model=trained, **told)), 1)
    assert [out.exists(), trained.exists()] == [False, True]

    run_score(config(model, out, save_model=trained, **told))

    assert sorted(p.name for p in out.parent.iterdir()) == ["s.json", "t.st"]
    assert out.read_bytes() == (whole / "s.json").read_bytes()
    assert trained.read_bytes() == (whole / "t.st").read_bytes()


def test_the_same_seed_trains_the_same_base(model, tmp_path):
    for name in "ab":
        run_score(config(model, tmp_path / f"{name}.json", given=JOINT, save_model=tmp_path / f"{name}.st"))

    assert (tmp_path / "a.st").read_bytes() == (tmp_path / "b.st").read_bytes()


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"save_model": "t.st"},
            UsageError,
            "no weights are trained by `--method l0` and `--training pipelined`",
        ),
        ({"save_model": "t.st", "method": "magnitude", "given": {}}, UsageError, "by `--method magnitude`"),
        ({"save_model": "-", "given": JOINT}, UsageError, "is a stream"),
        (
            {"save_model": "s", "out": "s", "given": JOINT},
            UsageError,
            "is also the output file of the scores",
        ),
        ({"given": {"cooldown": 0.5}}, UsageError, "`--cooldown` has no effect with `--method l0`"),
        ({"method": "dsp", "budget": HeadBudget(remove=12)}, UsageError, "nothing to select"),
    ],
)
def test_bad_input(model, tmp_path, changes, error, message):
    if (name := changes.get("save_model")) is not None:
        changes = changes | {"save_model": Path(name) if name == "-" else tmp_path / name}
    if (name := changes.get("out")) is not None:
        changes = changes | {"out": tmp_path / name}

    with pytest.raises(error, match=message):
        run_score(config(**{"model": model, "out": tmp_path / "s.json"} | changes))

    assert not list(tmp_path.iterdir())


def test_weights_that_are_there_are_not_replaced(model, tmp_path):
    (tmp_path / "t.st").write_text("mine")

    with pytest.raises(OutputExists, match=r"t\.st") as caught:
        run_score(config(model, tmp_path / "s.json", given=JOINT, save_model=tmp_path / "t.st"))

    assert "--save-model" in caught.value.hint
    assert (tmp_path / "t.st").read_text() == "mine"


def test_the_weights_of_a_zero_shot_model_are_not_trained(tmp_path):
    path = pair("clip", tmp_path).save(tmp_path / "clip.st")

    with pytest.raises(UsageError, match="is a zero-shot model") as caught:
        run_score(config(str(path), tmp_path / "s.json", given=JOINT))
    assert "--training pipelined" in caught.value.hint


def test_a_training_that_diverges_leaves_nothing(tmp_path):
    sample = base(variant("class-token"))
    state = {n: torch.full_like(t, 3e38) if n == "head.weight" else t for n, t in sample.state.items()}
    huge = type(sample)(sample.header, state).save(tmp_path / "huge.st")

    with pytest.raises(CheckFailed, match=r"diverged with learning rate 0\.1"):
        run_score(config(str(huge), tmp_path / "s.json"))

    assert [p.name for p in tmp_path.iterdir()] == ["huge.st"]
