"""A tower without each of some heads, at the cost of the layers from the head's layer on.

The step after a head is compiled once for all equal blocks. The streams that enter the blocks are cached from one
evaluation to the next. `MemoryBudget` bounds the number of candidates that run side by side.

Axes: k candidates, B or N batch, T tokens, H heads, K head width, D width, F outputs of a tower.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode
from torch.utils._pytree import tree_leaves

from hydractl.errors import UsageError
from hydractl.families.attention import HeadGroup
from hydractl.families.stream import Stream
from hydractl.families.tower import Block, Model, Tower
from hydractl.model_inputs import Inputs
from hydractl.runtime import compiled

if TYPE_CHECKING:
    from hydractl.manifest.head_mask import HeadId


Key: TypeAlias = tuple[str, str, int]
"""A tower, and a batch: its set and its number."""


class Streams:
    """Of each batch what enters the first blocks, as many as there is room for; and the same without each of some heads.

    When one of these heads goes, what is known without it is what is known of the circuit. Each batch has an equal share of
    the room, whoever has it: so what is kept, and with it the rounding, does not depend on the number of processes.

    Attributes:
        trails: Whether it is kept without each head that is valued.
    """

    def __init__(self, room: int) -> None:
        """Keep nothing yet.

        Args:
            room: How many bytes may be kept of each batch.
        """
        self.room = room
        self.trails = False
        self._known: dict[Key, list[LayerInput]] = {}
        self._without: dict[HeadId, dict[Key, tuple[Ablation, int]]] = {}
        self._kept: Counter[tuple[str, int]] = Counter()

    def clear(self) -> None:
        """Keep nothing any more."""
        self._known.clear()
        self._without.clear()
        self._kept.clear()

    def entering(self, key: Key | None, tower: Tower, inputs: Inputs) -> Iterator[LayerInput]:
        """Yield each block with what enters it, and keep it; without a key keep nothing."""
        if key is None or not self.room:
            yield from entering(tower, inputs)
            return
        cached = self._known.setdefault(key, [])
        for layer, entered in enumerate(entering(tower, inputs, tuple(cached))):
            if layer == len(cached) and self._fits(key, entered.size):
                cached.append(entered)
            yield entered

    def without(
        self,
        key: Key | None,
        at: tuple[Tower, int, LayerInput],
        heads: Sequence[HeadId],
        positions: Sequence[int],
        room: MemoryBudget,
    ) -> Iterator[torch.Tensor]:
        """Yield a tower's outputs (k, N, F) without each of a layer's heads, and keep what enters later blocks then."""
        cache_key = key if self.trails and self.room > 0 else None
        begin = 0
        for ablation in iterate_ablations(*at, positions, room, trails=cache_key is not None):
            if cache_key is not None and self._fits(cache_key, ablation.size):
                for number, head in enumerate(heads[begin : begin + len(ablation.outputs)]):
                    self._without.setdefault(head, {})[cache_key] = (ablation, number)
            begin += len(ablation.outputs)
            outputs = ablation.outputs
            del ablation  # or the next is made while this is still there
            yield outputs

    def remove_head(self, head: HeadId) -> None:
        """Take note that a head has been removed."""
        known_without = self._without.pop(head, {})
        self._without.clear()
        for key, cached in self._known.items():
            if key[0] == head.tower:
                full = len(cached) >= head.layer
                del cached[head.layer :]
                if full and key in known_without:
                    ablation, number = known_without[key]
                    cached.extend(ablation.trail(number))
        self._count()

    def cut(self, tower: str, layer: int) -> None:
        """Take note that a tower has changed from a layer on."""
        self._without.clear()
        for key, cached in self._known.items():
            if key[0] == tower:
                del cached[layer:]
        self._count()

    def _count(self) -> None:
        self._kept.clear()
        for key, cached in self._known.items():
            self._kept[key[1:]] += sum(entered.size for entered in cached)

    def _fits(self, key: Key, size: int) -> bool:
        """Whether so many bytes more fit into a batch's room, which they then take."""
        batch = key[1:]
        fits = self._kept[batch] + size <= self.room
        self._kept[batch] += size * fits
        return fits


