"""A Hub with wrong answers, one kind per repository, and a second server that records its requests."""

from __future__ import annotations

import contextlib
import json
import threading
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

from support.hub import COMMIT, POLL, Hub
from support.torture.mutations import Change

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

OK = 200
HTML = b"<!DOCTYPE html><html><body><form action=/login>Welcome to the hotel</form></body></html>"
LONG_WAIT = 3600
OWNED = "owned.safetensors"
"""Name of files that must never be written outside a cache."""
FAR = f"{'../' * 12}tmp/{OWNED}"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Response of a server.

    Attributes:
        status: HTTP status.
        headers: Further headers.
        body: Content.
        sent: Bytes of the body before the connection is closed; None for all.
        stops: Whether the server stops after these bytes and keeps the connection open.
        raw: Bytes in place of the whole response, or None.
    """

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    sent: int | None = None
    stops: bool = False
    raw: bytes | None = None


NOTHING = Answer(status=404, headers={"X-Error-Code": "EntryNotFound"}, body=b"{}")


@dataclass(frozen=True)
class Asked:
    """A request: path, and address of the second server."""

    path: str
    stranger: str

    @property
    def is_file(self) -> bool:
        return not self.path.startswith("/api/")

    @property
    def is_tree(self) -> bool:
        return "/tree/" in self.path

    @property
    def is_weights(self) -> bool:
        return self.is_file and self.path.partition("?")[0].endswith((".safetensors", ".parquet"))


Fault = Callable[[Answer, Asked], Answer]


def _html(truth: Answer, _: Asked) -> Answer:
    return Answer(headers={"Content-Type": "text/html"}, body=HTML)


def _html_with_names(truth: Answer, _: Asked) -> Answer:
    """Replace the body by HTML like a proxy that keeps the headers."""
    return replace(truth, body=HTML)


def _cut(truth: Answer, _: Asked) -> Answer:
    return replace(truth, sent=len(truth.body) // 2)


def _shorter(truth: Answer, _: Asked) -> Answer:
    return replace(truth, body=truth.body[: len(truth.body) // 2])


def _stopping(truth: Answer, _: Asked) -> Answer:
    return replace(truth, sent=len(truth.body) // 2, stops=True)


def _silent(truth: Answer, _: Asked) -> Answer:
    return Answer(stops=True, raw=b"")


def _status(status: int, **headers: str) -> Fault:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda _truth, _asked: Answer(status=status, headers=named, body=b"{}")


def _headers(**headers: str) -> Fault:
    """Return a change of headers."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda truth, _: replace(truth, headers={**truth.headers, **named})


def _elsewhere(status: int) -> Fault:
    return lambda _, asked: Answer(status=status, headers={"Location": f"{asked.stranger}{asked.path}"})


def _for_ever(_: Answer, asked: Asked) -> Answer:
    return Answer(status=302, headers={"Location": asked.path})


def _changed(truth: Answer, asked: Asked) -> Answer:
    """Return other bytes of the same length with the digest of the true bytes."""
    return replace(truth, body=bytes([truth.body[0]]) + bytes(len(truth.body) - 1)) if truth.body else truth


def _listing(path: str, **more: object) -> Fault:
    """Return a change of the list of files: an additional file."""

    def fault(truth: Answer, asked: Asked) -> Answer:
        entry = {"type": "file", "path": path, "size": 8, "oid": "0" * 40, **more}
        return replace(truth, body=json.dumps([*json.loads(truth.body), entry]).encode())

    return fault


def _json(text: str) -> Fault:
    return lambda truth, _: replace(truth, body=text.encode())


def _bomb(truth: Answer, _: Asked) -> Answer:
    """Return 4 MB that decompress to 4 GB."""
    return replace(truth, headers={**truth.headers, "Content-Encoding": "gzip"}, body=_bomb_of(400))


@cache
def _bomb_of(times: int) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    begin = packer.compress(b" " * 10_000_000) + packer.flush(zlib.Z_FULL_FLUSH)
    return (
        begin
        + (packer.compress(b" " * 10_000_000) + packer.flush(zlib.Z_FULL_FLUSH)) * times
        + packer.flush()
    )


def _xet(truth: Answer, asked: Asked) -> Answer:
    headers = {"X-Xet-Hash": "a" * 64, "Link": f'<{asked.stranger}/xet>; rel="xet-auth"'}
    return replace(truth, headers={**truth.headers, **headers})


EVERYTHING, API, TREE, FILES, WEIGHTS = (
    lambda _: True, lambda asked: not asked.is_file, lambda asked: asked.is_tree, lambda asked: asked.is_file,
    lambda asked: asked.is_weights,
)  # fmt: skip


