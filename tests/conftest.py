from __future__ import annotations

import pytest
from hypothesis import settings

# The same examples each time: a law that fails once in a thousand draws must not stop an unrelated change. To search for
# such a draw: pytest --hypothesis-profile default. No deadline, since other work may share the machine.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def _quiet_environment(monkeypatch):
    """No test sees the user's ranks, colours or Hub."""
    for name in ("RANK", "WORLD_SIZE", "NO_COLOR", "FORCE_COLOR", "GITHUB_ACTIONS"):
        monkeypatch.delenv(name, raising=False)
