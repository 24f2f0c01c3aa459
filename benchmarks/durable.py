"""Measure the time that storing outputs on the disk adds to a `fuse` of 1 GB.

Runs with and without `fsync` alternate in one process. The disk is idle before each run. Prints both medians
and their ratio. The exit code is 1 if the ratio exceeds 1.05.

    python benchmarks/durable.py [--repeats 7] [--arch vit_base_patch16_224] [--folder DIR]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from unittest import mock

from hydractl.families.open_model import open_model
from hydractl.stages.fuse.config import FuseConfig
from hydractl.stages.fuse.run import run_fuse

CLAIM = 1.05
"""Largest allowed ratio of the medians, chosen by hand. Twice the overhead (1.10) would hide slowdowns below
10 %."""
MEMBERS = 3


def main() -> int:
    """Measure, and return 1 if the claim fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=7, help="timed runs of each kind")
    parser.add_argument("--arch", default="vit_base_patch16_224", help="timm architecture of the members")
    parser.add_argument("--folder", type=Path, default=None, help="folder on the disk to measure")
    options = parser.parse_args()
    seconds: dict[bool, list[float]] = {False: [], True: []}
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        members = tuple(str(_member(options.arch, seed, Path(folder))) for seed in range(MEMBERS))
        out = Path(folder, "hydra.st")
        for repeat in range(options.repeats + 1):
            for stores in (repeat % 2 == 0, repeat % 2 == 1):
                spent = _fuse(members, out, stores=stores)
                if repeat:  # The first runs fill caches.
                    seconds[stores].append(spent)
        size = out.stat().st_size
    without, with_ = (statistics.median(seconds[stores]) for stores in (False, True))
    ratio = with_ / without
    spread = {stores: f"{min(s):.2f} to {max(s):.2f}" for stores, s in seconds.items()}
    print(f"fuse, {size / 1e9:.2f} GB, median of {options.repeats} interleaved runs each:")
    print(f"  without fsync {without:.2f} s ({spread[False]})")
    print(f"  with fsync    {with_:.2f} s ({spread[True]})")
    print(f"  ratio         {ratio:.3f} (claim: at most {CLAIM})")
    return int(ratio > CLAIM)


def _member(arch: str, seed: int, folder: Path) -> Path:
    model_file = open_model(f"arch:{arch}", seed=seed)
    return Path(shutil.copy(model_file.checkpoint.paths[0], folder / f"member-{seed}.st"))


def _fuse(members: tuple[str, ...], out: Path, *, stores: bool) -> float:
    """Return the seconds of one fuse, with or without `fsync`."""
    out.unlink(missing_ok=True)
    os.sync()
    with contextlib.nullcontext() if stores else mock.patch.object(os, "fsync"):
        begin = time.monotonic()
        run_fuse(FuseConfig(models=members, out=out, mlp="keep"))
        return time.monotonic() - begin


if __name__ == "__main__":
    raise SystemExit(main())
