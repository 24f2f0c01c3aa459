"""Run each example of `--help` in a shell, on generated files with the names in the examples."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from hydractl.cli.app import COMMANDS, command_tree
from hydractl.cli.helptext import paragraphs
from support.builders import base, sha
from support.hints.table import run as run_here
from support.hub import serve
from support.pushes import Pushable
from support.text_folders import save_text_model
from support.variants import VARIANTS, Variant

# Enough heads for `--pool 96`. More blocks would slow down export.
SMALL = {"img_size": 16, "patch_size": 8, "embed_dim": 96, "depth": 2, "num_heads": 48}
NAME = "vit_tiny_patch16_224"
WORKFLOW = Path(__file__).parents[2] / "docs/examples/hydra.yml"
LINKED = 100_000
"""Size in bytes from which files are linked instead of copied. No example writes into such a file."""
FOLDERS = {"train": 6, "val": 16, "test": 12, "birds": 6}
"""Number of images per class in each folder."""
TUNE, EVAL = (
    "finetune base.st --train train/ --val test/ --steps 1",
    "eval hydra.st --no-latency --bootstrap 9",
)
ARCH = f"arch:{NAME}::{','.join(f'{k}={v}' for k, v in SMALL.items())}"
MADE = (
    f"finetune {ARCH} --train train/ --val test/ --lr 3e-3 --epochs 8 --batch-size 24 -o base.st",
    "score base.st --method taylor --data test/ -o scores.json",
    "prune base.st --scores scores.json --keep-heads 8 -o member.st",
    *(f"{TUNE} --seed {ord(name)} -o {name}.st" for name in "abc"),
    "fuse a.st b.st c.st -o hydra.st",
    f"{EVAL} --data test/ --near birds=birds/ --compare base.st -o report.json",
    f"{EVAL} --data test/ --near birds=birds/ --compare base.st --seed 1 -o seed-1.json",
    f"{EVAL} --data test/ --compare base.st -o pets.json",
    f"{EVAL} --data val/ --compare base.st -o cars.json",
    f"{EVAL} --data val/ --threshold-for 'risk<=0.1' --save-model selective.st",
    "prune bert/ --strategy random --keep-fraction 1 -o sentiment.st",
)
"""Commands that create the files."""
COPIES = {"scores.json": "taylor.json", "report.json": "seed-0.json", "member.mask.json": "mask.json"}
PIPELINE = """
[params]
members = 2

[[stage]]
name = "members"
command = "prune"
model = "base.st"
strategy = "random"
keep-heads = "8"
members = "{members}"
out = "drawn-{i}.st"

