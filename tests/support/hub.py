"""A local Hub with the requests of `snapshot_download` only."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

COMMIT = "c" * 40
GATED = "org/gated"
BROKEN = "org/broken"
POLL = 0.01
"""Polling interval of a server for its shutdown, in seconds. Chosen by hand; doubling delays the end of each
test."""


class Request(NamedTuple):
    """A request."""

    method: str
    path: str
    body: bytes
    authorization: str | None


class Hub:
    """Repositories in memory: `files["org/name"]["config.json"] = b"..."`. `asked` lists the requested paths."""

    def __init__(self) -> None:
        self.files: dict[str, dict[str, bytes]] = {}
        self.asked: list[str] = []
        self.endpoint = ""

    def environment(self, home: Path, **extra: str) -> dict[str, str]:
        """Return the environment of a process that uses this Hub. huggingface_hub reads it when imported."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
        return kept | {
            "HF_ENDPOINT": self.endpoint,
            "HF_HOME": str(home),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            **extra,
        }

    def add_folder(self, name: str, folder: Path) -> None:
        """Serve the files of a folder as a repository."""
        self.files[name] = {p.name: p.read_bytes() for p in folder.iterdir()}

    def respond(self, asked: Request) -> tuple[int, Mapping[str, str], bytes]:
        """Return status, headers and body. Raises `ConnectionAbortedError` to close the connection."""
        return self.answer(asked.path)

    def answer(self, path: str) -> tuple[int, Mapping[str, str], bytes]:
        """Return status, headers and body for a path."""
        parts = path.partition("?")[0].strip("/").split("/")
        api = parts[:2] == ["api", "models"]
        name = "/".join(parts[2:4] if api else parts[:2])
        if name == GATED:
            return (
                403,
                {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to model is restricted"},
                b"{}",
            )
        if name == BROKEN:
            return 418, {}, b"{}"
        if name not in self.files:
            return 401, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}, b"{}"
        files = self.files[name]
        if api:
            return self._api(name, parts[4:], files)
        revision, file = parts[3], "/".join(parts[4:])
        if revision not in {"main", "v1", COMMIT} or file not in files:
            return 404, {"X-Error-Code": "EntryNotFound"}, b"{}"
        etag = hashlib.sha256(files[file]).hexdigest()
        return 200, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT}, files[file]

    def _api(
        self, name: str, rest: list[str], files: dict[str, bytes]
    ) -> tuple[int, Mapping[str, str], bytes]:
        if rest and rest[0] == "revision" and rest[1] not in {"main", "v1", COMMIT}:
            return 404, {"X-Error-Code": "RevisionNotFound"}, b"{}"
        if rest and rest[0] == "tree":
            tree = [
                {"type": "file", "path": p, "size": len(b), "oid": hashlib.sha256(b).hexdigest()}
                for p, b in files.items()
            ]
            return 200, {}, json.dumps(tree).encode()
        info = {"id": name, "modelId": name, "sha": COMMIT, "siblings": [{"rfilename": p} for p in files]}
        return 200, {}, json.dumps(info).encode()


def body_of(request: BaseHTTPRequestHandler) -> bytes:
    """Return the body of a request."""
    if request.headers.get("Transfer-Encoding") != "chunked":
        return request.rfile.read(int(request.headers.get("Content-Length", 0)))
    parts = []
    while size := int(request.rfile.readline(), 16):
        parts.append(request.rfile.read(size))
        request.rfile.readline()
    request.rfile.readline()
    return b"".join(parts)


@contextlib.contextmanager
def serve(hub: Hub | None = None) -> Iterator[Hub]:
    """Run a Hub on a free port within the block."""
    hub = hub or Hub()
    connections: list[socket.socket] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            connections.append(self.connection)

        def do_GET(self) -> None:
            self._reply(body=True)

        do_POST = do_PUT = do_GET  # noqa: N815 - as the library calls them

        def do_HEAD(self) -> None:
            self._reply(body=False)

        def _reply(self, *, body: bool) -> None:
            hub.asked.append(self.path)
            given = body_of(self)
            try:
                asked = Request(self.command, self.path, given, self.headers.get("Authorization"))
                status, headers, data = hub.respond(asked)
            except ConnectionAbortedError:
                self.close_connection = True
                return
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if body:
                self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(POLL,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        # Otherwise a client could reuse the connection when another Hub has the port.
        for kept in connections:
            with contextlib.suppress(OSError):
                kept.shutdown(socket.SHUT_RDWR)
