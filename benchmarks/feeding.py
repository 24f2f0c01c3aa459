"""How fast images are fed: the batches of training and of evaluation, beside timm's own loader.

Both read the same JPEG files of 500 x 375, which are made here, on `--workers` cores: timm in as many worker processes; we as
`--num-workers auto` does for many images, in threads up to two cores and else in as many processes, and beside it, without a
claim, in processes whatever the number. Processes are there when the clock starts, and stay for all repetitions. Training crops at
random, mirrors, and applies two operations of RandAugment at magnitude 12; evaluation resizes and crops as ImageNet's models do,
to the bit as timm, and then with `::decode=fast` but for rounding.
Both give batches (64, 3, 224, 224), float32, normalised. Each repetition feeds all images once from either side, in turn, so that
a busy machine is busy for both; ratios are medians over the repetitions.

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
from hydractl.data.open_dataset import crewed, open_items
from hydractl.data.preprocess import eval_transform, train_transform
from hydractl.data.worker_pool import MANY, paying
from hydractl.manifest.header import Preprocess

HOW = Preprocess(
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
    """How many images a second, of timm's, are fed at least; `keys` are those of the data's reference."""

    fed: str
    bound: float
    keys: str = ""

    @property
    def trains(self) -> bool:
        """Whether images are changed at random."""
        return self.fed == "training"


CLAIMS = (
    Claim("training", 1.0),
    Claim("evaluation", 1.25),
    Claim("evaluation with decode=fast", 1.25, "::decode=fast"),
)
GROWTH = 1.5
"""How much faster two cores are claimed to feed than one."""
ALL = sorted(os.sched_getaffinity(0))


def main() -> int:
    """Measure, print a line for each claim, and return 1 if one does not hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--images", type=int, default=800)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        write_photos(Path(name) / "all", options.images, size=SIDES, coarse=COARSE)
        print(f"{options.images} JPEG files of {SIDES[0]}x{SIDES[1]}, {len(ALL)} cores")
        for claim in CLAIMS:
            fastest: dict[int, float] = {}
            for workers in options.workers:
                on_cores(workers)
                auto = paying(MANY)
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
                        line += f", claimed at least {claim.bound}: {judged(ratio >= claim.bound)}"
                    print(line, flush=True)
            failed += not grows(claim.fed, fastest)
    return 1 if failed else 0


def on_cores(count: int) -> None:
    """Leave this process, and those that it will start, so many cores."""
    os.sched_setaffinity(0, ALL[:count])
    torch.set_num_threads(min(count, len(ALL)))


def grows(fed: str, fastest: dict[int, float]) -> bool:
    """Print whether two cores feed as much faster than one as is claimed; true where that was not measured."""
    if not {1, 2} <= fastest.keys():
        return True
    ratio = fastest[2] / fastest[1]
    print(f"{fed}: 2 cores to 1 {ratio:.2f}, claimed at least {GROWTH}: {judged(ratio >= GROWTH)}")
    return ratio >= GROWTH


def judged(holds: bool) -> str:
    """Return what is printed of a claim."""
    return "holds" if holds else "FAILS"


def measured(
    folder: str, claim: Claim, own: int, workers: int, repeats: int
) -> tuple[list[float], list[float]]:
    """Return the images a second of ours with `own` processes and timm's, a number a repetition; each has fed once before."""
    sides = ours(folder, claim, own), theirs(folder, claim, workers)
    rates: tuple[list[float], list[float]] = ([], [])
    for repeat in range(repeats + 1):
        for side, found in zip(sides, rates, strict=True):
            rate = rate_of(side(repeat))
            if repeat:
                found.append(rate)
    return rates


def rate_of(fed: Iterable[torch.Tensor]) -> float:
    """Return how many images come a second."""
    begun, count = time.perf_counter(), 0
    for images in fed:
        count += len(images)
    return count / (time.perf_counter() - begun)


def ours(folder: str, claim: Claim, workers: int) -> Callable[[int], Iterable[torch.Tensor]]:
    """Return what feeds an epoch as `finetune` or `eval` does."""
    images = of_kind(crewed(open_items(f"{folder}/{claim.keys}", HOW, labelled=False), workers), ImageSet)
    if images.crew is not None:  # what forks them knows the cores of the first
        told = [images.crew.submit(os.sched_setaffinity, 0, os.sched_getaffinity(0)) for _ in range(50)]
        for future in told:
            future.result()
    training = train_transform(HOW, AUGMENT)

    def epoch(number: int) -> Iterable[torch.Tensor]:
        transform = training.at(seed=0, epoch=number) if claim.trains else eval_transform(HOW)
        order = epoch_order(len(images), seed=0, epoch=number) if claim.trains else None
        return (batch.inputs for batch in batches(images, transform, batch_size=BATCH, indices=order))

    return epoch


def theirs(folder: str, claim: Claim, workers: int) -> Callable[[int], Iterable[torch.Tensor]]:
    """Return what timm feeds an epoch with; its prefetcher normalises whole batches."""
    loader = create_loader(
        create_dataset("", root=folder),
        HOW.input_size,
        BATCH,
        is_training=claim.trains,
        interpolation=HOW.interpolation,
        mean=HOW.mean,
        std=HOW.std,
        crop_pct=HOW.crop_pct,
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
