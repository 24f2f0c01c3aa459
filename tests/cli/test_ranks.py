"""`torchrun -m hydractl score`: a single error message, and all processes end together."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

from hydractl.cli import output
from hydractl.cli.commands import measure as eval_command
from hydractl.errors import CheckFailed, HydraError, Interrupted
from hydractl.messages import counted
from hydractl.runtime import one_thread
from support.ranks import environment, launcher

DIGITS = ("--data", "digits::classes=0-6", "--objective", "acc", "--device", "cpu", "--batch-size", "16")
NOISE = ("Traceback", "  File", "RuntimeError", "gloo")
"""Texts that must not appear for an expected failure. torchrun prints its own report afterwards."""


@pytest.fixture
def start(python):
    """Start `score base.st` in several processes by the launcher."""
    return lambda world, *argv: subprocess.Popen(
        [*launcher(world, python()), "-m", "hydractl", "score", "base.st", *map(str, argv)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(PYTHON_EXEC=str(python())),
        start_new_session=True,
    )


def ended(process):
    """Return standard output, and the lines of the ranks on standard error without torchrun's report."""
    out, err = process.communicate(timeout=120)
    lines = [line for line in err.splitlines() if line]
    report = [i for i, line in enumerate(lines) if line.startswith(("Traceback", "W1", "E1", "W0", "E0"))]
    own = lines[: report[0]] if report else lines
    # torchrun reports from the first signal on, and ranks may print afterwards.
    own += [
        line for line in lines[len(own) :] if line.startswith(("rank ", "error:", "interrupted", "hint:"))
    ]
    return out, own


def rank_of(process):
    """Return the rank of a process. Other folders and missing ranks give None."""
    try:
        if (process / "cwd").readlink() != Path.cwd():
            return None
        entries = (process / "environ").read_text().split("\0")
    except OSError:
        return None
    return next((int(entry[5:]) for entry in entries if entry.startswith("RANK=")), None)


def ranks():
    """Return the process id of each rank in this folder."""
    found = {
        process: rank for process in Path("/proc").glob("[0-9]*") if (rank := rank_of(process)) is not None
    }
    parents = {
        process: Path("/proc", (process / "stat").read_text().rpartition(")")[2].split()[1])
        for process in found
    }
    return {rank: int(process.name) for process, rank in found.items() if parents[process] not in found}


def wait_for_removals(process, journal, count):
    end = time.monotonic() + 100
    while not (journal.exists() and len(json.loads(journal.read_text())["removals"]) >= count):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.01)


needs_proc = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's /proc")


def check_one_voice(said, *messages):
    """Check that a single rank has printed the reason, and no rank internal details."""
    spoken = [line for line in said if line.startswith(("rank ", "error", "interrupted"))]
    assert len(spoken) == 1
    assert spoken[0] in messages
    assert not any(noise in line for line in said for noise in NOISE)


TOLD_TO_END = """
import atexit, os, signal, sys
from hydractl import __main__ as program
from hydractl.cli import output
from hydractl.cli.commands import measure as eval_command
from hydractl.errors import CheckFailed, HydraError, Interrupted

def end(*_):
    os.kill(os.getpid(), signal.SIGTERM)

if sys.argv[1] == "speaking":
    say, output.say = output.say, lambda *a, **k: (say(*a, **k), end())
else:
    atexit.register(end)
sys.argv = ["hydractl", "inspect", "missing.st"]
program.main()
"""