@dataclass(frozen=True)
class WrongAnswer:
    """A wrong answer of the Hub.

    Attributes:
        fault: Changes the true answer.
        where: Selects the affected requests.
        codes: Allowed exit codes of a command.
    """

    fault: Fault
    where: Callable[[Asked], bool] = EVERYTHING
    codes: frozenset[int] = frozenset({4})


BROKEN, UNHARMED = frozenset({3, 4}), frozenset({0})
FAULTS: dict[str, WrongAnswer] = {
    "none": WrongAnswer(lambda truth, _: truth, codes=UNHARMED),
    "portal": WrongAnswer(_html),
    "portal-in-list": WrongAnswer(_html, TREE),
    "portal-in-files": WrongAnswer(_html, FILES),
    "portal-kept-headers": WrongAnswer(_html_with_names, FILES, BROKEN),
    "cut": WrongAnswer(_cut),
    "cut-list": WrongAnswer(_cut, TREE),
    "cut-files": WrongAnswer(_cut, FILES),
    "shorter-list": WrongAnswer(_shorter, TREE),
    "shorter-files": WrongAnswer(_shorter, FILES, BROKEN),
    "stopping-files": WrongAnswer(_stopping, FILES),
    "silent": WrongAnswer(_silent),
    "silent-list": WrongAnswer(_silent, TREE),
    "silent-files": WrongAnswer(_silent, FILES),
    "closing": WrongAnswer(lambda _truth, _asked: Answer(raw=b"")),
    "no-http": WrongAnswer(lambda _truth, _asked: Answer(raw=b"SSH-2.0-OpenSSH_9.6\r\n")),
    "wrong-weights": WrongAnswer(_changed, WEIGHTS, BROKEN),
    "wrong-files": WrongAnswer(_changed, FILES, BROKEN),
    "no-etag": WrongAnswer(_headers(ETag=""), FILES),
    "strange-etag": WrongAnswer(_headers(ETag=f'"{FAR}"'), FILES, BROKEN),
    "long-etag": WrongAnswer(_headers(ETag=f'"{"e" * 5000}"'), FILES, BROKEN),
    "strange-commit": WrongAnswer(_headers(X_Repo_Commit=FAR), FILES, frozenset({0, 3, 4})),
    "strange-length": WrongAnswer(_headers(X_Linked_Size=str(10**15)), FILES, frozenset({0, 3, 4})),
    "redirect-all": WrongAnswer(_elsewhere(302)),
    "redirect-files": WrongAnswer(_elsewhere(302), FILES, BROKEN),
    "redirect-kept": WrongAnswer(_elsewhere(307), FILES, BROKEN),
    "redirect-for-ever": WrongAnswer(_for_ever),
    "xet": WrongAnswer(_xet, FILES, frozenset({0, 3, 4})),
    "too-many": WrongAnswer(_status(429)),
    "too-many-for-an-hour": WrongAnswer(_status(429, Retry_After=str(LONG_WAIT))),
    "too-many-for-ever": WrongAnswer(_status(429, Retry_After="9" * 40)),
    "too-many-files": WrongAnswer(_status(429, Retry_After=str(LONG_WAIT)), FILES),
    "limited": WrongAnswer(_status(429, RateLimit=f'"api";r=0;t={LONG_WAIT}')),
    "broken": WrongAnswer(_status(500)),
    "busy-for-an-hour": WrongAnswer(_status(503, Retry_After=str(LONG_WAIT))),
    "broken-list": WrongAnswer(_status(502), TREE),
    "broken-files": WrongAnswer(_status(504), FILES),
    "teapot": WrongAnswer(_status(418)),
    "unauthorised": WrongAnswer(_status(401)),
    "gone": WrongAnswer(_status(410)),
    "traversal": WrongAnswer(_listing(f"../../../{OWNED}"), TREE),
    "far-traversal": WrongAnswer(_listing(FAR), TREE),
    "absolute": WrongAnswer(_listing(f"/tmp/{OWNED}"), TREE),  # noqa: S108 - nobody writes it
    "backslashes": WrongAnswer(_listing(f"..\\..\\{OWNED}"), TREE, frozenset({0, 3, 4})),
    "long-name": WrongAnswer(_listing("n" * 5000 + ".json"), TREE),
    "no-name": WrongAnswer(_listing(""), TREE, frozenset({0, 3, 4})),
    "number-for-a-name": WrongAnswer(_listing(7), TREE),  # type: ignore[arg-type]
    "terminal-name": WrongAnswer(_listing("\x1b[31m\x07.json"), TREE),
    "size-of-words": WrongAnswer(_listing("a.json", size="much"), TREE),
    "null": WrongAnswer(_json("null"), API),
    "list": WrongAnswer(_json("[]"), API),
    "object-list": WrongAnswer(_json('{"error": "no"}'), TREE),
    "numbers": WrongAnswer(_json("[1, 2]"), TREE),
    "nothing": WrongAnswer(_json(""), API),
    "deep": WrongAnswer(_json("[" * 100_000), API),
    "no-commit": WrongAnswer(_json('{"id": "org/x", "siblings": []}'), API, BROKEN),
    "bomb": WrongAnswer(_bomb, API),
    "empty-list": WrongAnswer(_json("[]"), TREE, BROKEN),
}  # fmt: skip


