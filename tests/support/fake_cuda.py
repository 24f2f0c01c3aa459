"""Build `fake_cuda.c`, a simulated CUDA runtime for torch's CUDA build, and read its counters.

Unlike in `support.gpu`, which simulates operators, torch's own CUDA code runs: launches, copies, waits,
graphs and devices. The library must be preloaded at process start: `environment` returns the environment
variables, and `counts` reads the counters in the process.
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


def missing_requirement() -> str | None:
    """Return the missing requirement for building the library, or None."""
    absent = [name for name in ("gcc", "nm") if shutil.which(name) is None]
    if absent:
        return f"there is no {absent[0]}"
    return None if torch.version.cuda else "torch is built without CUDA"


def build(folder: Path) -> Path:
    """Compile the library and return the path.

    CUDA functions imported by torch and missing in the source become stubs with a counter.
    """
    home = Path(sysconfig.get_paths()["purelib"]) / "torch" / "lib"
    asked = {
        name
        for file in LIBRARIES
        if (home / file).exists()
        for name in _symbols("--undefined-only", home / file)
    }
    alone, library = folder / "alone.so", folder / "libcuda.so.1"
    _compile(alone, SOURCE)
    stubs = ["void fake_count(const char *, const char *);"]
    for name in sorted(asked - _symbols("--defined-only", alone)):
        kind = LAUNCHES if PRODUCT.match(name) else "stub"
        stubs.append(f'int {name}(void) {{ fake_count("{kind}", "{name}"); return 0; }}')
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
    """Return the environment of a process with simulated GPUs.

    Args:
        library: Result of `build`.
        settings: `GPUS` (number of devices) and `MEGABYTES` (memory per device).
    """
    names = {name: str(value) for name, value in settings.items()}
    return {**os.environ, "LD_PRELOAD": str(library), "LD_LIBRARY_PATH": str(library.parent), **names}


class Requests(Counter[tuple[str, str, int]]):
    """Number of requests by kind, name and device."""

    def of(self, *kinds: str) -> int:
        """Return the number of requests of the given kinds."""
        return sum(times for (kind, _, _), times in self.items() if kind in kinds)

    def devices(self, kind: str) -> set[int]:
        """Return the devices with requests of a kind."""
        return {device for (of, _, device), times in self.items() if of == kind and times}


@contextlib.contextmanager
def counts(folder: Path) -> Iterator[Requests]:
    """Count requests within the block. The process must have been started with the library."""
    library, found = ctypes.CDLL(os.environ["LD_PRELOAD"]), Requests()
    library.fake_reset()
    yield found
    library.fake_write(os.fsencode(folder / "counts"))
    for line in (folder / "counts").read_text().splitlines():
        times, kind, name, device = line.split("\t")
        found[kind, name, int(device)] += int(times)


def steady(run: Callable[[], object], folder: Path) -> Requests:
    """Return the requests of a run after three warm-up runs."""
    for _ in range(3):
        run()
    with counts(folder) as found:
        run()
    return found


def capture(run: Callable[[], object]) -> None:
    """Capture a run as a CUDA graph. Raises if the processor must wait."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        run()
