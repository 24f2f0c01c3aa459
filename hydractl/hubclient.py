"""The Hub's client while we ask by it, which else waits as long as it is told to, reads whatever comes, and draws bars."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING

from hydractl.errors import HubError
from hydractl.jsonfile import MAX_BYTES

if TYPE_CHECKING:
    import httpx2

PATIENCE_S = 300
"""For how long the Hub may tell us to wait: it counts what one asks over five minutes."""
READING = ("GET", "HEAD")
PLAIN = "identity"


def unusable(reference: str, error: Exception | str) -> HubError:
    """Return what is said of an answer that is no answer: the client takes each for what it should be."""
    return HubError(
        f"{reference}: the answer of the Hub cannot be used: {error}",
        hint="does the network want a log-in, or is HF_ENDPOINT set? a browser shows what the Hub's address answers",
    )


@contextlib.contextmanager
def asking(reference: str) -> Iterator[None]:
    """Bound how long and how much the Hub may answer, and keep progress bars off what is no terminal.

    An answer to a question must begin, and go on, within `HF_HUB_DOWNLOAD_TIMEOUT` seconds.

    Args:
        reference: What is asked for.

    Raises:
        HubError: If the Hub wants us to wait for longer than `PATIENCE_S`, or its answer is not what it should be.
    """
    from huggingface_hub import get_session  # noqa: PLC0415 - the network stack loads when the Hub is asked
    from huggingface_hub.utils.tqdm import (  # noqa: PLC0415 - as above
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    client = get_session()
    before = client.event_hooks
    client.event_hooks = {
        "request": [*before["request"], _let_end],
        "response": [*before["response"], partial(_check, reference)],
    }
    hushed = not (sys.stderr.isatty() or are_progress_bars_disabled())
    if hushed:
        disable_progress_bars()
    try:
        yield
    # a page to log in to a network, and names of files that lead astray
    except (AssertionError, AttributeError, LookupError, TypeError) as error:
        raise unusable(reference, error) from error
    finally:
        client.event_hooks = before
        if hushed:
            enable_progress_bars()


def _let_end(request: httpx2.Request) -> None:
    from huggingface_hub import constants  # noqa: PLC0415 - as above

    if request.url.path.startswith("/api/"):
        request.headers["Accept-Encoding"] = PLAIN
    if request.method in READING:  # what is sent may take its time
        limits = request.extensions.get("timeout", {})
        most = constants.HF_HUB_DOWNLOAD_TIMEOUT
        own = {
            name: most if limits.get(name) is None else limits[name] for name in ("connect", "read", "write")
        }
        request.extensions = {**request.extensions, "timeout": {**limits, **own}}


def _check(reference: str, response: httpx2.Response) -> None:
    if response.request.url.path.startswith("/api/"):  # files go to the disk piece by piece
        packed = response.headers.get("content-encoding", PLAIN).strip().lower() != PLAIN
        if packed or _is_more(response.headers.get("content-length", ""), MAX_BYTES):
            raise unusable(reference, "it is compressed, or too long")
    wait = "" if response.is_success else _wait(response)
    if _is_more(wait, PATIENCE_S):
        raise HubError(
            f"{reference}: the Hub answers {response.status_code} and wants to be asked again in {wait} seconds",
            hint="try again then; `hf auth login` raises what the Hub allows",
        )


def _wait(response: httpx2.Response) -> str:
    """Return for how many seconds the client would wait."""
    from huggingface_hub.utils._http import parse_ratelimit_headers  # noqa: PLC0415 - as above

    limit = (
        parse_ratelimit_headers(response.headers)
        if response.status_code == HTTPStatus.TOO_MANY_REQUESTS
        else None
    )
    if limit is not None and limit.remaining == 0:
        return str(limit.reset_in_seconds)
    return str(response.headers.get("retry-after", "")).strip()


def _is_more(digits: str, most: int) -> bool:
    """Return whether a whole number, however long, is larger than another one."""
    digits = digits.lstrip("0")
    return digits.isdecimal() and (len(digits) > len(str(most)) or int(digits) > most)
