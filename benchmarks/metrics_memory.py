"""Measure the memory of `eval` for predictions stored on disk: peak above the libraries, and growth.

Random predictions of 3 members are stored as `eval` does, batch by batch. Then one pass of a temperature fit
and all metrics run. In memory, the predictions would need 4 M N C bytes, and a copy.

    python benchmarks/metrics_memory.py [--samples 100000] [--classes 1000] [--members 3] [--at-most 500]
"""

from __future__ import annotations

import argparse
import math
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

MEGABYTE = 1e6
BATCH = 256
SCORES = ("msp", "entropy", "mi", "energy")


def worker(members: int, samples: int, classes: int, folder: Path) -> None:
    """Store and measure random predictions, and print the peak memory above the libraries, in bytes."""
    import torch

    from hydractl.metrics.compute import measure
    from hydractl.metrics.registry import METRICS
    from hydractl.metrics.resampling import Resampling
    from hydractl.metrics.temperature import Scaled, scaled_nll
    from hydractl.prediction.inference import collected

    torch.set_num_threads(1)
    draw = torch.Generator().manual_seed(0)
    # Initializes the thread pool and kernels of torch before the idle memory is measured.
    torch.randn(8, 8).softmax(0)
    idle = peak()
    labels = torch.randint(classes, (samples,), generator=draw)

    def batches() -> Iterator[tuple[torch.Tensor, ...]]:
        for indices in torch.arange(samples).split(BATCH):
            logits = torch.randn(members, len(indices), classes, generator=draw)
            logits.scatter_add_(
                2, labels[indices].expand(members, -1).unsqueeze(2), torch.full(logits.shape, 3.0)
            )
            yield indices, logits.log_softmax(-1), logits.logsumexp(-1)

    said = collected(batches(), count=samples, folder=folder)
    scaled_nll(said, labels, 1.1)  # A temperature fit has about forty passes like this.
    measure(
        Scaled(said, 1.1),
        labels,
        {"other": said},
        metrics=tuple(METRICS),
        scores=SCORES,
        resampling=Resampling(resamples=5),
    )
    print(peak() - idle)


def peak() -> int:
    """Return the peak resident memory of this process, in bytes."""
    found = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux reports ru_maxrss in KiB, macOS in bytes.
    return found if sys.platform == "darwin" else found * 1024


def measured(members: int, samples: int, classes: int) -> int:
    """Run the worker in a new process, because peak memory never falls within a process. Return its peak."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--worker", folder]
        command += ["--members", str(members), "--samples", str(samples), "--classes", str(classes)]
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> int:
    """Measure three sizes. The exit code is 1 above `--at-most`, or if growth exceeds a square root."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--members", type=int, default=3, help="number of members")
    parser.add_argument("--samples", type=int, default=100_000, help="largest number of samples")
    parser.add_argument("--classes", type=int, default=1000, help="largest number of classes")
    parser.add_argument("--at-most", type=float, default=500, help="limit in MB, without the libraries")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker is not None:
        worker(given.members, given.samples, given.classes, given.worker)
        return 0
    found = []
    print(f"{given.members} members; memory without the libraries:")
    for samples, classes in (
        (given.samples // 4, given.classes),
        (given.samples, given.classes // 4),
        (given.samples, given.classes),
    ):
        used = measured(given.members, samples, classes)
        size = 4 * given.members * samples * classes
        found.append((size, used))
        print(
            f"{samples:9} samples {classes:5} classes  {size / MEGABYTE:7.0f} MB of predictions  {used / MEGABYTE:5.0f} MB"
        )
    size, used = found[-1]
    grown = max(math.log(used / other) / math.log(size / least) for least, other in found[:-1])
    failed = used > given.at_most * MEGABYTE or grown > 1 / 2
    print(
        f"memory grows with the size of predictions to the power of {grown:.2f}; claim at most {given.at_most:.0f} MB: ",
        end="",
    )
    print("FAILS" if failed else "holds")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
