"""A Hub that takes pushes, and this process as its client."""

from __future__ import annotations

import time
from contextlib import contextmanager

import pytest

from support.hub import serve
from support.pushes import Pushable


class Hurried:
    """The module `time`, where no time passes."""

    def __init__(self):
        self.slept = []

    def sleep(self, seconds):
        self.slept.append(seconds)

    def __getattr__(self, name):
        return getattr(time, name)


@pytest.fixture
def clock(monkeypatch):
    """Nobody waits, and what they would have waited is told."""
    hurried = Hurried()
    for module in ("huggingface_hub.utils._http", "hydractl.hub.repository"):
        monkeypatch.setattr(f"{module}.time", hurried)
    return hurried


@pytest.fixture
def hub(monkeypatch, tmp_path, clock):
    """Return what runs a Hub, of a kind and by what that takes, with this process logged in to it."""
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