class LayerInput(NamedTuple):
    """A block with the stream that enters it, its heads' outputs z (B, T, H, K) and their projection y (B, T, D).

    Or outputs of all heads of a group, in y only those of the block's own; of the others z is the negative.
    """

    block: Block
    stream: Stream
    z: torch.Tensor
    y: torch.Tensor
    group: HeadGroup | None = None

    def without(self, head: int) -> torch.Tensor:
        """Return the projection without one of z's heads, or with it if it is none of the block's own."""
        group = self.group or self.block.attn.groups()[0]
        return self.y - group.head_term(self.z, head)

    def rows(self, rows: slice) -> LayerInput:
        """Return the tensors for some samples of the batch, in memory of their own."""

        def copy(x: torch.Tensor) -> torch.Tensor:
            return x[rows].clone()

        context = {name: copy(x) for name, x in self.stream.context.items()}
        stream = replace(self.stream, tokens=copy(self.stream.tokens), context=context)
        return LayerInput(self.block, stream, copy(self.z), copy(self.y))

    @property
    def leaving(self) -> Stream:
        """The stream that leaves the block."""
        return self.block.join(self.stream, self.y)

    @property
    def size(self) -> int:
        """How many bytes it holds on to."""
        tensors = (self.stream.tokens, self.z, self.y, *self.stream.context.values())
        return sum(x.untyped_storage().nbytes() for x in tensors)


def entering(tower: Tower, inputs: Inputs, cached: Sequence[LayerInput] = ()) -> Iterator[LayerInput]:
    """Yield each block with what enters it, those that are known first."""
    yield from cached
    if len(cached) < len(tower.blocks):
        yield from following(tower, cached[-1].leaving if cached else tower.embed(inputs), len(cached))


def following(tower: Tower, stream: Stream, layer: int) -> Iterator[LayerInput]:
    """Yield each block from a layer on with what enters it; the last one's of the tokens that are read."""
    blocks = tower.layers()
    for i in range(layer, len(blocks)):
        queries = tower.queries(i)
        z = blocks[i].heads(stream, queries)
        y = blocks[i].project(z)
        if queries is not None:
            stream = stream.with_tokens(stream.tokens[:, queries])
        yield LayerInput(blocks[i], stream, z, y)
        if i + 1 < len(blocks):
            stream = blocks[i].join(stream, y)


def heads_of(block: Block, group: HeadGroup, stream: Stream, queries: slice | None) -> torch.Tensor:
    """Return the outputs (B, T', H, K) of other heads than a block has."""
    original_group = block.attn.members[0]
    block.attn.members[0] = group
    try:
        return block.heads(stream, queries)
    finally:
        block.attn.members[0] = original_group


def with_all_heads(
    tower: Tower, inputs: Inputs, groups: Sequence[HeadGroup], remaining: Sequence[Sequence[int]]
) -> Iterator[LayerInput]:
    """Yield each block with what enters it, and with the outputs of all heads.

    Args:
        tower: It has the heads that are left.
        inputs: What it is asked.
        groups: All heads of each layer.
        remaining: Their numbers.
    """
    stream = tower.embed(inputs)
    for layer, (block, every, remaining_in_layer) in enumerate(
        zip(tower.layers(), groups, remaining, strict=True)
    ):
        queries = tower.queries(layer)
        z = heads_of(block, every, stream, queries)
        if queries is not None:
            stream = stream.with_tokens(stream.tokens[:, queries])
        signs = z.new_tensor([[1.0 if head in remaining_in_layer else -1.0] for head in range(every.heads)])
        entered = LayerInput(
            block, stream, signs * z, block.project(z[..., list(remaining_in_layer), :]), every
        )
        yield entered
        stream = entered.leaving


