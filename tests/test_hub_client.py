"""The Hub's client within `limited_client`: hosts that receive the token, waiting time, and size limits."""

from __future__ import annotations

import contextlib

import httpx2
import huggingface_hub
import pytest

from hydractl.errors import HubError
from hydractl.hub_client import MAX_WAIT_S, limited_client
from hydractl.strict_json import MAX_BYTES

HUB = "https://hub.example"


@pytest.fixture
def get(monkeypatch):
    """Return a function that sends a request to a server with a given response, and returns the requests."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", HUB)

    def get(url=f"{HUB}/api/x", status=200, content=b"", **headers):
        seen = []
        named = {name.replace("_", "-"): value for name, value in headers.items()}

        def answer(request):
            seen.append(request)
            return httpx2.Response(status, headers=named, content=content)

        client = httpx2.Client(transport=httpx2.MockTransport(answer), timeout=None)
        monkeypatch.setattr("huggingface_hub.get_session", lambda: client)
        with contextlib.closing(client), limited_client("org/m"):
            huggingface_hub.get_session().get(url, headers={"authorization": "Bearer hf_x"}, timeout=None)
        assert client.event_hooks == {"request": [], "response": []}
        return seen[0]

    return get


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"{HUB}/a", True), (f"{HUB}:443/a", True), (f"{HUB}:8443/a", True), ("https://huggingface.co/a", True),
        ("https://datasets-server.huggingface.co/a", True), ("https://hf.co/a", True), ("http://hub.example/a", False),
        ("https://evil.example/a", False), ("https://hub.example.evil/a", False), ("https://evilhuggingface.co/a", False),
        ("http://huggingface.co/a", False),
    ],
)  # fmt: skip
def test_the_token_is_shown_to_the_hub_alone(get, url, shown):
    assert ("authorization" in get(url).headers) == shown


@pytest.mark.parametrize("error", [AssertionError, AttributeError, KeyError, RecursionError, TypeError])
def test_an_answer_that_the_client_stumbles_over_is_the_hubs_fault(error):
    with (
        pytest.raises(HubError, match="org/m: the response of the Hub is not valid"),
        limited_client("org/m"),
    ):
        raise error("x")


def test_an_answer_has_to_come(get):
    assert set(get().extensions["timeout"].values()) == {
        huggingface_hub.constants.HF_HUB_DOWNLOAD_TIMEOUT,
        None,
    }


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (429, {"Retry_After": f"{MAX_WAIT_S + 1}"}), (503, {"Retry_After": "9" * 5000}),
        (429, {"RateLimit": f'"api";r=0;t={MAX_WAIT_S + 1}'}),
    ],
)  # fmt: skip
def test_nobody_waits_for_hours(get, status, headers):
    with pytest.raises(HubError, match=rf"^org/m: the Hub responds with {status} and asks to wait [39]"):
        get(status=status, **headers)


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (429, {"Retry_After": f"{MAX_WAIT_S}"}), (429, {"Retry_After": "Wed, 21 Oct 2015 07:28:00 GMT"}),
        (429, {"RateLimit": f'"api";r=3;t={MAX_WAIT_S + 1}'}), (200, {"Retry_After": "9999"}),
    ],
)  # fmt: skip
def test_what_may_be_waited_for_is(get, status, headers):
    get(status=status, **headers)


@pytest.mark.parametrize("headers", [{"Content_Encoding": "gzip"}, {"Content_Length": f"{MAX_BYTES + 1}"}])
def test_an_answer_that_would_fill_the_memory_is_none(get, headers):
    with pytest.raises(
        HubError, match=r"^org/m: the response of the Hub is not valid: it is compressed, or too long"
    ):
        get(**headers)

    get(f"{HUB}/org/m/resolve/main/x", **headers)


@pytest.mark.parametrize("more", [0, 1])
def test_nor_is_one_that_does_not_say_how_long_it_is(get, monkeypatch, more):
    monkeypatch.setattr("hydractl.hub_client.MAX_BYTES", 100)
    pieces = [b"x" * 60, b"x" * (40 + more)]
    with pytest.raises(HubError, match="too long") if more else contextlib.nullcontext():
        get(content=iter(pieces))
    get(f"{HUB}/org/m/resolve/main/x", content=iter(pieces))
