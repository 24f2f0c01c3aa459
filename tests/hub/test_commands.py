"""The commands of a card make the same model, byte by byte."""

from __future__ import annotations

import json
import shlex

import pytest

from hydractl.cli.app import main
from hydractl.hub.card import history_section
from hydractl.manifest.header import InputFile, Kind, Step
from hydractl.provenance.command_config import without_paths
from hydractl.runtime import digest_file
from support.builders import base, sha

BACKBONE = "arch:vit_tiny_patch16_224::img_size=8,patch_size=2,in_chans=1,embed_dim=16,depth=2,num_heads=4,num_classes=10"
LINES = f"""
finetune {BACKBONE} --train digits::split=val --val digits::split=test --steps 1 --lr 1e-3 --warmup 0 --device cpu -o models/base.st
score models/base.st --method taylor --data digits::split=val --limit 16 -o scores/by-taylor.json
prune models/base.st --scores scores/by-taylor.json --keep-heads 2 --strategy sample --pool 7 --members 3 -o models/m-{{i}}.st
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


def commands_of(*members):
    """Return the section and the commands of a hydra of members, given as name, digest and step."""
    inputs = tuple(InputFile(name=name, sha256=sha(digest), made_by=step) for name, digest, step in members)
    step = Step(command="fuse", options={}, inputs=inputs, argv=tuple(name for name, *_ in members))
    header = base().header.model_copy(update={"kind": Kind.HYDRA, "made_by": step})
    section = history_section(header, "org/name")
    return section, section.partition("```sh\n")[2].partition("\n```")[0].split("\n")


def imported(file, digest):
    return Step(
        command="import",
        options={},
        inputs=(InputFile(name=file, sha256=sha(digest)),),
        argv=(file, "--arch", "vit_tiny_patch16_224"),
    )


def test_imports_are_a_line_each_and_names_keep_their_digits():
    section, lines = commands_of(
        *((f"vit16-run{i}.st", f"out{i}", imported(f"model-{i}.pth.tar", f"w{i}")) for i in range(3))
    )
    assert lines == [
        *(
            f"hydractl import model-{i}.pth.tar --arch vit_tiny_patch16_224 -o vit16-run{i}.st"
            for i in range(3)
        ),
        "hydractl fuse vit16-run0.st vit16-run1.st vit16-run2.st -o hydra.st",
    ]
    assert "Several files" not in section


def test_files_of_one_name_and_several_digests_are_a_line_each():
    section, lines = commands_of(
        *((f"b{i}.st", f"out{i}", imported("model_best.pth.tar", f"w{i}")) for i in range(2))
    )
    assert [line.split()[-1] for line in lines] == ["b0.st", "b1.st", "hydra.st"]
    assert "Several files have the name `model_best.pth.tar`: give each a different name first" in section


@pytest.mark.parametrize(
    ("names", "numbers", "out"),
    [
        (["vit16-m0.st", "vit16-m1.st", "vit16-m2.st"], [0, 1, 2], "vit16-m{i}.st"),
        (["m-2.st", "m-0.st"], [2, 0], "m-{i}.st"),
        (["vit16-m2.st"], [2], "vit16-m{i}.st"),
        (["vit16.st"], [0], "vit16.st"),
        (["cat.st", "dog.st"], [0, 1], None),
    ],
)
def test_outputs_of_one_command(names, numbers, out):
    source = InputFile(name="base.st", sha256=sha("base"))
    steps = [
        Step(command="prune", options={"member": i}, inputs=(source,), argv=("base.st",)) for i in numbers
    ]
    section, lines = commands_of(*zip(names, names, steps, strict=True))
    if out is None:
        assert "```sh" not in section
    else:
        assert shlex.split(lines[0]) == ["hydractl", "prune", "base.st", "-o", out]
        assert len(lines) == 2
