from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from hydractl.cli import completion
from hydractl.cli.app import COMMANDS, command_tree
from hydractl.cli.completion import files, main
from hydractl.cli.shells.command import Shell
from hydractl.cli.shells.described import describe
from hydractl.cli.shells.scripts import SCRIPTS
from hydractl.data.reference import BUILT_IN

ROOT = Path(__file__).parents[3]
BASH, ZSH, FISH = (ROOT / "completions" / name for name in ("hydractl.bash", "_hydractl", "hydractl.fish"))


def test_the_files_are_in_date():
    made = files()

    stale = [name for name, text in made.items() if (ROOT / name).read_text(encoding="utf-8") != text]
    assert made
    assert not stale, "run `python -m hydractl.cli.completion`"


def test_the_words_of_the_command_are_the_shells_with_a_script():
    assert [shell.value for shell in Shell] == list(SCRIPTS) == list(completion.FILES)


def test_writing_then_checking(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    made = files()
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


def test_every_option_of_every_command_is_described():
    described = {command.name: set(command.spellings) for command in describe(command_tree())}

    for name, command in command_tree().commands.items():
        for parameter in command.params:
            if parameter.param_type_name == "option":
                assert {*parameter.opts, *parameter.secondary_opts} <= described[name]


@pytest.mark.parametrize("script", [BASH, ZSH, FISH], ids=["bash", "zsh", "fish"])
def test_no_script_calls_the_program(script):
    code = [
        line for line in script.read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith("#")
    ]

    assert not [line for line in code if "$(hydractl" in line or "`hydractl`" in line or "(hydractl" in line]


needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
COMPLETE = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 ))
_hydractl
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def folder(tmp_path):
    for name in ("a.st", "b.safetensors", "s.json", "n.txt", "with space.st", "weird*.st"):
        (tmp_path / name).touch()
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "c.st").touch()
    return tmp_path


def bash(folder: Path, *words: str) -> set[str]:
    done = subprocess.run(
        ["bash", "--norc", "-c", COMPLETE, "bash", str(BASH), *words],
        cwd=folder, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    return set(done.stdout.splitlines()) - {""}


CHECKPOINTS = {"a.st", "b.safetensors", "with space.st", "weird*.st", "sub"}
EVERYTHING = CHECKPOINTS | {"s.json", "n.txt"}
CASES = [
    ([""], {*COMMANDS, "--version", "-h", "--help"}),
    (["pru"], {"prune"}),
    (["--v"], {"--version"}),
    (["fuse", "--ml"], {"--mlp"}),
    (["fuse", "a.st", "--v"], {"--verify"}),
    (["fuse", "--mlp", ""], {"merge", "keep"}),
    (["fuse", "--mlp", "k"], {"keep"}),
    (["fuse", "--mlp", "="], {"merge", "keep"}),
    (["fuse", "--mlp", "=", "me"], {"merge"}),
    (["fuse", ""], CHECKPOINTS),
    (["fuse", "a.st", "b"], {"b.safetensors"}),
    (["fuse", "sub/"], {"sub/c.st"}),
    (["fuse", "w"], {"with space.st", "weird*.st"}),
    (["prune", "a.st", "--scores", ""], {"s.json", "sub"}),
    (["prune", "a.st", "-o", ""], EVERYTHING),
    (["prune", "a.st", "--keep", ""], set()),
    (["inspect", ""], CHECKPOINTS | {"s.json"}),
    (["schema", ""], {"scores", "head-mask", "report"}),
    (["schema", "h"], {"head-mask"}),
    (["nothing", ""], set()),
]


@needs_bash
@pytest.mark.parametrize(("words", "expected"), CASES, ids=[" ".join(words) for words, _ in CASES])
def test_bash(folder, words, expected):
    assert bash(folder, "hydractl", *words) == expected


@needs_bash
@pytest.mark.parametrize("name", COMMANDS)
def test_bash_offers_every_option_after_its_command(folder, name):
    described = next(command for command in describe(command_tree()) if command.name == name)

    assert bash(folder, "hydractl", name, "-") == set(described.spellings)


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
    "hydractl pru": {"prune"},
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
    "hydractl prune a.st --keep ": set(),
}


@needs_zsh
@pytest.mark.parametrize(
    ("functions", "setup"), [(ZSH.parent, ""), ("/", f'eval "$(< {ZSH})"')], ids=["fpath", "eval"]
)
def test_zsh(folder, functions, setup):
    done = subprocess.run(
        ["zsh", "-f", Path(__file__).with_name("press_tab.zsh"), functions, setup, *LINES],
        cwd=folder, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    offers = [found.replace("\\", "").split("\n") for found in done.stdout.split("==\n")]

    assert re.findall(r"_\w+:\d+:.*", done.stderr) == []  # what zsh's own functions complain of
    assert {line: set(found) - {""} for line, found in zip(LINES, offers, strict=False)} == LINES


@needs_fish
def test_fish(folder):
    asked = "".join(f"complete -C '{line}'; echo ==\n" for line in LINES)
    done = subprocess.run(
        ["fish", "--no-config", "-c", f"source {FISH}\n{asked}"],
        cwd=folder, capture_output=True, text=True, check=True,
    )  # fmt: skip
    offers = [found.splitlines() for found in done.stdout.split("==\n")]
    bare = [{word.split("\t")[0].removeprefix("--scores=").rstrip("/") for word in found} for found in offers]

    assert done.stderr == ""
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
