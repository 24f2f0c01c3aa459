from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "start.md"
NUMBER = re.compile(r"\S*\d\S*(?: [kMGT]\b)?")  # training costs of short runs have another unit prefix


def session() -> list[tuple[str, str]]:
    """Return the page's console session as pairs of a command and its output."""
    (block,) = re.findall(r"```console\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    steps: list[tuple[list[str], list[str]]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            steps.append(([line[2:]], []))
        elif line.startswith("> "):
            steps[-1][0].append(line[2:])
        else:
            steps[-1][1].append(line)
    return [("\n".join(command), "\n".join(output)) for command, output in steps]


def shape(text: str) -> list[list[str]]:
    """Return the words of each line without numbers and maps of heads, which vary with the machine."""
    lines = (NUMBER.sub("#", line).replace("■", "#").replace("·", "#") for line in text.splitlines())
    return [re.sub(r"[#\s]*#[#\s]*", " # ", re.sub("─+", "─", line)).split() for line in lines]


@pytest.mark.more  # test_pipeline.py is the end-to-end test of each run
def test_the_session_runs_and_prints_what_it_shows(shell, tmp_path, request):
    """Few epochs and samples give output of the same form; `--all-variants` runs the original commands."""
    script = tmp_path / "session.sh"
    steps = session()
    written = "\n".join(f"{command}\necho @@@" for command, _ in steps)
    if not request.config.getoption("all_variants"):
        written, epochs = re.subn(r"--epochs \d+", "--epochs 2", written)
        written, data = re.subn(r"(split=\w+|::classes=[789]\b)", r"\1,limit=40", written)
        assert (epochs, data) == (2, 6)
    script.write_text(written)

    shell(script, "session")

    printed = (tmp_path / "session.out").read_text().split("@@@\n")
    for (command, expected), found in zip(steps, printed, strict=False):
        assert shape(found) == shape(expected), command
