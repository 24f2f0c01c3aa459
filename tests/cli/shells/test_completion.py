from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
import typer.core

from hydractl.cli import completion
from hydractl.cli.app import COMMANDS, COMPLETE, command_tree
from hydractl.cli.completion import files, main
from hydractl.cli.shells import SCRIPTS, Shell
from hydractl.cli.summaries import SUMMARIES
from hydractl.data.reference import BUILT_IN
from support.analysed import RESEARCH

ROOT = Path(__file__).parents[3]
BASH, ZSH, FISH = (ROOT / "completions" / name for name in ("hydractl.bash", "_hydractl", "hydractl.fish"))


@pytest.mark.skipif(not RESEARCH, reason="the files list commands of research")
def test_the_files_are_in_date():
    made = files()

    stale = [name for name, text in made.items() if (ROOT / name).read_text(encoding="utf-8") != text]
    assert made
    assert not stale, "run `python -m hydractl.cli.completion`"


def test_the_words_of_the_command_are_the_shells_with_a_script():
    assert [*get_args(Shell)] == list(SCRIPTS) == list(completion.FILES)


def test_writing_then_checking(tmp_path, monkeypatch, capsys):
    made = files()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(completion, "files", lambda: made)

    assert main(["--check"]) == 5
    assert not [*tmp_path.iterdir()]
    assert "completions/_hydractl" in capsys.readouterr().err
    assert main([]) == 0
    assert main(["--check"]) == 0
    for name, text in made.items():
        (tmp_path / name).write_text("old", encoding="utf-8")
        assert main(["--check"]) == 5
        assert f"out of date: {name}\n" in capsys.readouterr().err
        (tmp_path / name).write_text(text, encoding="utf-8")


ASKED = {
    "": {*COMMANDS, "help", "--version", "-h", "--help"},
    "he": {"help"},
    "help pru": {"prune"},
    "pru": {"prune"},
    "--v": {"--version"},
    "fuse --ml": {"--mlp"},
    "fuse a.st --v": {"--val", "--verify"},
    "fuse --mlp ": {"merge", "keep"},
    "fuse --mlp k": {"keep"},
    "fuse --mlp=": {"--mlp=merge", "--mlp=keep"},
    "fuse --mlp=me": {"--mlp=merge"},
    "fuse ": {"/ 0 st|safetensors"},
    "fuse a.st b": {"/ 0 st|safetensors"},
    "prune a.st --scores=s": {"/ 9 json"},
    "prune a.st --keep-heads ": set(),
    "prune a.st -o ": {"/ 0 "},
    "prune a.st --device c": {"cpu", "cuda"},
    "prune a.st --data d": {"digits", "/ 0 "},
    "prune a.st ": set(),
    "prune --seed 1 ": {"/ 0 st|safetensors"},
    "predict a.st d": {"digits", "/ 0 "},
    "eval a.st --near x=d": {"x=digits", "/ 2 "},
    "score a.st --objective a": {"acc", "avg"},
    "score a.st --method ci": {"circuit"},
    "finetune a.st --recipe cifar100-": {"cifar100-base"},
    "data show cifar100": {"cifar100"},
    "schema ": {"scores", "head-mask", "report"},
    "completion z": {"zsh"},
    "nothing ": set(),
}
if RESEARCH:
    ASKED |= {
        "eval a.st --compare x=m": {"x=mc:", "/ 2 st|safetensors"},
        "eval a.st --compare x=mc:a": {"/ 5 st|safetensors"},
        "eval a.st --analyse heads,me": {"heads,members"},
        "eval a.st --corrupt g": {"gaussian-noise", "glass-blur"},
        "finetune a.st --method pa": {"packed"},
    }


@pytest.mark.parametrize("line", ASKED)
def test_the_program_answers(call, monkeypatch, line):
    monkeypatch.setenv(COMPLETE, "zsh")
    seen = call(*line.split(" "))

    assert (seen.code, seen.err) == (0, "")
    offers = {
        answer.replace("\t", " ") if answer[0] == "/" else answer.split("\t")[0]
        for answer in seen.out.splitlines()
    }
    assert offers == ASKED[line]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_offered_with_what_it_does(call, monkeypatch, name):
    options = [p for p in command_tree().commands[name].params if isinstance(p, typer.core.TyperOption)]
    monkeypatch.setenv(COMPLETE, "zsh")
    offers = dict(line.split("\t") for line in call(name, "-").out.splitlines())

    assert {*offers} == {word for o in options for word in (*o.opts, *o.secondary_opts)} | {"-h", "--help"}
    assert all(offers.values())


def test_commands_are_offered_with_what_they_do(call, monkeypatch):
    monkeypatch.setenv(COMPLETE, "zsh")

    assert call("dat").out == f"data\t{SUMMARIES['data'].removesuffix('.')}\n"


def test_without_any_word_commands_are_offered(call, monkeypatch):
    monkeypatch.setenv(COMPLETE, "bash")

    assert "data\t" in call().out


needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
PRESS_TAB = """
source "$1"; shift
for line; do
    IFS=$'\\n' read -rd '' -a COMP_WORDS <<< "$line"
    [[ $line == *$'\\n' ]] && COMP_WORDS+=('')
    COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 ))
    _hydractl hydractl
    printf '%s\\n' "${COMPREPLY[@]}" ==
done
"""


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "models"
    (folder / "sub").mkdir(parents=True)
    for name in ("a.st", "b.safetensors", "s.json", "n.txt", "with space.st", "weird*.st", "sub/c.st"):
        (folder / name).touch()
    return folder


@pytest.fixture
def with_program(environment, tmp_path_factory):
    """Return an environment with a `hydractl` program that runs this source tree."""
    program = tmp_path_factory.mktemp("bin") / "hydractl"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m hydractl "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    return environment | {"PATH": f"{program.parent}:{environment['PATH']}"}