class Ablation(NamedTuple):
    """A tower's outputs (k, N, F) without each of k heads of a layer.

    Attributes:
        outputs: The tower's.
        entered: What enters the layer.
        positions: The heads' among those that are left in it.
        attention_outputs: The layer's attention outputs (k B, T, D) without each head.
        later: What enters the blocks that follow, (k B, ...); empty where it is not wanted.
    """

    outputs: torch.Tensor
    entered: LayerInput
    positions: Sequence[int]
    attention_outputs: torch.Tensor
    later: list[LayerInput]

    def trail(self, number: int) -> list[LayerInput]:
        """Return what enters the blocks from the layer's own on without the head of that number, in memory of its own."""
        size = len(self.entered.y)
        rows = slice(number * size, (number + 1) * size)
        others = [i for i in range(self.entered.z.shape[-2]) if i != self.positions[number]]
        first = self.entered._replace(
            z=self.entered.z[..., others, :], y=self.attention_outputs[rows].clone()
        )
        return [first, *(entered.rows(rows) for entered in self.later)]

    @property
    def size(self) -> int:
        """How many bytes all trails take."""
        return self.attention_outputs.numel() * self.attention_outputs.element_size() + sum(
            entered.size for entered in self.later
        )


def iterate_ablations(
    tower: Tower,
    layer: int,
    entered: LayerInput,
    positions: Sequence[int],
    room: MemoryBudget,
    *,
    trails: bool = False,
) -> Iterator[Ablation]:
    """Yield what there is without each of a layer's heads at `positions`, several heads side by side.

    With `trails`, also what enters the blocks that follow, where there is room for that.
    """
    block, stream, z, y, _ = entered

    def ablate(heads: Sequence[int], *, trails: bool) -> Ablation:
        attention_outputs = torch.cat([entered.without(head) for head in heads])
        joined = block.join(stream.tile(len(heads)), attention_outputs)
        later = list(following(tower, joined, layer + 1)) if trails else []
        outputs = tower.finish(later[-1].leaving) if later else tower.resume(joined, layer + 1)
        return Ablation(
            outputs.reshape(len(heads), -1, *outputs.shape[1:]), entered, heads, attention_outputs, later
        )

    if not positions:
        return

    def fit(*, with_trails: bool) -> int:
        key = (id(tower), layer, y.shape, z.shape, with_trails)
        return room.side_by_side(
            key, y, 2 * entered.size, lambda: ablate(positions[:1], trails=with_trails).outputs
        )

    keeps_trails = trails and fit(with_trails=True) > 0
    side_by_side = fit(with_trails=keeps_trails)
    if not side_by_side:
        raise room.refused()
    for begin in range(0, len(positions), side_by_side):
        yield ablate(positions[begin : begin + side_by_side], trails=keeps_trails)


def compile_joins(model: Model, *, name: str) -> None:
    """Let each block's `join` run compiled: residual, norms, scales, MLP.

    Heads are cut out of what comes before it. Tokens are told neither by sample nor by place, so that one graph does for any
    number of candidates, samples and tokens, and for all blocks of a tower that are alike. A block whose `join` mixes tokens
    runs as ever, and so does a lone token, which would take a graph of its own.

    Args:
        model: In evaluation mode, on its device, in its dtype.
        name: What messages call it.

    Raises:
        UsageError: When it runs, if this machine cannot compile.
    """
    run = compiled(_joined, name=name, dynamic=True)
    for tower_name in model.towers:
        for block in model.tower(tower_name).layers():
            if block.tokenwise:
                vars(block)["join"] = partial(_join, run, block)


def _join(run: Callable[..., torch.Tensor], block: Block, stream: Stream, y: torch.Tensor) -> Stream:
    # what counts memory must see what is made
    if y.shape[:-1].numel() == 1 or _get_current_dispatch_mode() is not None:
        return type(block).join(block, stream, y)
    return stream.with_tokens(run(block, _in_one_row(stream.tokens), _in_one_row(y)).view(y.shape))


def _in_one_row(x: torch.Tensor) -> torch.Tensor:
    """Return x (N, T, D) as (1, N T, D), whose strides are always the same: each other shape would be compiled anew."""
    return x.reshape(-1).view(1, -1, x.shape[-1])


def _joined(block: Block, tokens: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return type(block).join(block, Stream(tokens), y).tokens


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
