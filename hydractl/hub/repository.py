"""A repository of the Hub, and how files get into it: in one commit, again and again until they are there or it is said why not."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from json import JSONDecodeError
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

from hydractl import progress
from hydractl.errors import HubError, reason_of
from hydractl.hub.layout import is_ours
from hydractl.hub_client import NO_ANSWER, asking
from hydractl.messages import counted
from hydractl.runtime import digest_file
from hydractl.strict_json import MAX_BYTES, read_limited

if TYPE_CHECKING:
    from huggingface_hub import HfApi, RepoFile

T = TypeVar("T")
Content: TypeAlias = "Path | bytes | Callable[[bytes | None], bytes]"
"""Content of a file: a path, bytes, or a function of the present content in the repository (None if there is none)."""
TRIES = 8
MAIN = "main"
TOO_MANY = 429
_PASSING = frozenset({408, 425, TOO_MANY, 500, 502, 503, 504})
"""Failures that are worth a retry."""
_MEANWHILE = frozenset({409, 412})
_STATUS = re.compile(r"HTTP status \w+ error \((\d{3})\b")
"""Message of the client of the Hub's Xet storage, which has one exception class for all responses."""
_PUSH_AGAIN = "the same command pushes only the missing files"
_LOGIN = "log in with `hf auth login`, or set HF_TOKEN to a token with write access"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where to push to.

    Attributes:
        name: `org/name`.
        revision: The branch; made where there is none.
        private: Whether the repository must be private.
        create_pr: Whether to open a pull request, and leave the branch as it is.
        message: Of the commit.
    """

    name: str
    revision: str = MAIN
    private: bool = False
    create_pr: bool = False
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """What a push did.

    Attributes:
        commit: The commit that holds the files; the one that held them already where nothing had changed.
        url: Where it can be seen.
        pull_request: Likewise the pull request, if one was opened.
        files: What was pushed, by its name.
        written: Names of the files that were added or changed.
        deleted: Names of those of a former model that went.
    """

    commit: str
    url: str
    pull_request: str | None = None
    files: Mapping[str, Path | bytes]
    written: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()

    @property
    def unchanged(self) -> bool:
        """Whether everything was there already."""
        return not self.written and not self.deleted


def require_token() -> None:
    """Refuse to begin without a token.

    Raises:
        HubError: If there is none.
    """
    from huggingface_hub import get_token  # noqa: PLC0415 - the Hub's client loads when it is asked

    if get_token() is None:
        raise HubError("there is no Hub token", hint=_LOGIN)


def push(files: Mapping[str, Content], target: Target) -> Pushed:
    """Put files into a repository, in one commit; what of a former model is not among them goes with the same one.

    Pushing what is there already makes no commit. A commit whose answer got lost is recognised.

    Args:
        files: By their name in the repository.
        target: Where.

    Raises:
        HubError: With what to do; the branch is then as it was, or the commit is there as a whole.
    """
    from huggingface_hub import HfApi  # noqa: PLC0415 - as above

    api = HfApi()
    patience = _Patience(target)
    sent: list[Pushed] = []
    with asking(target.name):
        _prepare(api, target, patience)
        return patience.lasts(
            lambda: _commit(api, files, target, patience, sent), retries_lost_answers=not target.create_pr
        )


def _prepare(api: HfApi, target: Target, patience: _Patience) -> None:
    """Make the repository and the branch, where they are missing."""
    patience.lasts(lambda: api.create_repo(target.name, private=target.private or None, exist_ok=True))
    if target.private and not patience.lasts(lambda: api.repo_info(target.name)).private:
        raise HubError(
            f"{target.name}: is already public, and `--private` cannot change that",
            hint="make it private on its settings page, or leave out `--private`",
        )
    if target.revision != MAIN:
        patience.lasts(lambda: _make_branch(api, target))


def _make_branch(api: HfApi, target: Target) -> None:
    from huggingface_hub.errors import RevisionNotFoundError  # noqa: PLC0415 - as above

    try:
        api.repo_info(target.name, revision=target.revision)
    except RevisionNotFoundError:
        api.create_branch(target.name, branch=target.revision, exist_ok=True)


def _commit(
    api: HfApi, contents: Mapping[str, Content], target: Target, patience: _Patience, sent: list[Pushed]
) -> Pushed:
    """Make one commit of what is not there yet, if anything; `sent` are those whose answers got lost."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, RepoFile  # noqa: PLC0415 - as above

    head = patience.lasts(lambda: api.repo_info(target.name, revision=target.revision).sha) or target.revision
    tree = patience.lasts(lambda: [*api.list_repo_tree(target.name, recursive=True, revision=head)])
    remote_files = {entry.path: entry for entry in tree if isinstance(entry, RepoFile)}
    read = partial(_read, api, target.name, head)
    files = settled(contents, lambda name: patience.lasts(lambda: read(remote_files.get(name))))
    changed = [name for name, content in files.items() if not _is_uploaded(content, remote_files.get(name))]
    stale = sorted(name for name in remote_files if is_ours(name) and name not in files)
    pushed = Pushed(commit=head, url=f"{api.endpoint}/{target.name}/commit/{head}", files=files)
    if not changed and not stale:
        return replace(pushed, written=sent[-1].written, deleted=sent[-1].deleted) if sent else pushed
    sent.append(replace(pushed, written=tuple(changed), deleted=tuple(stale)))
    size = sum(_size(files[name]) for name in changed)
    progress.step(f"Uploading {counted(len(changed), 'file')}, {size / 1e6:.1f} MB")
    commit = api.create_commit(
        target.name,
        [
            *(CommitOperationAdd(name, files[name]) for name in changed),
            *(CommitOperationDelete(name) for name in stale),
        ],
        commit_message=target.message,
        revision=target.revision,
        create_pr=target.create_pr,
        parent_commit=head,
    )
    return replace(sent[-1], commit=commit.oid, url=commit.commit_url, pull_request=commit.pr_url)


