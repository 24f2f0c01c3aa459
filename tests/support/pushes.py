"""A local Hub for pushes, with optional failures like in a network."""

from __future__ import annotations

import base64
import hashlib
import json
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import unquote

from support.hub import Hub, Request

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Answer = tuple[int, "Mapping[str, str]", bytes]
EMPTY = "0" * 40
LARGE = (".safetensors", ".png")
BUSY = b"<html>try again</html>"


@dataclass
class Repository:
    """Branches and commits of a repository. A commit maps file names to contents."""

    private: bool = False
    commits: dict[str, dict[str, bytes]] = field(default_factory=lambda: {EMPTY: {".gitattributes": b"x"}})
    branches: dict[str, str] = field(default_factory=lambda: {"main": EMPTY})
    messages: list[str] = field(default_factory=list)

    def files(self, revision: str = "main") -> dict[str, bytes]:
        """Return the files of a revision."""
        return self.commits[self.branches.get(revision, revision)]

    @property
    def made(self) -> int:
        """Number of pushed commits."""
        return len(self.messages)


def blob(content: bytes) -> str:
    """Return the git hash of a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


class Pushable(Hub):
    """A Hub with writable repositories.

    Args:
        faults: Share of failing requests.
        seed: Seed of the failures.
        refuse: Returns the refusal of a request, or None to execute the request.
    """

    def __init__(
        self,
        *,
        faults: float = 0.0,
        seed: int = 0,
        refuse: Callable[[Request], Answer | None] = lambda _: None,
    ) -> None:
        super().__init__()
        self.repositories: dict[str, Repository] = {}
        self.stored: dict[str, bytes] = {}
        self.tokens: set[str | None] = set()
        self.failed: list[str] = []
        self.faults, self.refuse = faults, refuse
        self._luck = random.Random(seed)  # noqa: S311 - no secret

    def respond(self, asked: Request) -> Answer:
        """Answer a request, or fail: before execution, or afterwards with a lost answer."""
        self.tokens.add(asked.authorization)
        if (refused := self.refuse(asked)) is not None:
            return refused
        fault = (
            self._luck.choice(["busy", "limit", "cut", "lost"]) if self._luck.random() < self.faults else None
        )
        if fault is not None:
            self.failed.append(f"{fault} {asked.method} {asked.path}")
        if fault == "busy":
            return 503, {}, BUSY
        if fault == "limit":
            return 429, {"Retry-After": "0"}, BUSY
        if fault == "cut":
            raise ConnectionAbortedError
        done = self.serve(asked)
        if fault == "lost":
            raise ConnectionAbortedError
        return done

    def serve(self, asked: Request) -> Answer:
        """Execute a request."""
        parts = [unquote(part) for part in asked.path.partition("?")[0].strip("/").split("/")]
        match parts:
            case ["api", "repos", "create"]:
                return self._create(json.loads(asked.body))
            case ["api", "validate-yaml"]:
                return 200, {}, b"{}"
            case ["api", "agent-harnesses"]:
                return 404, {}, b"{}"
            case ["lfs", digest]:
                self.stored[digest] = asked.body
                return 200, {}, b""
            case [owner, name, "info", "lfs", "objects", "batch"]:
                return self._batch(json.loads(asked.body))
            case ["api", "models", owner, name, *rest]:
                return self._model(f"{owner}/{name}", rest, asked)
            case [owner, name, "resolve", revision, *path]:
                return self._file(f"{owner}/{name}", revision, "/".join(path))
        return 404, {}, b"{}"

    def _create(self, said: Mapping[str, str]) -> Answer:
        name = f"{said['organization']}/{said['name']}"
        url = json.dumps({"url": f"{self.endpoint}/{name}"}).encode()
        if name in self.repositories:
            return 409, {}, url
        self.repositories[name] = Repository(
            private=bool(said.get("private") or said.get("visibility") == "private")
        )
        return 200, {}, url

    def _batch(self, said: Mapping[str, list[dict[str, object]]]) -> Answer:
        objects = []
        for entry in said["objects"]:
            wanted = {"actions": {"upload": {"href": f"{self.endpoint}/lfs/{entry['oid']}"}}}
            objects.append(entry | ({} if entry["oid"] in self.stored else wanted))
        return (
            200,
            {"Content-Type": "application/vnd.git-lfs+json"},
            json.dumps({"objects": objects}).encode(),
        )

    def _model(self, name: str, rest: list[str], asked: Request) -> Answer:
        repository = self.repositories.get(name)
        if repository is None:
            return 404, {"X-Error-Code": "RepoNotFound"}, b"{}"
        match rest:
            case ["branch", branch]:
                repository.branches.setdefault(branch, repository.branches["main"])
                return 200, {}, b"{}"
            case ["preupload", _]:
                files = [
                    {
                        "path": f["path"],
                        "uploadMode": "lfs" if f["path"].endswith(LARGE) else "regular",
                        "shouldIgnore": False,
                    }
                    for f in json.loads(asked.body)["files"]
                ]
                return 200, {}, json.dumps({"files": files}).encode()
            case ["commit", branch]:
                return self._commit(repository, name, branch, asked)
        revision = rest[1] if len(rest) > 1 else "main"
        sha = repository.branches.get(revision, revision)
        if sha not in repository.commits:
            return 404, {"X-Error-Code": "RevisionNotFound"}, b"{}"
        files = repository.commits[sha]
        if rest[:1] == ["tree"]:
            return 200, {}, json.dumps([_entry(path, content) for path, content in files.items()]).encode()
        siblings = [{"rfilename": path} for path in files]
        info = {"id": name, "modelId": name, "sha": sha, "private": repository.private, "siblings": siblings}
        return 200, {}, json.dumps(info).encode()

    def _commit(self, repository: Repository, name: str, branch: str, asked: Request) -> Answer:
        lines = [json.loads(line) for line in asked.body.splitlines()]
        head = repository.branches[branch]
        files = dict(repository.commits[head])
        for line in lines:
            value = line["value"]
            if line["key"] == "header" and value.get("parentCommit", head) != head:
                return 412, {}, json.dumps({"error": "A commit has happened since."}).encode()
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                content = self.stored[value["oid"]]
                assert hashlib.sha256(content).hexdigest() == value["oid"]
                files[value["path"]] = content
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        sha = hashlib.sha1(head.encode() + asked.body, usedforsecurity=False).hexdigest()
        repository.commits[sha] = files
        repository.messages.append(lines[0]["value"]["summary"])
        url = f"{self.endpoint}/{name}"
        done = {"commitUrl": f"{url}/commit/{sha}", "commitOid": sha}
        if "create_pr=1" in asked.path:
            done["pullRequestUrl"] = f"{url}/discussions/1"
            repository.branches["refs/pr/1"] = sha
        else:
            repository.branches[branch] = sha
        return 200, {}, json.dumps(done).encode()

    def _file(self, name: str, revision: str, path: str) -> Answer:
        repository = self.repositories.get(name)
        if repository is None:
            return 404, {"X-Error-Code": "RepoNotFound"}, b"{}"
        sha = repository.branches.get(revision, revision)
        if path not in repository.commits.get(sha, {}):
            return 404, {"X-Error-Code": "EntryNotFound"}, b"{}"
        content = repository.commits[sha][path]
        etag = hashlib.sha256(content).hexdigest()
        return 200, {"ETag": f'"{etag}"', "X-Repo-Commit": sha}, content


def _entry(path: str, content: bytes) -> dict[str, object]:
    entry: dict[str, object] = {"type": "file", "path": path, "size": len(content), "oid": blob(content)}
    if path.endswith(LARGE):
        entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
    return entry
