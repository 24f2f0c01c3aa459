"""`hydractl finetune`: arguments to configuration, results to the terminal, errors to exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hydractl.data.reference import DataRef
from hydractl.manifest.header import Kind
from hydractl.stages.finetune import run as stage
from hydractl.stages.finetune.config import FinetuneConfig
from hydractl.stages.finetune.run import FinetuneReport
from hydractl.training.recipe import RECIPES, Recipe, recipe_of

ARCH = "arch:vit_tiny_patch16_224::img_size=8,patch_size=4,in_chans=1,embed_dim=32,depth=2,num_heads=4,num_classes=7"
TRAIN, VAL = "digits::split=train,classes=0-6,limit=32", "digits::split=val,classes=0-6,limit=16"
GIVEN = ["finetune", "m.st", "--train", TRAIN, "--val", VAL, "-o", "out.st"]


def report(out="out.st"):
    return FinetuneReport(
        path=Path(out), kind=Kind.MEMBER, accuracy=0.98, nll=0.0914, lr=0.001, step=960, total_steps=1000,
        trained_parameters=301_959, frozen_parameters=0, training_macs=12_000, resumed_from=None,
    )  # fmt: skip


@pytest.fixture
def asked(monkeypatch):
    """Replace the stage by a function to store the configuration."""
    found = []
    monkeypatch.setattr(stage, "run_finetune", lambda config, _progress: found.append(config) or report())
    monkeypatch.setattr("hydractl.cli.command._check_inputs", lambda _: None)
    return found


def config(**changes):
    given = {"model": "m.st", "train": DataRef.parse(TRAIN), "val": DataRef.parse(VAL), "out": Path("out.st"),
             "recipe": Recipe()}  # fmt: skip
    return FinetuneConfig(**(given | changes))


@pytest.mark.parametrize(("options", "wanted"), [
    ([], {}),
    (["--recipe", "cifar100"], {"recipe": RECIPES["cifar100"], "recipe_name": "cifar100"}),
    (["--recipe", "imagenet1k", "--steps", "9000", "--augment", "none", "--lr", "0.1"],
     {"recipe": recipe_of("imagenet1k", {"steps": 9000, "augment": (), "lr": (0.1,)}), "recipe_name": "imagenet1k"}),
    (["--optimizer", "sgd", "--lr", "0.1,0.2", "--weight-decay", "0.3", "--momentum", "0.4"],
     {"recipe": Recipe(optimizer="sgd", lr=(0.1, 0.2), weight_decay=0.3, momentum=0.4)}),
    (["--schedule", "linear", "--warmup", "7", "--clip", "1", "--label-smoothing", "0.1", "--dropout", "0.2"],
     {"recipe": Recipe(schedule="linear", warmup=7, clip=1.0, label_smoothing=0.1, dropout=0.2)}),
    (["--warmup", "0.5", "--augment", "flip,rrc", "--precision", "bf16", "--steps", "5", "--batch-size", "6",
      "--accumulate", "2"],
     {"recipe": Recipe(warmup=0.5, augment=("flip", "rrc"), precision="bf16", steps=5, batch_size=6, accumulate=2)}),
    (["--epochs", "3", "--train-parts", "head,norm", "--trunk", "2", "--reset-head"],
     {"recipe": Recipe(epochs=3, train_parts=("norm", "head"), trunk=2, reset_head=True)}),
    (["--recipe", "sst2", "--max-length", "128"], {"recipe": RECIPES["sst2"], "recipe_name": "sst2", "max_length": 128}),
    (["--eval-every", "3", "--early-stop", "2", "--patience-delta", "0.5"],
     {"recipe": Recipe(eval_every=3, early_stop=2, patience_delta=0.5)}),
    (["--recipe", "cifar100", "--keep-head", "--keep-best"],
     {"recipe": recipe_of("cifar100", {"reset_head": False, "keep_best": True}), "recipe_name": "cifar100"}),
    (["--save-every", "4", "--seed", "5", "--device", "cpu", "--arch", "vit_x", "--force"],
     {"save_every": 4, "seed": 5, "device": "cpu", "arch": "vit_x", "force": True}),
])  # fmt: skip
def test_arguments_become_a_config(call, asked, options, wanted):
    seen = call(*GIVEN, *options)

    assert seen.code == 0, seen.err
    assert asked == [config(**wanted)]


def test_help_lists_choices_and_what_divergence_exits_with(call):
    shown = call("finetune", "--help", "--all").out

    assert "One of imagenet1k, cifar100, sst2" in " ".join(shown.split())
    assert "the exit code is 5" in " ".join(shown.split())


def test_parts_in_place_of_training_data_show_the_new_name(call):
    seen = call("finetune", "base.st", "--train", "norm,head", "--val", "val", "-o", "o.st")

    assert seen.code == 2
    assert "`--train norm,head` is now `--train-parts norm,head`" in seen.err


def test_the_result_for_a_person(call, asked):
    seen = call(*GIVEN)

    assert all(text in seen.out for text in ("0.9800", "0.0914", "960/1000", "301.96 k", "Wrote out.st"))


def test_the_result_for_a_program(call, asked):
    found = json.loads(call(*GIVEN, "--json").out)

    assert (found["path"], found["kind"], found["accuracy"], found["step"]) == ("out.st", "member", 0.98, 960)


def test_the_result_for_a_script(call, asked):
    assert call(*GIVEN, "-q").out == "out.st\n"


@pytest.mark.parametrize(("options", "code", "said"), [
    (["--lr", "fast"], 2, "`fast` is not a number"),
    (["--recipe", "mnist"], 2, "`mnist` is not one of `imagenet1k`, `cifar100`"),
    (["--optimizer", "adam"], 2, "`adam` is not one of"),
    (["--momentum", "0.5"], 2, "`--momentum` has no effect without `--optimizer sgd`"),
    (["--keep-last", "--early-stop", "2"], 2, "`--keep-last` and `--early-stop` exclude each other"),
    (["--train-parts", "gates"], 2, "`--train-parts gates`"),
    (["--steps", "1", "--epochs", "1"], 2, "exclude each other"),
    (["--json", "-q"], 2, "exclude each other"),
    (["--save-every", "0"], 2, "--save-every"),
    (["--epochs", "many"], 2, "--epochs"),
    ([], 3, "m.st: no such file or folder"),
])  # fmt: skip
def test_errors(call, tmp_path, monkeypatch, options, code, said):
    monkeypatch.chdir(tmp_path)
    seen = call(*GIVEN, *options)

    assert seen.code == code
    assert said in seen.err
    assert "Traceback" not in seen.err
    assert list(tmp_path.iterdir()) == []


def test_a_model_from_nothing(call, tmp_path):
    out = tmp_path / "out.st"
    seen = call("finetune", ARCH, "--train", TRAIN, "--val", VAL, "--steps", "2", "--warmup", "0", "--device", "cpu",
                "-o", out)  # fmt: skip

    assert seen.code == 0, seen.err
    assert [p.name for p in tmp_path.iterdir()] == ["out.st"]
    assert "validation accuracy" in seen.err
    assert f"Wrote {out}" in seen.out


def test_a_model_into_a_pipe(tmp_path, spawn, python):
    process = spawn("finetune", ARCH, "--train", TRAIN, "--val", VAL, "--steps", "1", "--warmup", "0", "--device", "cpu",
                    "-o", "-", program=python())  # fmt: skip
    out, _err = process.communicate()

    assert process.returncode == 0
    assert int.from_bytes(out[:8], "little") < len(out)
    assert b'"hydractl"' in out
