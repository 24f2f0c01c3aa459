"""`-` and other names of standard streams, and interrupts during the start of the program."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

import hydractl.__main__
from hydractl.cli.app import main
from hydractl.output.publish import is_stdout

FUSE = ["fuse", "m-0.st", "m-1.st", "--no-verify"]


@pytest.mark.parametrize("name", ["-", "/dev/stdout", "/dev/fd/1"])
def test_standard_output_by_any_name_gets_the_bytes_and_nothing_else(work, capfdbinary, name):
    assert main([*FUSE, "-q", "-o", "h.st"]) == 0
    capfdbinary.readouterr()

    for preprocess in (["-q"], []):
        assert main([*FUSE, *preprocess, "-o", name]) == 0
        assert capfdbinary.readouterr().out == Path("h.st").read_bytes()
    assert main([*FUSE, "--json", "-o", name]) == 2


def test_a_fifo_that_is_standard_output_is_known_as_it(tmp_path, capfd):
    fifo, other = tmp_path / "fifo", tmp_path / "other"
    for path in (fifo, other):
        os.mkfifo(path)
    reading = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    kept, writing = os.dup(1), os.open(fifo, os.O_WRONLY)
    os.dup2(writing, 1)
    try:
        found = (is_stdout(fifo), is_stdout(other), is_stdout(tmp_path / "none"))
    finally:
        os.dup2(kept, 1)
        for number in (reading, kept, writing):
            os.close(number)

    assert found == (True, False, False)


@pytest.mark.parametrize(
    "argv",
    [
        ["prune", "-", "--strategy", "random", "--keep-heads", "2", "-o", "x.st"],
        ["prune", "base.st", "--mask", "-", "-o", "x.st"],
        ["inspect", "-"],
    ],
    ids=["model", "document", "anything"],
)
def test_standard_input_that_is_closed(call, work, monkeypatch, argv):
    monkeypatch.setattr(sys, "stdin", None)
    seen = call(*argv)

    assert (seen.code, seen.err) == (3, "error: -: cannot be read: standard input is closed\n")


def test_a_temporary_folder_without_room(call, work, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(work / "gone"))
    with Path("base.st").open("rb") as file:
        monkeypatch.setattr(sys, "stdin", ModuleType("stdin"))
        monkeypatch.setattr(sys.stdin, "buffer", file, raising=False)
        seen = call("prune", "-", "--strategy", "random", "--keep-heads", "2", "-o", "x.st")

    assert seen.code == 3
    assert "cannot write a temporary file: No such file or directory" in seen.err
    assert "hint: set TMPDIR to a folder on a disk with more space" in seen.err


def test_files_whose_names_are_not_utf_8_are_as_good_as_others(call, work):
    odd = {name: os.fsdecode(b"\xff" + name.encode()) for name in ("m-0.st", "scores.json", "out.st", "h.st")}
    for name in ("m-0.st", "scores.json"):
        Path(name).rename(odd[name])
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # Like the streams of the program.

    for argv in (
        ["prune", "base.st", "--scores", odd["scores.json"], "--keep-heads", "2", "-o", odd["out.st"]],
        ["fuse", odd["m-0.st"], "m-1.st", "-o", odd["h.st"]],
    ):
        assert call(*argv).code == 0
        assert call("inspect", argv[-1]).code == 0
    assert '"name": "\\\\xffm-0.st"' in call("inspect", odd["h.st"], "--json").out


class Interrupted(ModuleType):
    def __getattr__(self, name: str) -> object:
        raise KeyboardInterrupt


def test_an_interrupt_while_the_program_loads(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "hydractl.processes.signals", Interrupted("hydractl.processes.signals"))
    spec = importlib.util.spec_from_file_location("program", hydractl.__main__.__file__)
    assert spec is not None
    assert spec.loader is not None

    with pytest.raises((SystemExit, KeyboardInterrupt)) as ended:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))

    assert isinstance(ended.value, SystemExit)
    assert (ended.value.code, capsys.readouterr().err) == (130, "interrupted\n")
