"""Outputs of a tower without each of some heads, at the cost of the layers from the head's layer on.

The part of a block after its heads is compiled once for all equal blocks. The streams that enter blocks are
cached between evaluations. `MemoryBudget` limits the number of candidates that run together. A candidate is a
head whose removal is tried.

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
"""Name of a tower, role of a data set, and number of a batch."""


class Streams:
    """Cache of the inputs of the first blocks for each batch, and of the same inputs without each candidate.

    If a candidate is removed, the inputs without the candidate become the inputs of the circuit. Each batch
    has the same memory limit in every process, because cached and recomputed inputs differ by rounding:
    results must not depend on the number of processes.

    Attributes:
        room: Limit per batch in bytes.
        trails: Whether to cache inputs without each candidate.
    """

    def __init__(self, room: int) -> None:
        """Create an empty cache.

        Args:
            room: Limit per batch in bytes; 0 disables the cache.
        """
        self.room = room
        self.trails = False
        self._known: dict[Key, list[LayerInput]] = {}
        self._without: dict[HeadId, dict[Key, tuple[Ablation, int]]] = {}
        self._kept: Counter[tuple[str, int]] = Counter()

    def clear(self) -> None:
        """Delete all cached inputs."""
        self._known.clear()
        self._without.clear()
        self._kept.clear()

    def entering(self, key: Key | None, tower: Tower, inputs: Inputs) -> Iterator[LayerInput]:
        """Yield and cache the input of each block; without a key nothing is cached."""
        if key is None or not self.room:
            yield from iterate_layer_inputs(tower, inputs)
            return
        cached = self._known.setdefault(key, [])
        for layer, entered in enumerate(iterate_layer_inputs(tower, inputs, tuple(cached))):
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
        """Yield the outputs (k, N, F) of a tower without each of some heads of a layer.

        With `trails`, the inputs of later blocks without the head are cached.

        Args:
            key: Key of the batch; None to cache nothing.
            at: Tower, layer, and input of the layer.
            heads: Heads of the layer.
            positions: Positions of these heads in the input's head outputs.
            room: Memory budget for candidates.
        """
        cache_key = key if self.trails and self.room > 0 else None
        begin = 0
        for ablation in iterate_ablations(*at, positions, room, trails=cache_key is not None):
            if cache_key is not None and self._fits(cache_key, ablation.size):
                for number, head in enumerate(heads[begin : begin + len(ablation.outputs)]):
                    self._without.setdefault(head, {})[cache_key] = (ablation, number)
            begin += len(ablation.outputs)
            outputs = ablation.outputs
            del ablation  # Otherwise the next ablation would be computed while this one is still in memory.
            yield outputs

    def remove_head(self, head: HeadId) -> None:
        """Update the cache after the removal of a head."""
        known_without = self._without.pop(head, {})
        self._without.clear()
        for key, cached in self._known.items():
            if key[0] == head.tower:
                full = len(cached) >= head.layer
                del cached[head.layer :]
                if full and key in known_without:
                    ablation, number = known_without[key]
                    cached.extend(ablation.later_inputs_without(number))
        self._count()

    def cut(self, tower: str, layer: int) -> None:
        """Delete the inputs from a layer on, after the tower has changed in this layer."""
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
        """Return whether `size` more bytes fit into the limit of a batch; if yes, reserve the bytes."""
        batch = key[1:]
        fits = self._kept[batch] + size <= self.room
        self._kept[batch] += size * fits
        return fits


class LayerInput(NamedTuple):
    """Block, the stream before the block, and outputs of heads.

    If a group with removed heads is given, `z` has all heads of the group, removed heads with negative sign,
    and `y` has the remaining heads only.

    Attributes:
        block: The block.
        stream: Stream that enters the block.
        z: Outputs of heads, shape (B, T, H, K).
        y: Projection of the heads, shape (B, T, D).
        group: All heads of the layer; None for the block's own heads.
    """

    block: Block
    stream: Stream
    z: torch.Tensor
    y: torch.Tensor
    group: HeadGroup | None = None

    def without(self, head: int) -> torch.Tensor:
        """Return the projection (B, T, D) without a head of `z`, or with the head if it was removed."""
        group = self.group or self.block.attn.groups()[0]
        return self.y - group.head_term(self.z, head)

    def rows(self, rows: slice) -> LayerInput:
        """Return copies of the tensors for a slice of the samples."""

        def copy(x: torch.Tensor) -> torch.Tensor:
            return x[rows].clone()

        context = {name: copy(x) for name, x in self.stream.context.items()}
        stream = replace(self.stream, tokens=copy(self.stream.tokens), context=context)
        return LayerInput(self.block, stream, copy(self.z), copy(self.y))

    @property
    def leaving(self) -> Stream:
        """Stream that leaves the block."""
        return self.block.join(self.stream, self.y)

    @property
    def size(self) -> int:
        """Number of bytes of the storages of all tensors."""
        tensors = (self.stream.tokens, self.z, self.y, *self.stream.context.values())
        return sum(x.untyped_storage().nbytes() for x in tensors)


def iterate_layer_inputs(
    tower: Tower, inputs: Inputs, cached: Sequence[LayerInput] = ()
) -> Iterator[LayerInput]:
    """Yield the input of each block; cached inputs come first."""
    yield from cached
    if len(cached) < len(tower.blocks):
        yield from iterate_layer_inputs_from(
            tower, cached[-1].leaving if cached else tower.embed(inputs), len(cached)
        )


def iterate_layer_inputs_from(tower: Tower, stream: Stream, layer: int) -> Iterator[LayerInput]:
    """Yield the input of each block from `layer` on.

    The input of the last block contains only tokens that the readout uses.
    """
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
    """Return the outputs (B, T', H, K) of a group of heads in place of the block's own."""
    original_group = block.attn.members[0]
    block.attn.members[0] = group
    try:
        return block.heads(stream, queries)
    finally:
        block.attn.members[0] = original_group


def with_all_heads(
    tower: Tower, inputs: Inputs, groups: Sequence[HeadGroup], remaining: Sequence[Sequence[int]]
) -> Iterator[LayerInput]:
    """Yield the input of each block with the outputs of all heads.

    Args:
        tower: Tower with the remaining heads.
        inputs: Inputs of the tower.
        groups: All heads of each layer.
        remaining: Numbers of the remaining heads of each layer.
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
    """Outputs of a tower without each of k heads of a layer.

    Attributes:
        outputs: Shape (k, N, F).
        layer_input: Input of the layer.
        positions: Positions of the heads among the remaining heads of the layer.
        attention_outputs: Attention outputs of the layer without each head, shape (k B, T, D).
        later: Inputs of the following blocks, shape (k B, ...); empty if not requested.
    """

    outputs: torch.Tensor
    layer_input: LayerInput
    positions: Sequence[int]
    attention_outputs: torch.Tensor
    later: list[LayerInput]

    def later_inputs_without(self, number: int) -> list[LayerInput]:
        """Return copies of the inputs of the layer and all later blocks without head number `number`."""
        size = len(self.layer_input.y)
        rows = slice(number * size, (number + 1) * size)
        others = [i for i in range(self.layer_input.z.shape[-2]) if i != self.positions[number]]
        first = self.layer_input._replace(
            z=self.layer_input.z[..., others, :], y=self.attention_outputs[rows].clone()
        )
        return [first, *(entered.rows(rows) for entered in self.later)]

    @property
    def size(self) -> int:
        """Number of bytes of the attention outputs and of the inputs of later blocks."""
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
    """Yield the ablations of heads of one layer, several heads at a time.

    Args:
        tower: The tower.
        layer: Number of the layer.
        entered: Input of the layer.
        positions: Positions of the heads in `entered.z`.
        room: Memory budget.
        trails: Whether to return the inputs of later blocks too, if they fit in memory.

    Raises:
        UsageError: If one candidate does not fit in memory.
    """
    block, stream, z, y, _ = entered

    def ablate(heads: Sequence[int], *, trails: bool) -> Ablation:
        attention_outputs = torch.cat([entered.without(head) for head in heads])
        joined = block.join(stream.tile(len(heads)), attention_outputs)
        later = list(iterate_layer_inputs_from(tower, joined, layer + 1)) if trails else []
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
    """Compile the `join` of each block: residual, norms, scales, MLP.

    Heads are removed before `join`. `join` handles each token alone, so all tokens of all samples are passed
    in a single row. The same graph serves any number of candidates, samples and tokens, and all equal blocks
    of a tower. Blocks whose `join` mixes tokens are not compiled. A single token is not compiled, because
    another graph would be necessary.

    Args:
        model: Model in evaluation mode, on the device and in the dtype of the computation.
        name: Name of the model in messages.

    Raises:
        UsageError: In the first pass, if this machine cannot compile.
    """
    run = compiled(_joined, name=name, dynamic=True)
    for tower_name in model.towers:
        for block in model.tower(tower_name).layers():
            if block.tokenwise:
                vars(block)["join"] = partial(_join, run, block)


def _join(run: Callable[..., torch.Tensor], block: Block, stream: Stream, y: torch.Tensor) -> Stream:
    # `Peak` is a dispatch mode, which does not see the operations of a compiled graph.
    if y.shape[:-1].numel() == 1 or _get_current_dispatch_mode() is not None:
        return type(block).join(block, stream, y)
    return stream.with_tokens(run(block, _in_one_row(stream.tokens), _in_one_row(y)).view(y.shape))


def _in_one_row(x: torch.Tensor) -> torch.Tensor:
    """Return x (N, T, D) as (1, N T, D), because other strides would be compiled separately."""
    return x.reshape(-1).view(1, -1, x.shape[-1])


def _joined(block: Block, tokens: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return type(block).join(block, Stream(tokens), y).tokens


STREAM_ELEMENTS = 1 << 18
"""Number of stream elements that run together on a CPU: enough for an efficient matrix product, few enough
for the cache. Chosen by hand; doubling it needs more memory."""
DEVICE_ELEMENTS = 1 << 27
"""Number of stream elements that run together on an accelerator. Larger passes are no faster. Chosen by hand;
doubling it needs more memory."""
DEVICE_SHARE = 0.5
"""Fraction of the free memory of an accelerator that may be used. Chosen by hand; doubling it leaves no
memory for other programs."""
CACHE_BYTES_WITHOUT_LIMIT = 1 << 30
"""Bytes of streams that are cached on a CPU without a memory limit. Chosen by hand; doubling it caches more
blocks of large models."""
ANSWER_ELEMENTS = 1 << 16
"""Number of logits that are evaluated together without a memory limit. Chosen by hand; doubling it saves few
calls."""
OUTCOME_BYTES = 32
"""Bytes per logit: four float64 numbers for softmax and scores."""
ALLOCATOR_OVERHEAD = 1.25
"""Upper bound of allocated bytes per requested byte. Chosen by hand; doubling it halves the candidates that
run together under a memory limit."""


class MemoryBudget:
    """Memory for streams, candidates and their answers, in addition to model and data.

    Attributes:
        bound: Limit for candidates in bytes; None for a CPU without a limit.
        kept: Limit for streams between evaluations, in bytes.
    """

    def __init__(
        self, device: torch.device, limit: int | None, *, keeps_streams: bool, holds_features: bool = False
    ) -> None:
        """Divide the memory.

        With `keeps_streams`, streams get a third of the memory and candidates half. The rest is for samples'
        traits and for the outputs of towers with constant inputs.

        Args:
            device: Device of the model.
            limit: Limit in bytes; None for the limit of the device.
            keeps_streams: Whether streams are cached between evaluations.
            holds_features: Whether features of candidates are stored for all data. They get half of a limit,
                and the rest is divided.
        """
        self.limit, self.device = limit, device
        self.features = CACHE_BYTES_WITHOUT_LIMIT if limit is None else limit // 2
        available = limit - self.features if limit is not None and holds_features else limit
        if limit is None and device.type == "cuda":
            available = int(DEVICE_SHARE * torch.cuda.mem_get_info(device)[0])
        self.available = available
        self.bound = available // 2 if keeps_streams and available is not None else available
        self.kept = (
            0 if not keeps_streams else CACHE_BYTES_WITHOUT_LIMIT if available is None else available // 3
        )
        self._fits: dict[Hashable, int] = {}
        self._least = 0.0

    def side_by_side(
        self, key: Hashable, stream: torch.Tensor, before: int, run_one: Callable[[], torch.Tensor]
    ) -> int:
        """Return how many candidates run together; 0 if the memory is too small for one.

        Args:
            key: Everything that determines the need of memory.
            stream: Attention output of the layer for one candidate.
            before: Number of bytes already in use.
            run_one: Runs a candidate and returns the outputs of the tower; called to measure the need of
                memory.
        """
        elements = STREAM_ELEMENTS if self.device.type == "cpu" else DEVICE_ELEMENTS
        filling = max(1, elements // max(1, stream.numel()))
        if self.bound is None:
            return filling
        if key not in self._fits:
            with Peak() as peak:
                answers = run_one()
            need = ALLOCATOR_OVERHEAD * (peak.highest + OUTCOME_BYTES * answers.numel())
            self._fits[key] = max(0, int((self.bound - ALLOCATOR_OVERHEAD * before) // need))
            self._least = ALLOCATOR_OVERHEAD * before + need
        return min(filling, self._fits[key])

    def refused(self) -> UsageError:
        """Return the error for a candidate that does not fit, after `side_by_side` returned 0."""
        total = self.limit or self.available or 0
        times = total / self.bound if self.bound else 1
        return UsageError(
            f"the removal of one head from one batch needs {_size(times * self._least)}, but {_size(total)} "
            + ("are allowed" if self.limit else "are available"),
            hint="use a smaller `--batch-size`" + (" or a larger `--max-memory`" if self.limit else ""),
        )

    def candidates_held(self, size: int) -> int:
        """Return the number of candidates whose features, `size` bytes each, fit in memory.

        Raises:
            UsageError: If the features of one candidate do not fit.
        """
        if size > self.features:
            raise UsageError(
                f"the features of all samples without one head need {_size(2 * size)}, but {_size(2 * self.features)} "
                "are allowed",
                hint="use a larger `--max-memory`, fewer samples, or an OOD score of logits, such as `--ood-score energy`",
            )
        return self.features // size

    def answers(self, logits: int) -> int:
        """Return the number of candidates whose answers, `logits` numbers each, are evaluated together."""
        return 1 << 30 if self.bound is None else max(1, self.bound // (2 * OUTCOME_BYTES * max(1, logits)))

    def grouped(self, answers: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
        """Yield logits (k, B, C) of candidates. Without a memory limit several tensors are concatenated.

        Fewer and larger operations have less overhead.
        """
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
    """Counter of the memory of tensors that are created within the block.

    Attributes:
        live: Number of bytes in use.
        highest: Maximum of `live`.
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
        """Run an operation and count the storages of its results."""
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
    """Return an identifier of the storage of a tensor."""
    return int(tensor.untyped_storage()._cdata)


def _size(count: float) -> str:
    return f"{count / 2**20:.1f} MiB"
