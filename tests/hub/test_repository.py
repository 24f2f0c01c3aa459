"""Uploads in one commit, despite network faults, or an error with the reason."""

from __future__ import annotations

import json

import pytest

from hydractl.errors import HubError
from hydractl.hub.repository import Target, push, require_token
from support.hub import serve
from support.pushes import EMPTY, Pushable

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content")  # The test transport triggers this warning.
FILES = {"config.json": b"{}\n", "README.md": b"# m\n", "model.safetensors": b"w" * 4096, "heads.png": b"p"}
NAME = "org/model"


def target(**changes):
    return Target(**{"name": NAME, "message": "A model"} | changes)


def without(files, *names):
    return {name: content for name, content in files.items() if name not in names}


def test_one_commit_holds_everything_and_the_same_makes_none(hub, tmp_path):
    (tmp_path / "w").write_bytes(FILES["model.safetensors"])
    files = FILES | {"model.safetensors": tmp_path / "w"}
    with hub() as served:
        first = push(files, target())
        again = push(files, target())

        repository = served.repositories[NAME]
        assert without(repository.files(), ".gitattributes") == FILES
        assert (repository.messages, repository.private) == (["A model"], False)
        assert (first.commit, set(first.written), first.unchanged) == (
            repository.branches["main"],
            set(FILES),
            False,
        )
        assert (again.commit, again.unchanged, first.url) == (
            first.commit,
            True,
            f"{served.endpoint}/{NAME}/commit/{first.commit}",
        )


def test_what_changed_is_written_and_what_a_former_model_left_goes(hub):
    with hub() as served:
        push(FILES | {"head-mask-1.json": b"{}", "notes.txt": b"mine"}, target())
        done = push(
            without(FILES, "model.safetensors")
            | {"config.json": b"[]", "model-00001-of-00001.safetensors": b"s"},
            target(),
        )

        repository = served.repositories[NAME]
        assert set(done.written) == {"config.json", "model-00001-of-00001.safetensors"}
        assert done.deleted == ("head-mask-1.json", "model.safetensors")
        assert "notes.txt" in repository.files()
        assert repository.made == 2


@pytest.mark.parametrize("seed", range(3))
def test_three_requests_of_ten_may_fail(hub, seed):
    with hub(faults=0.3, seed=seed) as served:
        done = push(FILES, target())

        repository = served.repositories[NAME]
        assert served.failed
        assert without(repository.files(), ".gitattributes") == FILES
        assert (repository.made, done.commit) == (1, repository.branches["main"])


def test_a_commit_whose_answer_is_lost_is_not_made_twice(hub):
    lost = []

    def refuse(asked):
        if "/commit/" in asked.path and not lost:
            lost.append(served.serve(asked))
            raise ConnectionAbortedError

    with hub(refuse=refuse) as served:
        done = push(FILES, target())
        repository = served.repositories[NAME]
        assert (repository.made, done.commit) == (1, repository.branches["main"])
        assert (set(done.written), done.unchanged) == (set(FILES), False)

        lost.clear()
        with pytest.raises(HubError, match="connection") as caught:
            push(FILES | {"config.json": b"1"}, target(create_pr=True))
        assert repository.made == 2
        assert "check whether the pull request exists before you push again" in caught.value.hint


def test_branches_pull_requests_and_private_repositories(hub):
    with hub() as served:
        push(FILES, target(private=True))
        repository = served.repositories[NAME]
        assert repository.private
        push(FILES | {"config.json": b"1"}, target(revision="v2"))
        assert (repository.files("v2")["config.json"], repository.files()["config.json"]) == (b"1", b"{}\n")
        done = push(FILES | {"config.json": b"2"}, target(create_pr=True))
        assert done.pull_request == f"{served.endpoint}/{NAME}/discussions/1"
        assert repository.files()["config.json"] == b"{}\n"


