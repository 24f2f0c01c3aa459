"""Measure `finetune --train-parts head` with stored features, with the encoder in each step, and full training.

The model is a random ViT-Ti/16 at 224 pixels; the data are generated JPEG files of 320 x 240 in four classes.
Each repetition trains once in each mode, in turn, so that other load affects all modes. Ratios are medians
over the repetitions. The exit code is 1 if the two classifiers differ by more than 1e-5.

    python benchmarks/head_training.py [--images 256] [--epochs 10] [--repeats 3]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from unittest.mock import patch

from photos import write_photos

from hydractl.checkpoint import Checkpoint
from hydractl.data.reference import DataRef
from hydractl.stages.finetune import run as stage
from hydractl.stages.finetune.config import FinetuneConfig
from hydractl.training.recipe import PARTS, Recipe

MODEL = "arch:vit_tiny_patch16_224"
TOLERANCE = 1e-5
"""Largest allowed difference of a weight between the two classifiers. Chosen by hand for rounding in fp32;
doubling hides larger differences."""
KEPT, EACH, WHOLE = "features kept", "encoder in each step", "all trains"


def main() -> int:
    """Measure, print one line per mode, and return 1 if the classifiers differ."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=256, help="number of images")
    parser.add_argument("--epochs", type=int, default=10, help="epochs of each training")
    parser.add_argument("--repeats", type=int, default=3, help="repetitions of each training")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "data").mkdir()
        for label in "abcd":
            write_photos(folder / "data" / label, options.images // 4, size=(320, 240), coarse=(16, 12))
        seconds: dict[str, list[float]] = {KEPT: [], EACH: [], WHOLE: []}
        for _ in range(options.repeats):
            for way, times in seconds.items():
                times.append(timed(folder, way, options.epochs))
        kept, each = (Checkpoint.open(folder / f"{way}.st").tensors() for way in (KEPT, EACH))
    apart = max(float((tensor - each[name]).abs().max()) for name, tensor in kept.items())
    for way, times in seconds.items():
        ratio = statistics.median(a / b for a, b in zip(times, seconds[KEPT], strict=True))
        print(f"{way}: {statistics.median(times):.1f} s, {ratio:.2f} times as long as with stored features")
    print(f"largest difference between the weights of the two classifiers: {apart:.1e}")
    return int(apart > TOLERANCE)


def timed(folder: Path, way: str, epochs: int) -> float:
    """Train in one mode and return the seconds."""
    data = DataRef.parse(str(folder / "data"))
    recipe = Recipe(epochs=epochs, batch_size=32, train_parts=PARTS if way == WHOLE else ("head",))
    config = FinetuneConfig(
        model=MODEL, train=data, val=data, recipe=recipe, out=folder / f"{way}.st", force=True, device="cpu"
    )
    begin = time.perf_counter()
    if way == EACH:
        with patch.object(stage, "keep_features", lambda *_: None):
            stage.run_finetune(config)
    else:
        stage.run_finetune(config)
    return time.perf_counter() - begin


if __name__ == "__main__":
    raise SystemExit(main())
