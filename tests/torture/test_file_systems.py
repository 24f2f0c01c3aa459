"""Full, read-only and broken file systems, and special files: a short error, no partial output."""

from __future__ import annotations

import errno
import os
import random

import pytest

from support.torture.points import CANARY, CHANGES, Plan
from support.torture.stages import STAGES

ONCE = (errno.EIO, errno.EACCES, errno.ENOSPC)
READING = (errno.EIO, errno.ESTALE)
WAYS = [*((n, True) for n in (errno.ENOSPC, errno.EROFS, errno.EDQUOT)), *((n, False) for n in ONCE)]


@pytest.mark.parametrize("stage", STAGES)
def test_errors_at_calls(worker, whole, tally, stage, share):
    """Each changing call fails, alone or with all later calls; or a reading call fails."""
    draw = random.Random(f"errors {stage} {share.number}")  # noqa: S311 - the same each time
    calls = whole.points[stage]
    changes = [what for what in calls if what.split()[0] in CHANGES]
    plans = [
        Plan(at=at, number=n, error=True, changes=True, stays=stays)
        for at in range(len(changes))
        for n, stays in WAYS
    ]
    plans += [
        Plan(at=at, number=n, error=True)
        for at, what in enumerate(calls)
        if what not in changes
        for n in READING
    ]
    for plan in share.of(plans, draw, few=2):
        what = f"{stage}: {errno.errorcode[plan.number]} at {plan}, {(changes if plan.changes else calls)[plan.at]}"
        tally.add(what, faults(worker, whole, stage, plan))
    tally.done()


def faults(worker, whole, name, plan):
    """Yield the faults of a stage with an error."""
    stage, begun = STAGES[name], whole.read_by(name)
    place = worker.place(begun)
    ended = place.run(*stage.words, plan=plan)
    yield from ended.faults({0, 3})
    expected = whole.files | begun
    for file, data in ended.files.items():
        if file in (*begun, *stage.writes) and data != expected[file]:
            yield f"{file} is not what it was, nor whole"
    if ended.code == 0 and not set(stage.writes) <= ended.files.keys():
        yield "exit 0 without its outputs"
    worker.leave(place)


OUT = {
    "a symbolic link": lambda out: out.symlink_to("elsewhere.st"),
    "a link to itself": lambda out: out.symlink_to(out.name),
    "a link to a folder": lambda out: (out.with_name("folder").mkdir(), out.symlink_to("folder")),
    "a link into nothing": lambda out: out.symlink_to("none/a.st"),
    "a folder": lambda out: out.mkdir(),
    "a file": lambda out: out.write_bytes(b"the user's own"),
}


WRITERS = ("fuse", "prune-mask", "finetune", "score")


def test_what_stands_where_the_output_goes(worker, whole, tally, share):
    cases = [(stage, what, options) for stage in WRITERS for what in OUT for options in ((), ("--force",))]
    for stage, what, options in share.of(cases, random.Random(1), few=6):  # noqa: S311 - the same each time
        place = worker.place(whole.read_by(stage))
        out = place.work / STAGES[stage].writes[0]
        OUT[what](out)
        there = {path.name for path in place.work.iterdir()} | {*STAGES[stage].writes, "elsewhere.st"}
        ended = place.run(*STAGES[stage].words, *options)
        found = [
            *ended.faults({0, 3, 6}),
            *(f"left {n}" for n in ended.files if n.partition("/")[0] not in there),
        ]
        if what == "a file" and not options and ended.files[out.name] != b"the user's own":
            found.append("the user's own file is gone")
        tally.add(f"{stage} {what} {options}", found)
        worker.leave(place)
    tally.done()


NAMES = [
    "-x.st", "{i}.st", "{}.st", "a b.st", "ü€😀.st", "new\nline.st", "\x1b[31m.st", os.fsdecode(b"\xff\xfe.st"), "a.st.state",
    "a.st.journal", "nul\\.st", "%s.st", "~", "...", "a.st/", "",
]  # fmt: skip


def test_names(worker, whole, tally, share):
    cases = [(stage, name) for stage in WRITERS for name in NAMES]
    for stage, name in share.of(cases, random.Random(1), few=6):  # noqa: S311 - the same each time
        place = worker.place(whole.read_by(stage))
        ended = place.run(*STAGES[stage].words[:-1], f"./{name}" if name.startswith("-") else name)
        left = {n for n in ended.files if n.endswith((".part", ".journal", ".state"))} - {name}
        tally.add(f"{stage} {ascii(name)[:40]}", [*ended.faults(), *(f"left {n[:40]}" for n in left)])
        worker.leave(place)
    tally.done()


@pytest.mark.parametrize(
    "name", [f"{'n' * 255}.st", f"{'d/' * 2500}a.st", "loop.st"], ids=["name", "path", "loop"]
)
def test_names_that_lead_nowhere(worker, whole, name):
    place = worker.place(whole.read_by("fuse"))
    (place.work / "loop.st").symlink_to("loop.st")

    assert not [*place.run(*STAGES["fuse"].words[:-1], name).faults({3})]
    worker.leave(place)


@pytest.mark.spread(cases=3)
@pytest.mark.parametrize("stage", STAGES)
def test_two_writers(worker, whole, tally, stage):
    """Both processes succeed, or a process reports the output of the other; the output is complete."""
    place = worker.place(whole.read_by(stage))
    one, other = place.side_by_side([STAGES[stage].words] * 2)
    found = [] if 0 in {one.code, other.code} else ["neither came to the end"]
    found += [f"exit {e.code}: {e.err[-300:]!r}" for e in (one, other) if e.code not in {0, 6}]
    found += [
        f"{file} is not whole" for file in STAGES[stage].writes if one.files.get(file) != whole.files[file]
    ]
    found += [
        f"left {file}" for file in one.files.keys() - {*whole.read_by(stage), *STAGES[stage].writes, CANARY}
    ]
    tally.add(stage, found)
    worker.leave(place)
    tally.done()


def test_a_fifo_is_as_good_as_a_file(worker, whole):
    place = worker.place(whole.read_by("fuse"))
    os.mkfifo(place.work / "h.st")
    reader = os.open(place.work / "h.st", os.O_RDONLY | os.O_NONBLOCK)

    ended = place.run(*STAGES["fuse"].words)

    assert not [*ended.faults({0})]
    assert os.read(reader, 1 << 20) == whole.files["h.st"]
    os.close(reader)
    worker.leave(place)