def test_a_public_repository_is_not_taken_for_a_private_one(hub):
    with hub() as served:
        push(FILES, target())
        with pytest.raises(HubError, match="is already public, and `--private` cannot change that"):
            push(FILES | {"config.json": b"secret"}, target(private=True))
        assert served.repositories[NAME].made == 1


def at(path, status, headers=None, body=b"{}", times=99):
    left = iter(range(times))

    def refuse(asked):
        return (status, headers or {}, body) if path in asked.path and next(left, None) is not None else None

    return refuse


REFUSALS = {
    "token": (at("/api/repos/create", 401), "the Hub rejects the token", "hf auth login"),
    "permission": (at("/api/repos/create", 403), r"the token has no write access to the repository \(403\)", "has write access to `org`"),
    "owner": (at("/api/repos/create", 404), "no such repository, branch or account", "check the spelling"),
    "meanwhile": (at("/commit/", 412), "`main` has changed during the push", "push again"),
    "conflict": (at("/commit/", 409), "`main` has changed during the push", "push again"),
    "failing": (at("/commit/", 502), r"the Hub has a server error \(502\)", "the same command pushes only the missing files"),
    "limit": (at("/commit/", 429, {"Retry-After": "3600"}), "responds with 429 and asks to wait 3600 seconds", "try again later; the rate limit is higher after `hf auth login"),
    "log-in page": (at("/revision/", 200, body=b"<html>"), "connection to the Hub failed|cannot be used", ""),
    "card": (at("/validate-yaml", 400, body=json.dumps({"errors": [{"message": "no such license"}]}).encode()), "Invalid metadata|refuses", ""),
    "teapot": (at("/commit/", 418), r"the Hub rejects the push \(418\)", "nothing was pushed"),
}  # fmt: skip


@pytest.mark.spread(cases=4)
@pytest.mark.parametrize(("refuse", "reason", "hint"), REFUSALS.values(), ids=REFUSALS)
def test_what_fails_for_good_is_said_and_changes_nothing(hub, refuse, reason, hint):
    with hub(refuse=refuse) as served:
        with pytest.raises(HubError, match=reason) as caught:
            push(FILES, target())

        assert hint in (caught.value.hint or "")
        assert "hf_secret" not in f"{caught.value} {caught.value.hint}"
        for repository in served.repositories.values():
            assert (repository.made, repository.branches) == (0, {"main": EMPTY})


def test_what_the_hub_asks_to_wait_is_waited_and_said(hub, clock, progress_log):
    with hub(refuse=at("/commit/", 429, {"Retry-After": "7"}, times=1)) as served:
        push(FILES, target())
        assert served.repositories[NAME].made == 1
    assert 7 in clock.slept
    assert any("trying again in 7 s" in step for step in progress_log.steps)


def test_nobody_there(hub):
    with hub():
        pass
    with pytest.raises(HubError, match="connection to the Hub failed") as caught:
        push(FILES, target())
    assert "the same command pushes only the missing files" in caught.value.hint


def test_the_hub_is_switched_off(hub, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with hub(), pytest.raises(HubError, match="HF_HUB_OFFLINE is set") as caught:
        push(FILES, target())
    assert "HF_HUB_OFFLINE" in caught.value.hint


def test_without_a_token_nothing_begins(monkeypatch, tmp_path):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "none"))
    with pytest.raises(HubError, match="no Hub token") as caught:
        require_token()
    assert "hf auth login" in caught.value.hint


def test_a_stranger_whom_the_hub_names_is_shown_no_token(hub):
    with serve(Pushable()) as stranger, hub() as served:
        push(FILES, target())
        more = {"Link": f'<{stranger.endpoint}/more>; rel="next"'}
        served.refuse = lambda asked: (200, more, b"[]") if "/tree/" in asked.path else None
        with pytest.raises(HubError):
            push(FILES, target())
    assert stranger.tokens == {None}
    assert "Bearer hf_secret" in served.tokens
