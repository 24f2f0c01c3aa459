"""Every option of every command reaches the field. The cases are generated from the declarations."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import get_args, get_origin

import numpy as np
import pytest
import torch

from hydractl.cli import command
from hydractl.cli.app import COMMANDS, command_tree
from hydractl.cli.command import kind_of
from hydractl.cli.commands.make import MakeConfig
from hydractl.plugins import load
from hydractl.scoring.methods import METHODS, SETTINGS
from hydractl.settings import (
    KEY,
    LARGEST_SEED,
    Option,
    OptionGroup,
    configured,
    declared,
    long_option,
    options_of,
)
from hydractl.stages.datasets import DataConfig
from hydractl.stages.doctor import DoctorConfig
from hydractl.stages.evaluate.config import EvalConfig
from hydractl.stages.export.config import ExportConfig
from hydractl.stages.finetune.config import FinetuneConfig
from hydractl.stages.fuse.config import FuseConfig
from hydractl.stages.importing.config import ImportConfig
from hydractl.stages.inspect.config import InspectConfig
from hydractl.stages.predict.config import PredictConfig
from hydractl.stages.prune.config import DiverseConfig, PruneConfig
from hydractl.stages.push.config import PushConfig
from hydractl.stages.report.config import ReportConfig
from hydractl.stages.score.config import ScoreConfig
from hydractl.training.recipe import RECIPES
from support.analysed import RESEARCH

CONFIGS = {
    "score": ScoreConfig,
    "prune": PruneConfig,
    "finetune": FinetuneConfig,
    "fuse": FuseConfig,
    "make": MakeConfig,
    "eval": EvalConfig,
    "predict": PredictConfig,
    "inspect": InspectConfig,
    "import": ImportConfig,
    "push": PushConfig,
    "export": ExportConfig,
    "report": ReportConfig,
    "doctor": DoctorConfig,
    "data": DataConfig,
}
if RESEARCH:
    CONFIGS["bench"] = load("hydractl.research.bench.config:BenchConfig")
BASELINES = load("hydractl.research.baselines.options:BASELINES") if RESEARCH else {}
BY_HAND = {"schema", "demo", "completion", "run"}
TERMINAL = ("json", "quiet")
TEXTS = {
    "max_memory": "2KiB",
    "num_workers": "3",
    "max_shard_size": "2KiB",
    "rename": "fc=head",
    "repository": "org/name",
    "base_model": "org/base",
    "license": "mit",
    "towers": "text,vision",
    "objective": "acc",
    "classes": "a,b",
    "template": "a {label}",
    "pairs": "a.jsonl::text=b",
    "keep": "3",
    "plot": "a.svg",
    "near": "birds=noise",
    "far": "static=noise",
    "compare": "other=b.st",
    "temperature": "2",
    "metrics": "nll,ece",
    "analyse": "centroids,members",
    "rivals": "mc,oba",
    "ood_score": "mi",
    "merge_trunk": "3",
    "fail_if": "ece>0.25",
    "threshold_for": "risk<=0.25",
    "threshold": "-0.5",
    "lr": "0.5,0.25",
    "warmup": "7",
    "swa": "7",
    "img_size": "224x160",
    "mean": "0.5",
    "std": "0.5",
    "augment": "flip,shift",
    "train": "norm,head",
    "method": "lora-ensemble",
    "data": "digits::limit=3",
    "val": "digits::limit=3",
    "test": "digits::limit=3",
    "fit": "digits::limit=3",
    "ood_val": "birds=noise",
    "corrupt": "fog:3",
    "words": "list",
    "log_to": "tensorboard",
    "smallest": "nll=0.25",
    "pick": "single",
    "risk": "0.25",
    "keep_known": "0.25",
}
"""Values to type for options that do not accept an arbitrary word."""
MEANT = {"classes": ("a", "b"), "recipe": [*RECIPES.values()][-1]}
"""Parsed values of options that are combined with others."""
INSIDE = {"keep": "keep_per_layer", "classes": "names", "template": "templates"}
"""Field names inside combined objects, if they differ from the option."""
ALWAYS = {"score": ("--objective", "acc"), "prune": ("--scores", "s.json", "--keep", "2")}
SCORED = ("--scores", "s.json")
KNN = ("--near", "ants=noise", "--ood-score")
DIVERSE = ("--strategy", "diverse", "--pool", "9", *ALWAYS["prune"])
TRAINING = {"momentum": ("--optimizer", "sgd"), "patience_delta": ("--early-stop", "1")}
COMPANIONS = {
    "make": {
        **dict.fromkeys(("arch", "labels", "ema"), ("saved.pth",)),
        "max_loss": ("second.st",),
        "hydra": ("--train", "digits"),
        **dict.fromkeys(("epochs", "lr", "pick"), ("--hydra", "tuned", "--train", "digits")),
    },
    "report": {"force": ("-o", "a.md"), "over": ("b.json",)},
    "score": {
        **{
            name: ("--method", method.name)
            for method in METHODS.values()
            for name in declared(method.settings)
        },
        "method": (),
        "objective": (),
        "ood": (),
        "ood_score": ("--ood", "noise"),
        "search": ("--objective", "acc"),
        "weights_lr": ("--method", "l0", "--training", "joint"),
        "log_to": ("--method", "l0"),
        "log_dir": ("--method", "l0", "--log-to", "tensorboard"),
        "trained": ("--method", "l0", "--training", "joint"),
    },
    "prune": {
        **dict.fromkeys(("keep", "remove", "keep_fraction"), SCORED),
        **{o.name: (*DIVERSE, "--data", "d") for o in Option.of(DiverseConfig)},
        **dict.fromkeys(("classes", "template"), (*DIVERSE, "--data", "d")),
        "data": DIVERSE,
        "scores": ("--keep", "2"),
        "masks": (),
        "strategy": ("--pool", "9", "--data", "d", *ALWAYS["prune"]),
        "members": ("--pool", "9", *ALWAYS["prune"]),
    },
    "inspect": {"verify": ("b.st",)},
    "fuse": {
        "max_loss": ("--merge-trunk", "auto", "--data", "digits"),
        "fit": ("--val", "digits"),
        "val": ("--fit", "digits"),
        **dict.fromkeys(("max_length", "batch_size", "num_workers", "device"), ("--data", "digits")),
    },
    "export": dict.fromkeys(("ood", "report", "quantize"), ("--data", "digits")),
    "eval": {
        "ood_score": ("--near", "birds=noise"),
        "fit": (*KNN, "knn"),
        "analyse": ("--near", "birds=noise"),
        "scores": ("--analyse", "heads"),
        "val": (*KNN, "msp,mi", "--ood-val", "bees=noise"),
        "ood_val": (*KNN, "msp,mi", "--val", "digits"),
        **dict.fromkeys(("guarantee", "delta", "store"), ("--threshold-for", "risk<=0.5")),
        **dict.fromkeys(("set_method", "sets_by_class"), ("--sets", "0.9")),
        **dict.fromkeys(("raps_penalty", "raps_rank"), ("--sets", "0.9", "--set-method", "raps")),
    },
    "bench": {**TRAINING, **dict.fromkeys(("start_epochs", "start_lr"), ("--start", "b.st"))},
    "finetune": {
        **TRAINING,
        "log_dir": ("--log-to", "tensorboard"),
        **dict.fromkeys(("teacher_temperature", "teacher_weight"), ("--teacher", "t.st")),
    },
}
"""Words to type together with an option; `ALWAYS` if missing."""
ABOUT = {
    (FinetuneConfig, "model", "head_seed"): ["arch:vit"],
    (PredictConfig, "data", "null"): ["-"],
    (PruneConfig, "out", "members"): ["-o", "a{i}.st"],
}
"""Words to type for an argument with a given option, if the usual words do not fit."""


class Caught(Exception):  # noqa: N818 - carries the configuration out
    def __init__(self, config):
        self.config = config


@pytest.fixture
def made(monkeypatch, call):
    """Return the configuration of a command line."""

    def catch(config, typed):
        raise Caught(configured(config, typed))

    monkeypatch.setattr(command, "configured", catch)

    def run(*words):
        with pytest.raises(Caught) as caught:
            call(*words)
        return caught.value.config

    return run


def words_for(name, option):
    """Return the words of an option with another value than the default, and the parsed value."""
    setting, kind = option.setting, kind_of(option)
    if kind is bool:
        on = not option.default
        return [long_option(name) if on else setting.option_names[-1].split("/")[1]], on
    text = TEXTS.get(name, "a.b")
    if setting.check_path is not None:
        text = f"a{setting.check_path.suffixes[0]}"
    if setting.choices and setting.parse is None:
        text = next(c for c in reversed(setting.choices) if c != option.default)
    elif kind in (int, float):
        text = str(3 + (option.default == 3)) if kind is int else "0.375"
    item = get_args(kind)[0] if get_origin(kind) is list else kind
    value = MEANT.get(name) or setting.read(item(text) if item in (int, float, Path) else text)
    several = (
        name not in MEANT and option.kind.startswith("tuple") and (setting.parse is None or setting.repeated)
    )
    value = (value,) if several and not isinstance(value, tuple) else value
    flag = () if setting.positional else ((setting.option_names or (long_option(name),))[-1],)
    return [*flag, text], value


def required(config, option):
    """Return the words of all required options and of `option`."""
    needed = [o for o in options_of(config) if o.default is ... or o.name == option.name]
    return [
        word
        for one in needed
        for word in ABOUT.get((config, one.name, option.name)) or words_for(one.name, one)[0]
    ]


@pytest.mark.parametrize(("name", "config"), CONFIGS.items(), ids=CONFIGS)
def test_each_option_reaches_the_field_of_its_name(made, name, config):
    for option in options_of(config):
        _, value = words_for(option.name, option)
        besides = COMPANIONS.get(name, {}).get(option.name, ALWAYS.get(name, ()))
        if config is ScoreConfig and option.name != "data":
            besides = (*besides, "--data", "digits")

        caught = made(name, *required(config, option), *besides)

        assert value != option.default, option.name
        assert type(caught) is config, option.name
        assert reached(caught, option.name) == value, option.name


def reached(held, name):
    """Return the value of an option in a configuration, possibly inside a combined object."""
    if isinstance(held, Mapping):
        return held[name]
    if isinstance(held, tuple):  # The extensions of a command.
        (held,) = (e for e in held if name in [o.name for o in options_of(type(e))])
    told = {field.name: field.metadata.get(KEY) for field in dataclasses.fields(held)}
    if name in told:
        return getattr(held, name)
    for field, preprocess in told.items():
        if isinstance(preprocess, OptionGroup) and name in [o.name for o in preprocess.options]:
            return reached(getattr(held, field), name)
    return getattr(held, INSIDE[name])


@pytest.mark.parametrize("name", CONFIGS)
def test_a_command_has_the_options_that_are_declared_and_no_others(name):
    names = [p.name for p in command_tree().commands[name].params]

    assert sorted(names) == sorted([*(o.name for o in options_of(CONFIGS[name])), *TERMINAL])
    assert {*COMMANDS} == {*CONFIGS} | BY_HAND


SEEDS = {
    f"{place}-{name}": setting
    for place, of in {**CONFIGS, **BASELINES}.items()
    for name, setting in declared(of).items()
    if name.endswith("seed")
}


def test_a_seed_is_one_that_libraries_begin_with():
    assert len(SEEDS) > 1
    for name, setting in SEEDS.items():
        assert setting.low == 0, name
        assert torch.Generator().manual_seed(setting.high).initial_seed() == setting.high, name
        assert np.random.default_rng(setting.high), name


@pytest.mark.parametrize(("name", "option"), [("demo", "--seed"), ("import", "--head-seed")])
def test_a_larger_seed_is_wrong_usage(call, tmp_path, name, option):
    model = () if name == "demo" else ("m.st",)
    seen = call(name, *model, "-o", tmp_path / "out", option, 2**64)

    assert seen.code == 2
    assert f"error: `{option} {2**64}`: must be between 0 and {LARGEST_SEED}\n" in seen.err


def test_settings_of_one_name_are_declared_alike():
    known = {o.name: o.setting for o in SETTINGS}

    for method in METHODS.values():
        for name, setting in declared(method.settings).items():
            # Default and help may depend on the method.
            first = known[name]
            assert dataclasses.replace(setting, help=first.help, after=first.after) == first, method.name


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_flag_is_switched_on_by_its_name(config):
    for option in [option for option in options_of(config) if kind_of(option) is bool]:
        on, *off = (option.setting.option_names or (long_option(option.name),))[-1].split("/")

        assert on == long_option(option.name)
        assert bool(off) or option.default is False, option.name
