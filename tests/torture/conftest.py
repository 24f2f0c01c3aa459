"""Number of tries (a seeded share, or all with `--torture`), and the table of tries and failures."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict

import pytest

from support.faulty_hub import FaultyHub, serve_faulty_hub
from support.torture.stages import undisturbed
from support.torture.tries import Worker

SHARES = 10


def pytest_generate_tests(metafunc):
    """Parametrize tests that use `share`: a single share by default, all shares with `--torture`."""
    if "share" in metafunc.fixturenames:
        long = metafunc.config.getoption("torture")
        shares = [Share(number, long=bool(long)) for number in range(long or 1)]
        metafunc.parametrize("share", shares, ids=[f"{x.number}" for x in shares])


@pytest.fixture(scope="session")
def hub():
    """Return a fake Hub. Forbidden contact is a fault of a try."""
    with serve_faulty_hub(FaultyHub()) as lying:
        yield lying


@pytest.fixture(scope="session")
def worker(tmp_path_factory, python, hub):
    """Return the process for tries."""
    known = {"HF_ENDPOINT": hub.endpoint, "HF_HUB_ETAG_TIMEOUT": "1", "HF_HUB_DOWNLOAD_TIMEOUT": "1"}
    started = Worker.start(python(), tmp_path_factory.mktemp("torture"), **known)
    yield started
    started.end()


@pytest.fixture(scope="session")
def whole(worker):
    """Return the outputs of undisturbed runs."""
    return undisturbed(worker)


class Share:
    """A part of all tries: a fixed sample, or with `--torture` part `number` of `SHARES`."""

    def __init__(self, number: int, *, long: bool) -> None:
        self.number, self.long = number, long

    def of(self, tries, draw, *, few):
        """Return this share of a list."""
        return tries[self.number :: SHARES] if self.long else draw.sample(tries, min(few, len(tries)))

    def count(self, few, many):
        """Return `many` with `--torture`, otherwise `few`."""
        return many if self.long else few


class Tally:
    """Counts of tries and failures, by kind."""

    def __init__(self, kind, record) -> None:
        self.kind, self.record = kind, record
        self.tries, self.failed = Counter(), defaultdict(dict)

    def add(self, what, faults, *, kind=None):
        """Count a try.

        Args:
            what: Description to repeat the try.
            faults: Failures; empty for success.
            kind: Second part of the kind in the table.
        """
        kind = self.kind if kind is None else f"{self.kind}: {kind}"
        self.tries[kind] += 1
        if found := list(faults):
            self.failed[kind][str(what)] = found
            print(
                kind, what, *found, sep="\n    ", file=sys.stderr, flush=True
            )  # printed at once, because a run with `-s` is long

    def done(self):
        """Raise if a try failed."""
        for kind, tries in self.tries.items():
            self.record("torture", [kind, tries, len(self.failed[kind])])
            print(f"{kind}: {tries} tries, {len(self.failed[kind])} failed", file=sys.stderr, flush=True)
        failed = {what: faults for some in self.failed.values() for what, faults in some.items()}
        lines = [f"{what}\n    " + "\n    ".join(faults) for what, faults in failed.items()]
        assert not lines, f"{len(lines)} of {self.tries.total()} failed\n" + "\n".join(lines)


@pytest.fixture
def tally(request, record_property):
    """Return the counter of a test's tries."""
    return Tally(request.node.path.stem.removeprefix("test_"), record_property)
