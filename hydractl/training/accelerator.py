"""Training through accelerate: devices, ranks, autocast, DDP, and torch's FSDP block by block.

`accelerate launch --use_fsdp` asks for FSDP. The weights of a block are then whole only while it computes; files hold whole
tensors. Every process takes part whenever a tensor is gathered, also in forward passes for which it has no batch.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn

from hydractl.errors import UsageError
from hydractl.families.tower import Tower
from hydractl.processes.distributed import (
    PATIENCE_S,
    meeting,
    one_voice,
    own_device,
    refuse_shared_device,
    world_size,
)
from hydractl.runtime import pick_device
from hydractl.training.run_log import without_variables

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


@dataclass(frozen=True, slots=True)
class Share:
    """Which part of every batch this process computes: `pieces` consecutive ones from `first` of `total` equal pieces."""

    first: int
    pieces: int
    total: int

    def bounds(self, batch: int) -> list[tuple[int, int]]:
        """Return the rows (begin, end) of this process's pieces in a batch of `batch` samples; a piece may be empty."""
        return [
            (batch * p // self.total, batch * (p + 1) // self.total)
            for p in range(self.first, self.first + self.pieces)
        ]


class Engine:
    """One process's view of all that train together.

    Attributes:
        device: The device of this process.
        rank: The number of this process, from 0.
        world: The number of processes.
        shards: Whether models lie in parts.
    """

    def __init__(self, accelerator: Any, *, shards: bool = False) -> None:  # noqa: ANN401 - accelerate is untyped
        """Take part.

        Args:
            accelerator: Of accelerate.
            shards: Whether models lie in parts, see `sharding`.
        """
        self._accelerator = accelerator
        self.shards = shards
        self.device: torch.device = accelerator.device
        self.rank = int(accelerator.process_index)
        self.world = int(accelerator.num_processes)

    @property
    def leads(self) -> bool:
        """Whether this process writes."""
        return self.rank == 0

    def share(self, accumulate: int) -> Share:
        """Return this process's part of every batch."""
        return Share(first=self.rank * accumulate, pieces=accumulate, total=self.world * accumulate)

    def cut(self, pieces: int) -> Share:
        """Return this process's part of every batch where all processes share `pieces` equal pieces.

        Every process has at least one; where there are more processes than pieces, one of them counts for a piece: see `owner`.
        """
        first, last = (pieces * rank // self.world for rank in (self.rank, self.rank + 1))
        return Share(first=min(first, pieces - 1), pieces=max(last - first, 1), total=pieces)

    def owner(self, piece: int, pieces: int) -> int:
        """Return the process whose result counts for one of the pieces that `cut` deals out."""
        return next(r for r in range(self.world) if pieces * (r + 1) // self.world > piece)

    def sent(self, tensor: torch.Tensor, source: int) -> torch.Tensor:
        """Return process `source`'s contiguous tensor in every process; the others give one like it."""
        from accelerate.utils import broadcast  # noqa: PLC0415 - as in `start_engine`

        return cast("torch.Tensor", broadcast(tensor, from_process=source))

    def prepare(self, model: nn.Module, *, ordered: bool = False) -> nn.Module:
        """Wrap a model that is on the device, for autocast and for several processes.

        Args:
            model: What trains.
            ordered: Whether gradients are added by `OrderedGradients` and not by DDP.
        """
        if ordered or self.shards:
            # a whole model might not fit where its parts do
            prepared = self._accelerator.prepare_model(
                model, evaluation_mode=True, device_placement=not self.shards
            )
            if self.shards:
                shard(prepared, self.device, self.world)
            return cast("nn.Module", prepared)
        if self.world > 1:
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.register_hook(functools.partial(_laid_out, parameter))
        return cast("nn.Module", self._accelerator.prepare_model(model))

    def backward(self, loss: torch.Tensor, model: nn.Module, *, sync: bool) -> None:
        """Add the gradients of `loss`, exchanging them between processes only with `sync`."""
        if self.shards:  # without `sync`, this backward pass keeps its gradients for one that exchanges them
            cast("Any", model).set_requires_gradient_sync(sync)
        with contextlib.nullcontext() if sync or self.shards else self._accelerator.no_sync(model):
            self._accelerator.backward(loss)
        if not self.shards:  # those of parts lie side by side in one storage
            part_gradients(model.parameters())

    def agree(self, *, due: bool) -> bool:
        """Return what process 0 says, where all take part in what follows; else what this one says."""
        return bool(self.sum([float(due and self.leads)])[0]) if self.shards else due

    def clip(self, parameters: Sequence[nn.Parameter], limit: float) -> None:
        """Scale gradients down to a norm of `limit`."""
        self._accelerator.clip_grad_norm_(parameters, limit)

    def sum(self, values: Sequence[float]) -> list[float]:
        """Return each number summed over all processes, in float64."""
        if self.world == 1:
            return list(values)
        mine = torch.tensor(values, dtype=torch.float64, device=self.device)
        return cast("list[float]", self._accelerator.reduce(mine, reduction="sum").tolist())

    def wait(self) -> None:
        """Wait for all processes."""
        self._accelerator.wait_for_everyone()

    def forget(self) -> None:
        """Let go of the prepared models."""
        self._accelerator.free_memory()


def _laid_out(parameter: nn.Parameter, grad: torch.Tensor) -> torch.Tensor:
    """Return a gradient with its parameter's strides, which DDP asks for even along axes of length 1.

    A token's gradient is a slice of the sequence's, and with one sample a slice counts as contiguous as it is.
    """
    if grad.stride() == parameter.stride() or not (grad.is_contiguous() and parameter.is_contiguous()):
        return grad
    return grad.as_strided(parameter.shape, parameter.stride())


def part_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Give each gradient a storage of its own, after a backward pass and before anything is added to or scaled in place.

    torch takes over what a backward pass returns: views of one tensor, as of a token's and its position's gradient where a
    compiled step has one sample, would then be added to and clipped twice.
    """
    storages = set()
    for parameter in parameters:
        if parameter.grad is None:
            continue
        storage = parameter.grad.untyped_storage()._cdata  # an address its bytes need not have
        if storage in storages:
            parameter.grad = parameter.grad.clone()
        storages.add(storage)


class OrderedGradients:
    """The gradients of one step: the same bits whatever the number of processes.

    A process holds those of its own pieces until the last is there: with P pieces and W processes, P / W times the
    parameters that train; one process holds none.
    """

    def __init__(self, engine: Engine, parameters: Mapping[str, nn.Parameter], pieces: int) -> None:
        """Begin a step.

        Args:
            engine: Who computes.
            parameters: What trains, by name; their gradients are empty.
            pieces: Of a batch, over all processes, dealt out by `Engine.cut`.
        """
        self._engine = engine
        self._parameters = list(parameters.values())
        self._pieces = pieces
        self._held: list[tuple[torch.Tensor, ...]] = []

    def add(self, loss: torch.Tensor) -> None:
        """Take note of the next of this process's pieces."""
        if self._engine.world == 1:
            loss.backward()
            part_gradients(self._parameters)
        else:
            self._held.append(torch.autograd.grad(loss, self._parameters))

    def finish(self) -> None:
        """Give every parameter the sum over all pieces of all processes, in every process."""
        if self._engine.world == 1:
            return
        local_gradients = iter(self._held)
        for piece in range(self._pieces):
            source = self._engine.owner(piece, self._pieces)
            mine = next(local_gradients) if source == self._engine.rank else None
            for i, parameter in enumerate(self._parameters):
                buffer = torch.empty_like(parameter) if mine is None else mine[i]
                received = self._engine.sent(buffer.contiguous(), source)
                parameter.grad = received.clone() if parameter.grad is None else parameter.grad + received


@contextlib.contextmanager
def start_engine(device: str, *, precision: str, shards: bool = False) -> Iterator[Engine]:
    """Start accelerate for one stage, and leave no trace of it in the process.

    Args:
        device: As for `pick_device`; under a launcher each process takes its own.
        precision: `fp32`, or `bf16` for autocast.
        shards: Whether models lie in parts.

    Raises:
        UsageError: If the device is absent, or names one GPU for several processes, or there are fewer GPUs than these.
        Interrupted: As `one_voice`.
    """
    from accelerate import Accelerator  # noqa: PLC0415 - a second that refused inputs need not pay
    from accelerate.state import AcceleratorState  # noqa: PLC0415 - as above

    chosen = pick_device(device)
    refuse_shared_device(device)
    voice: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if world_size() > 1 and chosen.type in {"cpu", "cuda"}:
        # accelerate would start the group at a place where an earlier stage of this process may have left its notes
        device_of_process = own_device(device)
        if device_of_process.type == "cuda":
            torch.cuda.set_device(device_of_process)
        store, rank, world = meeting("train")
        voice = one_voice(store, rank)
        dist.init_process_group(
            "gloo" if device_of_process.type == "cpu" else "nccl",
            store=store,
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=PATIENCE_S),  # processes wait while one writes
        )
    on_one = torch.cuda.device(chosen) if ":" in device else contextlib.nullcontext()
    # variables of a launcher or a shell would divide losses, compile, cast, or change the device
    with voice, on_one, without_variables():
        accelerator = Accelerator(
            cpu=chosen.type == "cpu", mixed_precision="bf16" if precision == "bf16" else "no"
        )
        try:
            yield Engine(accelerator, shards=shards)
        finally:
            accelerator.end_training()
            # accelerate keeps its choices in the class, has no public way to drop them, and the next stage may choose otherwise
            AcceleratorState._reset_state(reset_partial_state=True)
