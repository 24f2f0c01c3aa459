"""Measure bfloat16 and `torch.compile` on a CPU: speed, and the effect of bfloat16 on the metrics of `eval`.

Speed: ViT-B/16 of timm and hydras of this model (`runtime_rows.py`), in float32 and bfloat16, eager and
compiled. Runs are interleaved: each round runs every variant once. Prints medians of processor seconds, and
medians of the ratios within a round. Quality: for each model, `hydractl eval` in both data types on the same
data. Prints differences as means over models with 95 % intervals.

    python benchmarks/dtypes.py [--batch 1 4] [--rounds 9] [--no-compile]
    python benchmarks/dtypes.py --models a/hydra.st b/hydra.st --data 'digits::classes=0-6,split=test'
                                --near digits::classes=7-9
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from intervals import half_interval
from runtime_rows import SINGLE, build_rows

ROWS = (SINGLE, "hydra, trunk of 8", "hydra")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
METRICS = ("accuracy", "nll", "ece", "near auroc")


def main() -> None:
    """Measure quality if models are given, else speed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4], help="batch sizes")
    parser.add_argument("--rounds", type=int, default=9, help="rounds after one warm-up round")
    parser.add_argument(
        "--no-compile", action="store_true", help="skip compiled rows, which take minutes to compile"
    )
    parser.add_argument("--models", nargs="+", help="checkpoints; measure quality instead of speed")
    parser.add_argument("--data", help="test data for --models")
    parser.add_argument("--near", help="near-OOD data for --models")
    options = parser.parse_args()
    if options.models:
        quality(options.models, options.data, options.near)
    else:
        speed(options.batch, options.rounds, compiled=not options.no_compile)


def speed(batches: list[int], rounds: int, *, compiled: bool) -> None:
    """Print a table of times for each batch size."""
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}"
    )
    runs = {}
    for name, dtype in DTYPES.items():
        torch.manual_seed(0)
        for row, built in build_rows(dtype, "cpu").items():
            if row in ROWS:
                runs[row, name] = (built.model, dtype)
                if compiled:
                    runs[row, f"{name}, compiled"] = (torch.compile(built.model, dynamic=True), dtype)
    for batch in batches:
        seconds: dict[tuple[str, str], list[float]] = {key: [] for key in runs}
        with torch.inference_mode():
            for _ in range(rounds + 1):
                for key, (run, dtype) in runs.items():
                    images = torch.randn(batch, 3, 224, 224, dtype=dtype)
                    begin = time.process_time()
                    run(images)
                    seconds[key].append(time.process_time() - begin)
        print(f"\nbatch {batch}: time in ms, and ratio to fp32")
        for (row, preprocess), found in seconds.items():
            ratio = statistics.median(a / b for a, b in zip(found[1:], seconds[row, "fp32"][1:], strict=True))
            print(
                f"  {row:20s} {preprocess:15s} {1e3 * statistics.median(found[1:]):8.1f}  {ratio:.3f}",
                flush=True,
            )


def quality(models: list[str], data: str, near: str) -> None:
    """Print the metrics of `eval` in both data types."""
    found = {name: [evaluated(model, data, near, name) for model in models] for name in DTYPES}
    for metric in METRICS:
        apart = [b[metric] - a[metric] for a, b in zip(found["fp32"], found["bf16"], strict=True)]
        means = ", ".join(
            f"{name} {statistics.fmean(one[metric] for one in rows):.4f}" for name, rows in found.items()
        )
        half = f" ± {half_interval(apart):.4f}" if len(apart) > 1 else ""
        print(f"{metric:12s} {means}, difference {statistics.fmean(apart):+.4f}{half}")


def evaluated(model: str, data: str, near: str, dtype: str) -> dict[str, float]:
    """Return the metrics of a model in a data type, with a single near-OOD set."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "report.json"
        command = [
            "eval",
            model,
            "--data",
            data,
            "--near",
            near,
            "--dtype",
            dtype,
            "--no-latency",
            "-o",
            str(out),
        ]
        subprocess.run([sys.executable, "-m", "hydractl", *command], check=True, capture_output=True)
        row = json.loads(out.read_text(encoding="utf-8"))["rows"][0]
    (shifted,) = row["ood"].values()
    return {name: row["values"][name]["value"] for name in METRICS[:-1]} | {
        METRICS[-1]: shifted["auroc"]["value"]
    }


if __name__ == "__main__":
    main()
