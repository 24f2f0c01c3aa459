"""Small files of every kind, and the command line as a function from arguments to output and exit code."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import hydractl
from hydractl.cli.app import main

ARCH = "arch:vit_tiny_patch16_224::img_size=8,patch_size=4,in_chans=1,embed_dim=32,depth=2,num_heads=4,num_classes=7"
ROOT = Path(hydractl.__file__).parents[1]


@dataclass(frozen=True)
class Seen:
    code: int
    out: str
    err: str


@pytest.fixture
def call(capsys):
    """Run a command line through `main`."""

    def run(*argv: object) -> Seen:
        capsys.readouterr()
        code = main([str(a) for a in argv])
        captured = capsys.readouterr()
        return Seen(code, captured.out, captured.err)

    return run


@pytest.fixture
def environment(tmp_path):
    """Environment of subprocesses: no settings of the user, and an observable temporary folder."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    kept = {k: v for k, v in os.environ.items() if k in {"PATH", "HOME", "LANG", "LD_LIBRARY_PATH"}}
    return {
        **kept,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "TMPDIR": str(temporary),
        "TERM": "xterm",
    }


@pytest.fixture
def spawn(environment):
    """Start `python -m hydractl` with pipes."""

    def start(*argv: object, program: object = sys.executable, **settings: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [str(program), "-m", "hydractl", *map(str, argv)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**environment, **settings},
        )

    return start


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """A folder with a file of each kind, created once."""
    from safetensors.numpy import load_file, save_file

    from hydractl.families.open_model import open_model
    from hydractl.heads.budget import HeadBudget
    from hydractl.manifest.document import Fingerprint
    from hydractl.manifest.head_mask import HeadImportance, Removal, TowerImportance
    from hydractl.stages.fuse.config import FuseConfig
    from hydractl.stages.fuse.run import run_fuse
    from hydractl.stages.prune.config import PruneConfig
    from hydractl.stages.prune.run import run_prune

    folder = tmp_path_factory.mktemp("made")
    base = folder / "base.st"
    # Keeps the temporary files.
    opened = {classes: open_model(ARCH.replace("=7", f"={classes}")) for classes in (7, 5)}
    shutil.copy(opened[7].checkpoint.paths[0], base)
    save_file(load_file(base), folder / "plain.safetensors")
    shutil.copy(opened[5].checkpoint.paths[0], folder / "five.st")
    fingerprint = Fingerprint(reference="base.st", sha256=opened[7].checkpoint.digest, count=270)
    table = ((0.7, 0.1, 0.4, 0.3), (0.2, 0.8, 0.6, 0.5))
    order = [(0, 1), (1, 0), (0, 3), (0, 2), (1, 3), (1, 2), (0, 0), (1, 1)]
    scores = HeadImportance(
        method="circuit",
        objective="avg",
        options={"limit": 100},
        model=fingerprint,
        architecture="vit_tiny_patch16_224",
        data={"id": fingerprint},
        towers={"vision": TowerImportance(scores=table)},
        baseline=0.95,
        removals=tuple(
            Removal(tower="vision", layer=layer, head=head, objective=0.9 - i / 64)
            for i, (layer, head) in enumerate(order)
        ),
        tool="hydractl 0.0.0",
    )
    (folder / "scores.json").write_text(scores.to_json(), encoding="utf-8")
    run_prune(
        PruneConfig(
            model=str(base),
            out=folder / "m-{i}.st",
            scores=(folder / "scores.json",),
            budget=HeadBudget(keep_per_layer=2),
            members=3,
            pool=7,
        )
    )
    members = tuple(str(folder / f"m-{i}.st") for i in range(3))
    run_fuse(FuseConfig(models=members, out=folder / "hydra.st"))
    return folder


@pytest.fixture
def work(made, tmp_path, monkeypatch):
    """Copy the folder with files and make the copy the current folder."""
    folder = tmp_path / "work"
    shutil.copytree(made, folder)
    monkeypatch.chdir(folder)
    return folder
