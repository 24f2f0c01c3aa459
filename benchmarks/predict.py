"""Compare `predict` with a bare loop over the model on prepared batches, in items per second.

Both run in turn in one process with the same weights, threads and batches. The bare loop has its inputs in
memory on the device and runs the forward pass only. `predict` finds, reads, decodes, resizes or tokenizes the
inputs, predicts, and writes its output. One-time costs, mainly loading the model, are removed by a second run
on a part of the items: the rate is for the items that the two runs differ by. The ratio is the median over
the repetitions. Processor time is also printed, which does not depend on other load; it includes decoding
even if other cores decode in parallel.

    python benchmarks/predict.py [--arch vit_small_patch16_224] [--items 96] [--batch-size 8] [--repeats 3]
                                 [--device cpu]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from photos import write_photos

from hydractl.checkpoint import write_tensors
from hydractl.data.batches import eval_batches
from hydractl.data.open_dataset import open_items
from hydractl.families.open_model import open_model
from hydractl.fusion.build import load_any
from hydractl.runtime import pick_device
from hydractl.stages.predict.config import PredictConfig
from hydractl.stages.predict.run import run_predict

CLAIM = 0.95
"""Smallest allowed ratio of the rates, chosen by hand. Twice the loss (0.90) would hide an overhead of up to
10 %."""
PART = 4
"""Divisor for the items of the second run. Chosen by hand; doubling measures the rate on more items and
shortens the second run."""
SIDE = 256


class Both(NamedTuple):
    """A quantity by wall-clock time, and by processor time of all threads."""

    wall: float
    processor: float


def main() -> int:
    """Measure, and return 1 if the claim fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--arch", default="vit_small_patch16_224", help="timm architecture")
    parser.add_argument("--items", type=int, default=96, help="number of images")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3, help="repetitions of the pair of runs")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        base = folder / "base.st"
        model_file = open_model(f"arch:{options.arch}")
        with base.open("wb") as file:
            write_tensors(file, model_file.checkpoint.tensors(), header=model_file.header)
        for part, count in (("whole", options.items), ("part", options.items // PART)):
            write_photos(folder / part, count, size=(SIDE, SIDE), coarse=(16, 16))
        pairs = [measured(base, folder, options) for _ in range(options.repeats)]
    print(
        f"{options.arch}, {options.items} JPEG files of {SIDE}x{SIDE}, batches of {options.batch_size}, {options.device}"
    )
    for bare, predict in pairs:
        told_of = (
            f"{own.wall:8.2f} items/s ({own.processor:.2f} per processor second)" for own in (bare, predict)
        )
        print("  bare loop {}   predict {}".format(*told_of))
    ratio, processor = (statistics.median(predict[k] / bare[k] for bare, predict in pairs) for k in range(2))
    print(f"median ratio in processor time {processor:.3f}")
    print(f"median ratio {ratio:.3f}, claim at least {CLAIM}: {'holds' if ratio >= CLAIM else 'FAILS'}")
    return 0 if ratio >= CLAIM else 1


def measured(base: Path, folder: Path, options: argparse.Namespace) -> tuple[Both, Both]:
    """Return the rates of the bare loop and of `predict`, in items per second."""
    loop = bare_seconds(base, folder / "whole", options)
    whole, part = (timed(partial(predict_folder, base, folder, name, options)) for name in ("whole", "part"))
    more = options.items - options.items // PART
    bare = Both(*(options.items / seconds for seconds in loop))
    return bare, Both(*(more / (a - b) for a, b in zip(whole, part, strict=True)))


def bare_seconds(base: Path, data: Path, options: argparse.Namespace) -> Both:
    """Return the time for the forward passes of all batches, after a warm-up with the first batch."""
    device = pick_device(options.device)
    model_file = open_model(str(base))
    model = load_any(model_file).to(device)
    preprocess = model_file.header.preprocess
    items = open_items(f"{data}/", preprocess, labelled=False)
    batches = [
        b.inputs.to(device)
        for b in eval_batches(items, preprocess, batch_size=options.batch_size)
        if isinstance(b.inputs, torch.Tensor)
    ]

    def loop() -> None:
        for batch in batches:
            model(batch)
        if device.type == "cuda":
            torch.cuda.synchronize()

    with torch.inference_mode():
        model(batches[0])
        return timed(loop)


def predict_folder(base: Path, folder: Path, name: str, options: argparse.Namespace) -> None:
    """Run `predict` on one folder."""
    run_predict(
        PredictConfig(
            model=str(base),
            data=(f"{folder / name}/",),
            out=folder / f"{name}.jsonl",
            batch_size=options.batch_size,
            device=options.device,
            force=True,
        )
    )


def timed(work: Callable[[], None]) -> Both:
    """Return the seconds of a function."""
    wall, processor = time.perf_counter(), time.process_time()
    work()
    return Both(time.perf_counter() - wall, time.process_time() - processor)


if __name__ == "__main__":
    raise SystemExit(main())
