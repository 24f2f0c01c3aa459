"""Measure the speed of image batches for training and evaluation, compared with timm's loader.

Both loaders read the same generated JPEG files of 500 x 375 pixels on `--workers` cores. timm uses as many
worker processes. hydractl runs as with `--num-workers auto` for many images: threads on up to two cores,
otherwise as many processes as cores. A second line without a claim always uses processes. Processes are
started before the clock and reused for all repetitions. Training applies random crops, flips, and two
RandAugment operations of magnitude 12. Evaluation resizes and crops as for ImageNet models: bit-identical to
timm, and with `::decode=fast` equal up to rounding.

Both loaders return normalized float32 batches of shape (64, 3, 224, 224). Each repetition reads all images
once with each loader in turn, so that other load on the machine affects both. Ratios are medians over the
repetitions.

    python benchmarks/feeding.py [--workers 1 2] [--images 800] [--repeats 5]
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from photos import write_photos
from timm.data import create_dataset, create_loader

from hydractl.data.batches import batches, epoch_order
from hydractl.data.datasets import ImageSet, of_kind
from hydractl.data.open_dataset import open_items, with_workers
from hydractl.data.preprocess import eval_transform, train_transform
from hydractl.data.worker_pool import MIN_IMAGES, default_workers
from hydractl.manifest.header import Preprocess

PREPROCESS = Preprocess(
    input_size=(3, 224, 224),
    interpolation="bicubic",
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
    crop_pct=0.875,
)
BATCH, SIDES, COARSE = 64, (500, 375), (16, 12)
AUGMENT = ("rrc", "flip", "randaugment")


@dataclass(frozen=True, slots=True)
class Claim:
    """Lower bound on the speed relative to timm.

    Attributes:
        fed: Name in messages; `training` for training batches.
        bound: Smallest allowed ratio of images per second.
        keys: Options appended to the data reference.
    """

    fed: str
    bound: float
    keys: str = ""

    @property
    def trains(self) -> bool:
        """Whether batches are augmented."""
        return self.fed == "training"


CLAIMS = (
    Claim("training", 1.0),
    Claim("evaluation", 1.25),
    Claim("evaluation with decode=fast", 1.25, "::decode=fast"),
)
GROWTH = 1.5
"""Smallest allowed speed-up from one core to two. Chosen by hand; 2 is ideal scaling, so the doubled bound is
out of reach."""
ALL = sorted(os.sched_getaffinity(0))


def main() -> int:
    """Measure, and print one line per claim. The exit code is 1 if a claim fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2], help="numbers of cores")
    parser.add_argument("--images", type=int, default=800, help="number of JPEG files")
    parser.add_argument("--repeats", type=int, default=5, help="repetitions of each measurement")
    options = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        write_photos(Path(name) / "all", options.images, size=SIDES, coarse=COARSE)
        print(f"{options.images} JPEG files of {SIDES[0]}x{SIDES[1]}, {len(ALL)} cores")
        for claim in CLAIMS:
            fastest: dict[int, float] = {}
            for workers in options.workers:
                on_cores(workers)
                auto = default_workers(MIN_IMAGES)
                for own in sorted({auto, workers}):
                    ours, theirs = measured(name, claim, own, workers, options.repeats)
                    ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
                    rate, other = map(statistics.median, (ours, theirs))
                    line = (
                        f"{claim.fed}, {workers} cores: {rate:.0f} images/s in {f'{own} processes' if own else 'threads'}, "
                        f"timm {other:.0f}; median ratio {ratio:.3f}"
                    )
                    if own == auto:
                        fastest[workers] = rate
                        failed += ratio < claim.bound
                        line += f", claim at least {claim.bound}: {format_verdict(ratio >= claim.bound)}"
                    print(line, flush=True)
            failed += not check_growth(claim.fed, fastest)
    return 1 if failed else 0


