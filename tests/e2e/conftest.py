"""Shell scripts, run as by a user."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest


@pytest.fixture
def shell(tmp_path, python):
    """Return a function that runs a bash script in a new folder, with `hydractl` on PATH.

    The argument `server` is the number of the warm server for the script's processes.
    """

    def run(script: Path, name: str, server: int = 0) -> Path:
        folder, tools = tmp_path / name, tmp_path / f"{name}.tools"
        folder.mkdir()
        tools.mkdir()
        program = tools / "hydractl"
        program.write_text(f'#!/bin/sh\nexec "{python(server)}" -m hydractl "$@"\n')
        program.chmod(0o755)
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
