"""Signals wait for the end of a block, once."""

from __future__ import annotations

import signal
import threading

import pytest

from hydractl.signals import held


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
        with held():
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
        with held():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            done.append(1)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == []
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_without_a_signal_nothing_happens():
    with held():
        pass
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_signal_that_is_ignored_stays_so():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

    with held():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN


def test_other_threads_are_left_alone():
    found = []

    def work():
        with held():
            found.append(1)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [1]
