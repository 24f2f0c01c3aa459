from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable
from functools import partial

import pytest

from hydractl.cli.app import COMMANDS, COMPLETE
from support.analysed import RESEARCH
from support.terminal import in_terminal

HEAVY = (
    "torch",
    "timm",
    "transformers",
    "numpy",
    "pydantic",
    "safetensors",
    "huggingface_hub",
    "sklearn",
    "PIL",
    "scipy",
    "matplotlib",
)
PROBE = """
import sys
from hydractl.cli.app import main
for argv in {lines!r}:
    assert main(argv) == {code}, f"exit code of {{argv}}"
    if loaded := sorted(set({heavy!r}) & set(sys.modules)):
        sys.exit(f"{{argv}} loaded {{loaded}}")
"""


def probe(environment, *lines: list[str], code: int = 0, heavy: tuple[str, ...] = HEAVY) -> str:
    """Run command lines in a single process. Return the error of the first import of a heavy module."""
    script = PROBE.format(lines=lines, code=code, heavy=heavy)
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    return done.stderr if done.returncode else ""


def test_help_loads_no_model_library(environment):
    lines = ([], ["help"], *([name, "--help"] for name in COMMANDS))

    assert probe(environment, ["--version"], *lines[1:], heavy=(*HEAVY, "rich")) == ""
    assert probe(environment, lines[0], code=2, heavy=(*HEAVY, "rich")) == ""


def test_tab_loads_no_model_library(environment):
    lines = ([""], ["fuse", "a.st", "--mlp="], *([name, word] for name in COMMANDS for word in ("-", "")))

    assert probe(environment | {COMPLETE: "zsh"}, *lines) == ""


def test_a_usage_error_loads_no_model_library(environment):
    heavy = tuple(name for name in HEAVY if name != "pydantic")  # typer converts arguments with it

    assert "loaded" not in probe(environment, ["prune", "base.st"], code=2, heavy=heavy)


def test_what_is_not_there_is_refused_without_model_libraries(environment, work):
    heavy = tuple(name for name in HEAVY if name != "pydantic")
    lines = (
        ["eval", "base.st", "--data", "nowhere/", "-o", "r.json"],
        ["fuse", "m-0.st", "nowhere.st", "-o", "h.st"],
        ["score", "base.st", "--data", "digits", "--ood", "nowhere.csv", "-o", "s.json"],
    )

    assert probe(environment, *lines, code=3, heavy=heavy) == ""


def test_what_is_up_to_date_loads_no_model_library(environment, work):
    argv = ["fuse", "m-0.st", "m-1.st", "m-2.st", "-o", "hydra.st", "--if-changed"]
    heavy = tuple(name for name in HEAVY if name != "pydantic")

    assert probe(environment, argv, heavy=heavy) == ""


def test_inspect_loads_no_model_library(environment, work):
    heavy = tuple(name for name in HEAVY if name != "pydantic")
    files = ("base.st", "m-0.st", "hydra.st", "scores.json", "m-0.mask.json")

    assert probe(environment, *(["inspect", file] for file in files), heavy=heavy) == ""


def test_generating_completions_loads_no_model_library(environment):
    script = f"import sys, hydractl.cli.completion as c; c.files(); sys.exit(sorted(set({HEAVY!r}) & set(sys.modules)) or 0)"
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")


def least_work(run: Callable[[], object]) -> float:
    """Return the least processor time of several runs in seconds. Other processes have no effect on it."""
    times = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(times)


def in_pipe(environment, *arguments: str) -> None:
    subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, check=False)


LONGEST = (["--help"], ["finetune", "--help"], ["help", "score"])
SHORTER = [
    pytest.param([name, "--help"], marks=pytest.mark.more)
    for name in ("eval", *(["bench"] if RESEARCH else []))
]
"""Commands whose help is read like that of `finetune`, which has more options."""


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("argv", [["--version"], *LONGEST, *SHORTER], ids=" ".join)
def test_help_is_there_at_once(environment, argv):
    bare = least_work(partial(in_pipe, environment, "-c", "import typer"))

    assert least_work(partial(in_pipe, environment, "-m", "hydractl", *argv)) < max(0.15, 3.5 * bare)
    assert least_work(partial(in_terminal, environment, *argv)) < max(0.2, 4 * bare)


def test_tab_is_answered_at_once(environment):
    bare = least_work(partial(in_pipe, environment, "-c", "import typer"))

    for argv in ([""], ["fuse", "--mlp="], ["eval", "-"]):
        asked = environment | {COMPLETE: "zsh"}
        assert least_work(partial(in_pipe, asked, "-m", "hydractl", *argv)) < max(0.15, 3.5 * bare), argv


def test_what_a_command_needs_alone_is_loaded_at_tab(environment):
    lines = [""], ["fu"], ["fuse", "--mlp="], ["fuse", "a.st", ""]
    others = tuple(f"hydractl.stages.{stage}.config" for stage in ("prune", "finetune", "evaluate", "score"))

    assert probe(environment | {COMPLETE: "zsh"}, *lines, heavy=others) == ""


def test_a_system_without_locks_of_files_is_refused_in_words(monkeypatch, capsys):
    from hydractl.__main__ import _run

    monkeypatch.setitem(sys.modules, "fcntl", None)  # Simulates Windows.
    assert _run() == 3
    assert capsys.readouterr().err == (
        "error: hydractl runs only on Linux, macOS and similar systems\n\nhint: on Windows use WSL\n"
    )
