"""How much is tried: a seeded share by default, all of it with `--torture`; and the table of tries and failures."""

from __future__ import annotations

import pytest

from support.torture.stages import undisturbed
from support.torture.tries import Worker

SHARES = 10


def pytest_generate_tests(metafunc):
    """Give tests that ask for a share the one of a short run, or all."""
    if "share" in metafunc.fixturenames:
        long = metafunc.config.getoption("torture")
        shares = [Share(number, long=long) for number in range(SHARES if long else 1)]
        metafunc.parametrize("share", shares, ids=[f"{x.number}" for x in shares])


@pytest.fixture(scope="session")
def worker(tmp_path_factory, python):
    """Return the process that tries."""
    started = Worker.start(python(), tmp_path_factory.mktemp("torture"))
    yield started
    started.end()


@pytest.fixture(scope="session")
def whole(worker):
    """Return what undisturbed runs give."""
    return undisturbed(worker)


class Share:
    """A part of all tries: a few of them, the same each time, or in the long run one of `SHARES` parts."""

    def __init__(self, number: int, *, long: bool) -> None:
        self.number, self.long = number, long

    def of(self, tries, draw, *, few):
        """Return this share of a list."""
        return tries[self.number :: SHARES] if self.long else draw.sample(tries, min(few, len(tries)))

    def count(self, few, many):
        """Return how many of what has no end."""
        return many if self.long else few


class Tally:
    """Tries of one kind, and what was wrong with them."""

    def __init__(self, kind, record) -> None:
        self.kind, self.record = kind, record
        self.tries = 0
        self.failed: dict[str, list[str]] = {}

    def add(self, what, faults):
        """Count one try; `what` says how to try it again."""
        self.tries += 1
        if found := list(faults):
            self.failed[str(what)] = found

    def done(self):
        """Fail if a try did."""
        self.record("torture", [self.kind, self.tries, len(self.failed)])
        lines = [f"{what}\n    " + "\n    ".join(faults) for what, faults in self.failed.items()]
        assert not lines, f"{len(lines)} of {self.tries} failed\n" + "\n".join(lines)


@pytest.fixture
def tally(request, record_property):
    """Return what counts the tries of a test."""
    return Tally(request.node.path.stem.removeprefix("test_"), record_property)
