"""Tests in a separate process: pipes, terminals, signals, unwritable streams."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.terminal import in_terminal

FILES = ["base.st", "hydra.st", "scores.json", "m-0.mask.json"]


@pytest.mark.parametrize(
    "argv",
    [
        ["prune", "--help"],
        ["prun"],
        ["inspect", "hydra.st"],
        pytest.param(["--help"], marks=pytest.mark.more),
        pytest.param(["inspect", "none.st"], marks=pytest.mark.more),
    ],
)
def test_no_escapes_in_pipes(spawn, work, argv):
    asked_for = dict.fromkeys(("GITHUB_ACTIONS", "FORCE_COLOR", "PY_COLORS", "CLICOLOR_FORCE"), "1")

    out, err = spawn(*argv, **asked_for).communicate(timeout=100)

    assert b"\x1b" not in out + err


needs_terminal = pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")


@needs_terminal
@pytest.mark.parametrize(
    "argv",
    [
        ["inspect", "hydra.st"],
        ["prune", "--help"],
        pytest.param(["inspect", "none.st"], marks=pytest.mark.more),
    ],
)
def test_a_terminal_gets_styles_unless_no_color(environment, work, argv):
    _, styled = in_terminal(environment, *argv)
    _, plain = in_terminal({**environment, "NO_COLOR": "1"}, *argv)

    assert "\x1b[" in styled
    assert "\x1b" not in plain


@needs_terminal
@pytest.mark.parametrize("file", FILES)
def test_results_fit_eighty_columns(environment, work, file):
    code, shown = in_terminal({**environment, "NO_COLOR": "1"}, "inspect", file)

    assert code == 0
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= 80


@needs_terminal
def test_a_terminal_gets_no_binary_file_but_a_document(environment, work, python):
    plain = {**environment, "NO_COLOR": "1"}
    refused = (
        "error: `-o -`: a model is a binary file, but standard output is a terminal hint: write to a "
        "file with `-o FILE`, or to a pipe: `-o - | COMMAND`"
    )

    for name in ("-", "/dev/stdout"):
        code, shown = in_terminal(plain, "fuse", "m-0.st", "m-1.st", "-o", name, program=python())
        assert (code, " ".join(shown.split())) == (2, refused)
    code, shown = in_terminal(plain, "score", "base.st", "--method", "random", "-o", "-", program=python())
    assert (code, '"method": "random"' in shown) == (0, True)


def interruptible() -> None:
    """Restore the default signal handlers, because background jobs and nohup ignore SIGINT and SIGHUP."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def wait_until(condition, *, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.02)


WORK = """
import sys, time
from pathlib import Path
from hydractl import __main__ as program
from hydractl.cli.app import app
from hydractl.output.publish import publish

@app.command()
def work():
    with publish(Path("out.st")) as file:
        file.write(b"half")
        Path("started").touch()
        time.sleep(60)

sys.argv = ["hydractl", "work"]
program.main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_nothing_behind(environment, tmp_path, number):
    folder = tmp_path / "folder"
    folder.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", WORK], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=interruptible,  # noqa: PLW1509 - no threads here
    )  # fmt: skip
    wait_until((folder / "started").exists)
    assert len(list(folder.iterdir())) == 2

    process.send_signal(number)
    out, err = process.communicate(timeout=100)

    assert (process.returncode, out, err) == (130, b"", b"interrupted\n")
    assert [path.name for path in folder.iterdir()] == ["started"]


SWALLOWED = """
import os, signal, sys
from hydractl import __main__ as program
from hydractl.cli.app import app

@app.command()
def work():
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        raise {error}

sys.argv = ["hydractl", "work"]
program.main()
"""
MADE_OF_IT = (
    'ImportError("half a library")',
    'OSError(5, "read error", "a.st")',
    '__import__("hydractl.errors").errors.InputError("a.st: half read")',
)
BEFORE_IT_BEGINS = """
import os, signal, sys
from hydractl import __main__ as program

class Loading:
    def find_spec(self, name, path=None, target=None):
        if name == "hydractl.cli.app":
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except BaseException:
                raise ImportError("half a library")

