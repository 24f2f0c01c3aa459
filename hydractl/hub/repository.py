"""Upload to a repository of the Hub: a commit per push, with retries of temporary failures."""

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
from hydractl.hub.layout import is_model_file
from hydractl.hub_client import NO_ANSWER, limited_client
from hydractl.messages import counted
from hydractl.runtime import digest_file
from hydractl.strict_json import MAX_BYTES, read_limited

if TYPE_CHECKING:
    from huggingface_hub import HfApi, RepoFile

T = TypeVar("T")
Content: TypeAlias = "Path | bytes | Callable[[bytes | None], bytes]"
"""Content of a file: a path, bytes, or a function of the present content in the repository (None if the file
is new)."""
TRIES = 8
"""Attempts per request. Chosen by hand; the waits of 1, 2, 4, 8, 16, 30 and 30 s add up to 91 s. With 16
attempts they would add up to 331 s."""
MAIN = "main"
TOO_MANY = 429
_TEMPORARY_STATUSES = frozenset({408, 425, TOO_MANY, 500, 502, 503, 504})
"""HTTP statuses of temporary failures, which are retried."""
_CONFLICT_STATUSES = frozenset({409, 412})
"""HTTP statuses if the branch has changed during the push."""
_STATUS = re.compile(r"HTTP status \w+ error \((\d{3})\b")
"""Pattern of an HTTP status in a message of the Hub's Xet storage client, which has one exception class for
all responses."""
_PUSH_AGAIN = "the same command pushes only the missing files"
_LOGIN = "log in with `hf auth login`, or set HF_TOKEN to a token with write access"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Destination of a push.

    Attributes:
        name: `org/name`.
        revision: Branch. A missing branch is created.
        private: Whether the repository must be private.
        create_pr: Whether to open a pull request instead of changing the branch.
        message: Commit message.
    """

    name: str
    revision: str = MAIN
    private: bool = False
    create_pr: bool = False
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """Result of a push.

    Attributes:
        commit: Hash of the commit with the files. If nothing changed, the previous commit.
        url: Web address of the commit.
        pull_request: Web address of the pull request, if the push opened one.
        files: Pushed files by name.
        written: Names of new and changed files.
        deleted: Names of deleted files of an earlier model.
    """

    commit: str
    url: str
    pull_request: str | None = None
    files: Mapping[str, Path | bytes]
    written: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()

    @property
    def unchanged(self) -> bool:
        """Whether the repository already had all files."""
        return not self.written and not self.deleted


def require_token() -> None:
    """Raise if no Hub token is configured.

    Raises:
        HubError: If no token is found.
    """
    from huggingface_hub import get_token  # noqa: PLC0415 - the Hub's client is slow to load

    if get_token() is None:
        raise HubError("there is no Hub token", hint=_LOGIN)


def push(files: Mapping[str, Content], target: Target) -> Pushed:
    """Upload files and delete the remaining files of an earlier model, in a single commit.

    If the repository already has all files, no commit is made.

    Args:
        files: Contents by name in the repository.
        target: Destination.

    Raises:
        HubError: If the push fails. The commit is then complete or absent, never partial.
    """
    from huggingface_hub import HfApi  # noqa: PLC0415 - as above

    api = HfApi()
    patience = _RetryPolicy(target)
    sent: list[Pushed] = []
    with limited_client(target.name):
        _prepare(api, target, patience)
        # A retry could open a second pull request if only the response to the first attempt was lost.
        return patience.lasts(
            lambda: _commit(api, files, target, patience, sent), retries_lost_answers=not target.create_pr
        )


def _prepare(api: HfApi, target: Target, patience: _RetryPolicy) -> None:
    """Create a missing repository or branch."""
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
    api: HfApi,
    contents: Mapping[str, Content],
    target: Target,
    patience: _RetryPolicy,
    earlier_commits: list[Pushed],
) -> Pushed:
    """Commit all changed files, if any.

    Args:
        api: Client of the Hub.
        contents: Contents by name.
        target: Destination.
        patience: Retries of single requests.
        earlier_commits: Commits of earlier attempts with a lost response. If the repository has all files now, the last
            commit succeeded, and the function returns this result.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, RepoFile  # noqa: PLC0415 - as above

    head = patience.lasts(lambda: api.repo_info(target.name, revision=target.revision).sha) or target.revision
    tree = patience.lasts(lambda: [*api.list_repo_tree(target.name, recursive=True, revision=head)])
    remote_files = {entry.path: entry for entry in tree if isinstance(entry, RepoFile)}
    read = partial(_read, api, target.name, head)
    files = resolve_contents(contents, lambda name: patience.lasts(lambda: read(remote_files.get(name))))
    changed = [name for name, content in files.items() if not _is_uploaded(content, remote_files.get(name))]
    stale = sorted(name for name in remote_files if is_model_file(name) and name not in files)
    pushed = Pushed(commit=head, url=f"{api.endpoint}/{target.name}/commit/{head}", files=files)
    if not changed and not stale:
        return (
            replace(pushed, written=earlier_commits[-1].written, deleted=earlier_commits[-1].deleted)
            if earlier_commits
            else pushed
        )
    earlier_commits.append(replace(pushed, written=tuple(changed), deleted=tuple(stale)))
    size = sum(_size(files[name]) for name in changed)
    progress.step(f"Uploading {counted(len(changed), 'file')}, {size / 1e6:.1f} MB")
    # `parent_commit` makes the Hub reject the commit if another push has changed the branch since `head` was
    # read.
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
    return replace(earlier_commits[-1], commit=commit.oid, url=commit.commit_url, pull_request=commit.pr_url)


