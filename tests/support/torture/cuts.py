"""Conditions for a stage that is interrupted by a signal and run again."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

from support.torture.points import CANARY
from support.torture.stages import STAGES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from support.torture.stages import Stage, Whole
    from support.torture.tries import Result, Worker


def faults(worker: Worker, whole: Whole, name: str, asked: dict[str, Any]) -> Iterator[str]:
    """Yield violations after an interrupted run of a stage, and after a second run.

    Args:
        worker: Process for running the commands.
        whole: Results of uninterrupted runs.
        name: Name of the stage.
        asked: Plan or signal of the interruption.
    """
    stage, begun = STAGES[name], whole.read_by(name)
    number = asked["plan"].number if "plan" in asked else asked["signal"]
    place = worker.place(begun)
    ended = place.run(*stage.words, **asked)
    done = set(stage.writes) <= ended.files.keys()
    heeded = (
        number != signal.SIGKILL and bool(ended.record) and not done
    )  # A signal before the start, or after all outputs exist, ends the process directly.
    yield from ended.faults({0, 130} if heeded else {0, 130, -number})
    if "plan" in asked and not ended.met and ended.code != 0:
        yield "did not come to that call"
    if ended.code == 130 and "interrupted" not in ended.err:
        yield f"said {ended.err!r}"
    if ended.temporary and ended.code >= 0:
        yield f"left {ended.temporary} in TMPDIR"
    expected = whole.files | begun
    for file, data in ended.files.items():
        if file in (*begun, *stage.writes) and data != expected[file]:
            yield f"{file} is not what it was, nor whole"
    again = place.run(*stage.words)
    yield from (f"run again: {fault}" for fault in again.faults({0, 6} if done else {0}))
    for file in stage.writes:
        if again.files.get(file) != whole.files[file]:
            yield f"run again: {file} is not the same"
    if done and left_by(again, begun, stage):  # A refused run must not touch any file.
        again = place.run(*stage.words, "--force")
        yield from (f"run by force: {fault}" for fault in again.faults({0}))
    if left := left_by(again, begun, stage):
        yield f"run again: left {left}"
    worker.leave(place)


def left_by(ended: Result, begun: Mapping[str, bytes], stage: Stage) -> list[str]:
    """Return remaining files other than inputs and outputs."""
    return sorted(ended.files.keys() - {*begun, *stage.writes, CANARY}) + ended.temporary
