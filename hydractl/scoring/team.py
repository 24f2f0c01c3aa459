"""The processes that score together: how they combine results, and how all of them end when one does.

Each process is given every `world`-th batch. What batches gave is combined in the order of the data and never in another,
so a result has the same bits whatever the number of processes. Tensors travel through main memory, as safetensors bytes,
by gloo: the same way for every device, and exact. The group is a private one, so that accelerate may have its own.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from hydractl.errors import HydraError, Interrupted
from hydractl.runtime import LINGER_S, PATIENCE_S, meeting, signals_that_kill, world_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import torch
    from torch.distributed import Work

HEAD_START_S = 1.0
"""What went wrong in all processes at about the same time, the first of them says."""
GONE = "another process of this run has ended"
HINT = "the launcher's report says which; the same command again goes on where a journal was kept"


class Team(Protocol):
    """The processes that score together. Each is given its share of the batches and meets the others here."""

    @property
    def rank(self) -> int:
        """This process's number, from 0: its i-th batch is batch `i * world + rank` of the data."""
        ...

    @property
    def world(self) -> int:
        """How many processes there are."""
        ...

    @property
    def leads(self) -> bool:
        """Whether this process writes and speaks."""
        ...

    def in_order(self, own: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the results of all batches, in the order of the data, of one result for each of this process's.

        Results are on the CPU; all processes call this equally often.
        """
        ...

    def added(self, own: Iterable[Sequence[torch.Tensor]]) -> list[torch.Tensor]:
        """Return the sums over all batches of several tensors a batch, added in the order of the data.

        So a sum has the same bits whatever the number of processes. Tensors stay where they are.
        """
        ...

    def told(self, text: str) -> str:
        """Return the leader's text in every process."""
        ...


class _Group(Protocol):
    """What is used of torch's group of processes, whose methods its types leave out."""

    def broadcast(self, tensor: torch.Tensor, root: int, /) -> Work:
        """Fill `tensor` with that of process `root`."""
        ...


class _Store(Protocol):
    """What is used of torch's table of texts that all processes share."""

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        """Set a text if it is the expected one, missing being empty, and return what it is then."""
        ...


class Alone:
    """The `Team` of one process."""

    rank: int = 0
    world: int = 1
    leads: bool = True

    def in_order(self, own: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """See `Team.in_order`."""
        return [result.cpu() for result in own]

    def added(self, own: Iterable[Sequence[torch.Tensor]]) -> list[torch.Tensor]:
        """See `Team.added`."""
        total: list[torch.Tensor] = []
        for tensors in own:
            _add(total, tensors)
        return total

    def told(self, text: str) -> str:
        """See `Team.told`."""
        return text


class Together:
    """The `Team` of several processes."""

    def __init__(self, group: _Group, *, rank: int, world: int, device: torch.device) -> None:
        """Join a group that stands.

        Args:
            group: Connects the processes.
            rank: This one's number.
            world: How many there are.
            device: Where this one computes.
        """
        self._group = group
        self.rank = rank
        self.world = world
        self.device = device

    @property
    def leads(self) -> bool:
        """See `Team.leads`."""
        return self.rank == 0

    def in_order(self, own: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """See `Team.in_order`."""
        here = [result.cpu() for result in own]
        shares = [self._sent(rank, here) or [] for rank in range(self.world)]
        count = sum(map(len, shares))
        return [shares[i % self.world][i // self.world] for i in range(count)]

    def added(self, own: Iterable[Sequence[torch.Tensor]]) -> list[torch.Tensor]:
        """See `Team.added`; of all processes' batches it holds one at a time."""
        total: list[torch.Tensor] = []
        mine = iter(own)
        while True:
            tensors = next(mine, None)
            found = False
            for rank in range(self.world):
                sent = self._sent(rank, tensors)
                if sent is not None:
                    _add(total, sent)
                    found = True
            if not found:
                return total

    def told(self, text: str) -> str:
        """See `Team.told`."""
        import torch  # noqa: PLC0415 - importing the table of methods must not cost the import of torch

        letters = torch.frombuffer(bytearray(text.encode() or b"\0"), dtype=torch.uint8)
        sent = self._sent(0, [letters])
        return "" if sent is None else bytes(sent[0].tolist()).decode().rstrip("\0")

    def _sent(self, sender: int, own: Sequence[torch.Tensor] | None) -> list[torch.Tensor] | None:
        """Return the sender's tensors on this process's device of their kind; None if that has none.

        Args:
            sender: Its rank.
            own: What this process would send if it were the sender.

        Raises:
            Interrupted: If a process of the group has ended.
        """
        import torch  # noqa: PLC0415 - as above
        from safetensors.torch import load, save  # noqa: PLC0415 - as above

        if self.rank == sender:
            packed = b"" if own is None else save(_named(own))
            size = torch.tensor([-1 if own is None else len(packed)])
        else:
            packed, size = b"", torch.zeros(1, dtype=torch.int64)
        self._broadcast(size, sender)
        length = int(size)
        if length < 0:
            return None
        payload = torch.frombuffer(bytearray(packed or length), dtype=torch.uint8)
        self._broadcast(payload, sender)
        if self.rank == sender:
            return list(own or ())
        found = load(payload.numpy().tobytes())
        return [
            tensor if name.endswith("cpu") else tensor.to(self.device)
            for name, tensor in sorted(found.items())
        ]

    def _broadcast(self, tensor: torch.Tensor, sender: int) -> None:
        try:
            self._group.broadcast(tensor, sender).wait()
        except RuntimeError as error:  # gloo has no class of its own for a connection that was closed
            raise Interrupted(GONE, hint=HINT) from error


def _add(total: list[torch.Tensor], tensors: Sequence[torch.Tensor]) -> None:
    """Add to sums in place; the first summands are copied."""
    if not total:
        total.extend(tensor.clone() for tensor in tensors)
        return
    for so_far, tensor in zip(total, tensors, strict=True):
        so_far.add_(tensor)


def _named(tensors: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return tensors under names that sort as they stand and say on what kind of device they lie."""
    return {
        f"{i:09d} {tensor.device.type}": tensor.detach().cpu().contiguous().clone()
        for i, tensor in enumerate(tensors)
    }


class _Voice(NamedTuple):
    """Whoever fails first says so; the others hold their tongue. The launcher's store knows who was first."""

    store: _Store
    rank: int

    def speaks(self) -> bool:
        """Return whether this process is the one that speaks."""
        me = str(self.rank)
        try:
            return self.store.compare_set("speaks", "", me) == me.encode()
        except RuntimeError:  # the launcher is gone, or rank 0 that kept the store in its place
            return self.rank == 0

    def ending(self, error: Exception) -> BaseException:
        """Return what this process ends with: the error itself, or silence."""
        ours = isinstance(error, HydraError)
        try:
            if not isinstance(error, Interrupted):
                # a bug in ours may be a connection of accelerate's that was closed: then a signal is on its way
                time.sleep(HEAD_START_S * ((self.rank > 0) + (not ours)))
            if self.speaks():
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
        if not self.speaks():
            return Interrupted("")
        return Interrupted(GONE, hint=HINT) if self.rank else KeyboardInterrupt()


@contextmanager
def start_team(device: torch.device) -> Iterator[Team]:
    """Meet the other processes of this run, if there are any; if one ends early, all do, and one says why.

    Args:
        device: Where this process computes.

    Raises:
        Interrupted: In a process that ends because another did; without a message where that has said why.
    """
    if world_size() == 1:
        yield Alone()
        return
    from torch.distributed import ProcessGroupGloo  # noqa: PLC0415 - as above

    with (
        signals_that_kill()
    ):  # nothing is to be cleaned up yet, and Python would answer only when all have come
        store, rank, world = meeting("score")
        waiting = timedelta(seconds=PATIENCE_S)
        group = cast("_Group", ProcessGroupGloo(store, rank, world, waiting))
    voice = _Voice(store, rank)
    try:
        yield Together(group, rank=rank, world=world, device=device)
    except KeyboardInterrupt:
        raise voice.interrupted() from None
    except Exception as error:
        ending = voice.ending(error)
        if ending is error:
            raise
        raise ending from None
