"""Limits for the Hub's client: waiting time, size of responses, hosts that see the token, and progress bars."""

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

MAX_WAIT_S = 300
"""Longest wait that the Hub may request, in seconds. The Hub's rate limit covers five minutes, so a longer
wait is no ordinary rate limit."""
NO_ANSWER = (
    "check whether the network needs a login, and whether HF_ENDPOINT is right; a browser shows "
    "the response of that address"
)
TOO_LONG = "it is compressed, or too long"
READING = ("GET", "HEAD")
PLAIN = "identity"
LIMIT = re.compile(r";\s*r\s*=\s*0+\s*;\s*t\s*=\s*(\d+)")
"""Header `RateLimit` without remaining requests, with the seconds until the next request."""


def unusable(reference: str, error: Exception | str) -> HubError:
    """Return the error for a response of the Hub with unexpected content.

    The client does not validate responses.
    """
    return HubError(
        f"{reference}: the response of the Hub is not valid: {error}",
        hint=NO_ANSWER,
    )


@contextlib.contextmanager
def limited_client(reference: str) -> Iterator[None]:
    """Limit the Hub's client within a block.

    A response to a GET request must begin, and continue, within `HF_HUB_DOWNLOAD_TIMEOUT` seconds. Responses
    of the API have a maximum size. Other hosts do not receive the token. Progress bars appear on terminals
    only.

    Args:
        reference: Name of the model or data set in messages.

    Raises:
        HubError: If the Hub requests a wait longer than `MAX_WAIT_S`, or its response is not valid.
    """
    from huggingface_hub import get_session, utils  # noqa: PLC0415 - the network stack is slow to load

    client = get_session()
    before = client.event_hooks
    client.event_hooks = {
        "request": [*before["request"], _prepare],
        "response": [*before["response"], partial(_check, reference)],
    }
    try:
        with contextlib.nullcontext() if sys.stderr.isatty() else without_bars(utils):
            yield
    # Raised by the client for a login page of the network, and for file names that leave the folder.
    except (AssertionError, AttributeError, LookupError, RecursionError, TypeError) as error:
        raise unusable(reference, error) from error
    finally:
        client.event_hooks = before


@contextlib.contextmanager
def without_bars(*libraries: Any) -> Iterator[None]:  # noqa: ANN401 - modules, which have the same functions
    """Disable the progress bars of libraries within a block, except bars already disabled."""
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

    # Responses of the Hub name other hosts, and the client would send the token to these.
    if not _is_the_hubs(request.url, constants.ENDPOINT):
        request.headers.pop("Authorization", None)
    if request.url.path.startswith("/api/"):
        request.headers["Accept-Encoding"] = PLAIN
    if request.method in READING:  # Uploads may take any time.
        limits = request.extensions.get("timeout", {})
        most = constants.HF_HUB_DOWNLOAD_TIMEOUT
        timeouts = {
            name: most if limits.get(name) is None else limits[name] for name in ("connect", "read", "write")
        }
        request.extensions = {**request.extensions, "timeout": {**limits, **timeouts}}


def _is_the_hubs(url: httpx2.URL, endpoint: str) -> bool:
    """Return whether an address belongs to the configured Hub or to Hugging Face."""
    hub_host = url.join(endpoint)
    if url.scheme != "https":
        return (url.scheme, url.host, url.port) == (hub_host.scheme, hub_host.host, hub_host.port)
    return url.host == hub_host.host or f".{url.host}".endswith((".huggingface.co", ".hf.co"))


def _check(reference: str, response: httpx2.Response) -> None:
    # Files are excluded, because the client writes files to disk in chunks.
    if response.request.url.path.startswith("/api/"):
        packed = response.headers.get("content-encoding", PLAIN).strip().lower() != PLAIN
        if packed or _is_more(response.headers.get("content-length", ""), MAX_BYTES):
            raise unusable(reference, TOO_LONG)
        _bound(reference, response)
    wait = "" if response.is_success else _wait(response)
    if _is_more(wait, MAX_WAIT_S):
        raise HubError(
            f"{reference}: the Hub responds with {response.status_code} and asks to wait {wait} seconds",
            hint="try again later; the rate limit is higher after `hf auth login`",
        )


def _bound(reference: str, response: httpx2.Response) -> None:
    """Limit the size of a response during reading, because a response need not state a length."""
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
    """Return the client's next wait in seconds, a string; empty without a wait."""
    limit = LIMIT.search(response.headers.get("ratelimit", ""))
    if limit is not None and response.status_code == HTTPStatus.TOO_MANY_REQUESTS:
        return limit[1]
    return str(response.headers.get("retry-after", "")).strip()


def _is_more(digits: str, most: int) -> bool:
    """Return whether a decimal number is larger than `most`.

    The number may be longer than Python's parser accepts.
    """
    digits = digits.lstrip("0")
    return digits.isdecimal() and (len(digits) > len(str(most)) or int(digits) > most)
