"""Real shells: scripts as a user would run them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


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
        (tmp_path / f"{name}.out").write_text(done.stdout)
        return folder

    return run
