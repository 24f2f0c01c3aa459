"""A malicious Hub: one-line errors, no files outside the cache, and the token goes to the Hub only."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from support.faulty_hub import FAULTS, OWNED, is_slow
from support.torture.mutations import drawn
from support.torture.stages import VAL
from support.torture.tries import TOKEN

PRUNED = ("--strategy", "random", "--remove", "1", "-q", "-o", "out.st")
SHORT = ("--no-latency", "--bootstrap", "0")
COMMANDS = {
    "prune": lambda name: ("prune", name, *PRUNED),
    "eval": lambda name: ("eval", f"hf-hub:{name}", "--data", VAL, *SHORT),
    "data": lambda name: ("eval", "base.st", "--data", f"hf:{name}", *SHORT),
}
numbers = itertools.count()


@pytest.fixture(scope="module")
def asked(hub, whole):
    """Serve the files, and return the hosts that a try may contact."""
    hub.truth = {n.removeprefix("timm/"): data for n, data in whole.files.items() if n.startswith("timm/")}
    hub.data = {"train.parquet": whole.files["pictures.parquet"]}
    hosts = [urlsplit(address) for address in (hub.endpoint, hub.stranger)]
    # the client sends six requests
    return {"hosts": [(host.hostname, host.port) for host in hosts], "wall": 600}


def test_lies(worker, hub, whole, asked, tally, share):
    draw = random.Random(f"lies {share.number}")  # noqa: S311 - the same each time
    cases = [(fault, command) for fault in FAULTS for command in COMMANDS if share.long or not is_slow(fault)]
    told(worker, hub, whole, asked, tally, share.of(cases, draw, few=8))
    tally.done()


def test_changed_answers(worker, hub, whole, asked, tally, share):
    """The Hub's JSON responses are changed like files."""
    draw = random.Random(f"answers {share.number}")  # noqa: S311 - the same each time
    changes = [drawn("answer.json", draw) for _ in range(share.count(4, 60))]
    told(worker, hub, whole, asked, tally, [("none", draw.choice(list(COMMANDS))) for _ in changes], changes)
    tally.done()


def test_what_is_not_on_the_hub_asks_nobody(worker, hub, whole, asked):
    """Contact is allowed here, and counts as a fault in all other tries."""
    place = worker.place({name: data for name, data in whole.files.items() if name.startswith("bert/")})
    hub.asked.clear()

    ended = place.run("prune", "bert", *PRUNED, **asked)

    assert not [*ended.faults({0})]
    assert not hub.asked + hub.progress_log
    worker.leave(place)


def test_the_hub_alone_hears_the_token(worker, hub, asked):
    """The Hub must receive the token, or the other checks prove nothing."""
    place = worker.place()
    hub.tokens.clear()

    assert not [*place.run("prune", "org/xet.own", *PRUNED, **asked).faults({0, 3, 4})]
    # further requests of the client carry no token
    assert hub.tokens - {""} == {f"Bearer {TOKEN}"}
    assert hub.progress_log
    assert not [*leaked(worker, hub)]
    worker.leave(place)


def told(worker, hub, whole, asked, tally, cases, changes=()):
    """Run command lines on repositories of the Hub."""
    names = [f"org/{fault}.{next(numbers)}" for fault, _ in cases]
    hub.changes |= dict(zip(names, changes, strict=False))
    lines = [COMMANDS[command](name) for name, (_, command) in zip(names, cases, strict=True)]
    places = [worker.place({"base.st": whole.files["base.st"]}) for _ in lines]
    ended = worker.together(list(zip(places, lines, strict=True)), **asked)
    for place, name, (fault, command), words, one in zip(places, names, cases, lines, ended, strict=True):
        codes = (
            {0, 3, 4}
            if name in hub.changes
            else FAULTS[fault].codes | {3}
            if command == "data"
            else FAULTS[fault].codes
        )
        what = json.dumps(hub.changes[name].data()) if name in hub.changes else ""
        tally.add(" ".join((*words, what)), one.faults(set(codes)))
        worker.leave(place)
    tally.add("none of them leaks", leaked(worker, hub))


def leaked(worker, hub):
    """Yield files outside the allowed folders, and hosts that received the token."""
    found = [*worker.folder.rglob(OWNED), *Path("/tmp").glob(OWNED), *Path("/").glob(OWNED)]  # noqa: S108 - not to be there
    yield from (f"{path} is there" for path in found)
    yield from (f"the stranger has heard the token: {said}" for said in hub.progress_log if TOKEN in said)
    hub.progress_log.clear()
    for path in (worker.folder / "hub").rglob("*"):
        if path.is_file() and TOKEN.encode() in path.read_bytes():
            yield f"the token is in {path}"
