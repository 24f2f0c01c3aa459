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
from support.progress_log import ProgressLog
from support.variants import Variant

# The same examples in each run: a law that fails once in a thousand draws must not stop an unrelated change.
# To search for such a draw, use `--hypothesis-profile default`. No deadline, because other work may share the
# machine.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


# Collection creates 20,000 items and loads all libraries. Few of these objects become garbage.
gc.disable()

FEW = 6
"""A law marked `spread` runs on every sixth variant of a family, at least one; with `spread(every=8)` on
every eighth. Chosen by hand; twice the number halves the cases and the time."""


@pytest.fixture
def progress_log():
    """Return a receiver of messages in the test's thread, outside of stages with another receiver."""
    with reporting(receiver := ProgressLog()):
        yield receiver


@pytest.fixture(scope="module", name="one_thread")
def _one_thread():
    """Run torch's operators on one thread, for tests whose numbers depend on the number of threads."""
    with one_thread():
        yield


def pytest_make_parametrize_id(val):
    """Return the ID of a text with `::`.

    xdist takes `::` as the end of the file name, and would set up shared fixtures of the file again.
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
    """Simulate a GPU if the option is given."""
    if not request.config.getoption("made_up_gpu"):
        yield
        return
    from support.gpu import simulated_gpu  # This import loads torch's compiler.

    with simulated_gpu():
        yield


def pytest_collection_modifyitems(config, items):
    """Deselect tests marked `more`, and all but a few variants per family of laws marked `spread`.

    The laws of a file start at different variants, so every law runs on every family, and six laws of a file
    cover all variants. For a law with several cases, every seventh pair of variant and case is kept. A slow
    law may name families with different code, `spread(families=...)`. Or families whose towers are read by
    the same code share the cases, `spread(alike=True)`. A test with other parameters states the number of its
    cases, `spread(cases=4)`.
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
    """Return `count` cases of a test. Each next case has the most parameter values not covered before."""
    spaced = sorted(range(len(cases)), key=lambda i: i * 0.618034 % 1)
    order, seen, chosen = [cases[i] for i in spaced], set(), []
    values = {case: {*case.callspec.indices.items()} for case in cases}
    while order and len(chosen) < count:
        # The first of several cases with equal counts.
        best = max(order, key=lambda case: len(values[case] - seen))
        order.remove(best)
        chosen.append(best)
        seen |= values[best]
    return chosen


def kin(family):
    """Return library and towers of a family. Equal for families whose towers are read by the same code."""
    return family.partition("-")[0], *FAMILIES[family].towers


def pytest_collection_finish(session):
    """Exclude the objects of libraries from garbage collections, because each training run calls for one."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item, nextitem):
    """Exclude the objects loaded by a file's tests.

    Otherwise each collection takes longer than the previous.
    """
    yield
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


def pytest_terminal_summary(terminalreporter):
    """Print tries and failures of `tests/torture` by kind."""
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
    """Undo `gc.freeze`. Otherwise bindings report leaks at the end of the process."""
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _quiet_environment(monkeypatch):
    """Hide the user's ranks, colours and Hub from tests."""
    for name in ("RANK", "WORLD_SIZE", "NO_COLOR", "FORCE_COLOR", "GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def _few_timings(monkeypatch):
    """Make `eval` time models with the fewest calls. No test depends on the times."""
    if (cost := sys.modules.get("hydractl.evaluation.cost")) is not None:
        monkeypatch.setattr(cost, "MAX_CALLS", cost.MIN_CALLS)


@pytest.fixture(autouse=True)
def _no_collection_after_training(monkeypatch):
    """Skip the garbage collection of accelerate after training, which takes 0.2 s with all libraries loaded."""
    if (memory := sys.modules.get("accelerate.utils.memory")) is not None:
        monkeypatch.setattr(memory, "gc", SimpleNamespace(collect=int))


@pytest.fixture(scope="session")
def python(request):
    """Return a function from a server's number to a program that replaces `sys.executable`.

    With `--all-variants`, the program is `sys.executable`.
    """
    if request.config.getoption("all_variants"):
        return lambda server=0: sys.executable  # noqa: ARG005 - as the other
    return warm.python
