"""How many candidates run side by side: as many as fill the machine, no more than its memory takes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hydractl.errors import UsageError

STREAM_ELEMENTS = 1 << 18
"""How many elements of a stream run side by side on a CPU: enough to fill a matrix product, small enough to stay in cache."""
DEVICE_ELEMENTS = 1 << 27
"""The same on an accelerator: beyond, more at once is no faster."""
DEVICE_SHARE = 0.5
"""Of an accelerator's free memory."""
KEPT_BYTES = 1 << 30
"""How much of streams is kept between evaluations on a CPU where no bound is given."""
ANSWER_ELEMENTS = 1 << 16
"""How many logits are compared at once where memory is not bounded."""
OUTCOME_BYTES = 32
"""For one logit: four float64, of what its softmax and scores are computed with."""
LOSS = 1.25
"""What an allocator takes for each byte that is asked of it, at most."""


class MemoryBudget:
    """The memory for streams, candidates and their answers, beside the model and the data.

    Attributes:
        bound: In bytes; None on a CPU without one.
        kept: Of it, what may be kept between evaluations.
    """

    def __init__(
        self, device: torch.device, limit: int | None, *, keeps_streams: bool, holds_features: bool = False
    ) -> None:
        """Share out the memory.

        Args:
            device: Where the model is.
            limit: In bytes; None for what the device has.
            keeps_streams: Whether streams are kept between evaluations: they get a third of it, candidates a half; what towers that
                are always asked the same answered, and samples' traits, take of the rest.
            holds_features: Whether candidates' features on all data are held: they get half of a limit before all else.
        """
        self.limit, self.device = limit, device
        self.features = KEPT_BYTES if limit is None else limit // 2
        available = limit - self.features if limit is not None and holds_features else limit
        if limit is None and device.type == "cuda":
            available = int(DEVICE_SHARE * torch.cuda.mem_get_info(device)[0])
        self.available = available
        self.bound = available // 2 if keeps_streams and available is not None else available
        self.kept = 0 if not keeps_streams else KEPT_BYTES if available is None else available // 3
        self._fits: dict[Hashable, int] = {}
        self._least = 0.0

    def side_by_side(
        self, key: Hashable, stream: torch.Tensor, before: int, run_one: Callable[[], torch.Tensor]
    ) -> int:
        """Return how many candidates run at once, 0 if there is not even room for one.

        Args:
            key: What the need of memory depends on.
            stream: The layer's attention output for one of them.
            before: Bytes that are in use already.
            run_one: Runs one and returns its answers, whose need is measured.
        """
        elements = STREAM_ELEMENTS if self.device.type == "cpu" else DEVICE_ELEMENTS
        filling = max(1, elements // max(1, stream.numel()))
        if self.bound is None:
            return filling
        if key not in self._fits:
            with Peak() as peak:
                answers = run_one()
            need = LOSS * (peak.highest + OUTCOME_BYTES * answers.numel())
            self._fits[key] = max(0, int((self.bound - LOSS * before) // need))
            self._least = LOSS * before + need
        return min(filling, self._fits[key])

    def refused(self) -> UsageError:
        """Return what to raise where there is no room for one candidate, as `side_by_side` has just said."""
        total = self.limit or self.available or 0
        times = total / self.bound if self.bound else 1
        return UsageError(
            f"the removal of one head from one batch needs {_size(times * self._least)}, but {_size(total)} "
            + ("are allowed" if self.limit else "are available"),
            hint="use a smaller `--batch-size`" + (" or a larger `--max-memory`" if self.limit else ""),
        )

    def candidates_held(self, size: int) -> int:
        """Return of how many candidates features of `size` bytes each are held at once.

        Raises:
            UsageError: If there is no room for one.
        """
        if size > self.features:
            raise UsageError(
                f"the features of all samples without one head need {_size(2 * size)}, but {_size(2 * self.features)} "
                "are allowed",
                hint="use a larger `--max-memory`, fewer samples, or an OOD score of logits, such as `--ood-score energy`",
            )
        return self.features // size

    def answers(self, logits: int) -> int:
        """Return how many candidates' answers of so many logits each are compared at once."""
        return 1 << 30 if self.bound is None else max(1, self.bound // (2 * OUTCOME_BYTES * max(1, logits)))

    def grouped(self, answers: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
        """Yield candidates' logits (k, B, C), where memory is not bounded several together: small operations cost their calls."""
        if self.bound is not None:
            yield from answers
            return
        pending: list[torch.Tensor] = []
        for logits in answers:
            pending.append(logits)
            if sum(x.numel() for x in pending) >= ANSWER_ELEMENTS:
                yield torch.cat(pending)
                pending = []
        if pending:
            yield torch.cat(pending)


class Peak(TorchDispatchMode):
    """Counts the bytes of the tensors that are made while it is entered.

    Attributes:
        live: Of those that are still there.
        highest: The most that were there at once.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.highest = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - as torch calls it
        types: Any,  # noqa: ANN401
        args: Any = (),  # noqa: ANN401
        kwargs: Any = None,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        """Run an operation and take note of what it made."""
        del types
        input_storages = {storage_of(x) for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        returned = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(returned):
            if isinstance(tensor, torch.Tensor) and storage_of(tensor) not in input_storages | self._seen:
                self._add(tensor.untyped_storage())
        return returned

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        self._seen.add(key)
        self.live += size
        self.highest = max(self.highest, self.live)
        weakref.finalize(storage, self._drop, key, size)

    def _drop(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.live -= size


def storage_of(tensor: torch.Tensor) -> int:
    """Return what is the same for all tensors that share their bytes."""
    return int(tensor.untyped_storage()._cdata)


def _size(count: float) -> str:
    return f"{count / 2**20:.1f} MiB"