CHECKPOINTS = {"a.st", "b.safetensors", "with space.st", "weird*.st", "sub"}
EVERYTHING = CHECKPOINTS | {"s.json", "n.txt"}
BASH_WORDS = {
    ("pru",): {"prune"},
    ("fuse", "--mlp", ""): {"merge", "keep"},
    ("fuse", "--mlp", "="): {"merge", "keep"},
    ("fuse", "--mlp", "=", "me"): {"merge"},
    ("fuse", ""): CHECKPOINTS,
    ("fuse", "a.st", "b"): {"b.safetensors"},
    ("fuse", "sub/"): {"sub/c.st"},
    ("fuse", "w"): {"with space.st", "weird*.st"},
    ("fuse", "~/"): {"~/h.st"},
    ("prune", "a.st", "--scores", "=", "s"): {"s.json", "sub"},
    ("prune", "a.st", "-o", ""): EVERYTHING,
    ("prune", "a.st", "--keep-heads", ""): set(),
    ("prune", "a.st", "--data", "d"): {"digits"},
}
if RESEARCH:
    BASH_WORDS |= {
        ("eval", "a.st", "--compare", "x", "=", "l"): {"laplace:"},
        ("eval", "a.st", "--compare", "x", "=", "mc", ":"): CHECKPOINTS,
        ("eval", "a.st", "--compare", "x", "=", "mc", ":", "a"): {"a.st"},
    }


@needs_bash
def test_bash(folder, with_program, tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    (home / "h.st").touch()
    done = subprocess.run(
        ["bash", "--norc", "-c", PRESS_TAB, "bash", BASH, *("\n".join(("hydractl", *words)) for words in BASH_WORDS)],
        cwd=folder, env=with_program | {"HOME": str(home)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    offers = [{*offered.splitlines()} - {""} for offered in done.stdout.split("==\n")]

    assert done.stderr == ""
    assert dict(zip(BASH_WORDS, offers, strict=False)) == BASH_WORDS


@needs_bash
def test_bash_registers_the_function():
    done = subprocess.run(
        ["bash", "--norc", "-c", f"source {BASH}; complete -p hydractl"],
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout == "complete -F _hydractl hydractl\n"


needs_zsh = pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh")
needs_fish = pytest.mark.skipif(shutil.which("fish") is None, reason="no fish")
LINES = {
    "hydractl pr": {"prune", "predict"},
    "hydractl fuse --ml": {"--mlp"},
    "hydractl fuse --mlp ": {"merge", "keep"},
    "hydractl schema ": {"scores", "head-mask", "report"},
    "hydractl completion ": {"bash", "zsh", "fish"},
    "hydractl fuse ": CHECKPOINTS,
    "hydractl fuse a.st w": {"with space.st", "weird*.st"},
    "hydractl prune a.st --scores ": {"s.json", "sub"},
    "hydractl prune a.st --scores=": {"s.json", "sub"},
    "hydractl inspect ": CHECKPOINTS | {"s.json"},
    "hydractl prune a.st --data ": {*BUILT_IN, *EVERYTHING},
    "hydractl prune a.st --data d": {"digits"},
    "hydractl prune a.st -o ": EVERYTHING,
    "hydractl prune a.st --keep-heads ": set(),
}
if RESEARCH:
    LINES["hydractl eval a.st --compare x=mc:a"] = {"a.st"}


@needs_zsh
@pytest.mark.parametrize(
    ("functions", "setup"), [(ZSH.parent, ""), ("/", f'eval "$(< {ZSH})"')], ids=["fpath", "eval"]
)
def test_zsh(folder, with_program, functions, setup):
    done = subprocess.run(
        ["zsh", "-f", Path(__file__).with_name("press_tab.zsh"), functions, setup, *LINES],
        cwd=folder, env=with_program, capture_output=True, text=True, check=True, timeout=100,
    )  # fmt: skip
    offers = [found.replace("\\", "").split("\n") for found in done.stdout.split("==\n")]

    assert re.findall(r"_\w+:\d+:.*", done.stderr) == []  # Error messages of zsh functions.
    assert "-- Cut attention heads" in done.stderr
    assert {line: set(found) - {""} for line, found in zip(LINES, offers, strict=False)} == LINES


@needs_fish
def test_fish(folder, with_program):
    asked = "".join(f"complete -C '{line}'; echo ==\n" for line in LINES)
    done = subprocess.run(
        ["fish", "--no-config", "-c", f"source {FISH}\n{asked}"],
        cwd=folder, env=with_program, capture_output=True, text=True, check=True,
    )  # fmt: skip
    offers = [found.splitlines() for found in done.stdout.split("==\n")]
    bare = [{re.split("=|mc:", word.split("\t")[0])[-1].rstrip("/") for word in found} for found in offers]

    assert done.stderr == ""
    assert f"prune\t{SUMMARIES['prune'].removesuffix('.')}" in offers[0]
    assert dict(zip(LINES, bare, strict=False)) == LINES


@pytest.mark.parametrize(("shell", "stored"), [("bash", BASH), ("zsh", ZSH), ("fish", FISH)])
def test_the_command_prints_the_script(call, shell, stored):
    seen = call("completion", shell)
    document = json.loads(call("completion", shell, "--json").out)

    assert (seen.code, seen.err) == (0, "")
    assert seen.out == stored.read_text(encoding="utf-8")
    assert document == {"script": seen.out, "shell": shell}


def test_other_ranks_print_nothing(call, monkeypatch):
    monkeypatch.setenv("RANK", "1")

    assert call("completion", "bash").out == ""
