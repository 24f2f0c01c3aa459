from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _quiet_environment(monkeypatch):
    """No test sees the user's ranks, colours or Hub."""
    for name in ("RANK", "WORLD_SIZE", "NO_COLOR", "FORCE_COLOR", "GITHUB_ACTIONS"):
        monkeypatch.delenv(name, raising=False)
