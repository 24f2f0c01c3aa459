"""Runs command lines of the one tree that `PYTHONPATH` names; a part of `same_bytes.py`, which starts it once a tree.

    python -P same_bytes_worker.py PLAN.json RESULTS.jsonl FOLDER INPUTS

The libraries and every module of the package are loaded once, and each command line runs in a fork of that process. Nothing
of hydractl is called by name but its two entry points, `hydractl.cli.app.main` and `python -m hydractl`, so that trees with
other modules inside can be compared.
"""

from __future__ import annotations

import gc
import hashlib
import importlib
import json
import os
import pkgutil
import re
import signal
import struct
import sys
import tempfile
import traceback
from pathlib import Path
from typing import NoReturn

PATIENCE_S = 300
BUG = 70
"""The exit code of a command line that ended with an exception of Python's."""
LIBRARIES = (
    "torch", "torchvision", "timm", "open_clip", "datasets", "sklearn.cluster", "sklearn.datasets", "sklearn.manifold", "scipy.io",
    "kmedoids", "kneed", "PIL.PngImagePlugin", "matplotlib.backends.backend_svg", "matplotlib.backends.backend_agg",
    "transformers.models.vit.image_processing_vit",
)  # fmt: skip
MODELS = (
    "bert", "beit", "camembert", "clip", "deberta_v2", "deit", "dinov2", "dinov2_with_registers", "distilbert", "electra",
    "modernbert", "mpnet", "roberta", "siglip", "vit", "xlm_roberta",
)  # fmt: skip
"""Models of transformers."""
Files = dict[str, str]


def main() -> None:
    """Run the groups of a plan, each in a folder of its own, and write a line of JSON when one is done."""
    plan, results, root, inputs = map(Path, sys.argv[1:])
    load_everything()
    for group, cases in json.loads(plan.read_text()).items():
        folder = root / group
        folder.mkdir()
        (folder / "in").symlink_to(inputs)
        found, before = [], Files()
        for case in cases:
            seen, after = run(case, folder, root), snapshot(folder)
            changed = {name: digest for name, digest in after.items() if before.get(name) != digest}
            found.append({**seen, "files": changed | dict.fromkeys(before.keys() - after.keys(), "gone")})
            before = after
        with results.open("a") as file:
            file.write(json.dumps({"group": group, "cases": cases, "seen": found}) + "\n")
    os._exit(0)  # what is frozen would be called a leak


def load_everything() -> None:
    """Import what command lines will, so that a fork has it."""
    for name in (*LIBRARIES, *(f"transformers.models.{m}.modeling_{m}" for m in MODELS)):
        importlib.import_module(name)
    package = importlib.import_module("hydractl")
    for module in pkgutil.walk_packages(package.__path__, "hydractl."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    gc.freeze()  # or each fork would copy what its collector looks at


def run(case: dict[str, str | list[str]], folder: Path, root: Path) -> dict[str, object]:
    """Run one command line in a fork; return its exit code and what it printed, made comparable."""
    how, argv = str(case["how"]), [str(word) for word in case["argv"]]
    master, slave = os.openpty() if how == "terminal" else (-1, -1)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        sys.stdout.flush()
        child = os.fork()
        if not child:
            os.chdir(folder)
            source = os.open(str(case["stdin"]) or os.devnull, os.O_RDONLY)
            streams = (source, slave, slave) if how == "terminal" else (source, out.fileno(), err.fileno())
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
            become(how, argv)
        shown = watch(master, slave) if how == "terminal" else b""
        _, status, used = os.wait4(child, 0)
        written = [shown or content(out.fileno()), content(err.fileno())]
    if case["stdout"]:
        (folder / str(case["stdout"])).write_bytes(written[0])
        written[0] = b""
    texts = [comparable(text, root) for text in written]
    code, seconds = os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime
    return {"code": code, "stdout": texts[0], "stderr": texts[1], "seconds": seconds}


def become(how: str, argv: list[str]) -> NoReturn:
    """Do what the fork is for."""
    signal.alarm(PATIENCE_S)
    code = BUG
    try:
        if how != "main":
            names = {"terminal": "hydractl", "process": "hydractl"}
            module, rest = (names[how], argv) if how in names else (argv[0], argv[1:])
            if how == "terminal":
                os.environ.pop("TYPER_USE_RICH")
            os.execv(sys.executable, [sys.executable, "-P", "-m", module, *rest])  # noqa: S606 - no shell is wanted
        from hydractl.cli.app import main as command

        code = command(argv)
        sys.stdout.flush()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else BUG
    except BaseException:  # noqa: BLE001 - the fork must end here, whatever happens
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:
                code = code or BUG
        os._exit(code)


def watch(master: int, slave: int) -> bytes:
    """Return what is written to a terminal of 120 columns until nobody has it open."""
    import fcntl
    import termios

    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 120, 0, 0))
    os.close(slave)
    shown = b""
    while True:
        try:
            shown += (read := os.read(master, 1 << 16))
        except OSError:  # how Linux says that the other end is closed
            read = b""
        if not read:
            os.close(master)
            return shown


def content(descriptor: int) -> bytes:
    """Return all of a file."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    with os.fdopen(os.dup(descriptor), "rb") as file:
        return file.read()


def comparable(written: bytes, root: Path) -> str:
    """Return a text without what differs between two runs of one tree: folders, times, places in the code."""
    try:
        text = written.decode()
    except UnicodeDecodeError:
        return f"{len(written)} bytes, {hashlib.sha256(written).hexdigest()}"
    text = text.replace(str(root), "<root>")
    text = re.sub(r"(?<=<root>/tmp/)[\w.-]+", "<name>", text)
    text = re.sub(r"Traceback \(most recent call last\):\n(?: .*\n)+", "Traceback\n", text)
    text = re.sub(r"(\"latency\w*\": \{)[^}]*\}", r"\1}", text)
    timed = re.sub(r"\b[\d.]+ (?:ms|s|it/s)\b", "<time>", text)
    return (
        text if timed == text else re.sub(r" +|─+|-{3,}", " ", timed)
    )  # columns are as wide as their numbers


def snapshot(folder: Path) -> Files:
    """Return the digest of every file that command lines wrote."""
    return {
        str(path.relative_to(folder)): digest(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.relative_to(folder).parts[0] != "in"
    }


def digest(path: Path) -> str:
    """Return a short digest of a file's bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


if __name__ == "__main__":
    main()
