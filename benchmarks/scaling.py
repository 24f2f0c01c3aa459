"""Measure the speed-up of circuit scoring by a second process (one thread each), and compare outputs.

Each repetition scores once with one process and once with several; the figures are medians of the ratios
within a repetition. There are three clocks. `command` is the whole command, including the start of Python and
torch. `scoring` is the stage: model, data and all removals. `work` is the processor time of the busiest
process. On an idle machine `work` equals `scoring`. On a busy machine `work` still shows the division of the
work, and the other clocks depend on the available share of the machine. This share is printed; ratios of
`command` and `scoring` are only meaningful on an idle machine.

    python benchmarks/scaling.py [--repeats 5] [--processes 2] [--samples 512] [--remove 2]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
MODEL = "arch:vit_tiny_patch16_224::img_size=32,patch_size=4,in_chans=1,embed_dim=96,depth=6,num_heads=6,num_classes=10"
IDLE = 0.9
"""Share of a processor above which the machine counts as idle. Chosen by hand. Smaller values accept busier
machines; values above 1 never count as idle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Measurements of one run.

    Attributes:
        command: Seconds of the whole command.
        scoring: Seconds of the stage in rank 0.
        work: Processor seconds of the stage in the busiest process.
        share: Largest processor time of a process divided by the time of the stage.
        file: Bytes of the output file.
    """

    command: float
    scoring: float
    work: float
    share: float
    file: bytes


def main() -> int:
    """Measure, print both settings, and return 1 if the output files differ."""
    options = parsed()
    if options.worker:
        work(options)
        return 0
    sides: dict[int, list[Run]] = {1: [], options.processes: []}
    print(f"{MODEL}\n{options.samples} images in batches of {options.batch_size}, {options.remove} removals")
    print(
        f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.2f} at the start, one thread per process\n"
    )
    for _ in range(options.repeats):
        for world, runs in sides.items():
            runs.append(measured(world, options))
    for world, runs in sides.items():
        print(
            f"{world} process{'es' if world > 1 else '  '}  command {median([r.command for r in runs]):7.2f} s   "
            f"scoring {median([r.scoring for r in runs]):7.2f} s   work {median([r.work for r in runs]):7.2f} s   "
            f"share of a processor {median([r.share for r in runs]):4.2f}"
        )
    one, several = sides[1], sides[options.processes]
    for clock in ("command", "scoring", "work"):
        ratios = sorted(getattr(a, clock) / getattr(b, clock) for a, b in zip(one, several, strict=True))
        print(
            f"{clock:8s} 1 / {options.processes}: {median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        )
    share = min(median([r.share for r in runs]) for runs in sides.values())
    if share < IDLE:
        print(f"The machine was busy: processes got {share:.0%} of a processor. Only `work` is meaningful")
    same = len({run.file for runs in sides.values() for run in runs}) == 1
    print("The files are identical" if same else "THE FILES DIFFER")
    return 0 if same else 1


def parsed() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5, help="repetitions of each measurement")
    parser.add_argument("--processes", type=int, default=2, help="processes to compare with one")
    parser.add_argument("--samples", type=int, default=512, help="number of images")
    parser.add_argument("--remove", type=int, default=2, help="number of removed heads")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def measured(world: int, options: argparse.Namespace) -> Run:
    """Score once with `world` processes."""
    launcher = (
        ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)] if world > 1 else []
    )
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, *launcher, __file__, "--worker", folder]
        for name in ("samples", "remove", "batch_size"):
            command += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
        began = time.perf_counter()
        subprocess.run(
            command, env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}, check=True
        )
        took = time.perf_counter() - began
        ranks = [json.loads((Path(folder) / f"{rank}.times").read_text()) for rank in range(world)]
        return Run(
            command=took,
            scoring=ranks[0]["scoring"],
            work=max(rank["work"] for rank in ranks),
            share=max(rank["work"] / rank["scoring"] for rank in ranks),
            file=(Path(folder) / "scores.json").read_bytes(),
        )


def work(options: argparse.Namespace) -> None:
    """Score in a worker process and write the times to a file."""
    from hydractl.heads.budget import HeadBudget
    from hydractl.processes.distributed import rank
    from hydractl.stages.score.config import ScoreConfig
    from hydractl.stages.score.run import run_score

    config = ScoreConfig(
        model=MODEL,
        out=options.worker / "scores.json",
        data=f"digits::limit={options.samples}",
        given={"objective": "acc"},
        budget=HeadBudget(remove=options.remove),
        batch_size=options.batch_size,
        device="cpu",
    )
    began, worked = time.perf_counter(), time.process_time()
    run_score(config)
    times = {"scoring": time.perf_counter() - began, "work": time.process_time() - worked}
    (options.worker / f"{rank()}.times").write_text(json.dumps(times))


if __name__ == "__main__":
    sys.exit(main())