[[stage]]
name = "fuse"
command = "fuse"
models = ["a.st", "b.st"]
out = "fused.st"
"""
RUN_ELSEWHERE = {"demo"}
"""Takes minutes; `tests/cli/demo` runs the parts of the demo."""
DEEP = "--trunk 8"
"""Part of examples that need more blocks than the others."""
NEW_PROCESS = {"doctor", "push"}
"""Commands that depend on environment variables during the import of libraries."""
SHELL = {*"|<>$*;&()"}
"""Characters with a meaning in a shell. Examples without them run in this process."""
QUOTED = re.compile(r"'[^'\n]*'")
SLOW = (
    "arch:vit", "hydra.onnx", "--revision v2", "run1/model_best", "--rivals", "--search exact", "--recipe", "--with-preprocess", "int8", "hydractl make", "doctor --json", "doctor -q", "--report report.json --dry-run",
    "--license",
)  # fmt: skip
"""Parts of examples that run with `--all-variants` only. Tests of the commands cover their options."""


def examples() -> list[tuple[str, str]]:
    """Return every example with the command; continued lines stay together."""
    found = []
    for name in (name for name in COMMANDS if name not in RUN_ELSEWHERE):
        block = next(p for p in paragraphs(command_tree().commands[name]) if p.startswith("Examples:"))
        text = "\n".join(line.removeprefix("  ") for line in block.splitlines()[1:])
        found += [(name, example) for example in re.findall(r"(?:.*\\\n)*.+", text)]
    return found


def outputs(example: str) -> list[str]:
    """Return the output files of an example."""
    return re.findall(r"(?:-o|--save-model|>) ([\w.]+)(?!/)\b", example)


def write_pictures(folder: Path) -> None:
    """Write images of two easily distinguished classes, and OOD images."""
    numbers = np.random.default_rng(0)
    for name, count in FOLDERS.items():
        for label, shade in (("cat", 60), ("dog", 190)):
            place = folder / name / label
            place.mkdir(parents=True)
            for i in range(count):
                pixels = numbers.normal(shade, 20, (16, 16, 3)).clip(0, 255).astype("uint8")
                Image.fromarray(pixels).save(place / f"{i}.png")
    shutil.copytree(folder / "test/cat", folder / "photos")
    Image.open(folder / "photos/0.png").save(folder / "a.jpg")
    shutil.copy(folder / "photos/1.png", folder / "b.png")


def write_weights(folder: Path) -> None:
    """Write files of training scripts: checkpoints of timm, and a plain state dict."""
    import timm

    for name in ("model_best", "seed-0", "seed-1", "run1/model_best", "run2/model_best"):
        (folder / name).parent.mkdir(exist_ok=True)
        model = timm.create_model(NAME, num_classes=2, **SMALL)
        state = model.state_dict()
        document = {"arch": NAME, "num_classes": 2, "model_kwargs": SMALL, "state_dict": state}
        torch.save(document | {"state_dict_ema": state}, folder / f"{name}.pth.tar")
    torch.save(timm.create_model(NAME, num_classes=2).state_dict(), folder / "weights.pth")


def environment(folder: Path, python: object) -> dict[str, str]:
    """Return the environment of a shell with `hydractl` in PATH and an own home folder."""
    (folder / "bin").mkdir(exist_ok=True)
    program = folder / "bin/hydractl"
    program.write_text(f'#!/bin/sh\nexec {python} -m hydractl "$@"\n')
    program.chmod(0o755)
    return {
        **{k: v for k, v in os.environ.items() if k in {"LANG", "LD_LIBRARY_PATH"}},
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "HOME": str(folder),
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }


def run(script: str, folder: Path, settings: dict[str, str], shell: str = "bash") -> None:
    done = subprocess.run(
        [shell, "-euo", "pipefail", "-c", script],
        cwd=folder, env=settings, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{script}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    """A folder with all files of the examples."""
    folder = tmp_path_factory.mktemp("examples")
    write_pictures(folder)
    write_weights(folder)
    save_text_model(next(v for v in VARIANTS if v.family == "transformers-bert"), folder / "bert")
    (folder / "reviews.csv").write_text("body,label\nthe cat sat,good\na mat,bad\n")
    (folder / "lines.txt").write_text("the cat sat\non a mat\n")
    (folder / "hydra.toml").write_text(PIPELINE)
    (folder / ".config/fish/completions").mkdir(parents=True)
    home = {"HOME": str(tmp_path_factory.mktemp("home")), "HF_HUB_OFFLINE": "1"}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for line in MADE:
            outcome = run_here(f"{line} -q", environment=home)
            assert outcome.code == 0, (line, outcome)
    for source, target in COPIES.items():
        shutil.copy(folder / source, folder / target)
    for name in ("member.st", "member.mask.json"):
        (folder / name).unlink()
    return folder


@pytest.fixture
def work(files, tmp_path, request):
    """A new folder with these files, except outputs of the example. Large files are links."""
    place = tmp_path / "work"

    def copy(source: str, target: str) -> None:
        if Path(source).stat().st_size > LINKED:
            Path(target).symlink_to(source)
        else:
            shutil.copy(source, target)

    shutil.copytree(files, place, copy_function=copy)
    example = request.getfixturevalue("example")
    for output in outputs(example):
        (place / output).unlink(missing_ok=True)
    if DEEP in example:
        deep = base(Variant("timm-vit", "deep", NAME, SMALL | {"depth": 9, "num_classes": 2}))
        deep = replace(deep, header=deep.header.model_copy(update={"base": sha("base")}))
        for seed, name in enumerate("abc"):
            (place / f"{name}.st").unlink()
            deep.tuned(seed).save(place / f"{name}.st")
    return place


@pytest.fixture
def settings(work, tmp_path, python, request):
    """The environment of the example's shell. `push` also has a Hub."""
    name = request.getfixturevalue("name")
    alone = environment(work, sys.executable if name in NEW_PROCESS else python())
    if name != "push":
        yield alone
        return
    with serve(Pushable()) as hub:
        del alone["HF_HUB_OFFLINE"]
        yield hub.environment(tmp_path / "hub") | alone | {"HF_TOKEN": "hf_secret"}


@pytest.mark.parametrize(
    ("name", "example"),
    [
        pytest.param(
            name,
            example,
            marks=[pytest.mark.more] * any(word in example for word in SLOW)
            + [pytest.mark.newer] * (name == "export"),
        )
        for name, example in examples()
    ],
)
def test_an_example_does_what_it_says(work, settings, monkeypatch, name, example):
    if name not in NEW_PROCESS and not set(QUOTED.sub("", example)) & SHELL:
        monkeypatch.chdir(work)
        environment = {key: settings[key] for key in ("HOME", "HF_HUB_OFFLINE")}
        outcome = run_here(example.replace("\\\n", " ").removeprefix("hydractl "), environment=environment)
        assert outcome.code == 0, outcome
    else:
        shell = "zsh" if "zsh" in example else "bash"
        if shutil.which(shell) is None:
            pytest.skip(f"no {shell}")
        run(example, work, settings, shell)
    assert all((work / output).is_file() for output in outputs(example))


def test_every_command_has_examples():
    assert {name for name, _ in examples()} | RUN_ELSEWHERE == {*COMMANDS}


@pytest.mark.more
def test_the_workflow_ends_at_its_gate(tmp_path, python):
    """Runs the steps before the push with a small model. An untrained model fails the check."""
    import timm

    write_pictures(tmp_path / "data")
    (tmp_path / "data/birds").rename(tmp_path / "data/near")
    # The number of heads is the default of the architecture.
    options = {"img_size": 16, "patch_size": 8, "embed_dim": 48}
    torch.save(timm.create_model(NAME, num_classes=2, **options).state_dict(), tmp_path / "weights.pth")
    (tmp_path / "labels.txt").write_text("cat\ndog\n")
    steps = yaml.safe_load(WORKFLOW.read_text())["jobs"]["hydra"]["steps"]
    scripts = [step["run"] for step in steps if "run" in step and step.get("name") != "Push"]
    small = f"'{NAME}::{','.join(f'{k}={v}' for k, v in options.items())}'"
    *before, gate = [script.replace(NAME, small) for script in scripts if "pip install" not in script]

    run("\n".join(before), tmp_path, environment(tmp_path, python()))
    with pytest.raises(AssertionError, match=r"checks failed|1 check failed"):
        run(gate, tmp_path, environment(tmp_path, python()))

    assert json.loads((tmp_path / "build/report.json").read_text())["rows"][0]["name"] == "hydra"
