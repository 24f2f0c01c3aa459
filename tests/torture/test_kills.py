"""Killed, terminated and interrupted runs: outputs are complete or absent, and a rerun gives equal bytes."""

from __future__ import annotations

import random
import signal

import pytest

from support.torture.cuts import faults
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
    tally.add(f"{stage}: {plan}", faults(worker, whole, stage, {"plan": plan}))
    tally.done()


def test_what_a_killed_command_was_writing_is_removed_by_the_next(worker, whole):
    at = next(at for at, what in enumerate(whole.points["fuse"]) if what.startswith("os.rename"))
    place = worker.place(whole.read_by("fuse"))

    place.run(*STAGES["fuse"].words, plan=Plan(at=at, number=signal.SIGKILL))
    again = place.run(*STAGES["fuse"].words)

    assert again.files.keys() == {CANARY, "h.st", *STAGES["fuse"].reads}