sys.meta_path.insert(0, Loading())
program.main()
"""


@pytest.mark.parametrize(
    "script", [*(SWALLOWED.replace("{error}", error) for error in MADE_OF_IT), BEFORE_IT_BEGINS]
)
def test_an_error_that_a_library_makes_of_a_signal_is_an_interrupt(environment, script):
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, check=False, timeout=100,
        preexec_fn=interruptible,
    )  # fmt: skip

    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"interrupted\n")


def test_interrupting_a_read_from_a_pipe_leaves_nothing_behind(environment, work):
    temporary = Path(environment["TMPDIR"])
    process = subprocess.Popen(
        [sys.executable, "-m", "hydractl", "inspect", "-"], env=environment, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=interruptible,  # noqa: PLW1509 - as above
    )  # fmt: skip
    assert process.stdin
    process.stdin.write((work / "base.st").read_bytes()[:5000])
    process.stdin.flush()
    wait_until(lambda: any(temporary.iterdir()))

    process.send_signal(signal.SIGINT)
    process.wait(timeout=100)

    assert process.returncode == 130
    assert process.stderr
    assert process.stderr.read() == b"interrupted\n"
    assert not any(temporary.iterdir())
    process.stdin.close()
    for stream in (process.stdout, process.stderr):
        assert stream
        stream.close()


@pytest.mark.parametrize(
    "argv",
    [
        ["inspect", "hydra.st", "--tensors"],
        pytest.param(["schema", "report"], marks=pytest.mark.more),
        pytest.param(["inspect", "hydra.st", "--json"], marks=pytest.mark.more),
    ],
)
def test_a_reader_that_leaves_is_no_error(environment, work, argv):
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "hydractl", *argv],
        env=environment,
        stdout=writing,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writing)

    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize(
    "argv",
    [
        ["inspect", "hydra.st"],
        ["--help"],
        pytest.param(["schema", "report"], marks=pytest.mark.more),
        pytest.param(["inspect", "hydra.st", "--json"], marks=pytest.mark.more),
    ],
)
def test_a_full_standard_output_is_one_message(environment, work, argv):
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "hydractl", *argv],
            env=environment,
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )

    assert (done.returncode, done.stderr.decode()) == (
        3,
        "error: standard output: cannot be written: No space left on device\n",
    )


FUSE = "fuse m-0.st m-1.st --no-verify"


@pytest.mark.spread(cases=2)
@pytest.mark.parametrize(
    ("command", "streams", "code", "said"),
    [
        ("inspect base.st", ">&- 2>&-", 0, ""),
        (f"{FUSE} -q -o h.st", "<&- >&- 2>&-", 0, ""),
        (f"{FUSE} -o -", ">&-", 3, "error: -: cannot be written: standard output is closed\n"),
        ("inspect none.st", "2>/dev/full", 3, ""),
    ],
)
def test_streams_that_are_closed_or_broken_are_no_crash(environment, work, command, streams, code, said):
    shell = ["bash", "-c", f"{sys.executable} -m hydractl {command} {streams}"]
    done = subprocess.run(shell, env=environment, capture_output=True, check=False)

    assert (done.returncode, done.stderr.decode()) == (code, said)


@pytest.mark.parametrize(
    "file",
    [
        "base.st",
        "scores.json",
        "m-0.mask.json",
        pytest.param("hydra.st", marks=pytest.mark.more),
        pytest.param("five.st", marks=pytest.mark.more),
    ],
)
def test_a_pipe_is_as_good_as_a_file(call, spawn, work, file):
    from_file = call("inspect", file, "--json").out.encode()

    from_pipe, err = spawn("inspect", "-", "--json").communicate((work / file).read_bytes(), timeout=100)

    assert err == b""
    assert from_pipe == from_file.replace(f'"file": "{file}"'.encode(), b'"file": "-"')


def test_names_that_no_terminal_can_show(environment, work):
    name = os.fsencode("m") + b"\xff\xe9.st"
    Path("base.st").rename(os.fsdecode(name))
    command = [sys.executable, "-m", "hydractl", "inspect", name]
    ascii_only = {**environment, "PYTHONIOENCODING": "ascii"}

    for settings, more in ((environment, []), (ascii_only, []), (ascii_only, ["--json"])):
        done = subprocess.run([*command, *more], env=settings, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, b"")


def test_a_rank_other_than_0_is_silent(spawn, work):
    for argv in (["inspect", "hydra.st"], ["inspect", "hydra.st", "--json"], ["schema", "report"]):
        assert spawn(*argv, RANK="1", WORLD_SIZE="2").communicate(timeout=100) == (b"", b"")


def test_outputs_get_the_mode_of_the_umask(call, work):
    before = os.umask(0o027)
    try:
        seen = call("fuse", "m-0.st", "m-1.st", "--no-verify", "-q", "-o", "h.st")
    finally:
        os.umask(before)

    assert (seen.code, seen.out, seen.err) == (0, "h.st\n", "")
    assert stat.S_IMODE((work / "h.st").stat().st_mode) == 0o640
