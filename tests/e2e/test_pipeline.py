from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("pipeline.sh")
WHOLE = {
    "a.st", "b.st", "base.st", "c.st", "hydra.json", "hydra.st", "m-0.mask.json", "m-0.st", "m-1.mask.json", "m-1.st",
    "predictions.safetensors", "report.json", "taylor.json",
}  # fmt: skip


@pytest.fixture
def shell(tmp_path):
    """Run a bash script in a new folder, with `hydractl` on the path."""
    tools = tmp_path / "tools"
    tools.mkdir()
    program = tools / "hydractl"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m hydractl "$@"\n')
    program.chmod(0o755)

    def run(script: Path, name: str) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        environment = {
            **os.environ,
            "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "OMP_NUM_THREADS": "1",
        }
        done = subprocess.run(
            ["bash", str(script)], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return folder

    return run


def test_the_same_pipeline_twice_gives_the_same_bytes(shell):
    one, other = (shell(SCRIPT, name) for name in ("one", "other"))

    assert {p.name for p in one.iterdir()} == WHOLE
    assert {p.name: p.read_bytes() for p in one.iterdir()} == {p.name: p.read_bytes() for p in other.iterdir()}
