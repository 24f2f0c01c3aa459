"""Progress objects for recording messages and for interrupting a stage."""

from __future__ import annotations

from pathlib import Path

from hydractl.progress import Silent


class ProgressLog(Silent):
    """A `Progress` that records messages and warnings."""

    def __init__(self):
        self.steps, self.warnings = [], []

    def step(self, message):
        self.steps.append(message)

    def warn(self, message):
        self.warnings.append(message)


class InterruptedProgress(Silent):
    """A `Progress` that interrupts after `after` messages."""

    def __init__(self, after):
        self.left = after

    def step(self, message):
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt


class InterruptedLoop(Silent):
    """A `Progress` that interrupts each loop after `after` items."""

    def __init__(self, after):
        self.after = after

    def track(self, items, *, label, total):
        for i, item in enumerate(items):
            if i == self.after:
                raise KeyboardInterrupt
            yield item


def cut_between_names(monkeypatch, work, after):
    """Interrupt `work` after `after` outputs have been renamed. Return the KeyboardInterrupt."""
    real, times = Path.replace, iter(range(99))

    def replace(path, target):
        if Path(target).suffix in {".st", ".json"} and next(times) == after:
            raise KeyboardInterrupt
        return real(path, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", replace)
        try:
            work()
        except KeyboardInterrupt as error:
            return error
    raise AssertionError("nothing interrupted it")
