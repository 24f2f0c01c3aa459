"""The processes of one run: who they are, how they combine results, and how all of them end when one does.

Each process is given every `world`-th batch. What batches gave is combined in the order of the data and never in another,
so a result has the same bits whatever the number of processes. Tensors travel through main memory, as safetensors bytes,
by gloo: the same way for every device, and exact. The group is a private one, so that accelerate may have its own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from hydractl.errors import HydraError, Interrupted, UsageError
from hydractl.processes.signals import signals_that_kill
from hydractl.runtime import on_cpu, pick_device

if TYPE_CHECKING:
    import torch
    from torch.distributed.distributed_c10d import Store

PATIENCE_S = 7 * 24 * 3600
"""Time limit for processes that wait for each other. A process that dies closes its connections and is
noticed at once.
"""
LINGER_S = 10.0
"""Time that a process without an error of its own waits for its launcher to end it, so that the report of the launcher
begins with the process that failed."""
HEAD_START_S = 1.0
"""Time in which errors of all processes count as simultaneous, so that only the first process reports."""
PROCESS_ENDED = "another process of this run has ended"
HINT = "the report of the launcher names it; run the same command again"


def rank() -> int:
    """Return this process's rank under torchrun or accelerate, 0 when there is one process."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """Return how many processes run this command together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def local_world_size() -> int:
    """Return how many of them run on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", world_size()))


def require_one_process(command: str) -> None:
    """Refuse to run under torchrun or accelerate, where each process would do all of the work.

    Raises:
        UsageError: If there are several processes.
    """
    if world_size() > 1:
        raise UsageError(
            f"`{command}` must run in one process, not in {world_size()}",
            hint=(
                "run it without `torchrun`; only `eval`, `finetune`, `fuse --data`, `predict`, `prune "
                "--strategy diverse` and `score` support several processes"
            ),
        )


def refuse_shared_input(*references: str, what: str = "model") -> None:
    """Refuse standard input that several references name, or that several processes would read.

    Args:
        references: What is read, of which `-` is standard input.
        what: What one of them is called.

    Raises:
        UsageError: If it would be read more than once.
    """
    if references.count("-") > 1:
        raise UsageError(
            f"only one {what} can come from standard input", hint="write the others to files first"
        )
    if "-" in references and world_size() > 1:
        raise UsageError("several processes cannot share standard input", hint="write it to a file first")


def refuse_shared_device(name: str) -> None:
    """Refuse a device that is named by its number and that several processes would take.

    Raises:
        UsageError: If it is.
    """
    if ":" in name and world_size() > 1:
        raise UsageError(
            f"`--device {name}` is a single device, but there are {world_size()} processes",
            hint="use `--device cuda`",
        )


def own_device(name: str) -> torch.device:
    """Return the device on which this process scores; several processes of one machine take one GPU each.

    Scores are computed in float64, which MPS lacks.

    Args:
        name: As for `pick_device`.

    Raises:
        UsageError: If the device is unknown, absent or MPS, or there are fewer GPUs than processes.
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
    """Return the device on which this process runs models: any, or as `own_device` where several of them share the work."""
    return pick_device(name) if world_size() == 1 else own_device(name)


def meeting(purpose: str) -> tuple[Store, int, int]:
    """Return where the processes of this run leave each other notes, this one's number, and how many there are.

    Raises:
        RuntimeError: If the launcher cannot be reached.
    """
    from torch.distributed.distributed_c10d import PrefixStore  # noqa: PLC0415 - as above
    from torch.distributed.rendezvous import rendezvous  # noqa: PLC0415 - as above

    notes, rank_here, world = next(rendezvous("env://", timeout=timedelta(seconds=PATIENCE_S)))
    # a process may meet the others several times under one launcher, and must not find what was left the last time
    times = notes.add(f"hydractl/{purpose}/{rank_here}", 1)
    return PrefixStore(f"hydractl/{purpose}/{times}", notes), rank_here, world


def follow_leader(purpose: str) -> None:
    """Wait, in every process but the leader, until that has come here too, however long it takes."""
    if world_size() == 1:
        return
    with signals_that_kill():
        store, rank_here, _ = meeting(purpose)
        if rank_here == 0:
            store.set("here", "")
        else:
            store.wait(["here"], timedelta(seconds=PATIENCE_S))


