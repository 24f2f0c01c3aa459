"""Training through accelerate: devices, processes, autocast, DDP, and torch's FSDP for each block.

`accelerate launch --use_fsdp` enables FSDP. Each process then stores a shard of each block's weights, and
gathers the whole block to run the block. Files contain whole tensors. All processes must take part in each
gathering, including forward passes for which a process has no batch.
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
    one_failure_report,
    own_device,
    refuse_shared_device,
    world_size,
)
from hydractl.runtime import pick_device
from hydractl.training.run_log import without_variables

USE_FSDP, OFFLOAD = "ACCELERATE_USE_FSDP", "FSDP_OFFLOAD_PARAMS"


def launcher_uses_fsdp() -> bool:
    """Return whether a launcher requests FSDP for several processes.

    Raises:
        UsageError: If offloading is requested, or this torch is too old to shard models of hydractl.
    """
    if os.environ.get(USE_FSDP, "").lower() != "true" or world_size() == 1:
        return False
    if os.environ.get(OFFLOAD, "").lower() == "true":
        raise UsageError("offloading of weights is not supported", hint="leave out `--fsdp_offload_params`")
    try:
        from torch.distributed.fsdp._common_utils import collect_grad_tensors  # noqa: F401, PLC0415 - FSDP of older torch ignores tensors in a `Stream`
    except ImportError as error:
        raise UsageError(
            f"`--use_fsdp` needs a newer torch than {torch.__version__}", hint="leave it out to use DDP"
        ) from error
    return True


def shard(model: nn.Module, device: torch.device, world: int) -> None:
    """Shard the parameters of a model over all processes. The names stay, but the parameter objects are new.

    Args:
        model: Model on any device, equal in all processes.
        device: Device of the computation.
        world: Number of processes.
    """
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415 - few need it
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 - as above

    mesh = init_device_mesh(device.type, (world,))
    for tower in [module for module in model.modules() if isinstance(module, Tower)]:
        for block in tower.layers():
            fully_shard(block, mesh=mesh)
    forward = model.forward
    # FSDP starts its backward pass by a hook on the output. Changing a view in place would lose the hook; a
    # clone is not a view.
    vars(model)["forward"] = lambda *args: forward(*args).clone()
    fully_shard(model, mesh=mesh)


def reshard(model: nn.Module) -> None:
    """Free whole weights after a forward pass without a backward pass."""
    from torch.distributed.fsdp import FSDPModule  # noqa: PLC0415 - as above

    if isinstance(model, FSDPModule):
        model.reshard()


def is_sharded(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is sharded. Does not import torch's distributed tensors, which few runs need."""
    return hasattr(tensor, "full_tensor")


