"""Upload of large files to Xet storage, with the same commits and errors as on the Hub."""

from __future__ import annotations

import os
from functools import partial

import pytest

from hydractl.errors import HubError
from hydractl.hub.repository import Target, push
from support.xet import STORAGE, TOKEN, XetHub

pytestmark = pytest.mark.newer  # Older clients use another protocol.
NAME = "org/large"


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """Set the client's cache folder and retry delay. The client reads these variables once per process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_XET_CACHE", str(tmp_path_factory.mktemp("xet")))
        patch.setenv("HF_XET_CLIENT_RETRY_BASE_DELAY", "10ms")
        yield


@pytest.fixture
def content():
    """Random bytes. The client remembers uploaded chunks by the storage's address, whose port may be reused."""
    return os.urandom(300_000)


@pytest.fixture
def xet(hub, monkeypatch):
    """Return a function that runs a Hub with Xet storage, with this process logged in."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", False)
    return partial(hub, XetHub)


@pytest.fixture
def files(tmp_path, content):
    (tmp_path / "weights").write_bytes(content)
    return {"model.safetensors": tmp_path / "weights", "config.json": b"{}"}


def target():
    return Target(name=NAME, message="A model")


def test_one_commit_holds_everything_and_the_same_makes_none(xet, files, content):
    with xet() as served:
        first = push(files, target())
        stored = [path for path in served.asked if path.startswith(STORAGE)]
        again = push(files, target())

        repository = served.repositories[NAME]
        assert repository.files()["model.safetensors"] == content
        assert (repository.made, again.unchanged, again.commit) == (1, True, first.commit)
        assert stored
        assert stored == [path for path in served.asked if path.startswith(STORAGE)]


def test_the_storage_never_sees_the_token_of_the_hub(xet, files):
    seen = set()

    def watch(asked):
        if asked.path.startswith(STORAGE):
            seen.add(asked.authorization)

    with xet(refuse=watch):
        push(files, target())

    assert seen == {f"Bearer {TOKEN}"}


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (403, "the token has no write access to the repository (403)"),
        (401, ("the Hub rejects the token (401)")),
    ],
)
def test_a_token_that_may_not_write_there_is_said(xet, files, status, told):
    def refuse(asked):
        return (status, {}, b"{}") if "xet-write-token" in asked.path else None

    with xet(refuse=refuse) as served, pytest.raises(HubError) as refused:
        push(files, target())

    assert told in str(refused.value)
    assert (
        len([path for path in served.asked if "xet-write-token" in path]) <= 2
    )  # The client itself tries twice.
    assert served.repositories[NAME].made == 0


@pytest.mark.parametrize("part", ["xorbs", "shards"])
def test_a_storage_that_fails_in_between_is_asked_again(xet, files, content, part):
    failed = []

    def refuse(asked):
        if f"/v1/{part}" in asked.path and len(failed) < 2:
            failed.append(asked.path)
            return 503, {}, b""
        return None

    with xet(refuse=refuse) as served:
        push(files, target())

        assert len(failed) == 2
        assert served.repositories[NAME].files()["model.safetensors"] == content
        assert served.repositories[NAME].made == 1


def test_a_storage_that_refuses_leaves_the_branch_as_it_was(xet, files, clock):
    def refuse(asked):
        return (400, {}, b"no") if "/v1/xorbs" in asked.path else None

    with xet(refuse=refuse) as served, pytest.raises(HubError) as refused:
        push(files, target())

    assert "push" in refused.value.hint
    assert served.repositories[NAME].made == 0