class ProcessGroup:
    """The processes that work together. Each is given its share of the batches and meets the others here.

    Attributes:
        rank: This process's number, from 0: its i-th batch is batch `i * world + rank` of the data.
        world: How many processes there are.
    """

    def __init__(
        self,
        group: Any = None,  # noqa: ANN401 - a `ProcessGroupGloo`, whose types leave out methods
        *,
        rank: int = 0,
        world: int = 1,
        device: torch.device | str = "cpu",
    ) -> None:
        """Join a group that stands.

        Args:
            group: Connects the processes; None for one alone.
            rank: This one's number.
            world: How many there are.
            device: Where this one computes.
        """
        self._group = group
        self._device = device
        self.rank = rank
        self.world = world

    @property
    def leads(self) -> bool:
        """Whether this process writes and speaks."""
        return self.rank == 0

    def in_order(self, local_results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the results of all batches, in the order of the data, of one result for each of this process's.

        Results are on the CPU; all processes call this equally often.
        """
        results = on_cpu(*local_results)
        shares = [self._sent(rank, results) or [] for rank in range(self.world)]
        return [shares[i % self.world][i // self.world] for i in range(sum(map(len, shares)))]

    def added(self, local_tensors: Iterable[Sequence[torch.Tensor]]) -> list[torch.Tensor]:
        """Return the sums over all batches of several tensors a batch, added in the order of the data.

        So a sum has the same bits whatever the number of processes. Tensors stay where they are; of all processes' batches
        one is held at a time.
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
        """Yield the tensors of every batch in the order of the data, given those of this process's.

        Tensors stay where they are; of all processes' batches one is held at a time.
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
        """Return the leader's text in every process."""
        if self._group is None:
            return text
        import torch  # noqa: PLC0415 - as above

        sent = self._sent(0, [torch.frombuffer(bytearray(text.encode() or b"\0"), dtype=torch.uint8)])
        return "" if sent is None else bytes(sent[0].tolist()).decode().rstrip("\0")

    def _sent(self, sender: int, local_tensors: Sequence[torch.Tensor] | None) -> list[torch.Tensor] | None:
        """Return the sender's tensors on this process's device of their kind; None if that has none.

        Args:
            sender: Its rank.
            local_tensors: What this process would send if it were the sender.

        Raises:
            Interrupted: If a process of the group has ended.
        """
        mine = None if local_tensors is None else list(local_tensors)
        if self._group is None:
            return mine
        import torch  # noqa: PLC0415 - as above
        from safetensors.torch import load, save  # noqa: PLC0415 - as above

        if self.rank == sender:
            # names sort as the tensors are ordered, and hold the kind of device of each tensor
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
    except RuntimeError as error:  # gloo has no class of its own for a connection that was closed
        raise Interrupted(PROCESS_ENDED, hint=HINT) from error


class _Voice(NamedTuple):
    """Whoever fails first says so; the others hold their tongue. The launcher's store knows who was first."""

    store: Store
    rank: int

    def is_speaker(self) -> bool:
        """Return whether this process is the one that speaks."""
        me = str(self.rank)
        try:
            return self.store.compare_set("speaks", "", me) == me.encode()
        except RuntimeError:  # the launcher is gone, or rank 0 that kept the store in its place
            return self.rank == 0

    def ending(self, error: Exception) -> BaseException:
        """Return what this process ends with: the error itself, or silence."""
        # gloo raises a plain RuntimeError, and torch subclasses of DistError
        if isinstance(error, RuntimeError) and ("gloo/" in str(error) or type(error).__name__[:4] == "Dist"):
            error = Interrupted(PROCESS_ENDED, hint=HINT)
        ours = isinstance(error, HydraError)
        if isinstance(error, Interrupted) and not error.message:
            return error  # a group within this one has decided who speaks
        try:
            if not isinstance(error, Interrupted):
                # a bug in ours may be a connection of accelerate's that was closed: then a signal is on its way
                time.sleep(HEAD_START_S * ((self.rank > 0) + (not ours)))
            if self.is_speaker():
                return error
            time.sleep(LINGER_S)
        except KeyboardInterrupt:
            return self.interrupted()
        return Interrupted("")

    def interrupted(self) -> BaseException:
        """Return what this process ends with that was told to end; the leader speaks, if it lives."""
        try:
            if self.rank:
                time.sleep(HEAD_START_S)
        except KeyboardInterrupt:
            return Interrupted("")
        if not self.is_speaker():
            return Interrupted("")
        return Interrupted(PROCESS_ENDED, hint=HINT) if self.rank else KeyboardInterrupt()


@contextmanager
def one_voice(store: Store, rank: int) -> Iterator[None]:
    """Let one process report why all processes of a run end.

    Args:
        store: Shared by the processes.
        rank: Number of this process.

    Raises:
        Interrupted: In a process that ends because another did; without a message where that has said why.
    """
    voice = _Voice(store, rank)
    try:
        yield
    except KeyboardInterrupt:
        raise voice.interrupted() from None
    except Exception as error:
        ending = voice.ending(error)
        if ending is error:
            raise
        raise ending from None


@contextmanager
def start_team(device: torch.device | str = "cpu") -> Iterator[ProcessGroup]:
    """Meet the other processes of this run, if there are any; if one ends early, all do, and one says why.

    Args:
        device: Where this process computes, and gets tensors that were there in another.

    Raises:
        Interrupted: In a process that ends because another did; without a message where that has said why.
    """
    if world_size() == 1:
        yield ProcessGroup()
        return
    from torch.distributed import ProcessGroupGloo  # noqa: PLC0415 - as above

    with (
        signals_that_kill()
    ):  # nothing is to be cleaned up yet, and Python would answer only when all have come
        store, rank, world = meeting("score")
        group = ProcessGroupGloo(store, rank, world, timedelta(seconds=PATIENCE_S))
    with one_voice(store, rank):
        yield ProcessGroup(group, rank=rank, world=world, device=device)
