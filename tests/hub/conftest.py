"""A Hub for pushes from this process."""

from __future__ import annotations

import time
from contextlib import contextmanager

import pytest

from support.hub import serve
from support.pushes import Pushable


class Hurried:
    """A substitute for the module `time`, with a sleep that returns at once and records the seconds."""

    def __init__(self):
        self.slept = []

    def sleep(self, seconds):
        self.slept.append(seconds)

    def __getattr__(self, name):
        return getattr(time, name)


@pytest.fixture
def clock(monkeypatch):
    """Replace `time` in the Hub's client. Return the substitute with the recorded waits."""
    hurried = Hurried()
    for module in ("huggingface_hub.utils._http", "hydractl.hub.repository"):
        monkeypatch.setattr(f"{module}.time", hurried)
    return hurried


@pytest.fixture
def hub(monkeypatch, tmp_path, clock):
    """Return a function that runs a Hub of a given kind, with this process logged in."""
    from huggingface_hub import constants

    @contextmanager
    def run(kind=Pushable, **told):
        with serve(kind(**told)) as served:
            monkeypatch.setattr(constants, "ENDPOINT", served.endpoint)
            monkeypatch.setattr(
                constants,
                "HUGGINGFACE_CO_URL_TEMPLATE",
                served.endpoint + "/{repo_id}/resolve/{revision}/{filename}",
            )
            yield served

    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    return run