def is_slow(fault: str) -> bool:
    """Return whether a wrong answer causes a timeout of a minute."""
    return FAULTS[fault].fault in {_silent, _stopping}


class FaultyHub(Hub):
    """A Hub with repositories `org/LIE.NUMBER`, all with the same files.

    Attributes:
        truth: Files of model repositories.
        data: Files of data-set repositories.
        stranger: Address of the second server, on another host.
        progress_log: Requests to the second server.
        tokens: Received authorization headers.
        changes: Changes of JSON answers, by repository.
        over: Set when the block ends; releases stopped connections.
    """

    def __init__(self) -> None:
        super().__init__()
        self.truth: dict[str, bytes] = {}
        self.data: dict[str, bytes] = {}
        self.stranger = ""
        self.progress_log: list[str] = []
        self.tokens: set[str] = set()
        self.changes: dict[str, Change] = {}
        self.over = threading.Event()

    def told(self, path: str) -> Answer:
        """Return the answer to a path."""
        parts = path.partition("?")[0].strip("/").split("/")
        of_data = "datasets" in parts[:2]
        own = parts[2:] if parts[0] == "api" else parts[of_data:]
        name, fault = "/".join(own[:2]), "".join(own[1:2]).rpartition(".")[0]
        if fault not in FAULTS:
            return NOTHING
        self.files.setdefault(name, self.data if of_data else self.truth)
        inside = own[2:3] == ["tree"] and len(own) > 4  # All files are in the root folder.
        plain = path.replace("/api/datasets/", "/api/models/").removeprefix("/datasets")
        status, headers, body = self.answer(plain)
        truth = NOTHING if inside else Answer(status=status, headers=headers, body=body)
        asked = Asked(path, self.stranger)
        if name in self.changes and not asked.is_file and truth.status == OK:
            return replace(truth, body=self.changes[name].of(truth.body))
        return FAULTS[fault].fault(truth, asked) if FAULTS[fault].where(asked) else truth


@contextlib.contextmanager
def serve_faulty_hub(hub: FaultyHub) -> Iterator[FaultyHub]:
    """Run a lying Hub and the second server within the block."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            hub.asked.append(self.path)
            hub.tokens.add(self.headers.get("Authorization", ""))
            self._send(hub.told(self.path), body=self.command != "HEAD")

        do_HEAD = do_POST = do_PUT = do_GET  # noqa: N815 - the library's names

        def _send(self, answer: Answer, *, body: bool) -> None:
            if answer.raw is not None:
                self.wfile.write(answer.raw)
            else:
                self.send_response(answer.status)
                for key, value in {"Content-Length": str(len(answer.body)), **answer.headers}.items():
                    self.send_header(key, value)
                self.end_headers()
                self.wfile.write(answer.body[: answer.sent] if body else b"")
            if answer.stops and (body or answer.raw is not None):
                hub.over.wait()
            self.close_connection = answer.raw is not None or answer.sent is not None

        def log_message(self, *_: object) -> None:
            pass

    class Stranger(Handler):
        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            hub.progress_log.append(f"{self.requestline}\n{self.headers}\n{self.rfile.read(length)!r}")
            own = Answer(headers={"ETag": f'"{"f" * 64}"', "X-Repo-Commit": COMMIT}, body=b'{"evil": 1}')
            self._send(own, body=self.command != "HEAD")

        do_HEAD = do_POST = do_PUT = do_GET  # noqa: N815 - as above

    with contextlib.ExitStack() as stack:
        servers = [
            ThreadingHTTPServer((host, 0), kind)
            for host, kind in (("127.0.0.1", Handler), ("127.0.0.2", Stranger))
        ]
        hub.endpoint, hub.stranger = (f"http://{s.server_address[0]}:{s.server_port}" for s in servers)
        for server in servers:
            server.daemon_threads = True
            # Clients close connections after wrong answers; the default handler would print tracebacks.
            server.handle_error = lambda *_: None
            thread = threading.Thread(target=server.serve_forever, args=(POLL,), daemon=True)
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.server_close)
            stack.callback(server.shutdown)
        stack.callback(hub.over.set)
        yield hub
