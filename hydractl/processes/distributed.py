"""Processes of a run under torchrun or accelerate: ranks, collective operations, and a common end.

Each process gets every `world`-th batch. Results of batches are combined in the order of the data, so the
bits of a result do not depend on the number of processes. Tensors are sent through main memory by gloo, as
safetensors bytes: exact, and equal for all devices. The process group is separate from the default group,
which accelerate may create.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from hydractl.errors import HydraError, Interrupted, UsageError
from hydractl.processes.signals import heed_no_more_signals, signals_that_kill
from hydractl.runtime import on_cpu, pick_device

if TYPE_CHECKING:
    import torch
    from torch.distributed.distributed_c10d import Store

PATIENCE_S = 7 * 24 * 3600
"""Time limit of processes that wait for each other, in seconds. Chosen by hand, longer than any run, because
a dead process is noticed immediately by its closed connection; doubling it has no effect on runs of less than
a week."""
LINGER_S = 10.0
"""Time that a process without its own error waits to be ended by the launcher, in seconds. The report of the
launcher then starts with the process that failed. Chosen by hand; doubling it delays the end if the launcher
does not react."""
HEAD_START_S = 1.0
"""Time within which errors of several processes count as simultaneous, in seconds: only rank 0 reports.
Chosen by hand; doubling it delays the reports of other ranks."""
PROCESS_ENDED = "another process of this run has ended"
HINT = "the report of the launcher names it; run the same command again"


def rank() -> int:
    """Return the rank of this process under torchrun or accelerate. 0 for a single process."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """Return the number of processes of this run."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def local_world_size() -> int:
    """Return the number of processes of this run on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", world_size()))


def require_one_process(command: str) -> None:
    """Raise if there are several processes, because each would do all the work of a command.

    Args:
        command: Name of the command in the message.

    Raises:
        UsageError: If there are several processes.
    """
    if world_size() > 1:
        raise UsageError(
            f"`{command}` must run in one process, not in {world_size()}",
            hint=(
                "run it without `torchrun`; only `eval`, `finetune`, `fuse --val`, `predict`, `prune "
                "--strategy diverse` and `score` support several processes"
            ),
        )


def refuse_shared_input(*references: str, what: str = "model") -> None:
    """Raise if several arguments or processes would read standard input.

    Args:
        references: Arguments. `-` is standard input.
        what: Name of the arguments in messages.

    Raises:
        UsageError: If standard input would be read more than once.
    """
    if references.count("-") > 1:
        raise UsageError(
            f"only one {what} can come from standard input", hint="write the others to files first"
        )
    if "-" in references and world_size() > 1:
        raise UsageError("several processes cannot share standard input", hint="write it to a file first")


def refuse_shared_device(name: str) -> None:
    """Raise if several processes would use a device with a number.

    Raises:
        UsageError: If `name` has a number and there are several processes.
    """
    if ":" in name and world_size() > 1:
        raise UsageError(
            f"`--device {name}` is a single device, but there are {world_size()} processes",
            hint="use `--device cuda`",
        )


def own_device(name: str) -> torch.device:
    """Return the device on which this process computes head importance in float64.

    Processes on the same machine use different GPUs. MPS does not support float64, so `auto` uses the CPU
    instead of MPS.

    Args:
        name: See `pick_device`.

    Raises:
        UsageError: If the device is unknown, absent or `mps`, there are fewer GPUs than processes, or several
            processes would use the same numbered GPU.
    """
    import torch  # noqa: PLC0415 - naming processes must not cost the import of torch

    device = pick_device(name)
    if device.type == "mps":
        if name != "auto":
            raise UsageError("`--device mps` has no float64, which scores need", hint="use `--device cpu`")
        device = torch.device("cpu")
    local_processes = local_world_size()
    if world_size() == 1 or device.type != "cuda":
        return device
    refuse_shared_device(name)
    if local_processes > (count := torch.cuda.device_count()):
        raise UsageError(
            f"{local_processes} processes share {count} GPU{'' if count == 1 else 's'} on this machine",
            hint=f"start `torchrun --nproc-per-node {count}`, or use `--device cpu`",
        )
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", rank())))


def answering_device(name: str) -> torch.device:
    """Return the device on which this process runs models: `own_device` if there are several processes."""
    return pick_device(name) if world_size() == 1 else own_device(name)


def meeting(purpose: str) -> tuple[Store, int, int]:
    """Return a store shared by all processes of this run, the rank, and the number of processes.

    Args:
        purpose: Name of the meeting, the same in all processes.

    Raises:
        RuntimeError: If the launcher cannot be reached.
    """
    from torch.distributed.distributed_c10d import PrefixStore  # noqa: PLC0415 - as above
    from torch.distributed.rendezvous import rendezvous  # noqa: PLC0415 - as above

    notes, rank_here, world = next(rendezvous("env://", timeout=timedelta(seconds=PATIENCE_S)))
    # number the meetings under a launcher: a later meeting must not read keys of an earlier meeting
    times = notes.add(f"hydractl/{purpose}/{rank_here}", 1)
    return PrefixStore(f"hydractl/{purpose}/{times}", notes), rank_here, world


def follow_leader(purpose: str) -> None:
    """Wait until rank 0 has called this function, for up to `PATIENCE_S`. Rank 0 does not wait."""
    if world_size() == 1:
        return
    with signals_that_kill():
        store, rank_here, _ = meeting(purpose)
        if rank_here == 0:
            store.set("here", "")
        else:
            store.wait(["here"], timedelta(seconds=PATIENCE_S))


class ProcessGroup:
    """Processes that share the batches of a computation.

    Attributes:
        rank: Rank of this process. Batch i of the process is batch `i * world + rank` of the data.
        world: Number of processes.
    """

    def __init__(
        self,
        group: Any = None,  # noqa: ANN401 - a `ProcessGroupGloo`, whose types leave out methods
        *,
        rank: int = 0,
        world: int = 1,
        device: torch.device | str = "cpu",
    ) -> None:
        """Wrap an existing group.

        Args:
            group: Gloo process group. None for a single process.
            rank: Rank of this process.
            world: Number of processes.
            device: Device of this process.
        """
        self._group = group
        self._device = device
        self.rank = rank
        self.world = world

    @property
    def leads(self) -> bool:
        """Whether this process writes outputs and messages."""
        return self.rank == 0

    def in_order(self, local_results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the results of all batches on the CPU, in the order of the data.

        All processes must call this function equally often.

        Args:
            local_results: A tensor for each batch of this process.
        """
        results = on_cpu(*local_results)
        shares = [self._sent(rank, results) or [] for rank in range(self.world)]
        return [shares[i % self.world][i // self.world] for i in range(sum(map(len, shares)))]

    def added(self, local_tensors: Iterable[Sequence[torch.Tensor]]) -> list[torch.Tensor]:
        """Return the sums of tensors over all batches, added in the order of the data.

        The bits of a sum do not depend on the number of processes. Tensors keep their type of device. Memory
        holds a single batch of all processes. The list is empty without batches.

        Args:
            local_tensors: Several tensors for each batch of this process.
        """
        total: list[torch.Tensor] = []
        for tensors in self.iterate(local_tensors):
            if not total:
                total = [tensor.clone() for tensor in tensors]
                continue
            for so_far, tensor in zip(total, tensors, strict=True):
                so_far.add_(tensor)
        return total

    def iterate(self, local_tensors: Iterable[Sequence[torch.Tensor]]) -> Iterator[list[torch.Tensor]]:
        """Yield the tensors of every batch in the order of the data.

        Tensors keep their type of device. Memory holds a single batch of all processes.

        Args:
            local_tensors: Tensors for each batch of this process.
        """
        mine = iter(local_tensors)
        while True:
            tensors = next(mine, None)
            any_sent = False
            for rank in range(self.world):
                if (sent := self._sent(rank, tensors)) is not None:
                    any_sent = True
                    yield sent
            if not any_sent:
                return

    def broadcast(self, text: str) -> str:
        """Return the text of rank 0 in every process."""
        if self._group is None:
            return text
        import torch  # noqa: PLC0415 - as above

        # `torch.frombuffer` refuses an empty buffer, so an empty text is sent as a zero byte
        sent = self._sent(0, [torch.frombuffer(bytearray(text.encode() or b"\0"), dtype=torch.uint8)])
        return "" if sent is None else bytes(sent[0].tolist()).decode().rstrip("\0")

    def _sent(self, sender: int, local_tensors: Sequence[torch.Tensor] | None) -> list[torch.Tensor] | None:
        """Return the tensors of the sender, on this process's device of the same type.

        Args:
            sender: Rank of the sender.
            local_tensors: Tensors of this process, sent if this process is the sender. None to send nothing.

        Returns:
            The tensors. None if the sender sends nothing.

        Raises:
            Interrupted: If a process of the group has ended.
        """
        mine = None if local_tensors is None else list(local_tensors)
        if self._group is None:
            return mine
        import torch  # noqa: PLC0415 - as above
        from safetensors.torch import load, save  # noqa: PLC0415 - as above

        if self.rank == sender:
            # Keys sort in the order of the tensors and contain the type of device. safetensors refuses
            # tensors with shared memory, therefore `clone`.
            packed = (
                b""
                if mine is None
                else save(
                    {
                        f"{i:09d} {tensor.device.type}": tensor.detach().cpu().contiguous().clone()
                        for i, tensor in enumerate(mine)
                    }
                )
            )
            size = torch.tensor([-1 if mine is None else len(packed)])
        else:
            packed, size = b"", torch.zeros(1, dtype=torch.int64)
        _broadcast(self._group, size, sender)
        length = int(size)
        if length < 0:
            return None
        payload = torch.frombuffer(bytearray(packed or length), dtype=torch.uint8)
        _broadcast(self._group, payload, sender)
        if self.rank == sender:
            return mine
        received = load(payload.numpy().tobytes())
        return [
            tensor if name.endswith("cpu") else tensor.to(self._device)
            for name, tensor in sorted(received.items())
        ]


def _broadcast(group: Any, tensor: torch.Tensor, sender: int) -> None:  # noqa: ANN401 - as above
    try:
        group.broadcast(tensor, sender).wait()
    except RuntimeError as error:  # gloo raises a plain RuntimeError for closed connections
        raise Interrupted(PROCESS_ENDED, hint=HINT) from error


class _FailureReporter(NamedTuple):
    """Choice of the process that reports the error of a run: the first failing process.

    Attributes:
        store: Store of the launcher, which records the first process.
        rank: Rank of this process.
    """

    store: Store
    rank: int

    def is_reporter(self) -> bool:
        """Return whether this process reports the error of the run.

        The reporting process ignores later signals of the launcher: a signal between this choice and the
        printed line would replace the error, and no process would report.
        """
        me = str(self.rank)
        try:
            reports = self.store.compare_set("speaks", "", me) == me.encode()
        except RuntimeError:  # the launcher, or rank 0 with the store, has ended
            reports = self.rank == 0
        if reports:
            heed_no_more_signals()
        return reports

    def ending(self, error: Exception) -> BaseException:
        """Return the exception for the end of this process: `error`, or an `Interrupted` without a message."""
        # gloo raises a plain RuntimeError, torch raises subclasses of DistError
        if isinstance(error, RuntimeError) and ("gloo/" in str(error) or type(error).__name__[:4] == "Dist"):
            error = Interrupted(PROCESS_ENDED, hint=HINT)
        ours = isinstance(error, HydraError)
        if isinstance(error, Interrupted) and not error.message:
            return error  # a nested group has decided which process reports
        try:
            if not isinstance(error, Interrupted):
                # Wait before reporting an error that is not a HydraError: the cause may be a closed
                # connection of accelerate, followed by a signal from the launcher.
                time.sleep(HEAD_START_S * ((self.rank > 0) + (not ours)))
            if self.is_reporter():
                return error
            time.sleep(LINGER_S)
        except KeyboardInterrupt:
            return self.interrupted()
        return Interrupted("")

    def interrupted(self) -> BaseException:
        """Return the exception with which this process ends after a signal. Rank 0 reports if it is alive."""
        try:
            if self.rank:
                time.sleep(HEAD_START_S)
        except KeyboardInterrupt:
            return Interrupted("")
        if not self.is_reporter():
            return Interrupted("")
        return Interrupted(PROCESS_ENDED, hint=HINT) if self.rank else KeyboardInterrupt()


@contextmanager
def one_failure_report(store: Store, rank: int) -> Iterator[None]:
    """Let a single process report the reason for the end of a run.

    Args:
        store: Store shared by the processes.
        rank: Rank of this process.

    Raises:
        Interrupted: In a process that ends because of another process. Without a message if the other process
            reports.
    """
    reporter = _FailureReporter(store, rank)
    try:
        yield
    except KeyboardInterrupt:
        raise reporter.interrupted() from None
    except Exception as error:
        ending = reporter.ending(error)
        if ending is error:
            raise
        raise ending from None


@contextmanager
def start_team(device: torch.device | str = "cpu") -> Iterator[ProcessGroup]:
    """Connect the processes of this run, and yield the group.

    If a process ends early, all processes end, and a single process reports the reason.

    Args:
        device: Device of this process, for tensors received from GPUs of other processes.

    Raises:
        Interrupted: In a process that ends because of another process. Without a message if the other process
            reports.
    """
    if world_size() == 1:
        yield ProcessGroup()
        return
    from torch.distributed import ProcessGroupGloo  # noqa: PLC0415 - as above

    with (
        signals_that_kill()
    ):  # no cleanup is necessary yet, and a Python handler would run only after all processes have met
        store, rank, world = meeting("score")
        group = ProcessGroupGloo(store, rank, world, timedelta(seconds=PATIENCE_S))
    with one_failure_report(store, rank):
        yield ProcessGroup(group, rank=rank, world=world, device=device)
