"""Ctrl-C and its like wait while a step is half done, so that what is interrupted can be saved."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

NAMES = ("SIGINT", "SIGTERM", "SIGHUP")


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Let the first signal take effect at the end of the block, and a second one at once.

    Only signals that a Python function answers are held, and only in the main thread, which alone gets them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    answers: dict[int, Callable[[int, FrameType | None], object]] = {}
    waiting: list[int] = []

    def keep(number: int, frame: FrameType | None) -> None:
        waiting.append(number)
        if len(waiting) > 1:
            answers[number](number, frame)

    try:
        for name in NAMES:
            number = getattr(signal, name, None)
            answer = None if number is None else signal.getsignal(number)
            if number is not None and callable(answer):
                answers[number] = answer
                signal.signal(number, keep)
        yield
    finally:
        for number, answer in answers.items():
            signal.signal(number, answer)
    if waiting:
        answers[waiting[0]](waiting[0], None)
