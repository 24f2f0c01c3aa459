"""The installation command of cards, documents and hints installs the whole package."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

from hydractl.hub.card import Facts, card_of
from hydractl.version import INSTALL, __version__
from support.builders import base

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PAGES = [ROOT / "README.md", ROOT / "llms.txt", ROOT / "AGENTS.md", *sorted((ROOT / "docs").rglob("*.*"))]
TREE = "pip install ."
"""Installation command for a clone."""


def run(*command: object, **environment: str) -> str:
    done = subprocess.run(
        [*map(str, command)],
        env=os.environ | environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """Interpreter of a new environment that sees the installed libraries."""
    if not (ROOT / ".git").exists():
        pytest.skip("no clone")
    folder = tmp_path_factory.mktemp("install") / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    site = folder / Path(sysconfig.get_path("purelib")).relative_to(sysconfig.get_path("data"))
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin/python"


def pip(python: Path, *arguments: str) -> str:
    """Run pip for an environment.

    The repository's address is replaced by this clone, and downloads are disabled.
    """
    address = INSTALL.partition("git+")[2]
    return run(
        sys.executable, "-m", "pip", "--python", python, "install", "--no-index", *arguments,
        GIT_CONFIG_COUNT="1", GIT_CONFIG_KEY_0=f"url.{ROOT.as_uri()}.insteadOf", GIT_CONFIG_VALUE_0=address,
        PYTHONPATH="", PIP_DISABLE_PIP_VERSION_CHECK="1",
    )  # fmt: skip


def test_it_installs_every_file_of_the_package(python):
    pip(python, "--no-deps", "--no-build-isolation", INSTALL.removeprefix("pip install "))

    assert run(python.with_name("hydractl"), "--version", PYTHONPATH="") == f"hydractl {__version__}\n"
    place = run(python, "-I", "-c", "import hydractl; print(hydractl.__file__)").strip()
    package = Path(place).parent
    assert package.is_relative_to(python.parents[1])
    tracked = run("git", "-C", ROOT, "ls-tree", "-r", "--name-only", "HEAD", "hydractl").splitlines()
    assert len(tracked) > 200
    assert [name for name in tracked if not (package.parent / name).is_file()] == []
    # Hints about extras need no index either, because the package is installed.
    assert "Successfully" not in pip(python, "hydractl[onnx]")


def test_every_page_and_card_gives_that_command():
    header = base().header
    texts = {page.relative_to(ROOT).as_posix(): page.read_text(encoding="utf-8") for page in PAGES}
    texts["card"] = card_of(Facts(name="org/name", revision="main", header=header, specs={})).decode()
    extras = "|".join(PROJECT["optional-dependencies"])
    commands = {
        (name, re.sub(r"\s+#.*", "", command).strip())
        for name, text in texts.items()
        for command in re.findall(r"pip install [^`\n]*", text)
        if "hydractl" in command or command.startswith(TREE)
    }

    assert {name for name, command in commands if command == INSTALL} >= {
        "card",
        "docs/examples/hydra.yml",
        "docs/serving.md",
        "README.md",
        "llms.txt",
    }
    others = {command for _, command in commands} - {INSTALL, TREE}
    assert [c for c in others if not re.fullmatch(rf"pip install 'hydractl\[({extras})\]'", c)] == []


def test_it_is_where_the_project_says_that_its_source_is():
    assert f"pip install git+{PROJECT['urls']['Source']}" == INSTALL
