"""Killed, ended and interrupted at calls and at other times: outputs whole or absent, and a rerun ends with the same bytes."""

from __future__ import annotations

import random
import signal

import pytest

from support.torture.points import CANARY, Plan
from support.torture.stages import STAGES

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
SEVERAL = [name for name, stage in STAGES.items() if len(stage.writes) > 1]


@pytest.mark.parametrize("stage", STAGES)
def test_at_calls_and_at_other_times(worker, whole, tally, stage, share):
    draw = random.Random(f"{stage} {share.number}")  # noqa: S311 - the same each time
    calls = [(at, number) for at in range(len(whole.points[stage])) for number in SIGNALS]
    for at, number in share.of(calls, draw, few=1):
        what = f"{stage}: {number.name} at call {at}, {whole.points[stage][at]}"
        tally.add(what, faults(worker, whole, stage, {"plan": Plan(at=at, number=number)}))
    for _ in range(share.count(1, 10)):
        after, number = draw.random() * whole.seconds[stage], draw.choice(SIGNALS)
        what = f"{stage}: {number.name} after {after:.3f} s"
        tally.add(what, faults(worker, whole, stage, {"after": after, "signal": number}))
    tally.done()


@pytest.mark.parametrize("stage", SEVERAL)
def test_between_two_outputs(worker, whole, tally, stage):
    renames = [at for at, what in enumerate(whole.points[stage]) if what.startswith("os.rename")]
    plan = Plan(at=renames[-1], number=signal.SIGKILL)
    tally.add(f"{stage}: {plan}", faults(worker, whole, stage, {"plan": plan}, between=True))
    tally.done()


def test_what_a_killed_command_was_writing_is_removed_by_the_next(worker, whole):
    at = next(at for at, what in enumerate(whole.points["fuse"]) if what.startswith("os.rename"))
    place = worker.place(whole.read_by("fuse"))

    place.run(*STAGES["fuse"].words, plan=Plan(at=at, number=signal.SIGKILL))
    again = place.run(*STAGES["fuse"].words)

    assert again.files.keys() == {CANARY, "h.st", *STAGES["fuse"].reads}


def faults(worker, whole, name, asked, *, between=False):
    """Say what is wrong after a stage was cut off, and after it was run again."""
    stage, begun = STAGES[name], whole.read_by(name)
    number = asked["plan"].number if "plan" in asked else asked["signal"]
    place = worker.place(begun)
    ended = place.run(*stage.words, **asked)
    done = set(stage.writes) <= ended.files.keys()  # then a signal may still end what is left of the process
    yield from ended.faults(
        {0, -number} if number == signal.SIGKILL else {0, 130, -number} if done else {0, 130}
    )
    if ended.code == 130 and "interrupted" not in ended.err:
        yield f"said {ended.err!r}"
    if ended.temporary and ended.code >= 0:
        yield f"left {ended.temporary} in TMPDIR"
    expected = whole.files | begun
    for file, data in ended.files.items():
        if file in (*begun, *stage.writes) and data != expected[file]:
            yield f"{file} is not what it was, nor whole"
    there = sum(file in ended.files for file in stage.writes)
    if between or there in {0, len(stage.writes)}:
        again = place.run(*stage.words)
        complete = there == len(stage.writes)
        yield from (f"run again: {fault}" for fault in again.faults({0, 6} if complete else {0}))
        for file in stage.writes:
            if again.files.get(file) != whole.files[file]:
                yield f"run again: {file} is not the same"
        left = again.files.keys() - {*begun, *stage.writes, CANARY}
        left = {file for file in left if not file.endswith(".part")}
        if not complete and (left or (again.temporary and ended.code >= 0)):
            yield f"run again: left {sorted(left)}, {again.temporary}"
    worker.leave(place)
