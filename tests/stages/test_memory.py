"""Peak memory of `prune` and `fuse` relative to the size of a model."""

from __future__ import annotations

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hydractl.checkpoint import write_checkpoint
from hydractl.families.registry import FAMILIES, base_header, expected_specs, family_for_name
from hydractl.stages.fuse.config import FuseConfig
from hydractl.stages.fuse.run import run_fuse
from hydractl.stages.prune.config import PruneConfig
from hydractl.stages.prune.run import run_prune
from support.builders import mask_file

ARCH = "vit_tiny_patch16_224"
OPTIONS = {"img_size": 16, "embed_dim": 64, "depth": 24, "num_heads": 4, "num_classes": 3}
KEEPS = ((0, 2), (1, 2, 3))


class Watched(TorchDispatchMode):
    """Dispatch mode that measures the peak size of live tensors in bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.alive, self.peak = {}, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(found):
            if isinstance(tensor, torch.Tensor) and not tensor.is_meta:
                storage = tensor.untyped_storage()
                # A strong reference would keep the tensor alive.
                self.alive[storage.data_ptr()] = StorageWeakRef(storage), storage.nbytes()
        self.alive = {at: (ref, size) for at, (ref, size) in self.alive.items() if not ref.expired()}
        self.peak = max(self.peak, sum(size for _, size in self.alive.values()))
        return found


def test_members_and_hydras_are_verified_block_by_block(tmp_path):
    described = family_for_name(ARCH).describe(ARCH, OPTIONS)
    header, family = base_header(described), FAMILIES[described.architecture.family]
    specs = expected_specs(family, header)
    with (tmp_path / "base.st").open("wb") as file:
        write_checkpoint(file, specs, lambda name: [bytes(specs[name].size_bytes)], header=header)
    masks = tuple(
        mask_file(tmp_path / f"{i}.json", header, *[keep] * OPTIONS["depth"]) for i, keep in enumerate(KEEPS)
    )
    members = tuple(tmp_path / f"m{i}.st" for i in range(len(KEEPS)))

    with Watched() as pruning:
        run_prune(PruneConfig(model=str(tmp_path / "base.st"), masks=masks, out=tmp_path / "m{i}.st"))
    with Watched() as fusing:  # a hydra without shared tensors
        models = tuple(map(str, members))
        run_fuse(FuseConfig(models=models, out=tmp_path / "hydra.st", mlp="keep", trunk=0, own_blocks=True))

    size = members[0].stat().st_size
    assert size / OPTIONS["depth"] < pruning.peak < size / 4
    assert size / OPTIONS["depth"] < fusing.peak < size / 4
