"""How a process answers what asks it to end: as Ctrl-C, once, later, or at once."""

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
_SOON = 0.01  # seconds: after the finalizer that is running, which takes far less


def told_to_end() -> bool:
    """Return whether a signal has asked this process to end: a library that was loading may have swallowed the exception."""
    return _told_to_end.is_set()


def heed_signals(*, only_first: bool) -> None:
    """Answer signals that ask to end as Ctrl-C, so that scratch files go; those that somebody else set are left alone.

    One that comes while Python finalizes an object, whose exceptions go nowhere, is answered again once that is over.

    Args:
        only_first: Whether only the first of several counts: a launcher passes on what all have got from the terminal.
    """
    for number in ENDING:
        if signal.getsignal(number) in {signal.SIG_DFL, signal.default_int_handler}:
            signal.signal(number, _unwind_once if only_first else _unwind)
    sys.unraisablehook = partial(_heed_soon, sys.unraisablehook)


def _heed_soon(otherwise: Callable[[UnraisableHookArgs], object], lost: UnraisableHookArgs) -> None:
    """Interrupt the main thread a moment later if what could not be raised is that a signal came; others are printed."""
    if not issubclass(lost.exc_type, KeyboardInterrupt) or sys.is_finalizing():
        otherwise(lost)
        return
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # the first of several has been, or a shell's background ignores this one of the three
        signal.signal(signal.SIGINT, _unwind_once)
    main = threading.get_ident()  # only the main thread gets signals
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
    """Let a process of several, which says why it ends, end: the launcher's signal to do so would add a second voice."""
    for number in ENDING:
        if signal.getsignal(number) is _unwind_once:
            signal.signal(number, signal.SIG_IGN)


@contextlib.contextmanager
def signals_that_kill() -> Iterator[None]:
    """Let signals that ask a process to end do so at once, also while it waits inside a library.

    In other threads than the main one, which alone gets signals, this does nothing.
    """
    with _replaced(_answers(), signal.SIG_DFL):
        yield


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Let the first signal take effect at the end of the block, so that a step half done is finished; a second one at once.

    Only signals that a Python function answers are held, and only in the main thread.
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
    """Return what Python functions answer signals that ask to end; none in other threads than the main one."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {number: answer for number in ENDING if callable(answer := signal.getsignal(number))}


@contextlib.contextmanager
def _replaced(answers: Mapping[int, Answer], handler: Answer | signal.Handlers) -> Iterator[None]:
    """Answer the same signals otherwise within the block."""
    try:
        for number in answers:
            signal.signal(number, handler)
        yield
    finally:
        for number, answer in answers.items():
            signal.signal(number, answer)
