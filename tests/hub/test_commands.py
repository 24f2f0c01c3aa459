"""The commands of a card make the model again, to the byte."""

from __future__ import annotations

import json
import shlex

import pytest

from hydractl.cli.app import main
from hydractl.runtime import digest_file
from hydractl.stages.shared.asked import without_paths

BACKBONE = "arch:vit_tiny_patch16_224::img_size=8,patch_size=2,in_chans=1,embed_dim=16,depth=2,num_heads=4,num_classes=10"
LINES = f"""
finetune {BACKBONE} --data digits::split=val --val digits::split=test --steps 1 --lr 1e-3 --warmup 0 --device cpu -o models/base.st
score models/base.st --method taylor --data digits::split=val --limit 16 -o scores/by-taylor.json
prune models/base.st --scores scores/by-taylor.json --keep 2 --strategy sample --pool 7 --members 3 -o models/m-{{i}}.st
fuse models/m-0.st models/m-1.st models/m-2.st --mlp keep -o hydra.st
"""


@pytest.fixture
def pasted(tmp_path, monkeypatch, capsys):
    """A folder with a hydra, and the commands of its card."""
    (tmp_path / "made" / "models").mkdir(parents=True)
    (tmp_path / "made" / "scores").mkdir()
    monkeypatch.chdir(tmp_path / "made")
    assert [main([*line.split(), "-q"]) for line in LINES.split("\n") if line] == [0] * 4
    capsys.readouterr()
    assert main(["push", "hydra.st", "org/name", "--dry-run", "--json"]) == 0
    card = json.loads(capsys.readouterr().out)["card"]
    return card.partition("## How it was made\n\n```sh\n")[2].partition("\n```")[0].split("\n")


def test_without_paths_they_make_the_same_hydra(pasted, tmp_path, monkeypatch):
    assert "-o 'm-{i}.st'" in pasted[2]
    assert "--mlp keep" in pasted[3]
    assert not [line for line in pasted if "/" in line or "--device" in line or "-q" in line.split()]
    hydra = digest_file(tmp_path / "made" / "hydra.st")
    (tmp_path / "again").mkdir()
    monkeypatch.chdir(tmp_path / "again")

    assert [shlex.split(line)[1] for line in pasted] == ["finetune", "score", "prune", "fuse"]
    assert [main([*shlex.split(line)[1:], "-q"]) for line in pasted] == [0] * 4
    assert digest_file(tmp_path / "again" / "hydra.st") == hydra


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        ("folder/train/::limit=5", "train::limit=5"),
        ("near={}/folder/shard-{{0..3}}.tar", "near=shard-{{0..3}}.tar"),
        ("deep=folder/a.st,folder/b.st", "deep=a.st,b.st"),
        ("hf:org/name::split=test", "hf:org/name::split=test"),
        ("org/name@main", "org/name@main"),
        ("A photo of a {{label}} / {{label}}.", "A photo of a {{label}} / {{label}}."),
    ],
)
def test_folders_are_left_out_and_nothing_else(tmp_path, monkeypatch, typed, kept):
    (tmp_path / "folder" / "train").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)

    assert without_paths(typed.format(tmp_path)) == kept.format()
