"""How much memory it takes to make members and hydras, beside a model's size."""

from __future__ import annotations

import ctypes
from functools import partial
from pathlib import Path

import pytest

from hydractl.checkpoint import write_checkpoint
from hydractl.families.opening import base_header, expected_specs
from hydractl.families.registry import FAMILIES, family_for_name
from hydractl.stages.fuse.config import FuseConfig
from hydractl.stages.fuse.run import run_fuse
from hydractl.stages.prune.config import PruneConfig
from hydractl.stages.prune.run import run_prune
from support.builders import mask_file

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
OPTIONS = {"img_size": 32, "embed_dim": 256, "num_heads": 4, "num_classes": 3}
KEEPS = ((0, 2), (1, 2, 3))

pytestmark = pytest.mark.skipif(not RESET.exists(), reason="only Linux tells the peak of one's own memory")


def kilobytes(field: str) -> int:
    return next(int(line.split()[1]) for line in STATUS.read_text().splitlines() if line.startswith(field))


def peak(run) -> int:
    """Return by how many bytes the process was larger at most than before."""
    if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)  # what earlier tests gave back would hide what this one takes
    before = kilobytes("VmRSS")
    RESET.write_text("5")
    run()
    return 1024 * (kilobytes("VmHWM") - before)


def work(folder: Path, *, depth: int) -> dict[str, int]:
    """Prune two members, fuse them into a hydra that shares nothing, and return each stage's peak over a member's size."""
    described = family_for_name("vit_tiny_patch16_224").describe(
        "vit_tiny_patch16_224", OPTIONS | {"depth": depth}
    )
    header, family = base_header(described), FAMILIES[described.architecture.family]
    specs = expected_specs(family, header)
    with (folder / "base.st").open("wb") as file:
        write_checkpoint(file, specs, lambda name: [bytes(specs[name].size_bytes)], header=header)
    masks = tuple(mask_file(folder / f"{i}.json", header, *[keep] * depth) for i, keep in enumerate(KEEPS))
    pruning = PruneConfig(model=str(folder / "base.st"), masks=masks, out=folder / "m{i}.st")
    fusing = FuseConfig(
        models=tuple(str(folder / f"m{i}.st") for i in range(len(KEEPS))),
        out=folder / "hydra.st",
        mlp="keep",
        own_from=0,
    )
    return {"prune": peak(partial(run_prune, pruning)), "fuse": peak(partial(run_fuse, fusing))}


def test_members_and_hydras_are_verified_block_by_block(tmp_path):
    (tmp_path / "warm").mkdir()
    work(tmp_path / "warm", depth=1)

    peaks = work(tmp_path, depth=16)

    size = (tmp_path / "m0.st").stat().st_size
    assert size > 40e6
    assert all(0 < taken < size / 2 for taken in peaks.values()), (peaks, size)
