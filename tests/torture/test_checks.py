"""The checks themselves detect a program that violates a rule."""

from __future__ import annotations

import signal

import pytest

from support.torture.cuts import faults
from support.torture.tries import CPU_S, LONG, MEMORY, TOKEN, Result

SOUND = "import sys; sys.stderr.write('error: bad\\n'); sys.exit(3)"
PLANTED = {
    "exit 1": "raise SystemExit(1)",
    "exit 7": "raise SystemExit(7)",
    "without one error line": "raise SystemExit(3)",
    "without one error line: 'error": "import sys; sys.stderr.write('error: a\\nerror: b\\n'); sys.exit(3)",
    "traceback": "raise ValueError",
    "a line of": f"import sys; sys.stderr.write('x' * {LONG + 1})",
    "control characters": "import sys; sys.stderr.write('\\x1b[31m')",
    "exit -9": "import os; os.kill(os.getpid(), 9)",
    " MiB": f"x = bytearray({MEMORY + (MEMORY >> 3)}); x[::4096] = x[::4096]",
    "offence open": "open('evil.pth').close()",
    "offence socket.getaddrinfo": "import socket; socket.getaddrinfo('evil.invalid', 80)",
    "offence socket.connect": "import socket; socket.socket().connect(('127.0.0.3', 80))",
    "offence subprocess.Popen": "import subprocess; subprocess.run(['touch', 'x'])",
    "offence os.system": "import os; os.system('true')",
    "the token is told": f"print({TOKEN!r})",
    "the token is told ": f"open('x', 'w').write({TOKEN!r})",
}


def test_a_sound_end_is_none(worker):
    place = worker.place()
    assert not [*place.run(program=SOUND).faults()]
    worker.leave(place)


@pytest.mark.parametrize("fault", PLANTED)
def test_a_broken_law_is_found(worker, fault):
    place = worker.place()
    assert any(fault.strip(" ") in found for found in place.run(program=PLANTED[fault]).faults())
    worker.leave(place)


def test_what_takes_too_long_is_found():
    ended = Result(code=0, cpu=CPU_S + 1, wall=0, grown=0, out="", err="", record=[], files={}, temporary=[])
    assert [*ended.faults()] == [f"took {CPU_S + 1} s"]


HALVES = {
    "h.st is not what it was, nor whole": "open('h.st', 'wb').write(b'half')",
    "m-0.st is not what it was, nor whole": "open('m-0.st', 'wb').write(b'')",
    "run again: left ['mine']": "open('mine', 'wb').write(b'')",
    "run again: left ['hydractl-1']": "import os; open(os.environ['TMPDIR'] + '/hydractl-1', 'wb').write(b'')",
    "said": "import sys; sys.exit(130)",
}


@pytest.mark.parametrize("fault", HALVES)
def test_what_a_cut_off_command_breaks_is_found(worker, whole, fault):
    number = signal.SIGTERM if fault == "said" else signal.SIGKILL
    asked = {"program": f"{HALVES[fault]}\nimport os; os.kill(os.getpid(), 9)", "after": 60, "signal": number}

    assert any(fault in found for found in faults(worker, whole, "fuse", asked))