def on_cores(count: int) -> None:
    """Restrict this process, its future child processes and torch to the first `count` cores."""
    os.sched_setaffinity(0, ALL[:count])
    torch.set_num_threads(min(count, len(ALL)))


def check_growth(fed: str, fastest: dict[int, float]) -> bool:
    """Print and return whether two cores are fast enough; True if not measured on one and two cores."""
    if not {1, 2} <= fastest.keys():
        return True
    ratio = fastest[2] / fastest[1]
    print(
        f"{fed}: rate on 2 cores / 1 core {ratio:.2f}, claim at least {GROWTH}: {format_verdict(ratio >= GROWTH)}"
    )
    return ratio >= GROWTH


def format_verdict(holds: bool) -> str:
    """Format the verdict of a claim."""
    return "holds" if holds else "FAILS"


def measured(
    folder: str, claim: Claim, own: int, workers: int, repeats: int
) -> tuple[list[float], list[float]]:
    """Measure images per second of both loaders, in turn.

    Args:
        folder: Folder of images.
        claim: Kind of batches.
        own: Worker processes of hydractl; 0 for threads.
        workers: Worker processes of timm.
        repeats: Repetitions after one warm-up pass.

    Returns:
        Rates of hydractl and of timm, one number per repetition.
    """
    sides = hydractl_batches(folder, claim, own), timm_batches(folder, claim, workers)
    rates: tuple[list[float], list[float]] = ([], [])
    for repeat in range(repeats + 1):
        for side, found in zip(sides, rates, strict=True):
            rate = rate_of(side(repeat))
            if repeat:
                found.append(rate)
    return rates


def rate_of(fed: Iterable[torch.Tensor]) -> float:
    """Return the images per second of one pass."""
    begun, count = time.perf_counter(), 0
    for images in fed:
        count += len(images)
    return count / (time.perf_counter() - begun)


def hydractl_batches(folder: str, claim: Claim, workers: int) -> Callable[[int], Iterable[torch.Tensor]]:
    """Return a function from an epoch number to batches, as in `finetune` or `eval`."""
    images = of_kind(
        with_workers(open_items(f"{folder}/{claim.keys}", PREPROCESS, labelled=False), workers), ImageSet
    )
    # Workers inherit the CPU affinity of the fork server from its first start, so they are set to the current
    # cores. 50 tasks are enough to reach every worker.
    if images.workers is not None:
        told = [images.workers.submit(os.sched_setaffinity, 0, os.sched_getaffinity(0)) for _ in range(50)]
        for future in told:
            future.result()
    training = train_transform(PREPROCESS, AUGMENT)

    def epoch(number: int) -> Iterable[torch.Tensor]:
        transform = training.at(seed=0, epoch=number) if claim.trains else eval_transform(PREPROCESS)
        order = epoch_order(len(images), seed=0, epoch=number) if claim.trains else None
        return (batch.inputs for batch in batches(images, transform, batch_size=BATCH, indices=order))

    return epoch


def timm_batches(folder: str, claim: Claim, workers: int) -> Callable[[int], Iterable[torch.Tensor]]:
    """Return a function that yields an epoch of timm's loader. timm's prefetcher normalizes whole batches."""
    loader = create_loader(
        create_dataset("", root=folder),
        PREPROCESS.input_size,
        BATCH,
        is_training=claim.trains,
        interpolation=PREPROCESS.interpolation,
        mean=PREPROCESS.mean,
        std=PREPROCESS.std,
        crop_pct=PREPROCESS.crop_pct,
        num_workers=workers,
        persistent_workers=workers > 0,
        device=torch.device("cpu"),
        **(
            {"scale": (0.08, 1.0), "hflip": 0.5, "color_jitter": None, "auto_augment": "rand-m12-n2"}
            if claim.trains
            else {}
        ),
    )
    return lambda _: (images for images, _ in loader)


if __name__ == "__main__":
    raise SystemExit(main())