@pytest.mark.parametrize("when", ["speaking", "leaving"])
def test_a_rank_that_says_why_it_ends_is_not_interrupted(tmp_path, when):
    """A launcher signals all ranks after the end of the first, while another may be printing."""
    done = subprocess.run(
        [sys.executable, "-c", TOLD_TO_END, when], env=environment(RANK="0", WORLD_SIZE="2"),
        cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip

    assert done.returncode == 3
    assert done.stderr.splitlines()[0].startswith("error: missing.st: ")
    assert done.stderr.count("error") == 1
    assert not any(noise in done.stderr for noise in (*NOISE, "interrupted"))


@pytest.mark.more
@needs_proc
def test_however_a_run_is_cut_off_any_number_of_processes_goes_on(call, work, start):
    options = (*DIGITS, "--remove", "7")
    journal = Path("new.json.journal")
    lost = "error: another process of this run has ended"
    stopped = f"interrupted; the progress is saved in {journal}; the same command resumes it"

    def cut_off(world, removals, signalled):
        """Start, send a signal to a rank or to the launcher, and return the printed lines."""
        process = start(world, *options, "-o", "new.json")
        wait_for_removals(process, journal, removals)
        alive = ranks()
        assert sorted(alive) == list(range(world))
        number, whom = signalled
        os.kill(process.pid if whom is None else alive[whom], number)
        out, said = ended(process)
        assert process.returncode != 0
        assert not any(Path(f"/proc/{child}").exists() for child in alive.values())
        assert out == ""
        assert [path.name for path in Path().glob("new.json*")] == [journal.name]
        assert journal.read_text().endswith("}\n")
        return said

    # A waiting rank detects the end of the killed rank. A computing rank is signalled before.
    check_one_voice(cut_off(2, 1, (signal.SIGKILL, 1)), stopped, lost)
    found = len(json.loads(journal.read_text())["removals"])
    said = cut_off(3, found + 1, (signal.SIGKILL, 0))
    assert said[0] == f"Resuming an interrupted run after {counted(found, 'removal')}"
    check_one_voice(said, f"rank 1: {lost}", f"rank 2: {lost}")
    found = len(json.loads(journal.read_text())["removals"])
    check_one_voice(cut_off(2, found + 1, (signal.SIGINT, None)), stopped)
    with one_thread():
        call("score", "base.st", *options, "-o", "new.json")
        call("score", "base.st", *options, "-o", "whole.json")

    assert Path("new.json").read_bytes() == Path("whole.json").read_bytes()
    assert not journal.exists()


@needs_proc
def test_a_killed_rank_of_a_training_ends_the_run_with_one_line(work, python):
    data = ("--train", "digits::classes=0-6", "--val", "digits::classes=0-6,limit=7")
    steps = ("--steps", "1000000", "--batch-size", "4", "--save-every", "5", "--eval-every", "1000000")
    process = subprocess.Popen(
        [
            *launcher(2, python()),
            "-m",
            "hydractl",
            "finetune",
            "base.st",
            *data,
            *steps,
            "--device",
            "cpu",
            "-q",
            "-o",
            "t.st",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(PYTHON_EXEC=str(python())),
        start_new_session=True,
    )
    end = time.monotonic() + 100
    while not Path("t.st.state/state.json").exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.01)

    os.kill(ranks()[0], signal.SIGKILL)
    out, said = ended(process)

    assert (out, process.returncode != 0) == ("", True)
    check_one_voice(said, "rank 1: error: another process of this run has ended")
    assert said[-1] == (
        "hint: the report of the launcher names it; the progress is saved in t.st.state; the same command resumes it"
    )
    assert not Path("t.st").exists()


def test_an_error_in_one_share_is_said_once_by_its_rank(work, start):
    for c in range(7):
        for i in range(2):
            path = Path(f"images/{c}/{i}.png")
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", (8, 8), 30 * c + i).save(path)
    corrupt = Path("images/3/1.png")  # The eighth image is read by rank 1.
    corrupt.write_bytes(corrupt.read_bytes()[:50])

    process = start(2, "--data", "images", "--method", "taylor", "--device", "cpu", "-o", "new.json")
    out, said = ended(process)

    assert out == ""
    assert said == [
        "rank 1: error: images/3/1.png: is not an image that can be decoded",
        "hint: replace the file with an undamaged copy",
    ]
    assert not list(Path().glob("new.json*"))


def test_one_process_speaks(work, start):
    out, said = ended(start(2, "--method", "magnitude", "--json", "-o", "new.json"))

    assert json.loads(out)["path"] == "new.json"
    assert said == []
    assert Path("new.json").exists()


@pytest.mark.parametrize(
    "argv",
    [
        ("score", "base.st", "--objective", "auc", "-o", "new.json"),
        ("score", "base.st", "--method", "nope", "-o", "new.json"),
        ("prune", "base.st", "--strategy", "random", "--keep-heads", "2", "-o", "m.st"),
    ],
)
@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_usage_error_is_the_leaders_to_say(call, work, monkeypatch, argv, rank):
    def ended_by_the_launcher(_seconds):
        raise KeyboardInterrupt

    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(output.time, "sleep", ended_by_the_launcher)

    seen = call(*argv)

    assert seen.code == 2
    assert bool(seen.err) == (rank == "0")


def test_a_usage_error_of_one_rank_alone_is_said(call, work, monkeypatch):
    slept = []
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(output.time, "sleep", slept.append)

    seen = call("prune", "base.st", "--strategy", "random", "--keep-heads", "2", "-o", "m.st")

    assert seen.err.startswith("rank 1: error: `prune` must run in one process, not in 2")
    assert (
        "run it without `torchrun`; only `eval`, `finetune`, `fuse --val`, `predict`, `prune "
        "--strategy diverse` and `score` support several processes"
    ) in seen.err
    assert len(slept) == 1


@pytest.mark.parametrize(
    "argv",
    [
        ("report", "report.json", "-o", "new.html"),
    ],
)
def test_what_each_process_would_do_alone_is_done_by_one(call, work, monkeypatch, argv):
    monkeypatch.setenv("WORLD_SIZE", "2")

    seen = call(*argv)

    assert seen.code == 2
    assert "must run in one process, not in 2" in seen.err


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_check_that_fails_in_all_ranks_is_the_leaders_to_say(monkeypatch, rank):
    """All ranks of `eval` have the result of the check."""

    def ended_by_the_launcher(_seconds):
        raise KeyboardInterrupt

    class Found:
        document = None

        def require_checks(self):
            raise CheckFailed("1 of 1 checks failed")

    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(output.time, "sleep", ended_by_the_launcher)
    monkeypatch.setattr(eval_command, "summarize", lambda _: None)
    monkeypatch.setattr(eval_command, "markdown", lambda _: ())

    with pytest.raises(HydraError) as ending:
        eval_command.conclude(Found(), output.Terminal())

    assert (type(ending.value), ending.value.message) == (
        (CheckFailed, "1 of 1 checks failed") if rank == "0" else (Interrupted, "")
    )


@pytest.mark.parametrize(
    "argv",
    [
        ("score", "-", "--method", "magnitude", "-o", "new.json"),
        ("eval", "base.st", "--compare", "-", "--data", "digits"),
        ("prune", "base.st", "--scores", "-", "--remove", "2", "-o", "m.st"),
    ],
)
def test_several_processes_cannot_share_standard_input(call, work, monkeypatch, argv):
    monkeypatch.setenv("WORLD_SIZE", "2")

    seen = call(*argv)

    assert seen.code == 2
    assert "several processes cannot share standard input" in seen.err
