"""Signals are delayed to the end of a block, once."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest

from hydractl.processes.signals import signals_held

FINALIZED = """
import gc, signal, sys, time
from hydractl.processes.signals import heed_signals

signal.signal(signal.SIGINT, {before})
heed_signals(only_first={once})

def numbers():
    try:
        yield 1
    finally:
        signal.raise_signal(signal.SIGTERM)

def garbage():
    begun = numbers()
    next(begun)
    ring = [begun]
    ring.append(ring)

try:
    garbage()
    gc.collect()
    print("on")
    time.sleep(30)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.fixture(autouse=True)
def _answers():
    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, answer in before.items():
        signal.signal(number, answer)


def test_a_signal_takes_effect_at_the_end():
    done = []

    def work():
        with signals_held():
            signal.raise_signal(signal.SIGINT)
            done.append(1)
        done.append(2)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == [1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_one_takes_effect_at_once():
    done = []

    def work():
        with signals_held():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            done.append(1)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == []
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_without_a_signal_nothing_happens():
    with signals_held():
        pass
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_signal_that_is_ignored_stays_so():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

    with signals_held():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN


def test_other_threads_are_left_alone():
    found = []

    def work():
        with signals_held():
            found.append(1)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [1]


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("before", ["signal.default_int_handler", "signal.SIG_IGN"])
def test_one_that_meets_a_finalizer_is_not_lost(before, once):
    program = FINALIZED.format(before=before, once=once)
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False
    )

    assert (ended.stdout, ended.stderr) == ("on\ninterrupted\n", "")


def test_what_else_a_finalizer_raises_is_printed():
    program = FINALIZED.format(before="signal.SIG_DFL", once=False).replace(
        "signal.raise_signal(signal.SIGTERM)", "1 / 0"
    )
    program = program.replace("time.sleep(30)", "")
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False
    )

    assert ended.stdout == "on\n"
    assert "ZeroDivisionError" in ended.stderr
