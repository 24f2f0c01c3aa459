from __future__ import annotations

import gc
import sys
from collections import Counter, defaultdict
from types import SimpleNamespace

import pytest
from hypothesis import settings

from hydractl.families.registry import FAMILIES
from hydractl.progress import reporting
from hydractl.runtime import one_thread
from support import warm
from support.heard import Heard
from support.variants import Variant

# The same examples each time: a law that fails once in a thousand draws must not stop an unrelated change. To search for
# such a draw: pytest --hypothesis-profile default. No deadline, since other work may share the machine.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


# Collection makes 20,000 items and loads all libraries, and few of their objects become garbage.
gc.disable()

FEW = 6
"""A law marked `spread` takes each sixth variant of a family, and one at least; `spread(every=8)` each eighth."""


@pytest.fixture
def heard():
    """Return the receiver of all messages that the test's thread reports, unless a stage has a receiver of its own."""
    with reporting(receiver := Heard()):
        yield receiver


@pytest.fixture(scope="module", name="one_thread")
def _one_thread():
    """Run torch's operators on one thread: for tests whose numbers must not depend on how many there are."""
    with one_thread():
        yield


def pytest_make_parametrize_id(val):
    """Return the ID of a text with `::` in it, which xdist would take for the end of a file's name, so that what the file's
    tests share is made again for that one.
    """
    if isinstance(val, str) and "::" in val:
        return val.replace("::", ":").encode("unicode_escape").decode("ascii")
    return None


def pytest_addoption(parser):
    parser.addoption(
        "--all-variants",
        action="store_true",
        help="laws marked `spread` over all variants, not a few a family",
    )
    parser.addoption(
        "--torture", nargs="?", const=10, type=int, default=0, metavar="N",
        help="N tenths of all that `tests/torture` can try, by default all of it, not a small share",
    )  # fmt: skip
    parser.addoption(
        "--made-up-gpu",
        action="store_true",
        help="all on a GPU that is made up, where `--device` is not said; what is compiled fails",
    )


@pytest.fixture(autouse=True)
def _gpu(request):
    """Let there be a GPU if it is asked for."""
    if not request.config.getoption("made_up_gpu"):
        yield
        return
    from support.gpu import made_up  # loads torch's compiler

    with made_up():
        yield


def pytest_collection_modifyitems(config, items):
    """Leave each law marked `spread` a few variants of each family, and leave out what is marked `more`.

    The laws of a file take turns: each begins one variant after the one before. So every family is met by all, and every
    variant by each file that has six of them. Of a law with several cases, a family's cases are met in turn by its variants:
    by each seventh pair of them. A law that costs much may name the families that it meets by default,
    `spread(families=...)`: those whose code differs; or share them out, `spread(alike=True)`: those that a library's
    tower of a kind reads take turns as if they were one. A test with other parameters names the number of its cases,
    `spread(cases=4)`.
    """
    if config.getoption("all_variants"):
        return
    laws, left = (
        defaultdict(lambda: defaultdict(list)),
        {item for item in items if item.get_closest_marker("more")},
    )
    tests = defaultdict(list)
    for item in items:
        if marker := item.get_closest_marker("spread"):
            if "cases" in marker.kwargs:
                if item not in left:
                    tests[item.path, item.function.__name__, marker.kwargs["cases"]].append(item)
                continue
            variant = next(value for value in item.callspec.params.values() if isinstance(value, Variant))
            if variant.family not in marker.kwargs.get("families", (variant.family,)):
                left.add(item)
                continue
            who = kin(variant.family) if marker.kwargs.get("alike") else variant.family
            laws[item.path, item.function.__name__, marker.kwargs.get("every", FEW)][who].append(
                (str(variant), item)
            )
    turns = Counter()
    for (path, _, every), families in laws.items():
        for number, cases in enumerate(families.values()):
            order = {variant: i for i, variant in reversed(list(enumerate(variant for variant, _ in cases)))}
            cases.sort(key=lambda case: order[case[0]])
            several = len({variant for variant, _ in cases}) < len(cases)
            step = min(every + several, len(cases))
            left |= {item for i, (_, item) in enumerate(cases) if (i - turns[path] - number * several) % step}
        turns[path] += 1
    for (_, _, count), cases in tests.items():
        left |= {*cases} - {*few(cases, count)}
    config.hook.pytest_deselected(items=[item for item in items if item in left])
    items[:] = [item for item in items if item not in left]


def few(cases, count):
    """Return so many cases of a test. Each next case has the most values of parameters that no case before it has."""
    spaced = sorted(range(len(cases)), key=lambda i: i * 0.618034 % 1)
    order, seen, chosen = [cases[i] for i in spaced], set(), []
    values = {case: {*case.callspec.indices.items()} for case in cases}
    while order and len(chosen) < count:
        best = max(order, key=lambda case: len(values[case] - seen))  # the first of several
        order.remove(best)
        chosen.append(best)
        seen |= values[best]
    return chosen


def kin(family):
    """Return what families have in common whose towers are read by the same code: a library, and kinds of tower."""
    return family.partition("-")[0], *FAMILIES[family].towers


def pytest_collection_finish(session):
    """Leave what the libraries are made of out of garbage collections: each training run asks for one of everything."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item, nextitem):
    """Leave out too what a file's tests have loaded: what one collection costs grows with all that came before."""
    yield
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


def pytest_terminal_summary(terminalreporter):
    """Show the tries and failures of `tests/torture` by kind, where there are some."""
    counts = defaultdict(lambda: (0, 0))
    for report in (report for reports in terminalreporter.stats.values() for report in reports):
        for kind, tries, failed in (v for k, v in getattr(report, "user_properties", ()) if k == "torture"):
            if report.when == "call":
                counts[kind] = (counts[kind][0] + tries, counts[kind][1] + failed)
    if counts and terminalreporter.config.getoption("torture"):
        terminalreporter.write_sep("=", "tries and failures")
        for kind, (tries, failed) in sorted(counts.items()):
            terminalreporter.write_line(f"{kind:24}{tries:8}{failed:8}")


def pytest_sessionfinish(session):
    """Give it back, or bindings report at the end of the process what nobody freed."""
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _quiet_environment(monkeypatch):
    """No test sees the user's ranks, colours or Hub."""
    for name in ("RANK", "WORLD_SIZE", "NO_COLOR", "FORCE_COLOR", "GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def _few_timings(monkeypatch):
    """Let `eval` time a model by the fewest calls that it may: no test depends on what the clock says."""
    if (cost := sys.modules.get("hydractl.evaluation.cost")) is not None:
        monkeypatch.setattr(cost, "MOST", cost.LEAST)


@pytest.fixture(autouse=True)
def _no_collection_after_training(monkeypatch):
    """Let accelerate free a model without a garbage collection, which takes 0.2 s in a process with all libraries."""
    if (memory := sys.modules.get("accelerate.utils.memory")) is not None:
        monkeypatch.setattr(memory, "gc", SimpleNamespace(collect=int))


@pytest.fixture(scope="session")
def python(request):
    """Return, by the number of a server, a program to start instead of `sys.executable`: itself with `--all-variants`."""
    if request.config.getoption("all_variants"):
        return lambda server=0: sys.executable  # noqa: ARG005 - as the other
    return warm.python
