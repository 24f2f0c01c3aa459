"""Measure the CPU time of each stage on tiny models, relative to the import of torch.

Runs alternate: `import torch`, then each stage once, `--repeats` times after one round that fills caches. The CPU
time is the time of user and system on one thread, so other processes change it little. The models are vision
transformers of timm with 3 blocks of width 32. The data are 32 digits. Prints medians and ratios. The exit
code is 1 if a ratio is above its target.

    python benchmarks/startup.py [--repeats 9] [--only fuse predict ...]
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile

MODEL = "arch:vit_tiny_patch16_224::img_size=8,patch_size=4,in_chans=1,embed_dim=32,depth=3,num_heads=4,num_classes=10"
DATA = "digits::split={split},limit=32"
PREPARE = (
    f"finetune {MODEL} --train {DATA.format(split='train')} --val {DATA.format(split='val')} --epochs 1 -o base.st",
    "prune base.st --strategy random --remove 3 --members 3 -o m-{i}.st",
    "fuse m-0.st m-1.st m-2.st -o hydra.st",
)
STAGES = {
    "inspect": (1.5, "inspect hydra.st"),
    "prune": (1.5, "prune base.st --strategy random --remove 2 --members 2 -o n-{i}.st --force"),
    "fuse": (1.5, "fuse m-0.st m-1.st m-2.st -o other.st --force"),
    "predict": (2.0, f"predict hydra.st {DATA.format(split='test')} -o p.jsonl --force"),
    "eval": (2.0, f"eval hydra.st --data {DATA.format(split='test')} -o r.json --force"),
}
"""Target of the ratio, and command line, of each stage."""
TORCH = "import torch"


def main() -> int:
    """Measure, print a table, and return 1 if a stage misses its target."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=9, help="timed runs of each command")
    parser.add_argument("--only", nargs="+", choices=STAGES, default=list(STAGES), help="stages to run")
    options = parser.parse_args()
    lines = {TORCH: ["-c", TORCH]} | {
        name: ["-m", "hydractl", *STAGES[name][1].split()] for name in options.only
    }
    seconds: dict[str, list[float]] = {name: [] for name in lines}
    with tempfile.TemporaryDirectory() as folder:
        for line in PREPARE:
            cpu_seconds(["-m", "hydractl", *line.split()], folder)
        for repeat in range(options.repeats + 1):
            for name, words in lines.items():
                spent = cpu_seconds(words, folder)
                if repeat:  # The first round fills caches.
                    seconds[name].append(spent)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    print(
        f"CPU time, median of {options.repeats} alternating runs, load {os.getloadavg()[0]:.1f} at the end:"
    )
    missed = 0
    for name, median in medians.items():
        ratio, target = median / medians[TORCH], STAGES[name][0] if name in STAGES else 1.0
        missed += ratio > target
        spread = f"{min(seconds[name]):.2f} to {max(seconds[name]):.2f}"
        print(f"{name:14s}{median:6.2f} s ({spread}) {ratio:6.2f}, target {target}")
    return int(missed > 0)


def cpu_seconds(words: list[str], folder: str) -> float:
    """Run Python with these arguments in a folder, on one thread. Return its CPU time in seconds."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    sys.exit(main())
