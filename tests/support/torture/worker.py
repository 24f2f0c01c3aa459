"""A process that tries command lines: it has all loaded, forks one for each, watches it, and says how it ended.

It reads a line of JSON for tries that run side by side, and answers with one. Each is a process like any other, with its
own folder, environment, streams and signals, and with bounds that it must not reach.
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
"""What a try may take; the wall is far, since other work may share the machine."""
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
"""As the script does it, which looks for nothing in the current folder; a signal from before it has begun waits for that."""
MUCH = 3 * MEMORY
"""How much address space it gets beyond what it begins with: what asks for more ends with a MemoryError, not the machine."""


def main() -> None:
    """Answer until the input ends."""
    os.environ |= {"TYPER_USE_RICH": "0"}
    for name in warm.LIBRARIES:
        importlib.import_module(name)
    import huggingface_hub.constants
    from huggingface_hub.utils._http import http_backoff, http_stream_backoff

    import hydractl

    importlib.reload(huggingface_hub.constants)  # who loaded it before had another environment
    for asks_again in (http_backoff, http_stream_backoff):
        waits = inspect.unwrap(asks_again).__kwdefaults__ or {}
        waits.update(base_wait_time=0.05, max_wait_time=0.1)  # not after seconds
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
    """Start tries side by side; return how each ended."""
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
    """Be one try, in a process of its own, or several."""
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
    """Try command lines one after the other, each in its folder; each leaves there how it ended.

    That costs much less than a process for each. Whoever asks tries those again alone that one of them took with it.
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
    """Let nothing of the tries grow beyond bounds, and signals be answered as in a process that a shell has started."""
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
