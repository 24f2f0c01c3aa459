"""The core runs without `hydractl.research`: all modules can be imported, and `--help` lists the commands."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import hydractl

PACKAGE = Path(hydractl.__file__).parent
EVERY_MODULE = """
import pkgutil
from importlib import import_module
import hydractl
names = [m.name for m in pkgutil.walk_packages(hydractl.__path__, "hydractl.") if m.name != "hydractl.__main__"]
for name in names:
    import_module(name)
assert not any(name.startswith("hydractl.research") for name in names)
print(hydractl.__path__[0], len(names))
"""


@pytest.mark.more
def test_a_copy_without_research_imports_all_modules_and_lists_the_other_commands(tmp_path):
    shutil.copytree(PACKAGE, tmp_path / "hydractl", ignore=shutil.ignore_patterns("research", "__pycache__"))

    def said(*argv):
        done = subprocess.run(
            [sys.executable, *argv], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    folder, count = said("-c", EVERY_MODULE).split()
    assert (folder, int(count) > 150) == (str(tmp_path / "hydractl"), True)
    shown = said("-m", "hydractl", "--help")
    assert "\n  fuse " in shown
    assert "\n  bench " not in shown
