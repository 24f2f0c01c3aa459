"""The Hub's client while we ask by it, which else waits as long as it is told to, reads whatever comes, and draws bars."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

from hydractl.errors import HubError
from hydractl.strict_json import MAX_BYTES

if TYPE_CHECKING:
    import httpx2

PATIENCE_S = 300
"""Longest wait that the Hub may request, in seconds; its rate limit covers five minutes."""
NO_ANSWER = (
    "check whether the network needs a login, and whether HF_ENDPOINT is right; a browser shows "
    "the response of that address"
)
TOO_LONG = "it is compressed, or too long"
READING = ("GET", "HEAD")
PLAIN = "identity"
LIMIT = re.compile(r";\s*r\s*=\s*0+\s*;\s*t\s*=\s*(\d+)")
"""Header `RateLimit` without remaining requests, with the seconds until the next."""


def unusable(reference: str, error: Exception | str) -> HubError:
    """Return what is said of an answer that is no answer: the client takes each for what it should be."""
    return HubError(
        f"{reference}: the response of the Hub is not valid: {error}",
        hint=NO_ANSWER,
    )


@contextlib.contextmanager
def asking(reference: str) -> Iterator[None]:
    """Bound how long and how much the Hub may answer, show the token to nobody else, and draw bars on terminals alone.

    An answer to a question must begin, and go on, within `HF_HUB_DOWNLOAD_TIMEOUT` seconds.

    Args:
        reference: What is asked for.

    Raises:
        HubError: If the Hub wants us to wait for longer than `PATIENCE_S`, or its answer is not what it should be.
    """
    from huggingface_hub import get_session, utils  # noqa: PLC0415 - the network stack loads when the Hub is asked

    client = get_session()
    before = client.event_hooks
    client.event_hooks = {
        "request": [*before["request"], _prepare],
        "response": [*before["response"], partial(_check, reference)],
    }
    try:
        with contextlib.nullcontext() if sys.stderr.isatty() else without_bars(utils):
            yield
    # a page to log in to a network, and names of files that lead astray
    except (AssertionError, AttributeError, LookupError, RecursionError, TypeError) as error:
        raise unusable(reference, error) from error
    finally:
        client.event_hooks = before


@contextlib.contextmanager
def without_bars(*libraries: Any) -> Iterator[None]:  # noqa: ANN401 - modules, which have the same functions
    """Keep libraries' progress bars off a terminal that is not ours to write to."""
    bars_shown = [library for library in libraries if not library.are_progress_bars_disabled()]
    for library in bars_shown:
        library.disable_progress_bars()
    try:
        yield
    finally:
        for library in bars_shown:
            library.enable_progress_bars()


def _prepare(request: httpx2.Request) -> None:
    from huggingface_hub import constants  # noqa: PLC0415 - as above

    # the Hub's answers name hosts, whom the client then asks as if they were it
    if not _is_the_hubs(request.url, constants.ENDPOINT):
        request.headers.pop("Authorization", None)
    if request.url.path.startswith("/api/"):
        request.headers["Accept-Encoding"] = PLAIN
    if request.method in READING:  # what is sent may take its time
        limits = request.extensions.get("timeout", {})
        most = constants.HF_HUB_DOWNLOAD_TIMEOUT
        timeouts = {
            name: most if limits.get(name) is None else limits[name] for name in ("connect", "read", "write")
        }
        request.extensions = {**request.extensions, "timeout": {**limits, **timeouts}}


def _is_the_hubs(url: httpx2.URL, endpoint: str) -> bool:
    """Return whether an address is of the Hub that is asked, or of Hugging Face itself."""
    hub_host = url.join(endpoint)
    if url.scheme != "https":
        return (url.scheme, url.host, url.port) == (hub_host.scheme, hub_host.host, hub_host.port)
    return url.host == hub_host.host or f".{url.host}".endswith((".huggingface.co", ".hf.co"))


def _check(reference: str, response: httpx2.Response) -> None:
    if response.request.url.path.startswith("/api/"):  # files go to the disk piece by piece
        packed = response.headers.get("content-encoding", PLAIN).strip().lower() != PLAIN
        if packed or _is_more(response.headers.get("content-length", ""), MAX_BYTES):
            raise unusable(reference, TOO_LONG)
        _bound(reference, response)
    wait = "" if response.is_success else _wait(response)
    if _is_more(wait, PATIENCE_S):
        raise HubError(
            f"{reference}: the Hub responds with {response.status_code} and asks to wait {wait} seconds",
            hint="try again later; the rate limit is higher after `hf auth login`",
        )


def _bound(reference: str, response: httpx2.Response) -> None:
    """Let no more of an answer be read than it may have: it need not say its length."""
    import httpx2  # noqa: PLC0415 - as above

    body = response.stream

    class Bounded(httpx2.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            remaining = MAX_BYTES
            for piece in cast("httpx2.SyncByteStream", body):
                remaining -= len(piece)
                if remaining < 0:
                    raise unusable(reference, TOO_LONG)
                yield piece

        def close(self) -> None:
            cast("httpx2.SyncByteStream", body).close()

    response.stream = Bounded()


def _wait(response: httpx2.Response) -> str:
    """Return for how many seconds the client would wait."""
    limit = LIMIT.search(response.headers.get("ratelimit", ""))
    if limit is not None and response.status_code == HTTPStatus.TOO_MANY_REQUESTS:
        return limit[1]
    return str(response.headers.get("retry-after", "")).strip()


def _is_more(digits: str, most: int) -> bool:
    """Return whether a whole number, however long, is larger than another one."""
    digits = digits.lstrip("0")
    return digits.isdecimal() and (len(digits) > len(str(most)) or int(digits) > most)
