"""Measure `fuse` at ViT-L size with 3 members: peak memory above `import timm`, and time relative to `cp`.

`cp` and `fuse` run in turn, both writing new files. The time ratio is the median of the ratios within a
repetition. The time of `import timm`, which `fuse` needs for the tensors of the architecture, is subtracted;
the time of the whole command is also printed. There are two types of members: pruned only (shared MLPs), and
fine-tuned (every tensor differs, MLPs are averaged).

    python benchmarks/fuse_cost.py [--repeats 5] [--arch vit_large_patch16_224]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from hydractl.checkpoint import Checkpoint, write_tensors
from hydractl.families.open_model import open_model
from hydractl.manifest.head_mask import HeadMask, TowerKeep

MEGABYTE = 1e6
# The process reads VmHWM itself: ru_maxrss, as reported to a parent, also counts the memory before `exec`.
WATCHED = """
import sys
from pathlib import Path
code = 0
if sys.argv[2:]:
    from hydractl.cli.app import main
    code = main(sys.argv[2:])
else:
    import timm
peak = next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
Path(sys.argv[1]).write_text(peak)
sys.exit(code)
"""
MEMORY_CLAIM = "4 x largest output tensor + 100 MB"
TIME_CLAIM = 2.0


def main() -> int:
    """Build the members and measure both types. The exit code is 1 if a claim fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5, help="repetitions of each measurement")
    parser.add_argument("--arch", default="vit_large_patch16_224", help="timm architecture of the members")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        members = make_members(options.arch, Path(folder))
        failed = measure("pruned", members, options.repeats)
        for i, member in enumerate(members):
            perturb(member, seed=i)
        failed += measure("fine-tuned", members, options.repeats)
    return 1 if failed else 0


def make_members(arch: str, folder: Path) -> list[Path]:
    """Prune a random base to two thirds of its heads, with three different masks."""
    model_file = open_model(f"arch:{arch}")
    base = folder / "base.st"
    base.write_bytes(model_file.checkpoint.paths[0].read_bytes())
    tower = model_file.header.architecture.towers["vision"]
    kept = round(tower.num_heads * 2 / 3)
    for i in range(3):
        rows = tuple(
            tuple(sorted((h + i + layer) % tower.num_heads for h in range(kept)))
            for layer in range(tower.layers)
        )
        mask = HeadMask(towers={"vision": TowerKeep(num_heads=tower.num_heads, keep=rows)})
        (folder / f"{i}.json").write_text(mask.to_json())
    masks = [f"--mask={folder / f'{i}.json'}" for i in range(3)]
    run(
        [
            sys.executable,
            "-m",
            "hydractl",
            "prune",
            str(base),
            *masks,
            "--no-verify",
            "-q",
            "-o",
            str(folder / "m{i}.st"),
        ]
    )
    return [folder / f"m{i}.st" for i in range(3)]


def perturb(member: Path, *, seed: int) -> None:
    """Add small noise to every tensor, like fine-tuning."""
    checkpoint = Checkpoint.open(member)
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        n: t + 1e-3 * torch.randn(t.shape, generator=generator) for n, t in checkpoint.tensors().items()
    }
    with member.with_suffix(".new").open("wb") as file:
        write_tensors(file, tensors, header=checkpoint.header)
    member.with_suffix(".new").replace(member)


def measure(kind: str, members: list[Path], repeats: int) -> int:
    """Run `cp` and `fuse` in turn, print both, and return the number of failed claims."""
    out = members[0].with_name("hydra.st")
    command = ["fuse", *map(str, members), "-o", str(out), "--no-verify", "--json"]
    fused, whole, copied, memory = [], [], [], []
    for _ in range(repeats):
        copies = fresh(members[0].parent / "copy")
        copied.append(run(["cp", *map(str, members), str(copies)]))
        idle_s, idle_bytes = watched([], members[0].parent)
        out.unlink(missing_ok=True)
        seconds, peak = watched(command, members[0].parent)
        whole.append(seconds)
        fused.append(seconds - idle_s)
        memory.append(peak - idle_bytes)
    specs = Checkpoint.open(out).specs.values()
    largest = max(spec.size_bytes for spec in specs)
    size = sum(path.stat().st_size for path in members)
    ratio, of_whole = (
        statistics.median(f / c for f, c in zip(x, copied, strict=True)) for x in (fused, whole)
    )
    bound = 4 * largest + 100 * MEGABYTE
    peak = statistics.median(memory)
    print(
        f"\n{kind}: 3 members of {size / 3 / MEGABYTE:.0f} MB, hydra {out.stat().st_size / MEGABYTE:.0f} MB"
    )
    print(
        f"  cp {statistics.median(copied):.2f} s, fuse {statistics.median(fused):.2f} s: ratio {ratio:.2f}, claim at most {TIME_CLAIM}"
    )
    print(f"  whole command {statistics.median(whole):.2f} s: ratio {of_whole:.2f}")
    print(
        f"  peak memory over `import timm`: {peak / MEGABYTE:.0f} MB; claim below {MEMORY_CLAIM} = {bound / MEGABYTE:.0f} MB"
    )
    failed = (ratio > TIME_CLAIM) + (peak > bound)
    print("  holds" if not failed else "  FAILS")
    return failed


def fresh(folder: Path) -> Path:
    """Create an empty folder, or remove all files of an existing folder."""
    if folder.exists():
        for path in folder.iterdir():
            path.unlink()
    folder.mkdir(exist_ok=True)
    return folder


def watched(arguments: list[str], folder: Path) -> tuple[float, float]:
    """Run `hydractl` in a new process, or `import timm` if there are no arguments.

    Returns:
        Seconds, and peak resident memory in bytes.
    """
    note = folder / "peak"
    seconds = run([sys.executable, "-c", WATCHED, str(note), *arguments])
    return seconds, 1024 * float(note.read_text())


def run(command: list[str]) -> float:
    """Run a command and return its seconds.

    Raises:
        CalledProcessError: If the command fails.
    """
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