def gather_tensors(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return whole tensors; sharded tensors are gathered to the CPU. All processes must call the function."""
    return {n: cast("Any", t).full_tensor().cpu() if is_sharded(t) else t for n, t in tensors.items()}


def copy_tensors(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return copies on the same devices."""
    copies = {name: torch.empty_like(tensor) for name, tensor in tensors.items()}
    copy_into(copies.values(), tensors.values())
    return copies


def copy_into(targets: Iterable[torch.Tensor], sources: Iterable[torch.Tensor]) -> None:
    """Copy tensors in one call: a few kernels on a GPU for any number of tensors."""
    torch._foreach_copy_([*map(_local, targets)], [*map(_local, sources)])


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return cast("Any", tensor).to_local() if is_sharded(tensor) else tensor


def like(parameter: nn.Parameter, tensor: torch.Tensor) -> torch.Tensor:
    """Return this process's shard of a whole tensor, if the parameter is sharded and has the same shape.

    Other tensors, for example the step of an optimizer, are returned unchanged.
    """
    if not is_sharded(parameter) or tensor.shape != parameter.shape:
        return tensor
    from torch.distributed.tensor import distribute_tensor  # noqa: PLC0415 - as above

    sharded, on_device = cast("Any", parameter), tensor.to(parameter.device)
    return distribute_tensor(on_device, sharded.device_mesh, sharded.placements, src_data_rank=None)


@dataclass(frozen=True, slots=True)
class Share:
    """Pieces of each batch for one process.

    Attributes:
        first: Number of the first piece.
        pieces: Number of consecutive pieces.
        total: Number of pieces of the whole batch, over all processes.
    """

    first: int
    pieces: int
    total: int

    def bounds(self, batch: int) -> list[tuple[int, int]]:
        """Return the first and end row of each piece in a batch of `batch` samples. A piece may be empty."""
        return [
            (batch * p // self.total, batch * (p + 1) // self.total)
            for p in range(self.first, self.first + self.pieces)
        ]


class Engine:
    """Device and process group of a training, seen from one process.

    Attributes:
        device: Device of this process.
        rank: Number of this process, from 0.
        world: Number of processes.
        shards: Whether models are sharded.
    """

    def __init__(self, accelerator: Any, *, shards: bool = False) -> None:  # noqa: ANN401 - accelerate is untyped
        """Wrap an accelerator.

        Args:
            accelerator: Accelerator of accelerate.
            shards: Whether models are sharded, see `launcher_uses_fsdp`.
        """
        self._accelerator = accelerator
        self.shards = shards
        self.device: torch.device = accelerator.device
        self.rank = int(accelerator.process_index)
        self.world = int(accelerator.num_processes)

    @property
    def leads(self) -> bool:
        """Whether this process writes files and messages."""
        return self.rank == 0

    def share(self, accumulate: int) -> Share:
        """Return the pieces of this process if each process computes `accumulate` pieces."""
        return Share(first=self.rank * accumulate, pieces=accumulate, total=self.world * accumulate)

    def cut(self, pieces: int) -> Share:
        """Return the pieces of this process if all processes share `pieces` equal pieces.

        Each process has at least 1 piece. With more processes than pieces, several processes compute the same
        piece, and only the result of the `owner` counts.
        """
        first, last = (pieces * rank // self.world for rank in (self.rank, self.rank + 1))
        return Share(first=min(first, pieces - 1), pieces=max(last - first, 1), total=pieces)

    def owner(self, piece: int, pieces: int) -> int:
        """Return the process whose result counts for a piece of `cut`."""
        return next(r for r in range(self.world) if pieces * (r + 1) // self.world > piece)

    def sent(self, tensor: torch.Tensor, source: int) -> torch.Tensor:
        """Return the tensor of process `source` in all processes.

        Args:
            tensor: Contiguous tensor to send; in other processes a tensor of the same shape and dtype.
            source: Rank of the sending process.
        """
        from accelerate.utils import broadcast  # noqa: PLC0415 - as in `start_engine`

        return cast("torch.Tensor", broadcast(tensor, from_process=source))

    def prepare(self, model: nn.Module, *, ordered: bool = False) -> nn.Module:
        """Wrap a model for autocast and several processes.

        Args:
            model: Model on its device.
            ordered: Whether gradients are added by `OrderedGradients` instead of DDP.
        """
        if ordered or self.shards:
            # Whole weights might not fit on a device on which the shards fit.
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
        """Add the gradients of `loss`. Processes exchange gradients only with `sync`."""
        # Without `sync`, the process accumulates its own gradients until a backward pass with `sync`.
        if self.shards:
            cast("Any", model).set_requires_gradient_sync(sync)
        with contextlib.nullcontext() if sync or self.shards else self._accelerator.no_sync(model):
            self._accelerator.backward(loss)
        if not self.shards:  # The shards of gradients are parts of one storage by design.
            part_gradients(model.parameters())

    def agree(self, *, due: bool) -> bool:
        """Return a decision to save, which must be equal in all processes if the model is sharded.

        The result is `due` of process 0 if the model is sharded, else `due` of this process.
        """
        return bool(self.sum([float(due and self.leads)])[0]) if self.shards else due

    def clip(self, parameters: Sequence[nn.Parameter], limit: float) -> None:
        """Scale gradients to a norm of at most `limit`."""
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
        """Release the prepared models."""
        self._accelerator.free_memory()


def _laid_out(parameter: nn.Parameter, grad: torch.Tensor) -> torch.Tensor:
    """Return a gradient with the strides of the parameter, also along axes of length 1. DDP requires this.

    The gradient of a class token is a slice of the sequence's gradient. With a batch of 1 the slice is
    contiguous, and autograd stores the slice without a copy.
    """
    if grad.stride() == parameter.stride() or not (grad.is_contiguous() and parameter.is_contiguous()):
        return grad
    return grad.as_strided(parameter.shape, parameter.stride())


def part_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Give each gradient a separate storage. Call it after a backward pass, before gradients change in place.

    torch stores the tensors of a backward pass without a copy. Two gradients can be views of the same tensor,
    for example the gradients of a class token and of a position embedding in a compiled step with a batch of
    1. Accumulation and clipping would then apply twice.
    """
    storages = set()
    for parameter in parameters:
        if parameter.grad is None:
            continue
        # `_cdata` identifies a storage even if it has no bytes; `data_ptr` would be 0 for all empty ones.
        storage = parameter.grad.untyped_storage()._cdata
        if storage in storages:
            parameter.grad = parameter.grad.clone()
        storages.add(storage)


class OrderedGradients:
    """Gradients of one step, with the same bits for any number of processes.

    Each of several processes stores the gradients of all of the process's pieces: with P pieces and W
    processes about P / W times the size of the trained parameters. A single process stores no additional
    gradients.
    """

    def __init__(self, engine: Engine, parameters: Mapping[str, nn.Parameter], pieces: int) -> None:
        """Start a step.

        Args:
            engine: Device and processes.
            parameters: Trained parameters by name, without gradients.
            pieces: Number of pieces of a batch over all processes, see `Engine.cut`.
        """
        self._engine = engine
        self._parameters = list(parameters.values())
        self._pieces = pieces
        self._held: list[tuple[torch.Tensor, ...]] = []

    def add(self, loss: torch.Tensor) -> None:
        """Compute the gradients of the loss of this process's next piece.

        A single process adds them to the gradients of the parameters. With several processes, they are stored
        until `finish`.
        """
        if self._engine.world == 1:
            loss.backward()
            part_gradients(self._parameters)
        else:
            self._held.append(torch.autograd.grad(loss, self._parameters))

    def finish(self) -> None:
        """Set the gradient of each parameter to the sum over all pieces, in all processes."""
        if self._engine.world == 1:
            return
        local_gradients = iter(self._held)
        # Floating-point sums depend on the order, so gradients are added piece by piece and not by an
        # all-reduce.
        for piece in range(self._pieces):
            source = self._engine.owner(piece, self._pieces)
            mine = next(local_gradients) if source == self._engine.rank else None
            for i, parameter in enumerate(self._parameters):
                buffer = torch.empty_like(parameter) if mine is None else mine[i]
                received = self._engine.sent(buffer.contiguous(), source)
                parameter.grad = received.clone() if parameter.grad is None else parameter.grad + received


@contextlib.contextmanager
def start_engine(device: str, *, precision: str, shards: bool = False) -> Iterator[Engine]:
    """Start accelerate for a stage, and reset the state of accelerate afterwards.

    Args:
        device: See `pick_device`; under a launcher each process has its own device.
        precision: `fp32`, or `bf16` for autocast.
        shards: Whether models are sharded.

    Raises:
        UsageError: If the device is absent, several processes have the same GPU, or the processes outnumber
            the GPUs.
        Interrupted: If another process ends.
    """
    from accelerate import Accelerator  # noqa: PLC0415 - importing accelerate takes a second
    from accelerate.state import AcceleratorState  # noqa: PLC0415 - as above

    chosen = pick_device(device)
    refuse_shared_device(device)
    reporter: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if world_size() > 1 and chosen.type in {"cpu", "cuda"}:
        # accelerate would use a store in which an earlier stage of this process may have left entries.
        device_of_process = own_device(device)
        if device_of_process.type == "cuda":
            torch.cuda.set_device(device_of_process)
        store, rank, world = meeting("train")
        reporter = one_failure_report(store, rank)
        dist.init_process_group(
            "gloo" if device_of_process.type == "cpu" else "nccl",
            store=store,
            rank=rank,
            world_size=world,
            # Processes wait while one of them writes, so torch's default of minutes is too short.
            timeout=timedelta(seconds=PATIENCE_S),
        )
    on_one = torch.cuda.device(chosen) if ":" in device else contextlib.nullcontext()
    # Variables of a launcher or a shell could divide losses, compile, cast, or change the device.
    with reporter, on_one, without_variables():
        accelerator = Accelerator(
            cpu=chosen.type == "cpu", mixed_precision="bf16" if precision == "bf16" else "no"
        )
        try:
            yield Engine(accelerator, shards=shards)
        finally:
            accelerator.end_training()
            # accelerate stores its choices in class attributes without a public method to reset them; the
            # next stage may choose differently.
            AcceleratorState._reset_state(reset_partial_state=True)
