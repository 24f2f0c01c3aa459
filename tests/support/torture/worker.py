"""Fork a process for each command line and report the results. All libraries are loaded before.

Reads a line of JSON with the command lines to run in parallel, and answers with a line. Each process has a
separate folder, environment, streams, signals and resource limits.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import inspect
import json
import os
import pkgutil
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

from support import warm
from support.torture.points import Plan, Points

CPU_S, WALL_S, MEMORY = 20, 120, 1 << 30
"""Limits of a command: processor seconds, seconds on the clock, and memory growth in bytes. Chosen by hand.
The clock limit is high because other work may share the machine; doubling the limits delays the report of a
hang."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PROGRAM = """
import signal, sys
del sys.path[0]
from hydractl import __main__ as script
heed = script.heed_signals
def heeded(**how):
    heed(**how)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
script.heed_signals = heeded
script.main()
"""
"""Starts hydractl like its script, which does not search the current folder. Signals stay blocked until the
program handles them."""
MUCH = 3 * MEMORY
"""Additional address space of a command. Larger allocations raise MemoryError instead of exhausting the
machine. Doubling risks other processes."""


def main() -> None:
    """Answer requests until standard input ends."""
    os.environ |= {"TYPER_USE_RICH": "0"}
    for name in warm.LIBRARIES:
        importlib.import_module(name)
    import huggingface_hub.constants
    from huggingface_hub.utils._http import http_backoff, http_stream_backoff

    import hydractl

    importlib.reload(huggingface_hub.constants)  # The module was loaded with another environment before.
    for asks_again in (http_backoff, http_stream_backoff):
        waits = inspect.unwrap(asks_again).__kwdefaults__ or {}
        # Retries of huggingface_hub usually wait for seconds.
        waits.update(base_wait_time=0.05, max_wait_time=0.1)
    for module in pkgutil.walk_packages(hydractl.__path__, "hydractl."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for name in ("timm.layers", "transformers.models.bert", "datasets", "PIL.PngImagePlugin"):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        print(json.dumps(_together(json.loads(line))), flush=True)


def _together(tries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Run commands in parallel and return the results."""
    running = {}
    for number, asked in enumerate(tries):
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        child = os.fork()
        if child == 0:
            _try(asked)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        running[os.pidfd_open(child)] = (number, child, asked, time.monotonic())
    found: list[dict[str, Any]] = [{}] * len(tries)
    while running:
        due = min(start + _due(asked) for _, _, asked, start in running.values())
        ready, _, _ = select.select(list(running), [], [], max(0.0, due - time.monotonic()))
        for _, child, asked, start in [] if ready else running.values():
            if start + _due(asked) <= time.monotonic():
                os.kill(child, asked.pop("signal", signal.SIGKILL) if "after" in asked else signal.SIGKILL)
                asked.pop("after", None)
        for descriptor in ready:
            number, child, _asked, start = running.pop(descriptor)
            os.close(descriptor)
            _, status, used = os.wait4(child, 0)
            grown = used.ru_maxrss - resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            found[number] = {
                "code": os.waitstatus_to_exitcode(status),
                "cpu": used.ru_utime + used.ru_stime,
                "wall": time.monotonic() - start,
                "grown": max(grown, 0) * 1024,
            }
    return found


def _due(asked: dict[str, Any]) -> float:
    after: float = asked.get("after", asked.get("wall", WALL_S))
    return after


def _try(asked: dict[str, Any]) -> NoReturn:
    """Run a command, or several in turn, in the forked process."""
    _bound()
    if {"several", "program"} & asked.keys():
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    with contextlib.suppress(BaseException):
        if "several" in asked:
            _several(asked)
            os._exit(0)
        folder = Path(asked["folder"])
        streams = [os.open(asked.get("stdin", os.devnull), os.O_RDONLY), *_said(folder)]
        _armed(asked, _record(folder))
        program = asked.get("program", PROGRAM)
        warm.end(warm.become(_how(asked, folder, ["-c", program, *asked["words"]]), streams))
    os._exit(1)


def _several(asked: dict[str, Any]) -> None:
    """Run command lines in turn, each in a separate folder, and store each result in the folder.

    This is much cheaper than separate processes. The caller repeats commands without a result in separate
    processes.
    """
    warm.become(
        _how(asked, Path(asked["folder"]), ["-c", ""]), [os.open(os.devnull, os.O_RDWR) for _ in range(3)]
    )
    record = os.open(os.devnull, os.O_WRONLY)
    _armed(asked, record)
    from hydractl.cli.app import main as run

    for one in asked["several"]:
        folder = Path(one["folder"])
        for descriptor, number in zip((_record(folder), *_said(folder)), (record, 1, 2), strict=True):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.chdir(folder / "work")
        os.environ["TMPDIR"] = tempfile.tempdir = str(folder / "tmp")
        begun = time.process_time()
        try:
            code = run(one["words"])
        except BaseException:  # noqa: BLE001 - as the interpreter
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        (folder / "ended").write_text(json.dumps({"code": code, "cpu": time.process_time() - begun}))


def _bound() -> None:
    """Set resource limits, and reset signals to the handlers of a process started by a shell."""
    for number in SIGNALS:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    begun = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (begun + MUCH, begun + MUCH))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _how(asked: dict[str, Any], folder: Path, words: list[str]) -> dict[str, Any]:
    environment = {**os.environ, **asked["environment"], "TMPDIR": str(folder / "tmp")}
    return {"environment": environment, "folder": f"{folder}/work", "program": sys.executable, "words": words}


def _said(folder: Path) -> list[int]:
    return [os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND) for name in ("out", "err")]


def _record(folder: Path) -> int:
    return os.open(folder / "record", os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def _armed(asked: dict[str, Any], record: int) -> None:
    folders = [one["folder"] for one in asked.get("several", [asked])]
    Points(
        roots=tuple(f"{folder}/{name}" for folder in folders for name in ("work", "tmp")),
        say=lambda line: os.write(record, f"{line}\n".encode(errors="backslashreplace")),
        plan=Plan(**asked["plan"]) if asked.get("plan") else None,
        hosts=[tuple(host) for host in asked.get("hosts", ())],
    ).arm()
