"""A model whose weights, gradients and optimiser state lie in parts, one a process: torch's FSDP, block by block.

`accelerate launch --use_fsdp` asks for it. A block's weights are whole while it computes, and no longer; what lies in files is
whole. Every process takes part whenever something is made whole: also in those forward passes for which it has no batch.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, cast

import torch
from torch import nn

from hydractl.errors import UsageError
from hydractl.families.tower import Tower
from hydractl.processes.distributed import world_size

USE_FSDP, OFFLOAD = "ACCELERATE_USE_FSDP", "FSDP_OFFLOAD_PARAMS"


def launcher_uses_fsdp() -> bool:
    """Return whether a launcher asks several processes for it.

    Raises:
        UsageError: If it asks for what there is not.
    """
    if os.environ.get(USE_FSDP, "").lower() != "true" or world_size() == 1:
        return False
    if os.environ.get(OFFLOAD, "").lower() == "true":
        raise UsageError("offloading of weights is not supported", hint="leave out `--fsdp_offload_params`")
    try:
        from torch.distributed.fsdp._common_utils import collect_grad_tensors  # noqa: F401, PLC0415 - what looks into a stream
    except ImportError as error:
        raise UsageError(
            f"`--use_fsdp` needs a newer torch than {torch.__version__}", hint="leave it out to use DDP"
        ) from error
    return True


def shard(model: nn.Module, device: torch.device, world: int) -> None:
    """Leave each process its part of a model's parameters, which are other objects of the same names then.

    Args:
        model: On any device, the same in every process.
        device: Where it computes.
        world: How many processes there are.
    """
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415 - few need it
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 - as above

    mesh = init_device_mesh(device.type, (world,))
    for tower in [module for module in model.modules() if isinstance(module, Tower)]:
        for block in tower.layers():
            fully_shard(block, mesh=mesh)
    forward = model.forward
    # logits that are a view of others would lose what tells that gradients are on their way, were they changed in place
    vars(model)["forward"] = lambda *args: forward(*args).clone()
    fully_shard(model, mesh=mesh)


def exchange(model: nn.Module, *, sync: bool) -> None:
    """Say whether the next backward pass exchanges gradients, or keeps them for one that does."""
    from torch.distributed.fsdp import FSDPModule  # noqa: PLC0415 - as above

    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(sync)


def part_again(model: nn.Module) -> None:
    """Drop what a forward pass without a backward pass has left whole."""
    from torch.distributed.fsdp import FSDPModule  # noqa: PLC0415 - as above

    if isinstance(model, FSDPModule):
        model.reshard()


def in_parts(tensor: torch.Tensor) -> bool:
    """Return whether this process has but a part of a tensor; without loading what few need."""
    return hasattr(tensor, "full_tensor")


def made_whole(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return tensors as files have them, on the CPU where they lay in parts; all processes call this."""
    return {n: cast("Any", t).full_tensor().cpu() if in_parts(t) else t for n, t in tensors.items()}


def copy_tensors(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return copies where tensors lie."""
    copies = {name: torch.empty_like(tensor) for name, tensor in tensors.items()}
    copy_into(copies.values(), tensors.values())
    return copies


def copy_into(targets: Iterable[torch.Tensor], sources: Iterable[torch.Tensor]) -> None:
    """Copy tensors all at once: on a GPU by a few kernels, however many there are."""
    torch._foreach_copy_([*map(_local, targets)], [*map(_local, sources)])


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return cast("Any", tensor).to_local() if in_parts(tensor) else tensor


def like(parameter: nn.Parameter, tensor: torch.Tensor) -> torch.Tensor:
    """Return this process's part of a whole tensor of a parameter's shape; a tensor of another shape as it is."""
    if not in_parts(parameter) or tensor.shape != parameter.shape:
        return tensor
    from torch.distributed.tensor import distribute_tensor  # noqa: PLC0415 - as above

    sharded, on_device = cast("Any", parameter), tensor.to(parameter.device)
    return distribute_tensor(on_device, sharded.device_mesh, sharded.placements, src_data_rank=None)
