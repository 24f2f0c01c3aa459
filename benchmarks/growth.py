"""Measure the growth of time and memory of the stages with members, layers, classes, samples, and processes.

Each point is a command on a small vision transformer and generated images. Time is the processor time of the
command on one thread, without the start of Python and the libraries; the least of the repetitions, so that
other load has little effect. Memory is the peak above the libraries. Exponents are slopes on a log-log scale
between neighbouring sizes; the last slope counts, because constant parts matter least there. Linear growth is
1, and the claimed bound is 1.1. Two methods grow faster with layers: Taylor layer by layer has one pass per
layer (2.2); the exhaustive circuit search evaluates as many candidates as the heads squared, each through the
following layers (3.3).

Processes are compared by the processor time of the busiest process for the same work: two processes should
need half each.

    python benchmarks/growth.py [--repeats 2] [--axis members layers classes samples processes] [-o growth]

`-o NAME` writes NAME.json and the figure NAME.png.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from metrics_memory import peak

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

BOUND = 1.1
"""Largest allowed exponent for linear growth. Chosen by hand: 0.1 covers noise. Doubling would accept
quadratic growth."""
MIB = 2**20
AXES: dict[str, tuple[int, ...]] = {
    "members": (1, 2, 4, 8, 16),
    "layers": (3, 6, 12, 24),
    "classes": (10, 100, 1000),
    "samples": (100, 1000, 10000, 100000),
    "processes": (1, 2),
}
USUAL = {"members": 3, "layers": 6, "classes": 10, "samples": 1000, "processes": 1}
LEAST_S, LEAST_MIB = 0.1, 16
"""Seconds and MiB below which measurements are noise; smaller values are raised to these bounds. Chosen by
hand; doubling ignores more growth at small sizes."""
HEADS = 4
SIDE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes of one point."""

    members: int
    layers: int
    classes: int
    samples: int
    processes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Processor seconds, and memory above the libraries in MiB."""

    seconds: float
    mib: float


class Folder:
    """Input files of the commands for one point, created at first use: base, members, hydra, images."""

    def __init__(self, root: Path, sizes: Sizes) -> None:
        self.root, self.sizes = root / "-".join(str(getattr(sizes, axis)) for axis in AXES), sizes
        self.root.mkdir()

    def data(self) -> str:
        """Return a folder of random images with the point's samples and classes."""
        from PIL import Image

        folder = self.root / "data"
        if not folder.exists():
            import numpy as np

            draws = np.random.default_rng(0)
            for i in range(max(self.sizes.samples, self.sizes.classes)):
                place = folder / f"c{i % self.sizes.classes:04d}"
                place.mkdir(parents=True, exist_ok=True)
                Image.fromarray(draws.integers(0, 256, (SIDE, SIDE), dtype=np.uint8)).save(place / f"{i}.png")
        return f"{folder}/"

    def base(self) -> str:
        """Return the reference to a base with random weights."""
        return (
            f"arch:vit_tiny_patch16_224::img_size={SIDE},patch_size=4,in_chans=1,embed_dim=64,num_heads={HEADS},"
            f"depth={self.sizes.layers},num_classes={self.sizes.classes}"
        )

    def members(self) -> list[str]:
        """Return the paths of pruned members."""
        if not (self.root / "m0.st").exists():
            run(self.prune())
        return [str(self.root / f"m{i}.st") for i in range(self.sizes.members)]

    def prune(self) -> list[str]:
        """Return the command that prunes the members."""
        drawn = [
            "--members",
            str(self.sizes.members),
            "--strategy",
            "random",
            "--keep-heads",
            str(HEADS // 2),
        ]
        return ["prune", self.base(), *drawn, "--force", "-o", str(self.root / "m{i}.st")]

    def hydra(self) -> str:
        """Return the path of a hydra, or of the only member."""
        members, out = self.members(), self.root / "hydra.st"
        if len(members) == 1:
            return members[0]
        if not out.exists():
            run(["fuse", *members, "-o", str(out)])
        return str(out)

    def out(self, name: str) -> list[str]:
        """Return the output options of a command."""
        return ["--force", "-o", str(self.root / name)]


STAGES: Mapping[str, tuple[Callable[[Folder], list[str]], Mapping[str, int]]] = {
    "score global": (
        lambda f: [
            "score", f.base(), "--method", "taylor", "--scope", "global", "--data", f.data(), *f.out("global.json"),
        ],
        {"layers": 1, "classes": 1, "samples": 1, "processes": 1},
    ),
    "score by layer": (
        lambda f: ["score", f.base(), "--method", "taylor", "--data", f.data(), *f.out("taylor.json")],
        {"layers": 2},
    ),
    "score circuit": (
        lambda f: [
            "score", f.base(), "--method", "circuit", "--objective", "acc", "--search", "exact", "--data", f.data(),
            "--limit", "32", *f.out("circuit.json"),
        ],
        {"layers": 3},
    ),
    "prune": (lambda f: f.prune(), {"members": 1, "layers": 1}),
    "fuse": (lambda f: ["fuse", *f.members(), *f.out("again.st")], {"members": 1, "layers": 1}),
    "predict": (
        lambda f: ["predict", f.hydra(), f.data(), *f.out("predictions.jsonl")],
        {"members": 1, "layers": 1, "classes": 1, "samples": 1, "processes": 1},
    ),
    "eval": (
        lambda f: ["eval", f.hydra(), "--data", f.data(), "--bootstrap", "0", *f.out("report.json")],
        {"members": 1, "layers": 1, "classes": 1, "samples": 1, "processes": 1},
    ),
}  # fmt: skip
"""Command of each stage, with its axes and the exponent of the method for each axis."""


def main() -> int:
    """Measure, and print a table per axis. The exit code is 1 if a claim fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=2, help="repetitions of each measurement")
    parser.add_argument("--axis", nargs="+", choices=list(AXES), default=list(AXES), help="sizes to vary")
    parser.add_argument("-o", "--out", type=Path, help="folder for the numbers and the figure")
    parser.add_argument("--worker", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return worker(options.worker)
    found: dict[str, dict[str, dict[int, Cost]]] = {}
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        for axis in options.axis:
            found[axis] = measured(Path(name) / axis, axis, options.repeats)
            failed += report(axis, found[axis])
    if options.out is not None:
        write(options.out, found)
    return 1 if failed else 0


def measured(root: Path, axis: str, repeats: int) -> dict[str, dict[int, Cost]]:
    """Return the cost of every stage at every size of an axis. The sizes run in turn."""
    root.mkdir()
    folders = {size: Folder(root, Sizes(**{**USUAL, axis: size})) for size in AXES[axis]}
    found: dict[str, dict[int, Cost]] = {}
    for stage, (command, axes) in STAGES.items():
        if axis not in axes:
            continue
        tries: dict[int, list[Cost]] = {size: [] for size in folders}
        for _ in range(repeats):
            for size, folder in folders.items():
                tries[size].append(cost(command(folder), processes=folder.sizes.processes))
        found[stage] = {
            size: Cost(seconds=min(c.seconds for c in costs), mib=min(c.mib for c in costs))
            for size, costs in tries.items()
        }
    return found


def cost(command: Sequence[str], *, processes: int) -> Cost:
    """Return the cost of a command; with several processes, the maximum over the processes."""
    lines = run(command, processes=processes)
    costs = [json.loads(line.partition("COST ")[2]) for line in lines if "COST " in line]
    return Cost(seconds=max(c["seconds"] for c in costs), mib=max(c["mib"] for c in costs))


def run(command: Sequence[str], *, processes: int = 1) -> list[str]:
    """Run a hydractl command in worker processes and return the lines of their output.

    Raises:
        SystemExit: If the command fails.
    """
    start = [sys.executable]
    if processes > 1:
        start += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    done = subprocess.run(
        [*start, __file__, "--worker", *command], env=os.environ | {"OMP_NUM_THREADS": "1"}, text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}")
    return done.stdout.splitlines()


def worker(arguments: list[str]) -> int:
    """Run a command and print its cost above the libraries. Returns the exit code."""
    import timm  # noqa: F401 - what is measured begins after it
    import torch

    from hydractl.cli.app import main as hydractl

    torch.set_num_threads(1)
    torch.zeros(1).softmax(0)
    before, began = peak(), time.process_time()
    code = hydractl(arguments)
    seconds = time.process_time() - began
    print("COST " + json.dumps({"seconds": seconds, "mib": (peak() - before) / MIB}), flush=True)
    return code


def report(axis: str, found: dict[str, dict[int, Cost]]) -> int:
    """Print the table of an axis, and return the number of failed claims."""
    sizes = AXES[axis]
    print(
        f"\n{axis:14s}"
        + "".join(f"{size:>17}" for size in sizes)
        + "   exponents of time and memory in the last step"
    )
    failed = 0
    for stage, costs in found.items():
        cells = "".join(f"{costs[s].seconds:8.2f} s{costs[s].mib:4.0f} MiB" for s in sizes)
        if axis == "processes":
            one, two = (costs[size].seconds for size in sizes)
            print(
                f"  {stage:14s}{cells}   the busiest of two processes computes {two / one:.2f} times the work of one",
                flush=True,
            )
            continue
        time_grows = exponent(sizes, [costs[s].seconds for s in sizes], LEAST_S)
        memory_grows = exponent(sizes, [costs[s].mib for s in sizes], LEAST_MIB)
        bound = BOUND * STAGES[stage][1][axis]
        fails = time_grows > bound or memory_grows > bound
        failed += fails
        print(
            f"  {stage:14s}{cells}   {time_grows:5.2f} {memory_grows:5.2f}  {'FAILS' if fails else 'holds'}: at most {bound:.1f}",
            flush=True,
        )
    return failed


def exponent(sizes: Sequence[int], values: Sequence[float], least: float) -> float:
    """Return the log-log slope between the last two sizes. Values below `least` are raised to `least`."""
    low, high = (max(value, least) for value in values[-2:])
    return math.log(high / low) / math.log(sizes[-1] / sizes[-2])


def write(out: Path, found: dict[str, dict[str, dict[int, Cost]]]) -> None:
    """Write all points, and plot them."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    points = {
        axis: {
            stage: {str(size): {"seconds": c.seconds, "mib": c.mib} for size, c in costs.items()}
            for stage, costs in stages.items()
        }
        for axis, stages in found.items()
    }
    out.with_suffix(".json").write_text(json.dumps(points, indent=1) + "\n")
    axes = [axis for axis in found if axis != "processes"]
    figure, panels = plt.subplots(
        2, len(axes), figsize=(3.4 * len(axes), 6), squeeze=False, layout="constrained", sharey="row"
    )
    for column, axis in enumerate(axes):
        for row, (of, title) in enumerate(
            (("seconds", "processor time in s"), ("mib", "peak memory in MiB"))
        ):
            panel = panels[row][column]
            for stage, costs in found[axis].items():
                values = [max(getattr(c, of), 0.01) for c in costs.values()]
                panel.loglog(list(costs), values, "o-", color=f"C{list(STAGES).index(stage)}", label=stage)
            panel.set(xlabel=axis, ylabel=title, xticks=AXES[axis], xticklabels=AXES[axis])
            panel.minorticks_off()
            panel.grid(visible=True, alpha=0.3)
    lines = [line for row in panels for panel in row for line in panel.get_lines()]
    drawn = {str(line.get_label()): line for line in lines}
    figure.legend(drawn.values(), drawn.keys(), loc="outside lower center", ncols=len(drawn))
    figure.savefig(out.with_suffix(".png"), dpi=120)


if __name__ == "__main__":
    sys.exit(main())
