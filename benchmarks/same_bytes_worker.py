"""Run command lines of the tree in `PYTHONPATH`. `same_bytes.py` starts this program once per tree.

    python -P same_bytes_worker.py PLAN.json RESULTS.jsonl FOLDER INPUTS

The libraries and all modules of the package are loaded once; each command line runs in a fork of this
process. The program only uses the two entry points of hydractl, `hydractl.cli.app.main` and `python -m
hydractl`, so trees with other modules can be compared.
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
"""Time limit of a command line in seconds. Chosen by hand, far above the slowest command; doubling only
delays the report of a hang."""
BUG = 70
"""Exit code of a command line that raised a Python exception."""
LIBRARIES = (
    "torch", "torchvision", "timm", "open_clip", "datasets", "sklearn.cluster", "sklearn.datasets", "sklearn.manifold", "scipy.io",
    "kmedoids", "kneed", "PIL.PngImagePlugin", "matplotlib.backends.backend_svg", "matplotlib.backends.backend_agg",
    "transformers.models.vit.image_processing_vit",
)  # fmt: skip
MODELS = (
    "bert", "beit", "camembert", "clip", "deberta_v2", "deit", "dinov2", "dinov2_with_registers", "distilbert", "electra",
    "modernbert", "mpnet", "roberta", "siglip", "vit", "xlm_roberta",
)  # fmt: skip
"""Model modules of transformers to load before forking."""
Files = dict[str, str]


def main() -> None:
    """Run the groups of a plan, each in a new folder, and append a line of JSON per finished group."""
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
    os._exit(0)  # Skips interpreter shutdown, which would report the frozen objects as leaks.


def load_everything() -> None:
    """Import all modules of the command lines, so that forks share the modules."""
    for name in (*LIBRARIES, *(f"transformers.models.{m}.modeling_{m}" for m in MODELS)):
        importlib.import_module(name)
    package = importlib.import_module("hydractl")
    for module in pkgutil.walk_packages(package.__path__, "hydractl."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    # Without this, the garbage collector of each fork would touch, and so copy, all shared pages.
    gc.freeze()


def run(case: dict[str, str | list[str]], folder: Path, root: Path) -> dict[str, object]:
    """Run one command line in a fork.

    Returns:
        Exit code, comparable standard output and error, and processor seconds.
    """
    mode, argv = str(case["mode"]), [str(word) for word in case["argv"]]
    master, slave = os.openpty() if mode == "terminal" else (-1, -1)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        sys.stdout.flush()
        child = os.fork()
        if not child:
            os.chdir(folder)
            source = os.open(str(case["stdin"]) or os.devnull, os.O_RDONLY)
            streams = (source, slave, slave) if mode == "terminal" else (source, out.fileno(), err.fileno())
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
            become(mode, argv)
        shown = watch(master, slave) if mode == "terminal" else b""
        _, status, used = os.wait4(child, 0)
        written = [shown or content(out.fileno()), content(err.fileno())]
    if case["stdout"]:
        (folder / str(case["stdout"])).write_bytes(written[0])
        written[0] = b""
    texts = [comparable(text, root) for text in written]
    code, seconds = os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime
    return {"code": code, "stdout": texts[0], "stderr": texts[1], "seconds": seconds}


def become(mode: str, argv: list[str]) -> NoReturn:
    """Run the command in the forked process and exit. Python errors exit with `BUG`."""
    signal.alarm(PATIENCE_S)
    code = BUG
    try:
        if mode != "main":
            names = {"terminal": "hydractl", "process": "hydractl"}
            module, rest = (names[mode], argv) if mode in names else (argv[0], argv[1:])
            if mode == "terminal":
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
    """Return the bytes written to a terminal of 120 columns until all writers have closed it."""
    import fcntl
    import termios

    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 120, 0, 0))
    os.close(slave)
    shown = b""
    while True:
        try:
            shown += (read := os.read(master, 1 << 16))
        except OSError:  # Linux raises EIO when the other end is closed.
            read = b""
        if not read:
            os.close(master)
            return shown


def content(descriptor: int) -> bytes:
    """Return all bytes of a file descriptor."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    with os.fdopen(os.dup(descriptor), "rb") as file:
        return file.read()


def comparable(written: bytes, root: Path) -> str:
    """Return a text without the parts that differ between runs of one tree: folders, times, code locations."""
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
    )  # Column widths depend on the times, so runs of spaces and lines are collapsed.


def snapshot(folder: Path) -> Files:
    """Return the digest of every file written by command lines."""
    return {
        str(path.relative_to(folder)): digest(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.relative_to(folder).parts[0] != "in"
    }


def digest(path: Path) -> str:
    """Return the first 16 hexadecimal digits of a file's SHA-256."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


if __name__ == "__main__":
    main()
