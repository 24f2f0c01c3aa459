"""Compare an exported hydra in onnxruntime with torch: in turn on the CPU, with equally many threads.

Prints wall-clock time and processor time. Other load on the machine has little effect on processor time.

    python benchmarks/export.py [--arch vit_tiny_patch16_224] [--members 3] [--batch 1,8] [--rounds 15]
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import TYPE_CHECKING

import torch

from hydractl.cli.app import main as hydractl
from hydractl.exporting.comparison import samples
from hydractl.exporting.formats import ExportModule, named, run_onnx
from hydractl.families.open_model import open_model
from hydractl.fusion.build import load_any
from hydractl.prediction.feature_ood import WithDefaultScore

if TYPE_CHECKING:
    from collections.abc import Callable

    from hydractl.exporting.formats import Named


def run(*words: str) -> None:
    """Run a hydractl command.

    Raises:
        SystemExit: If the command fails.
    """
    if code := hydractl(list(words)):
        raise SystemExit(code)


def seconds(call: Callable[[Named], object], inputs: Named) -> tuple[float, float]:
    """Return wall-clock and processor seconds of one call."""
    start, spent = perf_counter(), process_time()
    call(inputs)
    return perf_counter() - start, process_time() - spent


def main() -> None:
    """Make a hydra of members with different heads, export the hydra, and time both."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--arch", default="vit_tiny_patch16_224", help="timm architecture")
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument("--batch", default="1,8", help="batch sizes, separated by commas")
    parser.add_argument("--rounds", type=int, default=15, help="interleaved rounds")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        members = [f"m{i}.st" for i in range(asked.members)]
        for seed, member in enumerate(members):
            run(
                "score",
                f"arch:{asked.arch}",
                "--method",
                "random",
                "--seed",
                str(seed),
                "-o",
                "scores.json",
                "-q",
                "--force",
            )
            run(
                "prune",
                f"arch:{asked.arch}",
                "--scores",
                "scores.json",
                "--keep-fraction",
                "0.67",
                "-o",
                member,
                "-q",
            )
        run("fuse", *members, "-o", "hydra.st", "-q")
        run("export", "hydra.st", "-o", "hydra.onnx", "-q")
        model_file = open_model("hydra.st")
        subject = ExportModule(WithDefaultScore.stored(load_any(model_file), model_file))
        session = run_onnx(Path("hydra.onnx").read_bytes())
    print(
        f"{asked.arch}, {asked.members} members, {torch.get_num_threads()} threads, medians of {asked.rounds} interleaved rounds"
    )
    for batch in map(int, asked.batch.split(",")):
        inputs = dict(named(samples(model_file.header, batch=batch, seed=0)))
        times: list[list[tuple[float, float]]] = [[], []]
        with torch.inference_mode():
            for i in range(asked.rounds + 2):
                pair = seconds(subject, inputs), seconds(session, inputs)
                for own, time in zip(times, pair, strict=True):
                    if i > 1:  # The first two rounds are warm-up.
                        own.append(time)
        for i, what in enumerate(("the clock", "processors")):
            ours, theirs = ([time[i] for time in own] for own in times)
            ratio = median(b / a for a, b in zip(ours, theirs, strict=True))  # Ratios of consecutive runs.
            print(
                f"batch {batch}, {what}: torch {1e3 * median(ours):.1f} ms, onnxruntime {1e3 * median(theirs):.1f} ms, "
                f"ratio {ratio:.2f} (claim: at most 1.1)"
            )


if __name__ == "__main__":
    main()