def settled(
    contents: Mapping[str, Content], remote_content: Callable[[str], bytes | None]
) -> dict[str, Path | bytes]:
    """Return files of which nothing hangs on the repository any more; `remote_content` tells what it has under a name."""
    return {
        name: source(remote_content(name)) if callable(source) else source
        for name, source in contents.items()
    }


def _read(api: HfApi, name: str, revision: str, entry: RepoFile | None) -> bytes | None:
    """Return the content of a small file of a repository; None where it is not there."""
    if entry is None:
        return None
    if entry.size > MAX_BYTES:
        raise HubError(
            f"{name}: its {entry.path} has {entry.size} bytes",
            hint="replace it by a smaller file, or push to another repository",
        )
    with TemporaryDirectory() as folder:
        path = api.hf_hub_download(name, entry.path, revision=revision, local_dir=folder)
        with Path(path).open("rb") as file:
            return read_limited(file)


def _is_uploaded(content: Path | bytes, remote_file: RepoFile | None) -> bool:
    """Return whether a file is there already, by the digest that the Hub keeps of it."""
    if remote_file is None or remote_file.size != _size(content):
        return False
    if remote_file.lfs is not None:
        local_digest = (
            digest_file(content).removeprefix("sha256:")
            if isinstance(content, Path)
            else hashlib.sha256(content).hexdigest()
        )
        return local_digest == remote_file.lfs.sha256
    stored = (
        content if isinstance(content, bytes) else content.read_bytes()
    )  # the Hub stores large files in LFS
    blob = f"blob {len(stored)}\0".encode() + stored  # as git hashes it
    return hashlib.sha1(blob, usedforsecurity=False).hexdigest() == remote_file.blob_id


def _size(content: Path | bytes) -> int:
    return content.stat().st_size if isinstance(content, Path) else len(content)


