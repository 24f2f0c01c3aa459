from __future__ import annotations

import gc
from collections import Counter, defaultdict

import pytest
from hypothesis import settings

from support.variants import Variant

# The same examples each time: a law that fails once in a thousand draws must not stop an unrelated change. To search for
# such a draw: pytest --hypothesis-profile default. No deadline, since other work may share the machine.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


FEW = 4
"""A law marked `spread` takes each fourth variant of a family, and one at least."""


def pytest_addoption(parser):
    parser.addoption(
        "--all-variants",
        action="store_true",
        help="laws marked `spread` over all variants, not a few a family",
    )


def pytest_collection_modifyitems(config, items):
    """Leave each law marked `spread` a few variants of each family.

    The laws of a file, and the cases of a law, take turns: each begins one variant after the one before. So every family
    is met by all, and every variant by each file that has four of them. A law that costs much may name the families that it
    meets by default, `spread(families=...)`: those whose code differs.
    """
    if config.getoption("all_variants"):
        return
    cases, left = defaultdict(list), set()
    for item in items:
        if marker := item.get_closest_marker("spread"):
            variant = next(value for value in item.callspec.params.values() if isinstance(value, Variant))
            case = item.nodeid.replace(str(variant), "")
            if variant.family in marker.kwargs.get("families", (variant.family,)):
                cases[item.path, variant.family, case].append(item)
            else:
                left.add(item)
    turns = Counter()
    for (path, family, _), variants in cases.items():
        turn, step = turns[path, family], min(FEW, len(variants))
        turns[path, family] += 1
        left |= {item for i, item in enumerate(variants) if (i - turn) % step}
    config.hook.pytest_deselected(items=[item for item in items if item in left])
    items[:] = [item for item in items if item not in left]


def pytest_collection_finish(session):
    """Leave what the libraries are made of out of garbage collections: each training run asks for one of everything."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish(session):
    """Give it back, or bindings report at the end of the process what nobody freed."""
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _quiet_environment(monkeypatch):
    """No test sees the user's ranks, colours or Hub."""
    for name in ("RANK", "WORLD_SIZE", "NO_COLOR", "FORCE_COLOR", "GITHUB_ACTIONS"):
        monkeypatch.delenv(name, raising=False)
