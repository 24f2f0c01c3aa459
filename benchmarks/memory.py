"""Measure the peak memory of `prune` and `fuse` at ViT-B size with 3 members, above `import timm`.

Runs with and without verification. Both commands copy tensor by tensor, and verify by filling each block from
the files while it runs, so neither holds a model. All tensors differ between the members, as after
fine-tuning; MLPs are averaged, or kept separate.

    python benchmarks/memory.py [--arch vit_base_patch16_224]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from fuse_cost import MEGABYTE, make_members, perturb, watched


def main() -> int:
    """Make a base and members, and measure. The exit code is 1 if a command needs a model's memory."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--arch", default="vit_base_patch16_224", help="timm architecture of the base")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        members = make_members(parser.parse_args().arch, folder)
        base, masks = folder / "base.st", [f"--mask={folder / f'{i}.json'}" for i in range(3)]
        for i, member in enumerate(members):
            perturb(member, seed=i)
        fused = [*map(str, members), "--force", "-o", str(folder / "hydra.st")]
        commands = {
            "prune": ["prune", str(base), *masks, "-o", str(folder / "again{i}.st"), "--force"],
            "fuse": ["fuse", *fused],
            "fuse --mlp keep": ["fuse", *fused, "--mlp", "keep"],
        }
        _, idle = watched([], folder)
        size, failed = base.stat().st_size, 0
        print(f"base of {size / MEGABYTE:.0f} MB; `import timm` {idle / MEGABYTE:.0f} MB; further memory:")
        for said, command in commands.items():
            for verify in ("--verify", "--no-verify"):
                peak = watched([*command, verify], folder)[1] - idle
                failed += peak >= size
                print(f"{said:16} {verify:12} {peak / MEGABYTE:5.0f} MB")
    print("claim (less memory than one model):", "FAILS" if failed else "holds")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
