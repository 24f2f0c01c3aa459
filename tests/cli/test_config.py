"""Configurations parsed from command lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hydractl.heads.budget import HeadBudget
from hydractl.stages.fuse import run as fuse
from hydractl.stages.fuse.config import FuseConfig
from hydractl.stages.inspect import run as inspect
from hydractl.stages.inspect.config import InspectConfig
from hydractl.stages.prune import run as prune
from hydractl.stages.prune.config import PruneConfig


class Caught(Exception):  # noqa: N818 - carries the configuration out of the stage
    def __init__(self, config: object) -> None:
        self.config = config


@pytest.fixture
def config(monkeypatch, call):
    """Return the configuration passed from a command to the stage."""

    def catch(config: object, _progress: object = None) -> None:
        raise Caught(config)

    stages = {prune: "run_prune", fuse: "run_fuse", inspect: "run_inspect"}
    for module, name in stages.items():
        monkeypatch.setattr(module, name, catch)
    monkeypatch.setattr("hydractl.cli.command._check_inputs", lambda _: None)

    def run(line: str) -> object:
        with pytest.raises(Caught) as caught:
            call(*line.split())
        return caught.value.config

    return run


S, M = (Path("s.json"),), (Path("m.json"),)
EIGHT = HeadBudget(keep_per_layer=8)
TABLE = [
    ("prune base.st --scores s.json --keep-heads 8 -o a.st",
     PruneConfig(model="base.st", out=Path("a.st"), scores=S, budget=EIGHT)),
    ("prune org/name@v1 --scores s.json --remove 5 --out a.st",
     PruneConfig(model="org/name@v1", out=Path("a.st"), scores=S, budget=HeadBudget(remove=5))),
    ("prune base.st --scores s.json --keep-fraction 0.5 -o a.st",
     PruneConfig(model="base.st", out=Path("a.st"), scores=S, budget=HeadBudget(keep_fraction=0.5))),
    ("prune base.st --scores s.json --keep-heads 8 --per-layer -o a.st",
     PruneConfig(model="base.st", out=Path("a.st"), scores=S, budget=EIGHT, per_layer=True)),
    ("prune base.st --scores - --keep-heads 8 -o -",
     PruneConfig(model="base.st", out=Path("-"), scores=(Path("-"),), budget=EIGHT)),
    ("prune base.st --scores s.json --scores t.json --keep-heads 8 -o m-{i}.st",
     PruneConfig(model="base.st", out=Path("m-{i}.st"), scores=(*S, Path("t.json")), budget=EIGHT)),
    ("prune base.st --scores s.json --keep-heads 8 --members 3 --pool 96 --trunk 4 --seed 7 -o m-{i}.st",
     PruneConfig(model="base.st", out=Path("m-{i}.st"), scores=S, budget=EIGHT, members=3, pool=96, trunk=4,
                 seed=7)),
    ("prune w.safetensors --arch vit_small_patch16_224::num_classes=7 --mask m.json --dtype bf16 -o a.st",
     PruneConfig(model="w.safetensors", out=Path("a.st"), masks=M, arch="vit_small_patch16_224::num_classes=7",
                 dtype="bf16")),
    ("prune base.st --mask m.json --no-verify --force -o a.st",
     PruneConfig(model="base.st", out=Path("a.st"), masks=M, verify=False, force=True)),
    ("prune base.st --mask m.json --json -o a.st", PruneConfig(model="base.st", out=Path("a.st"), masks=M)),
    ("prune base.st --mask m.json -q -o a.st", PruneConfig(model="base.st", out=Path("a.st"), masks=M)),
    ("fuse a.st b.st c.st -o h.st", FuseConfig(models=("a.st", "b.st", "c.st"), out=Path("h.st"))),
    ("fuse -o h.st --mlp keep a.st", FuseConfig(models=("a.st",), out=Path("h.st"), mlp="keep")),
    ("fuse a.st - -o h.st --seed 3 --no-verify --force",
     FuseConfig(models=("a.st", "-"), out=Path("h.st"), seed=3, verify=False, force=True)),
    ("fuse a.st -o - --quiet", FuseConfig(models=("a.st",), out=Path("-"))),
    ("inspect a.st", InspectConfig(files=("a.st",))),
    ("inspect -q a.st", InspectConfig(files=("a.st",))),
    ("inspect - --tensors --json", InspectConfig(files=("-",), tensors=True)),
]  # fmt: skip


@pytest.mark.parametrize(("line", "expected"), TABLE, ids=[line.replace("::", ":") for line, _ in TABLE])
def test_arguments_become_a_configuration(config, line, expected):
    assert config(line) == expected


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("prune base.st --keep-heads 8 -o a.st", "give either `--scores` or `--mask`"),
        (
            "prune base.st --scores s.json --mask m.json --keep-heads 8 -o a.st",
            "`--scores` and `--mask` exclude each other",
        ),
        (
            "prune base.st --scores s.json -o a.st",
            "the number of heads to keep is missing: give one of `--keep-heads N`, `--remove R`, `--keep-fraction F",
        ),
        (
            "prune base.st --scores s.json --keep-heads 8 --remove 3 -o a.st",
            "`--keep-heads` and `--remove` exclude each other",
        ),
        (
            "prune base.st --scores s.json --keep-fraction 0 -o a.st",
            "`--keep-fraction 0`: the fraction must be",
        ),
        ("prune base.st --mask m.json --trunk 1 -o a.st", "a mask already says which heads are kept"),
        ("prune base.st --mask m.json --keep-heads 8 -o a.st", "a mask already says which heads are kept"),
        ("prune base.st --scores s.json --keep-heads 8 --members 2 -o a.st", "needs a pool"),
        (
            "prune base.st --scores s.json --keep-heads 8 --members 2 --pool 9 -o a.st",
            "put `{i}` into the name",
        ),
        (
            "prune base.st --scores s.json --remove 8 --per-layer -o a.st",
            "`--per-layer` requires `--keep-heads N`",
        ),
        ("prune base.st --mask m.json --json -q -o a.st", "`--json` and `-q` exclude each other"),
        ("prune base.st --mask m.json --json -o -", "both write to standard output"),
        ("fuse - - -o h.st", "only one member can come from standard input"),
        ("fuse a.st --json -o -", "both write to standard output"),
        ("inspect hf-hub:org/name", "`inspect` reads only local files"),
        ("eval a.st --data digits -o r.html", "`-o r.html`: a JSON document must have the suffix .json"),
        ("eval a.st --data digits --save-predictions p.npz", "must have the suffix .safetensors or .st"),
        ("score a.st --method magnitude --output s.st", "hint: for example `-o s.json`"),
        (
            "score a.st --method l0 --data digits -o s.json --save-model t.pt",
            "hint: for example `--save-model t.st`",
        ),
        ("prune a.st --scores s.json --keep-heads 2 -o to/m.json", "hint: for example `-o to/m.st`"),
        (
            "finetune a.st --train digits --val digits -o m.pth",
            "`-o m.pth`: a model must have the suffix .st",
        ),
        (
            "fuse a.st b.st -o hydra.json",
            "`-o hydra.json`: a model must have the suffix .st or .safetensors",
        ),
        (
            "import w.pth --arch bert -o m.bin",
            "`-o m.bin`: a model must have the suffix .st or .safetensors",
        ),
        ("predict a.st digits -o p.json", "must have the suffix .jsonl or .csv or .parquet"),
        (
            "predict a.st digits --json",
            "`--json`: standard output already has the predictions as JSON lines",
        ),
        ("predict a.st digits --json", "hint: leave out `--json`, or write the output to a file: `-o FILE`"),
        ("fuse a.st --json -o -", "hint: leave out `--json`, or write the output to a file: `-o FILE`"),
        ("predict a.st digits -o p", "hint: for example `-o p.jsonl`"),
    ],
)
def test_contradicting_options_are_refused_before_any_work(call, line, text):
    seen = call(*line.split())

    assert seen.code == 2
    assert seen.err.startswith("error: ")
    assert text in seen.err
    assert [*json.loads(seen.out)] == ["error"] if "--json" in line else seen.out == ""
