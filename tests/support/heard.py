"""What a stage says while it runs."""

from __future__ import annotations

from hydractl.progress import Silent


class Heard(Silent):
    """A `Progress` that remembers."""

    def __init__(self):
        self.steps, self.warnings = [], []

    def step(self, message):
        self.steps.append(message)

    def warn(self, message):
        self.warnings.append(message)


class Cut(Silent):
    """A `Progress` that interrupts after so many messages."""

    def __init__(self, after):
        self.left = after

    def step(self, message):
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
