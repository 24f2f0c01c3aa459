"""The Hub's client while we ask by it, which else waits as long as it is told to, reads whatever comes, and draws bars."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hydractl.errors import HubError
from hydractl.jsonfile import MAX_BYTES

if TYPE_CHECKING:
    import httpx2

PATIENCE_S = 300
"""For how long the Hub may tell us to wait: it counts what one asks over five minutes."""
READING = ("GET", "HEAD")
PLAIN = "identity"


@contextlib.contextmanager
def asking() -> Iterator[None]:
    """Bound how long and how much the Hub may answer, and keep progress bars off what is no terminal.

    An answer to a question must begin, and go on, within `HF_HUB_DOWNLOAD_TIMEOUT` seconds.

    Raises:
        HubError: If the Hub wants us to wait for longer than `PATIENCE_S`, or its answer is no JSON that we would read.
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
        "response": [*before["response"], _check_size, _check_wait],
    }
    hushed = not (sys.stderr.isatty() or are_progress_bars_disabled())
    if hushed:
        disable_progress_bars()
    try:
        yield
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


def _check_size(response: httpx2.Response) -> None:
    """Refuse an answer of the Hub's that would fill the memory; files go to the disk piece by piece."""
    if not response.request.url.path.startswith("/api/"):
        return
    packed = response.headers.get("content-encoding", PLAIN).strip().lower() != PLAIN
    size = response.headers.get("content-length", "0")
    if packed or not size.isdecimal() or len(size) > len(str(MAX_BYTES)) or int(size) > MAX_BYTES:
        raise HubError(
            "the answer of the Hub cannot be used: it is compressed, or too long",
            hint="is HF_ENDPOINT set? a browser shows what the Hub's address answers",
        )


def _check_wait(response: httpx2.Response) -> None:
    from huggingface_hub.utils._http import parse_ratelimit_headers  # noqa: PLC0415 - as above

    if response.is_success:
        return
    asked = response.headers.get("retry-after", "").strip()
    limit = parse_ratelimit_headers(response.headers)
    waits = [asked] if asked.isdecimal() else []
    if limit is not None and limit.remaining == 0:
        waits.append(str(limit.reset_in_seconds))
    for wait in waits:
        if len(wait.lstrip("0")) > len(str(PATIENCE_S)) or int(wait) > PATIENCE_S:
            raise HubError(
                f"the Hub answers {response.status_code} and wants to be asked again in {wait} seconds",
                hint="try again then; `hf auth login` raises what the Hub allows",
            )
