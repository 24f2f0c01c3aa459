"""Handling of signals to end a process: like Ctrl-C, once, delayed, or immediately."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

Answer: TypeAlias = Callable[[int, FrameType | None], object]

ENDING = tuple(
    signal.Signals[name] for name in ("SIGINT", "SIGTERM", "SIGHUP") if name in signal.Signals.__members__
)
_told_to_end = threading.Event()
_SOON = 0.01
"""Delay of a repeated signal in seconds. Chosen by hand, longer than a finalizer runs; doubling it has no
visible effect."""


def received_end_signal() -> bool:
    """Return whether this process received a signal to end.

    A library may swallow the exception of the signal during an import.
    """
    return _told_to_end.is_set()


def heed_signals(*, only_first: bool) -> None:
    """Let SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt, so that scratch files are removed.

    Handlers set by others stay. A signal during a finalizer, where Python discards exceptions, is repeated
    after the finalizer.

    Args:
        only_first: Whether to ignore all signals after the first. Launchers repeat signals already received
            by all processes of a terminal.
    """
    for number in ENDING:
        if signal.getsignal(number) in {signal.SIG_DFL, signal.default_int_handler}:
            signal.signal(number, _unwind_once if only_first else _unwind)
    sys.unraisablehook = partial(_heed_soon, sys.unraisablehook)


def _heed_soon(otherwise: Callable[[UnraisableHookArgs], object], lost: UnraisableHookArgs) -> None:
    """Send SIGINT to the main thread a moment later if a discarded exception is KeyboardInterrupt.

    Other exceptions go to the previous hook, `otherwise`.
    """
    if not issubclass(lost.exc_type, KeyboardInterrupt) or sys.is_finalizing():
        otherwise(lost)
        return
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # SIGINT is ignored after the first of several signals, and in background jobs of a shell
        signal.signal(signal.SIGINT, _unwind_once)
    main = threading.get_ident()  # only the main thread receives signals
    timer = threading.Timer(_SOON, signal.pthread_kill, (main, signal.SIGINT))
    timer.daemon = True
    timer.start()


def _unwind(_number: int, _frame: FrameType | None) -> None:
    _told_to_end.set()
    raise KeyboardInterrupt


def _unwind_once(number: int, frame: FrameType | None) -> None:
    heed_no_more_signals()
    _unwind(number, frame)


def heed_no_more_signals() -> None:
    """Ignore further signals in a process that reports an error.

    Otherwise the signal of the launcher to all processes would cause a second message. Only signals handled
    once (`only_first`) are ignored.
    """
    for number in ENDING:
        if signal.getsignal(number) is _unwind_once:
            signal.signal(number, signal.SIG_IGN)


@contextlib.contextmanager
def signals_that_kill() -> Iterator[None]:
    """Let signals end the process immediately during the `with` block, even in a wait inside a library.

    Has no effect outside of the main thread.
    """
    with _replaced(_answers(), signal.SIG_DFL):
        yield


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Delay the first signal to the end of the block, so that the block is finished.

    A second signal acts immediately.

    Only signals with a Python handler are delayed, and only in the main thread.
    """
    answers = _answers()
    waiting: list[int] = []

    def keep(number: int, frame: FrameType | None) -> None:
        waiting.append(number)
        if len(waiting) > 1:
            answers[number](number, frame)

    with _replaced(answers, keep):
        yield
    if waiting:
        answers[waiting[0]](waiting[0], None)


def _answers() -> dict[int, Answer]:
    """Return the Python handlers of signals to end. Empty outside of the main thread."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {number: answer for number in ENDING if callable(answer := signal.getsignal(number))}


@contextlib.contextmanager
def _replaced(answers: Mapping[int, Answer], handler: Answer | signal.Handlers) -> Iterator[None]:
    """Use another handler for these signals within the block."""
    try:
        for number in answers:
            signal.signal(number, handler)
        yield
    finally:
        for number, answer in answers.items():
            signal.signal(number, answer)
