from __future__ import annotations

import pytest


class Heard:
    """A `Progress` that remembers."""

    def __init__(self):
        self.steps = []
        self.warnings = []

    def step(self, message):
        self.steps.append(message)

    def warn(self, message):
        self.warnings.append(message)

    def track(self, items, *, label, total):
        return items


@pytest.fixture
def heard():
    return Heard()
