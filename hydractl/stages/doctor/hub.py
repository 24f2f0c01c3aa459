"""Checks of the Hub: cache, connection and token. The token is never shown."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from stat import S_ISREG

from hydractl.errors import reason_of
from hydractl.stages.doctor.finding import Finding, FindingState

LITTLE = 1 << 30
"""Bytes free below which a download is likely to fail."""
OFFLINE = (
    "check the network, the proxy (HTTPS_PROXY) and HF_ENDPOINT, or set HF_HUB_OFFLINE=1 to work offline"
)
finding = partial(Finding, group="hub")


def hub(timeout: float) -> Iterator[Finding]:
    """Yield the checks of cache, Hub and token.

    Args:
        timeout: Maximum total time to wait, in seconds.
    """
    from huggingface_hub import constants, get_token  # noqa: PLC0415 - `--help` loads no network stack

    yield _cache(Path(constants.HF_HUB_CACHE))
    token = get_token()
    if constants.HF_HUB_OFFLINE:
        yield finding(
            name="endpoint",
            found=f"{constants.ENDPOINT}: not contacted, because HF_HUB_OFFLINE is set",
            state=FindingState.SKIPPED,
        )
        yield _untried(token)
    else:
        yield from _ask_owner(constants.ENDPOINT, token, timeout)


def _cache(folder: Path) -> Finding:
    existing_folder = next(path for path in (folder, *folder.parents) if path.exists())
    used, free = _size(folder), shutil.disk_usage(existing_folder).free
    description = f"{folder}, {used / 1e9:.2f} GB, {free / 1e9:.1f} GB free"
    if not os.access(existing_folder, os.W_OK):
        return finding(
            name="cache",
            found=f"{description}, cannot be written",
            state=FindingState.FAILED,
            fix="export HF_HOME=FOLDER",
        )
    if free < LITTLE:
        return finding(
            name="cache",
            found=description,
            state=FindingState.WARNING,
            fix="`hf cache prune`, or export HF_HOME=FOLDER",
        )
    return finding(name="cache", found=description)


def _size(folder: Path) -> int:
    """Return the bytes of a folder's files; links count nothing, and neither does what cannot be read."""
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            try:
                about = (Path(where) / name).lstat()
            except OSError:
                continue
            total += about.st_size if S_ISREG(about.st_mode) else 0
    return total


def _ask_owner(endpoint: str, token: str | None, timeout: float) -> Iterator[Finding]:
    """Ask the Hub who the token's owner is: one call that tells both whether it answers and whether it knows the token."""
    answers: list[Finding] = []
    # looking up a name has no timeout of its own
    asking = threading.Thread(target=lambda: answers.extend(_answer(endpoint, token, timeout)), daemon=True)
    asking.start()
    asking.join(timeout)
    late = finding(
        name="endpoint",
        found=f"{endpoint}: no response within {timeout:g} s",
        state=FindingState.FAILED,
        fix=OFFLINE,
    )
    yield from [*answers] or [late, _untried(token)]


def _untried(token: str | None) -> Finding:
    return finding(name="token", found="found, not tested" if token else "none", state=FindingState.SKIPPED)


def _answer(endpoint: str, token: str | None, timeout: float) -> Iterator[Finding]:
    import httpx2  # noqa: PLC0415 - as above

    headers = {"authorization": f"Bearer {token}"} if token else {}
    try:
        answer = httpx2.get(f"{endpoint}/api/whoami-v2", headers=headers, timeout=timeout)
        owner = answer.json().get("name") if answer.status_code == 200 else None
    except Exception as error:  # noqa: BLE001 - a client may raise anything of an address or an answer that makes no sense
        reason = reason_of(error).replace(token or "\0", "***")
        yield finding(
            name="endpoint",
            found=f"{endpoint}: {type(error).__name__}: {reason}",
            state=FindingState.FAILED,
            fix=OFFLINE,
        )
        yield _untried(token)
        return
    refused = answer.status_code in {401, 403}
    works = owner is not None or refused
    yield finding(
        name="endpoint",
        found=f"{endpoint} responds" if works else f"{endpoint}: HTTP {answer.status_code}",
        state=FindingState.OK if works else FindingState.FAILED,
        fix=None if works else OFFLINE,
    )
    if token is None:
        yield finding(name="token", found="none: you cannot read private and gated models")
    elif refused:
        yield finding(
            name="token",
            found="found, but the Hub rejects it",
            state=FindingState.FAILED,
            fix="hf auth login",
        )
    elif works:
        yield finding(name="token", found=f"found, belongs to `{owner}`")