def resolve_contents(
    contents: Mapping[str, Content], remote_content: Callable[[str], bytes | None]
) -> dict[str, Path | bytes]:
    """Return the content of each file; functions are called with `remote_content(name)`."""
    return {
        name: source(remote_content(name)) if callable(source) else source
        for name, source in contents.items()
    }


def _read(api: HfApi, name: str, revision: str, entry: RepoFile | None) -> bytes | None:
    """Download a small file of a repository into memory. Return None for a missing file."""
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
    """Return whether the repository has a file with this content, by size and digest."""
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
    )  # The Hub stores large files in LFS, so this file fits in memory.
    blob = f"blob {len(stored)}\0".encode() + stored  # Git hashes this header together with the content.
    return hashlib.sha1(blob, usedforsecurity=False).hexdigest() == remote_file.blob_id


def _size(content: Path | bytes) -> int:
    return content.stat().st_size if isinstance(content, Path) else len(content)


@dataclass(frozen=True, slots=True)
class _RetryPolicy:
    """A retry policy: repeats requests after temporary failures, and turns other failures into a `HubError`."""

    target: Target

    def lasts(self, work: Callable[[], T], *, retries_lost_answers: bool = True) -> T:
        """Call a function until success, at most `TRIES` times, and return the result.

        Args:
            work: Function to call. A rejected request must be repeatable.
            retries_lost_answers: Whether to repeat a request of unknown outcome after a failed connection.

        Raises:
            HubError: If the failure is permanent, or the last attempt fails.
        """
        import httpx2  # noqa: PLC0415 - as above
        from huggingface_hub.errors import HfHubHTTPError  # noqa: PLC0415 - as above

        # The client does not validate responses. The login page of a network instead of JSON can raise any of
        # these.
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
                    raise  # The error concerns a local file: a retry cannot help.
                failure = _failure(error, self.target)
                lost = not retries_lost_answers and not isinstance(error, HfHubHTTPError)
                if lost or not failure.is_temporary or attempt == TRIES - 1:
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
    """A failed request.

    Attributes:
        reason: Reason for the message.
        hint: Advice for the user.
        is_temporary: Whether a retry may succeed.
        wait_s: Seconds to wait before the retry, from the response; 0 if the response has no number.
    """

    reason: str
    hint: str
    is_temporary: bool = False
    wait_s: float = 0.0


def _failure(error: Exception, target: Target) -> _Failure:
    import httpx2  # noqa: PLC0415 - as above
    from huggingface_hub import errors  # noqa: PLC0415 - as above

    if isinstance(error, errors.OfflineModeIsEnabled):
        return _Failure("HF_HUB_OFFLINE is set", "unset HF_HUB_OFFLINE")
    if isinstance(error, errors.HfHubHTTPError):
        seconds = error.response.headers.get("Retry-After", "")
        # HTTP also permits dates in this field; they are ignored.
        wait = float(seconds) if seconds.isascii() and seconds.isdigit() else 0.0
        return _failure_of_status(error.response.status_code, target, _reason(error), wait)
    if isinstance(error, OSError | RuntimeError) and (status := _STATUS.search(str(error))):
        return _failure_of_status(int(status[1]), target, _reason(error))
    passing = isinstance(error, httpx2.HTTPError | JSONDecodeError | OSError | RuntimeError)
    if passing and not isinstance(error, RecursionError):
        return _Failure(f"the connection to the Hub failed: {_reason(error)}", _PUSH_AGAIN, is_temporary=True)
    return _Failure(
        f"the response of the Hub is not valid: {_reason(error)}",
        NO_ANSWER,
    )


def _failure_of_status(status: int, target: Target, response_text: str, wait: float = 0.0) -> _Failure:
    """Return the failure for an HTTP status other than success.

    Args:
        status: HTTP status.
        target: Destination of the push.
        response_text: Message of the response.
        wait: Seconds from the header `Retry-After`.
    """
    owner = target.name.partition("/")[0]
    if status in _TEMPORARY_STATUSES:
        reason = "too many requests" if status == TOO_MANY else "the Hub has a server error"
        first = f"wait {wait:.0f} s; " if wait else ""
        return _Failure(f"{reason} ({status})", first + _PUSH_AGAIN, is_temporary=True, wait_s=wait)
    if status in _CONFLICT_STATUSES:
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
        return _reason(error.__cause__)  # Uploads in other threads raise a RuntimeError from the real error.
    return reason_of(error)
