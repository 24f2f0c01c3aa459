"""Start Python processes with loaded libraries, by forking a server.

Most of the cost of a small command is the import of torch and timm. A forked process is like any other
process, with its own arguments, folder, environment, streams, random state and signals. hydractl itself is
not loaded in the server. `python` returns a replacement for `sys.executable`. Run as a script, this module is
both the replacement and the server.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import select
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

LIBRARIES = (
    "torch",
    "timm",
    "transformers",
    "accelerate",
    "sklearn.datasets",
    "torch.distributed.launcher",
    "typer",
)
NO_THREADS = {
    "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false",
}  # fmt: skip
"""Settings that prevent threads, because a process with threads cannot be forked safely."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
CALL = """#!/bin/sh
exec '{python}' -I -S '{file}' ask '{socket}' "$@"
"""


@cache
def python(server: int = 0) -> Path:
    """Return a program that takes `-m` and `-c` like the interpreter.

    All workers of a test run share a server, which ends with the run. On systems without `pidfd_open` the
    interpreter itself is returned.

    Args:
        server: Number of the server. Each server has a separate hash seed.
    """
    if not hasattr(os, "pidfd_open"):
        return Path(sys.executable)
    worker = "PYTEST_XDIST_WORKER" in os.environ
    owner = os.getppid() if worker else os.getpid()
    folder = (
        Path(tempfile.gettempdir()) / f"warm-{owner}-{os.environ.get('PYTEST_XDIST_TESTRUNUID', '')}-{server}"
    )
    path, program = folder / "socket", folder / "python"
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        pass
    else:
        program.write_text(CALL.format(python=sys.executable, file=__file__, socket=path))
        program.chmod(0o755)
        settings = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        quiet = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
        ]
        os.posix_spawn(
            sys.executable,
            [sys.executable, "-P", __file__, "serve", str(path), str(owner)],
            settings | NO_THREADS | {"PYTHONHASHSEED": str(server + 1)},
            file_actions=quiet,
        )
    end = time.monotonic() + 100
    while not path.exists():
        if time.monotonic() > end:
            raise RuntimeError("the server has not started")
        time.sleep(0.02)
    return program


def _serve(path: str, owner: int) -> NoReturn:
    """Fork once per connection until the test run ends."""
    over = os.pidfd_open(owner)
    for name in LIBRARIES:
        __import__(name)
    for name in [name for name in sys.modules if name.partition(".")[0] == "typer"]:
        # typer reads the environment when it is imported, so each program must import it.
        del sys.modules[name]
    gc.collect()
    gc.freeze()
    if len(list(Path("/proc/self/task").iterdir())) > 1:
        raise RuntimeError("a library has started a thread")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(f"{path}.new")
    listener.listen(64)
    Path(f"{path}.new").rename(path)
    while True:
        ready, _, _ = select.select([listener, over], [], [])
        if over in ready:
            shutil.rmtree(Path(path).parent)
            os._exit(0)
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            os.close(over)
            _attend(connection)
        connection.close()
        # Reaps all ended children. `_children` is read again each time: `os.waitid` raises without children.
        while any(os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG) for _ in _children()):
            pass


def _children() -> list[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def _attend(connection: socket.socket) -> None:
    """Fork the requested process, report the status to the client, and exit."""
    text, streams, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    asked = json.loads(text)
    child = os.fork()
    if child == 0:
        connection.close()
        end(become(asked, streams))
    for stream in streams:
        os.close(stream)
    connection.send(str(child).encode())
    ended = os.pidfd_open(child)
    ready, _, _ = select.select([ended, connection], [], [])
    if ended not in ready:  # The client was killed.
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    if ended in ready:
        connection.send(str(status).encode())
    os._exit(0)


def end(code: int) -> NoReturn:
    """Exit without destroying library objects, because a fork would have to copy the memory first."""
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code)


def become(asked: dict[str, Any], streams: list[int]) -> int:
    """Run the requested program like the interpreter, and return the exit code."""
    import random

    import numpy as np

    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115 - until the end
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # noqa: SIM115 - as above
    sys.stderr = sys.__stderr__ = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115 - as above
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["folder"])
    random.seed()
    np.random.seed()  # noqa: NPY002 - what libraries draw from
    words = [word for word in asked["words"] if word != "-u"]
    if words[0] == "-I":
        words = words[1:]
    else:
        sys.path[:0] = [asked["folder"], *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    sys.executable = asked["program"]
    preprocess, *rest = words
    what = rest.pop(0) if preprocess in {"-m", "-c"} else preprocess
    sys.argv = [preprocess, *rest]
    try:
        if preprocess == "-m":
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        elif preprocess == "-c":
            exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102 - a test's own text
        else:
            runpy.run_path(what, run_name="__main__")
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 - as the interpreter
        traceback.print_exc()
        return 1
    return 0


def _ask(path: str, words: list[str]) -> NoReturn:
    """Act as the requested process for the caller: same streams, signals and exit status."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(path)
    program = str(Path(path).with_name("python"))
    asked = {"words": words, "folder": str(Path.cwd()), "environment": dict(os.environ), "program": program}
    socket.send_fds(connection, [json.dumps(asked).encode()], [0, 1, 2])
    child = int(connection.recv(64))
    for number in SIGNALS:
        signal.signal(number, lambda number, _: os.kill(child, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    status = int(connection.recv(64) or signal.SIGKILL)
    if os.WIFSIGNALED(status):
        if os.WTERMSIG(status) in SIGNALS:
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        _serve(sys.argv[2], int(sys.argv[3]))
    _ask(sys.argv[2], sys.argv[3:])