@dataclass(frozen=True, slots=True)
class _Patience:
    """Tries again what may go well in a moment, and says of anything else what to do."""

    target: Target

    def lasts(self, work: Callable[[], T], *, retries_lost_answers: bool = True) -> T:
        """Return what some work returns.

        Args:
            work: May be done again where it was refused.
            retries_lost_answers: Whether also where its answer got lost.

        Raises:
            HubError: If it fails for good, or too often.
        """
        import httpx2  # noqa: PLC0415 - as above
        from huggingface_hub.errors import HfHubHTTPError  # noqa: PLC0415 - as above

        # the client takes an answer for what it should be, so a page to log in to a network is an error of any kind
        kinds = (
            httpx2.HTTPError,
            httpx2.InvalidURL,
            LookupError,
            OSError,
            RuntimeError,
            AttributeError,
            TypeError,
            ValueError,
        )
        for attempt in range(TRIES):
            try:
                return work()
            except kinds as error:
                if isinstance(error, OSError) and error.filename is not None:
                    raise  # about a file of ours
                failure = _failure(error, self.target)
                lost = not retries_lost_answers and not isinstance(error, HfHubHTTPError)
                if lost or not failure.passing or attempt == TRIES - 1:
                    hint = (
                        "check whether the pull request exists before you push again"
                        if lost
                        else failure.hint
                    )
                    raise HubError(f"{self.target.name}: {failure.reason}", hint=hint) from error
            wait = max(failure.wait_s, min(2.0**attempt, 30.0))
            progress.step(f"{failure.reason}; trying again in {wait:.0f} s")
            time.sleep(wait)
        raise AssertionError("the last attempt returns or raises")


class _Failure(NamedTuple):
    """Why something failed, what to do, and whether and when it may go well by itself."""

    reason: str
    hint: str
    passing: bool = False
    wait_s: float = 0.0


def _failure(error: Exception, target: Target) -> _Failure:
    import httpx2  # noqa: PLC0415 - as above
    from huggingface_hub import errors  # noqa: PLC0415 - as above

    if isinstance(error, errors.OfflineModeIsEnabled):
        return _Failure("HF_HUB_OFFLINE is set", "unset HF_HUB_OFFLINE")
    if isinstance(error, errors.HfHubHTTPError):
        seconds = error.response.headers.get("Retry-After", "")
        wait = float(seconds) if seconds.isascii() and seconds.isdigit() else 0.0  # dates are ignored
        return _answered(error.response.status_code, target, _reason(error), wait)
    if isinstance(error, OSError | RuntimeError) and (status := _STATUS.search(str(error))):
        return _answered(int(status[1]), target, _reason(error))
    passing = isinstance(error, httpx2.HTTPError | JSONDecodeError | OSError | RuntimeError)
    if passing and not isinstance(error, RecursionError):
        return _Failure(f"the connection to the Hub failed: {_reason(error)}", _PUSH_AGAIN, passing=True)
    return _Failure(
        f"the response of the Hub is not valid: {_reason(error)}",
        NO_ANSWER,
    )


def _answered(status: int, target: Target, response_text: str, wait: float = 0.0) -> _Failure:
    """Return what an answer of the Hub means that is no success; `wait` are the seconds that it asks for."""
    owner = target.name.partition("/")[0]
    if status in _PASSING:
        reason = "too many requests" if status == TOO_MANY else "the Hub has a server error"
        first = f"wait {wait:.0f} s; " if wait else ""
        return _Failure(f"{reason} ({status})", first + _PUSH_AGAIN, passing=True, wait_s=wait)
    if status in _MEANWHILE:
        return _Failure(
            f"`{target.revision}` has changed during the push ({status}); nothing was pushed",
            "check the new commits, then push again",
        )
    return {
        401: _Failure("the Hub rejects the token (401)", _LOGIN),
        403: _Failure(
            "the token has no write access to the repository (403)",
            f"check the spelling, and that the token has write access to `{owner}`",
        ),
        404: _Failure(
            "the Hub has no such repository, branch or account, or you have no access to it (404)",
            f"check the spelling; {_LOGIN}",
        ),
    }.get(status, _Failure(f"the Hub rejects the push ({status}): {response_text}", "nothing was pushed"))


def _reason(error: BaseException) -> str:
    if error.__cause__ is not None and isinstance(error, RuntimeError):
        return _reason(error.__cause__)  # of an upload in a thread of its own
    return reason_of(error)
