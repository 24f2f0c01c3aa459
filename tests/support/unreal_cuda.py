"""Builds `unreal_cuda.c` beside torch's own CUDA build, and counts what is asked of it: a GPU that nobody has.

Unlike `support.gpu`, which is made up of operators, torch's own CUDA code runs here: real launches, copies, waits, graphs and
devices. Only a process that begins with it can use it: `environment` starts one, whose `counts` tell.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import subprocess
import sysconfig
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SOURCE = Path(__file__).with_suffix(".c")
LIBRARIES = (
    "libtorch_cuda.so",
    "libc10_cuda.so",
    "libtorch_python.so",
    "libtorch_cuda_linalg.so",
    "libcaffe2_nvrtc.so",
)
OURS = re.compile(r"^(__cuda|cuda|cublas|cusolver|cu[A-Z])\w+")
PRODUCT = re.compile(r"^cublas\w*([Gg]emm|gemv|dot)")
LAUNCHES, WAITS, COPIES, ALLOCATIONS = "launch", "wait", "copy", "allocation"


def why_not() -> str | None:
    """Return what is missing to build it, None where nothing is."""
    absent = [name for name in ("gcc", "nm") if shutil.which(name) is None]
    if absent:
        return f"there is no {absent[0]}"
    return None if torch.version.cuda else "torch is built without CUDA"


def build(folder: Path) -> Path:
    """Return the library, with a stub that counts itself for each function of CUDA that torch asks for and the source lacks."""
    home = Path(sysconfig.get_paths()["purelib"]) / "torch" / "lib"
    asked = {
        name
        for file in LIBRARIES
        if (home / file).exists()
        for name in _symbols("--undefined-only", home / file)
    }
    alone, library = folder / "alone.so", folder / "libcuda.so.1"
    _compile(alone, SOURCE)
    stubs = ["void unreal_count(const char *, const char *);"]
    for name in sorted(asked - _symbols("--defined-only", alone)):
        kind = LAUNCHES if PRODUCT.match(name) else "stub"
        stubs.append(f'int {name}(void) {{ unreal_count("{kind}", "{name}"); return 0; }}')
    (folder / "stubs.c").write_text("\n".join(stubs))
    _compile(library, SOURCE, folder / "stubs.c", "-Wl,-soname,libcuda.so.1")
    return library


def _symbols(which: str, library: Path) -> set[str]:
    listed = subprocess.run(["nm", "-D", which, library], capture_output=True, text=True, check=True).stdout
    names = (line.split()[-1].partition("@")[0] for line in listed.splitlines() if line)
    return {name for name in names if OURS.match(name)}


def _compile(library: Path, *parts: Path | str) -> None:
    subprocess.run(
        ["gcc", "-O1", "-w", "-shared", "-fPIC", *parts, "-o", library, "-ldl", "-lpthread"], check=True
    )


def environment(library: Path, **settings: object) -> dict[str, str]:
    """Return the environment of a process that has such GPUs; `GPUS` and `MEGABYTES` are settings."""
    names = {name: str(value) for name, value in settings.items()}
    return {**os.environ, "LD_PRELOAD": str(library), "LD_LIBRARY_PATH": str(library.parent), **names}


class Asked(Counter[tuple[str, str, int]]):
    """How often what was asked for, by kind, name and device."""

    def of(self, *kinds: str) -> int:
        """Return how often anything of some kinds was."""
        return sum(times for (kind, _, _), times in self.items() if kind in kinds)

    def devices(self, kind: str) -> set[int]:
        """Return on which devices anything of a kind was."""
        return {device for (of, _, device), times in self.items() if of == kind and times}


@contextlib.contextmanager
def counts(folder: Path) -> Iterator[Asked]:
    """Count what is asked for within the block, in a process that began with the library."""
    library, found = ctypes.CDLL(os.environ["LD_PRELOAD"]), Asked()
    library.unreal_reset()
    yield found
    library.unreal_write(os.fsencode(folder / "counts"))
    for line in (folder / "counts").read_text().splitlines():
        times, kind, name, device = line.split("\t")
        found[kind, name, int(device)] += int(times)


def steady(run: Callable[[], object], folder: Path) -> Asked:
    """Return what one run asks for after others."""
    for _ in range(3):
        run()
    with counts(folder) as found:
        run()
    return found


def capture(run: Callable[[], object]) -> None:
    """Make a graph of a run's kernels, which raises where the processor takes part."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        run()
